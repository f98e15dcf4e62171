"""Compare benchmark files with the catalogue: error per group, and rows skipped with the reason.

Catalogue entries come through a ``find`` function, because this room does not read the catalogue. It raises InputError
for an unknown name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleacross.calibration.collective_data import Measurement, read_stated
from scaleacross.calibration.collectives import predict_s, summarise
from scaleacross.calibration.kernel_data import AttentionTimes, GemmTimes, read_attention_times, read_gemm_times
from scaleacross.calibration.kernels import MIN_GEMM_FLOP, Score, predict_attention_s, predict_gemm_s, score_of
from scaleacross.calibration.systems import ACCELERATOR_OF, SCALE_UP_OF
from scaleacross.cost_models.kernels import ELEMENT_BYTES, attention_model_of, gemm_model_of, machine_of
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator, GemmKind
from scaleacross.spec.network import NetworkTechnology

Floats = NDArray[np.float64]
Entry = TypeVar("Entry", Accelerator, NetworkTechnology)
FindAccelerator = Callable[[str], Accelerator]
FindNetwork = Callable[[str], NetworkTechnology]
GroupErrors = tuple[tuple[str, ...], str, Floats]
"""Key of a group (as HEADS names it), the entry that predicted, and the group's relative errors."""
FileKind = Literal["gemm", "attention", "collectives"]

HEADS: Final[Mapping[FileKind, tuple[str, ...]]] = {
    "gemm": ("accelerator", "dtype"),
    "attention": ("accelerator",),
    "collectives": ("system", "op", "size"),
}
"""Columns that define the groups of a file."""
SMALL: Final = f"product below {MIN_GEMM_FLOP / 1e9:g} GFLOP: its time is launch"


@dataclass(frozen=True)
class Skipped:
    """Rows of a file that were not used."""

    label: str
    rows: int
    reason: str


OverNodes = Callable[[Sequence[Measurement], list[Skipped]], Iterable[GroupErrors]]
LinkOf = Callable[[Measurement], str]


def stated_link(row: Measurement) -> str:
    """Link technology of a row of one node, from the system that its file names; empty without one."""
    return SCALE_UP_OF.get(row.system, row.system)


@dataclass(frozen=True)
class GroupScore:
    """Error of one group: its key as HEADS names it, and ``entry``, the catalogue entry that predicted."""

    group: tuple[str, ...]
    entry: str
    score: Score


