"""Times one collective on the groups of one axis: starts the ranks (``bench_ranks``) and reads their rows.

It imports torch only to check the name of an algorithm.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scaleacross.errors import InputError
from scaleacross.runtime.faults import CollectiveError
from scaleacross.runtime.requirement import require_torch
from scaleacross.runtime.start_commands import start
from scaleacross.schedules.collective import Operation
from scaleacross.spec.launch import LaunchConfig, ProcessGroups
from scaleacross.spec.runtime_bench import BenchResult, BenchRow

OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
REQUEST_VARIABLE: Final = "SCALEACROSS_BENCH"
POLL_S: Final = 0.5


@dataclass(frozen=True)
class BenchRequest:
    """A measurement: one collective in several sizes.

    Attributes:
        op: a name of ``OPERATIONS``.
        axis: axis of the groups.
        algorithm: name of a schedule; None: as the plan says.
        first_bytes, last_bytes, factor: smallest and largest size and the ratio of two sizes; full tensor (all-to-all:
            bytes that a rank sends).
        iterations: timed runs per size.
    """

    op: str
    axis: str
    algorithm: str | None
    first_bytes: int
    last_bytes: int
    factor: int
    iterations: int


def bench(
    config: LaunchConfig, path: Path, request: BenchRequest, say: Callable[[str], None] | None = None
) -> BenchResult:
    """Run ``request`` with all ranks on this machine.

    Args:
        say: called with a line for every size that is done.

    Raises:
        InputError: there is no such operation, axis or algorithm, sizes are out of order, or torch is missing.
        CollectiveError: a rank failed; its message stands on stderr.
    """
    groups = _groups(config, request)
    if request.algorithm is not None:
        _require_algorithm(config, groups, Operation(request.op), request.algorithm)
    with tempfile.TemporaryDirectory(prefix="scaleacross-bench-") as folder:
        rows = Path(folder) / "rows.jsonl"
        asked = json.dumps({**asdict(request), "rows": str(rows)})
        finished = threading.Event()
        watcher = threading.Thread(target=_tell, args=(rows, say, finished))
        watcher.start()
        try:
            code = start(config, path, ["-m", "scaleacross.runtime.bench_ranks"], {REQUEST_VARIABLE: asked})
        finally:
            finished.set()
            watcher.join()
        if code:
            raise CollectiveError(f"the ranks ended with exit code {code}; the first error above says why")
        lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    return BenchResult(
        plan_name=config.plan_name,
        host=socket.gethostname(),
        op=request.op,
        axis=request.axis,
        algorithm=lines[-1]["algorithm"],
        num_ranks=groups.degree,
        num_groups=len(groups.ranks),
        dtype="float32",
        iterations=request.iterations,
        rows=tuple(_row(line, request.op, groups) for line in lines),
    )


def sizes(request: BenchRequest) -> list[int]:
    """Return the sizes to time, in bytes."""
    out, size = [], request.first_bytes
    while size <= request.last_bytes:
        out.append(size)
        size *= request.factor
    return out


def _row(line: dict[str, float], op: str, groups: ProcessGroups) -> BenchRow:
    time_s, size = line["time_s"], line["size_bytes"]
    n = groups.degree
    # bus bandwidth as nccl-tests defines it
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(op, (n - 1) / n)
    predicted = groups.predicted_s(op, size)
    return BenchRow(
        size_bytes=int(size),
        num_elements=int(line["num_elements"]),
        time_s=time_s,
        algorithm_bytes_per_s=size / time_s,
        bus_bytes_per_s=factor * size / time_s,
        num_wrong=int(line["num_wrong"]),
        gloo_time_s=line["gloo_time_s"],
        predicted_s=predicted,
        error_fraction=None if predicted is None else (time_s - predicted) / predicted,
    )


def _groups(config: LaunchConfig, request: BenchRequest) -> ProcessGroups:
    if request.op not in OPERATIONS:
        raise InputError(f"no operation '{request.op}': choose from {', '.join(OPERATIONS)}")
    if not 4 * config.world_size <= request.first_bytes <= request.last_bytes:
        raise InputError(
            f"sizes from {request.first_bytes} to {request.last_bytes} bytes: "
            f"the first must be at least {4 * config.world_size}, and the last not smaller"
        )
    for groups in config.process_groups:
        if groups.axis == request.axis:
            return groups
    axes = ", ".join(groups.axis for groups in config.process_groups)
    raise InputError(f"the plan has no groups of axis '{request.axis}': choose from {axes}")


def _require_algorithm(config: LaunchConfig, groups: ProcessGroups, op: Operation, algorithm: str) -> None:
    """Check the algorithm here, where an error is one line; on the ranks it would stand below torchrun's own output."""
    require_torch()
    from scaleacross.runtime.policy import layout_of, named_schedule

    named_schedule(op, algorithm, layout_of(config, groups.ranks[0]))


def _tell(rows: Path, say: Callable[[str], None] | None, finished: threading.Event) -> None:
    """Report rows as they come."""
    told = 0
    while say is not None and not finished.wait(POLL_S):
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        for line in lines[told:]:
            row = json.loads(line)
            say(f"{row['size_bytes']:>12} bytes  {row['time_s'] * 1e6:10.1f} µs")
        told = len(lines)
