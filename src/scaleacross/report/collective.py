"""The algorithms for one collective, as a table like nccl-tests'."""

from __future__ import annotations

from rich.console import Group, RenderableType

from scaleacross.report.format import add, columns, count, grid, percent, plural, rate, section
from scaleacross.spec.collective import CollectiveOption, CollectiveStudy
from scaleacross.units import human_bytes, human_seconds

SHOWN_LEVELS = 2  # the outermost ones, which have least bandwidth


def collective_report(study: CollectiveStudy, most: int) -> RenderableType:
    """Return the group, the bound, and the ``most`` fastest options; of each algorithm only its best number of chunks."""
    touched = ", ".join(f"{level} {count(units)}" for level, units in study.members.items()) or "nothing"
    why = f" (bytes that must cross {study.bound_level})" if study.bound_level else ""
    facts = grid(
        [
            ("collective", f"{study.op} of {human_bytes(study.size_bytes)}"),
            ("group", f"{plural(study.num_ranks, 'rank')}, {count(study.stride)} apart"),
            ("units touched per level", touched),
            ("at the same time", plural(study.num_groups, "group")),
            ("no algorithm below", human_seconds(study.bound_s) + why),
        ]
    )
    best = _best_chunking(study)
    levels = list(study.members)[-SHOWN_LEVELS:]
    heads = ("algorithm", "chunks", "time", "algbw", "busbw", "of bound", *(f"into {level}" for level in levels))
    table = columns(heads, right=heads[1:], flexible=("algorithm",))
    for one in best[:most]:
        sent = (human_bytes(one.bytes_per_level[level]) if level in one.bytes_per_level else "–" for level in levels)
        rates = (rate(one.algorithm_bytes_per_s), rate(one.bus_bytes_per_s), percent(study.bound_s / one.time_s))
        add(table, one.algorithm, count(one.num_chunks), human_seconds(one.time_s), *rates, *sent)
    hidden = len(best) - most
    title = "Options, alone on the network" + (
        f" ({plural(hidden, 'slower algorithm')} not shown)" if hidden > 0 else ""
    )
    return Group(facts, section(title, table)) if best else facts


def _best_chunking(study: CollectiveStudy) -> list[CollectiveOption]:
    """Return the first option of each algorithm, which is its fastest, because options are sorted."""
    best: dict[str, CollectiveOption] = {}
    for one in study.options:
        best.setdefault(one.algorithm, one)
    return list(best.values())
