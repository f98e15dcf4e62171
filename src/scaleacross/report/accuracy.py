"""A validation as terminal tables: rows used, errors next to the constant-MFU baseline, ranking, noise floor, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group as Renderables
from rich.console import RenderableType

from scaleacross.errors import InputError
from scaleacross.report.format import add, cell, columns, section
from scaleacross.validation.score import GROUPINGS, MIN_RANKED, Group, GroupBy, Validation

ERROR_HEADS = ("rows", "median", "mean", "p90", "worst", "bias", "τ")
BASELINE_HEADS = ("median (MFU)", "mean (MFU)", "p90 (MFU)")


def grouped_by(names: Sequence[str]) -> tuple[GroupBy, ...]:
    """Return ``names`` as groupings without repeats. Raises InputError for an unknown one."""
    for name in names:
        if name not in GROUPINGS:
            raise InputError(f"no grouping '{name}'; there are {', '.join(GROUPINGS)}")
    return tuple(name for name in dict.fromkeys(names))  # type: ignore[misc]


def signed(fraction: float) -> str:
    """A signed percentage; blank where there is none."""
    return "" if fraction != fraction else f"{fraction * 100:+.1f} %"


def plain(fraction: float) -> str:
    """An unsigned percentage; blank where there is none."""
    return "" if fraction != fraction else f"{fraction * 100:.1f} %"


def coefficient(value: float) -> str:
    """A rank correlation; blank where there is none."""
    return "" if value != value else f"{value:.2f}"


def group_cells(group: Group) -> list[str]:
    """One line of an error table, in the order of ERROR_HEADS and BASELINE_HEADS."""
    ours, base = group.ours, group.baseline
    own = [str(ours.rows), plain(ours.median_abs), plain(ours.mean_abs), plain(ours.p90_abs)]
    own += [signed(ours.worst), signed(ours.bias), coefficient(group.kendall)]
    return [*own, plain(base.median_abs), plain(base.mean_abs), plain(base.p90_abs)]


def accuracy_report(validation: Validation, by: Sequence[GroupBy]) -> RenderableType:
    """Everything a person needs to judge the predictions on one file."""
    return Renderables(*_sections(validation, by))


def _sections(validation: Validation, by: Sequence[GroupBy]) -> Iterator[RenderableType]:
    used, skipped = len(validation.scored), validation.skipped
    yield cell(f"{used} rows used, {len(skipped)} skipped")
    if skipped:
        table = columns(("rows", "skipped because"), right=("rows",), flexible=("skipped because",))
        for reason, number in Counter(reason for _, reason in skipped).most_common():
            add(table, str(number), reason)
        yield table
    for name in by:
        yield section(f"step time by {name}: predicted / measured − 1, next to one constant MFU per gpu and precision")
        yield _errors(name, (*validation.groups[name], validation.overall))
    if validation.rankings:
        yield section(
            f"ranking: models with {MIN_RANKED} or more configurations on the same machines", _ranking(validation)
        )
    noise = validation.noise
    if noise.groups:
        yield section(
            "noise floor",
            cell(
                f"{noise.rows} rows are repeats of {noise.groups} configurations: slowest / fastest − 1 is "
                f"{plain(noise.spread_median)} in the median, {plain(noise.spread_p90)} at p90, "
                f"{plain(noise.spread_max)} at most; predicting every group's median leaves {plain(noise.mean_abs)}"
            ),
        )
    memory = validation.memory
    if memory.errors.rows:
        yield section(
            "memory",
            cell(
                f"{memory.errors.rows} rows with a measured peak: median {plain(memory.errors.median_abs)}, "
                f"bias {signed(memory.errors.bias)}; {len(memory.refused)} rows that ran are predicted not to fit"
                + (f": {', '.join(memory.refused[:10])}" if memory.refused else "")
            ),
        )


def _errors(name: str, groups: Sequence[Group]) -> RenderableType:
    heads = (*ERROR_HEADS, *BASELINE_HEADS)
    table = columns((name, *heads), right=heads, flexible=(name,))
    for group in groups:
        add(table, group.name, *group_cells(group), style="bold" if group.name == "all" else "")
    return table


def _ranking(validation: Validation) -> RenderableType:
    heads = ("configurations", "slowest/fastest", "Kendall", "Spearman", "regret")
    table = columns(("group", *heads), right=heads)
    for ranking in validation.rankings:
        figures = (coefficient(ranking.kendall), coefficient(ranking.spearman), plain(ranking.regret))
        add(table, ranking.name, str(ranking.rows), f"{ranking.slowest_over_fastest:.2f}", *figures)
    return table
