"""Read measured times of collectives from a CSV, the output of nccl-tests, or NCCLX's own predictions.

CSV: columns ``op, n_gpus, size_bytes, time_us``. Rows are left out and counted if their ``kind`` is not ``measured``,
if they lack a size or time, or if they are of another operation. ``n_nodes``, ``system``, ``gpu`` and ``fabric`` are
kept if given.

nccl-tests: the out-of-place time of every size. Operation and ranks come from the file's own comments. Without them the
operation comes from a file name with that of the program (``all_reduce_perf.log``).

JSON: an export of ``ncclQueryCollTuning`` (``coll_tuning``). Its times are predictions, and wherever the fit is quoted
they are called so.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scaleacross.calibration.coll_tuning import PREDICTED, is_export, read_export
from scaleacross.calibration.data_file import read_data_file
from scaleacross.errors import InputError
from scaleacross.spec.network import CURVE_OPS, CurveOp

_COLUMNS: Final = ("op", "n_gpus", "size_bytes", "time_us")
_OP_NAMES: Final[dict[str, CurveOp]] = {**{op: op for op in CURVE_OPS}, "alltoall": "all_to_all"}
_STARTING: Final = re.compile(r"Collective test starting:\s*(\w+)_perf")
_PROGRAM: Final = re.compile(rf"({'|'.join(_OP_NAMES)})_perf")
_RANK: Final = re.compile(
    r"#\s+Rank\s+\d+\b(?:.*\bon\s+(?P<host>\S+)\s+device(?:\s+\d+\s+\[[^]]*\]\s+(?P<gpu>\S.*))?)?"
)
_TIME: Final = re.compile(r"\d+(\.\d+)?")
_TIMED: Final = 8
"""Number of cells in a line of nccl-tests from the out-of-place time to the end."""
_STATED: Final = re.compile(r"(?P<op>[a-z_]+)(?:@(?P<ranks>\d+))?=(?P<path>.+)", re.DOTALL)


@dataclass(frozen=True)
class Measurement:
    """One collective inside one scale-up domain, or over ``num_nodes`` nodes.

    ``gpu`` and ``fabric`` are texts of the file.
    """

    op: CurveOp
    num_ranks: int
    size_bytes: int
    time_s: float
    system: str = ""
    num_nodes: int = 1
    gpu: str = ""
    fabric: str = ""

    @property
    def label(self) -> str:
        """The system that the file names, else the accelerator."""
        return self.system or self.gpu


@dataclass(frozen=True)
class CollectiveFile:
    """Content of a file: usable rows, and the number of unusable ones by (system, reason).

    ``origin`` says where times come from if they were not measured.
    """

    path: Path
    rows: tuple[Measurement, ...]
    left_out: Mapping[tuple[str, str], int]
    origin: str = ""

    @property
    def label(self) -> str:
        """Name of the file in provenance: name, digest, and the origin of times that were not measured."""
        own = read_data_file(self.path).label
        return f"{own}, {self.origin}" if self.origin else own


def read_stated(given: str | Path) -> CollectiveFile:
    """Read a path with ``read_collectives``; ``OP=PATH`` or ``OP@RANKS=PATH`` supply what nccl-tests output lacks.

    Raises:
        InputError: as ``read_collectives``.
    """
    stated = _STATED.fullmatch(str(given))
    if stated is None or stated["op"] not in _OP_NAMES:
        return read_collectives(given)
    return read_collectives(stated["path"], _OP_NAMES[stated["op"]], int(stated["ranks"] or 0) or None)


def read_collectives(path: str | Path, op: CurveOp | None = None, num_ranks: int | None = None) -> CollectiveFile:
    """Read a CSV, an nccl-tests output or an export of ``ncclQueryCollTuning``, plain or gzip, recognised by content.

    Args:
        op: operation of an nccl-tests file that does not name it (older versions).
        num_ranks: ranks of an nccl-tests file without ``# Rank`` lines, or whose hosts share a scale-up domain.

    Raises:
        InputError: unreadable, a column or figure is missing or no number, or nothing in it can be used.
    """
    path = Path(path)
    text = read_data_file(path).text
    if is_export(text):
        return _exported(path, text)
    lines = text.splitlines()
    header = lines[0].split(",") if lines else []
    if len(header) > 1 and not set(_COLUMNS) <= set(header):
        missing = [column for column in _COLUMNS if column not in header]
        raise InputError(f"{path}: no column {', '.join(missing)} (there are: {', '.join(header)})")
    left_out: Counter[tuple[str, str]] = Counter()
    rows = _csv_rows(path, lines, left_out) if len(header) > 1 else _nccl_rows(path, lines, op, num_ranks)
    if not rows:
        raise InputError(
            f"{path}: no measurement in it; expected a CSV with {', '.join(_COLUMNS)} or nccl-tests output"
        )
    return CollectiveFile(path, tuple(rows), left_out)


def _exported(path: Path, text: str) -> CollectiveFile:
    rows: list[Measurement] = []
    left_out: Counter[tuple[str, str]] = Counter()

    def add(place: str, op: CurveOp, num_ranks: int, size_bytes: int, time_s: float) -> None:
        rows.append(_checked(place, op, num_ranks, size_bytes, time_s))

    read_export(path, text, add, left_out)
    if not rows:
        reasons = "; ".join(f"{number} times: {reason}" for (_, reason), number in left_out.items())
        raise InputError(f"{path}: nothing in the export can be used: {reasons or 'it is empty'}")
    return CollectiveFile(path, tuple(rows), left_out, PREDICTED)


def _csv_rows(path: Path, lines: Sequence[str], left_out: Counter[tuple[str, str]]) -> list[Measurement]:
    out = []
    for number, row in enumerate(csv.DictReader(lines), 2):
        op, system = _OP_NAMES.get(row["op"] or ""), row.get("system") or ""
        if op is None or (reason := _unusable(row)):
            left_out[system, reason if op else f"no curve is kept for operation '{row['op']}'"] += 1
            continue
        try:
            num_nodes = int(row.get("n_nodes") or 1)
            figures = int(row["n_gpus"]), int(float(row["size_bytes"])), float(row["time_us"]) * 1e-6
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}:{number}: n_gpus, n_nodes, size_bytes, time_us: {error}") from error
        one = _checked(f"{path}:{number}", op, *figures, system)
        if num_nodes < 1 or figures[0] % num_nodes:
            raise InputError(f"{path}:{number}: {figures[0]} ranks on {num_nodes} nodes; every node has equally many")
        out.append(replace(one, num_nodes=num_nodes, gpu=row.get("gpu") or "", fabric=row.get("fabric") or ""))
    return out


def _unusable(row: Mapping[str, str]) -> str:
    """Reason why a row of a known operation is no measurement; empty if it is one."""
    if (kind := row.get("kind", "measured")) != "measured":
        return f"not measured but '{kind}'"
    return "" if row["size_bytes"] and row["time_us"] else "no size or no time"


def _nccl_rows(path: Path, lines: Sequence[str], op: CurveOp | None, num_ranks: int | None) -> list[Measurement]:
    named = next((found[1] for line in lines if (found := _STARTING.search(line))), None)
    by_name = _PROGRAM.search(path.name)
    op = _OP_NAMES.get(named) if named else op or (_OP_NAMES[by_name[1]] if by_name else None)
    ranks = [found for line in lines if (found := _RANK.match(line))]
    hosts = Counter(found["host"] for found in ranks)
    gpu = (ranks[0]["gpu"] or "").strip() if ranks else ""
    even = len(set(hosts.values())) == 1 and bool(gpu)
    num_nodes = len(hosts) if even and num_ranks is None else 1
    if len(hosts) > 1 and num_ranks is None and num_nodes == 1:
        raise InputError(
            f"{path}: {len(ranks)} ranks on {len(hosts)} hosts, not equally many on each or no device named: measure again; "
            f"or, where these hosts share one domain, say so: {op or named}@{len(ranks)}={path.name}"
        )
    if ranks and num_ranks and num_ranks != len(ranks):
        raise InputError(
            f"{path}: stated as {num_ranks} ranks, but its '# Rank' lines list {len(ranks)}; leave out what is wrong"
        )
    num_ranks = len(ranks) or num_ranks
    if op is None:
        known = ", ".join(CURVE_OPS)
        raise InputError(
            f"{path}: says {named or 'nothing'} about the operation; state which one of {known} it is, "
            f"e.g. all_reduce={path.name}"
        )
    if num_ranks is None:
        raise InputError(f"{path}: has no '# Rank' lines; state the number of ranks, e.g. {op}@8={path.name}")
    out = []
    for number, line in enumerate(lines, 1):
        cells = line.split()
        # size count type redop root | time algbw busbw #wrong out of place | the same in place; older all_gather has no
        # redop and root. Counted from the end: a time of 10 ms and more is printed without a decimal point.
        if len(cells) < 3 + _TIMED or not cells[0].isdigit() or not cells[1].isdigit():
            continue
        time_us = cells[-_TIMED]
        if not _TIME.fullmatch(time_us):
            raise InputError(f"{path}:{number}: no time in '{line.strip()}'")
        if int(cells[0]) > 0:
            one = _checked(f"{path}:{number}", op, num_ranks, int(cells[0]), float(time_us) * 1e-6)
            out.append(replace(one, num_nodes=num_nodes, gpu=gpu))
    return out


def _checked(place: str, op: CurveOp, num_ranks: int, size_bytes: int, time_s: float, system: str = "") -> Measurement:
    if num_ranks < 2 or size_bytes < 1 or not (0 < time_s < math.inf):
        raise InputError(
            f"{place}: {num_ranks} ranks, {size_bytes} B, {time_s:g} s; at least 2 ranks, 1 B and more than 0 s"
        )
    return Measurement(op, num_ranks, size_bytes, time_s, system)
