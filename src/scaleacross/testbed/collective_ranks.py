"""The program of every rank that times collectives: all cases in turn; rank 0 writes the slowest rank's seconds.

Ranks begin a timed run at an instant that they have agreed on, as all read the clock of one machine. After a mere
barrier, ranks in two buildings would begin as far apart as the delay between these. The collective's time would then
include waiting for one another.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from scaleacross.runtime.codecs import codec_named
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import Policy, fixed
from scaleacross.runtime.process_group import BACKEND, Options
from scaleacross.schedules.collective import Operation
from scaleacross.testbed.cases import Case, case_of
from scaleacross.testbed.cpus import take_share
from scaleacross.testbed.ranks import TASK_VARIABLE

TIMEOUT: Final = timedelta(seconds=120)
WINDOW_BYTES: Final = 16 << 20
AGREEMENTS: Final = 3
WAKE_UP_S: Final = 0.02


def main() -> None:
    """Run the task of this rank, as the module docstring says."""
    task = json.loads(Path(os.environ[TASK_VARIABLE]).read_text(encoding="utf-8"))
    cases = [case_of(stated) for stated in task["cases"]]
    torch.set_num_threads(1)
    take_share()
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rows: list[dict[str, Any]] = []
    groups = [_own_group(case) for case in cases]
    numbered = list(enumerate(cases))
    for _, together in groupby(numbered, key=lambda item: (item[1].size_bytes, item[1].iterations)):
        rows += _measure([(case, groups[index]) for index, case in together])
    if dist.get_rank() == 0:
        Path(task["out"]).write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _own_group(case: Case) -> Any:
    """Return the group of this rank in ``case``; None if it takes no part."""
    own, policy = None, _policy(case)
    for ranks in case.groups:
        group = dist.new_group(list(ranks), timeout=TIMEOUT, backend=f"cpu:{BACKEND}", pg_options=Options(policy))
        if dist.get_rank() in ranks:
            own = group
    return own


def _policy(case: Case) -> Policy:
    layout = case.children or case.order or tuple(range(len(case.groups[0])))
    codec = None if case.codec is None else codec_named(case.codec)
    settings = LinkSettings(window_bytes=WINDOW_BYTES)
    return fixed({Operation(case.operation): case.algorithm}, layout, settings, case.num_chunks, codec)


def _measure(together: Sequence[tuple[Case, Any]]) -> list[dict[str, Any]]:
    """Return the rows of cases of one size: a first run of each for its error, then the timed ones, in turn."""
    count, iterations = together[0][0].size_bytes // 4, together[0][0].iterations
    seconds = torch.zeros(len(together), iterations, dtype=torch.float64)
    errors = torch.zeros(len(together), dtype=torch.float64)
    tensor = torch.empty(count)
    for index, (case, group) in enumerate(together):
        if group is not None:
            errors[index] = _error(case, group, tensor)
    margin_s = _margin_s()
    for iteration in range(iterations):
        for index, (case, group) in enumerate(together):
            tensor.fill_(1.0)
            start = _agreed(margin_s)
            if group is not None:
                _run(case, group, tensor)
                seconds[index, iteration] = time.monotonic() - start
    for values in (seconds, errors):
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [
        {"seconds": row, "error_fraction": error} for row, error in zip(seconds.tolist(), errors.tolist(), strict=True)
    ]


def _run(case: Case, group: Any, tensor: torch.Tensor) -> None:
    """Run the collective of a case; an all-gather gathers every rank's own part in place."""
    if case.operation == "all_reduce":
        dist.all_reduce(tensor, group=group)
    else:
        own = tensor.chunk(dist.get_world_size(group))[dist.get_rank(group)]
        dist.all_gather_into_tensor(tensor, own, group=group)


def _agreed(margin_s: float) -> float:
    """Wait for and return an instant ``margin_s`` after the last rank's call. A rank informed late begins late."""
    start = torch.tensor([time.monotonic() + margin_s], dtype=torch.float64)
    dist.all_reduce(start, op=dist.ReduceOp.MAX)
    time.sleep(max(0.0, start.item() - time.monotonic()))
    return start.item()


def _margin_s() -> float:
    """Return the longest of a few agreements, plus time to wake up."""
    longest = torch.zeros(1, dtype=torch.float64)
    for _ in range(AGREEMENTS):
        began = time.monotonic()
        dist.all_reduce(torch.zeros(1))
        longest = longest.maximum(torch.tensor([time.monotonic() - began], dtype=torch.float64))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return longest.item() + WAKE_UP_S


def _error(case: Case, group: Any, tensor: torch.Tensor) -> float:
    """Return the largest error over the largest sum. Values are whole numbers, so sums in fp32 are exact."""
    index, members = torch.arange(tensor.numel()), next(g for g in case.groups if dist.get_rank() in g)

    def values(rank: int) -> torch.Tensor:
        return ((index * 7 + 13 * rank) % 251 - 125).float()

    tensor.copy_(values(dist.get_rank()))
    _run(case, group, tensor)
    if case.operation == "all_gather":
        parts = [values(rank).chunk(len(members))[place] for place, rank in enumerate(members)]
        exact = torch.cat(parts)
    else:
        exact = torch.stack([values(rank) for rank in members]).sum(dim=0)
    return float((tensor - exact).abs().max() / exact.abs().max())


if __name__ == "__main__":
    main()