@dataclass(frozen=True)
class FileScore:
    """Result for one kind of file; ``overall`` pools the rows of all groups."""

    kind: FileKind
    files: tuple[str, ...]
    rows: int
    overall: Score
    groups: tuple[GroupScore, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()


def score_gemm_file(path: str | Path, find: FindAccelerator) -> FileScore:
    """Score the kernel models that ``find`` returns on the products of at least MIN_GEMM_FLOP.

    Raises:
        InputError: the file cannot be read, or no row can be used; the message counts the reasons.
    """
    skipped: list[Skipped] = []
    groups: list[tuple[tuple[str, ...], str, Floats]] = []
    sweeps = read_gemm_times(Path(path))
    for (label, kind), times in sweeps.items():
        accelerator = _kernels_of(find, label, kind, len(times.time_s), skipped)
        if accelerator is None:
            continue
        used = times.take(times.flop >= MIN_GEMM_FLOP)
        if small := len(times.time_s) - len(used.time_s):
            skipped.append(Skipped(label, small, SMALL))
        if len(used.time_s):
            groups.append(((label, kind), accelerator.name, _gemm_errors(accelerator, kind, used)))
    return _outcome("gemm", [str(path)], sum(len(times.time_s) for times in sweeps.values()), groups, skipped)


def score_attention_file(path: str | Path, find: FindAccelerator) -> FileScore:
    """Score the attention models of ``find`` on causal forward calls. Raises InputError as ``score_gemm_file``."""
    skipped: list[Skipped] = []
    groups: list[tuple[tuple[str, ...], str, Floats]] = []
    sweeps = read_attention_times(Path(path))
    for label, times in sweeps.items():
        accelerator = _kernels_of(find, label, "bf16", len(times.time_s), skipped)
        if accelerator is not None:
            groups.append(((label,), accelerator.name, _attention_errors(accelerator, times)))
    return _outcome("attention", [str(path)], sum(len(times.time_s) for times in sweeps.values()), groups, skipped)


def score_collective_files(
    given: Sequence[str | Path],
    find: FindNetwork,
    network: str | None = None,
    over_nodes: OverNodes = lambda _rows, _skipped: (),
    link_of: LinkOf = stated_link,
) -> FileScore:
    """Score link technologies' curves on collectives inside a scale-up domain, and ``over_nodes`` on those over nodes.

    Args:
        given: files, or ``OP=FILE``, as ``read_stated`` takes them.
        network: the technology of all rows; None: that of each row.
        over_nodes: returns groups with errors for rows over several nodes, and appends what it skips.
        link_of: returns the technology of a row of one node; empty if the file does not say.

    Raises:
        InputError: a file cannot be read, or no row can be used.
    """
    contents = [read_stated(one) for one in given]
    counts: Counter[tuple[str, str]] = Counter()
    for content in contents:
        counts.update(content.left_out)
    skipped = [Skipped(label, rows, reason) for (label, reason), rows in counts.items()]
    groups, notes = list[tuple[tuple[str, ...], str, Floats]](), list[str]()
    everything = [row for content in contents for row in content.rows]
    measured = [row for row in everything if row.num_nodes == 1]
    groups += over_nodes([row for row in everything if row.num_nodes > 1], skipped)
    for label in dict.fromkeys(row.label for row in measured):
        own = [row for row in measured if row.label == label]
        name = network or link_of(own[0])
        if not name:
            what = "names no system" if not label else "names an accelerator whose link is not known"
            skipped.append(Skipped(label, len(own), f"the file {what}: name the link with --network"))
            continue
        if not network and not own[0].system:
            notes.append(f"{label}: its scale-up link {name} is taken; --network names another")
        technology = _found(find, name, label, len(own), skipped)
        if technology is not None:
            groups += _curve_errors(technology, label, own, skipped)
    rows = len(everything) + sum(counts.values())
    outcome = _outcome("collectives", [str(content.path) for content in contents], rows, groups, skipped)
    return replace(outcome, notes=tuple(notes))


def dtype_refused(accelerator: Accelerator, kind: str) -> str:
    """Reason why ``accelerator`` cannot predict products of ``kind``; empty if it can."""
    if kind not in ELEMENT_BYTES:
        return f"unknown gemm_dtype '{kind}'; known: bfloat16, float16, {', '.join(ELEMENT_BYTES)}"
    precision = "fp8" if kind == "fp8_block" else kind
    if precision not in accelerator.peak_flop_per_s:
        stated = ", ".join(accelerator.peak_flop_per_s)
        return f"{accelerator.name} states no peak for {precision}; it has {stated}"
    return ""


def _found(find: Callable[[str], Entry], name: str, label: str, rows: int, skipped: list[Skipped]) -> Entry | None:
    try:
        return find(name)
    except InputError as error:
        skipped.append(Skipped(label, rows, str(error)))
        return None


def _kernels_of(find: FindAccelerator, label: str, kind: str, rows: int, skipped: list[Skipped]) -> Accelerator | None:
    """Return the accelerator of ``label``; None, with a reason in ``skipped``, if it has no kernels of this kind."""
    accelerator = _found(find, ACCELERATOR_OF.get(label, label), label, rows, skipped)
    if accelerator is not None and (reason := dtype_refused(accelerator, kind)):
        skipped.append(Skipped(label, rows, reason))
        return None
    return accelerator


def _gemm_errors(accelerator: Accelerator, kind: str, times: GemmTimes) -> Floats:
    known: GemmKind = next(one for one in ELEMENT_BYTES if one == kind)
    machine, model = machine_of(accelerator, known), gemm_model_of(accelerator, known)
    return predict_gemm_s(model, machine, ELEMENT_BYTES[known], times) / times.time_s - 1.0


def _attention_errors(accelerator: Accelerator, times: AttentionTimes) -> Floats:
    model, machine = attention_model_of(accelerator), machine_of(accelerator, "bf16")
    return predict_attention_s(model, machine, times) / times.time_s - 1.0


def _curve_errors(
    technology: NetworkTechnology, label: str, rows: Sequence[Measurement], skipped: list[Skipped]
) -> Iterable[tuple[tuple[str, ...], str, Floats]]:
    times = predict_s(technology.curves, rows)
    unknown = Counter(row.op for row, time in zip(rows, times, strict=True) if math.isnan(time))
    for op, number in unknown.items():
        skipped.append(Skipped(label, number, f"{technology.name} has no measured curve of {op}"))
    errors = summarise((row, time / row.time_s - 1) for row, time in zip(rows, times, strict=True))
    return [
        ((label, one.op, one.size_class), technology.name, np.array(one.errors)) for one in errors if one.op != "all"
    ]


def _outcome(
    kind: FileKind,
    files: Sequence[str],
    rows: int,
    groups: Sequence[tuple[tuple[str, ...], str, Floats]],
    skipped: Sequence[Skipped],
) -> FileScore:
    if not groups:
        reasons = "\n".join(f"- {one.rows:,} rows of '{one.label}': {one.reason}" for one in skipped)
        raise InputError(f"{', '.join(files)}: none of {rows:,} rows can be used:\n{reasons}")
    overall = score_of(np.concatenate([errors for _, _, errors in groups]))
    scored = tuple(GroupScore(group, entry, score_of(errors)) for group, entry, errors in groups)
    return FileScore(kind, tuple(files), rows, overall, scored, tuple(skipped))
