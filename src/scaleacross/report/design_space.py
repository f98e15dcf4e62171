"""Results of a design space: speed-ups over every contender, ties, and the gain of each dimension alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, section
from scaleacross.spec.design_space import OURS, START

if TYPE_CHECKING:
    from scaleacross.api.reproducing import Reproduction

Row = Mapping[str, Any]
SHOWN_AXES: Final = ("model", "accelerators", "fleet", "buildings", "regions", "latency_ms", "oversubscription")
BEST: Final = "the best baseline"
AGREES: Final = 0.05
"""Largest relative difference at which estimate and simulation of a plan agree."""
SLOWER: Final = 1 - 1e-9
"""Speed-up below which a contender is faster than our plan by more than rounding."""
PRICE: Final = "s"
REPLAY: Final = "simulated_s"
"""Clocks, which are suffixes of columns: ``NAME_s`` holds estimates of contenders, ``NAME_simulated_s`` simulated step
times.
"""


def planned(found: Reproduction) -> list[Row]:
    """Return the points that have a plan of ours."""
    return [row for row in found.rows if f"{OURS}_s" in row]


def speed_up(row: Row, names: Sequence[str], clock: str = PRICE) -> tuple[float, str] | None:
    """Return the fastest contender's step time over ours, and its name; None where none of them, or ours, has a time."""
    times = [(row[f"{one}_{clock}"], one) for one in names if row.get(f"{one}_{clock}") is not None]
    ours = row.get(f"{OURS}_{clock}")
    if not times or ours is None:
        return None
    fastest_s, name = min(times)
    return fastest_s / ours, name


def speed_ups(found: Reproduction, name: str, rows: Sequence[Row] | None = None, clock: str = PRICE) -> list[float]:
    """Return the speed-up over a contender, or over the fastest baseline by this clock, on all points that have one."""
    names = found.rivals if name == BEST else (name,)
    every = (speed_up(row, names, clock) for row in (planned(found) if rows is None else rows))
    return [up for up, _ in filter(None, every)]


def uncut(found: Reproduction, name: str) -> list[Row]:
    """Return points on which the tuning of a baseline, or of all baselines, ended within its limit."""
    names = found.rivals if name == BEST else (name,)
    return [row for row in planned(found) if all(row.get(f"{one}_complete", True) for one in names)]


def num_ties(found: Reproduction, values: Sequence[float]) -> int:
    """Return the number of speed-ups within the tolerance of 1."""
    return sum(abs(value - 1) <= found.space.tie_tolerance for value in values)


def lost(found: Reproduction) -> list[str]:
    """List points where a contender's estimate is below the best that our search found, with the ratio.

    That is our plan's estimate, unless the simulation chose a plan with a higher one (``best_price_s``).
    """
    out = []
    for row in planned(found):
        by_price = {**row, f"{OURS}_s": row.get("best_price_s", row[f"{OURS}_s"])}
        for name in (*found.rivals, *found.ablations):
            up = speed_up(by_price, (name,))
            if up and up[0] < SLOWER:
                out.append(f"{place(row)}: {name} takes {up[0]:.4f} of our step")
    return out


class Off(NamedTuple):
    """Estimate over simulation − 1 of a simulated plan, with its contender and point.

    ``is_first``: no earlier contender has the same plan (the same estimate and simulation) on this point.
    """

    off: float
    name: str
    where: str
    is_first: bool


def replayed_off(found: Reproduction) -> list[Off]:
    """Return the difference of every contender's simulated plan."""
    out = []
    for row in planned(found):
        seen: set[tuple[float, float]] = set()
        for name in (OURS, *found.rivals, *found.ablations):
            if f"{name}_{REPLAY}" in row:
                times = row[f"{name}_priced_s"], row[f"{name}_{REPLAY}"]
                out.append(Off(times[0] / times[1] - 1, name, place(row), times not in seen))
                seen.add(times)
    return out


def distinct(off: Sequence[Off]) -> list[Off]:
    """Return equal plans of a point once."""
    return [one for one in off if one.is_first]


def num_agreeing(off: Sequence[Off]) -> int:
    """Return the number of plans whose estimate and simulation differ by at most ``AGREES``."""
    return sum(abs(one.off) <= AGREES for one in off)


def place(row: Row) -> str:
    """Describe a point."""
    return (
        f"{row['model']} on {row['accelerators']:,} {row['fleet']}, {row['buildings']} buildings in {row['regions']} "
        f"region{'s' if row['regions'] > 1 else ''}, {row['latency_ms']:g} ms, 1:{row['oversubscription']:g}"
    )


def single_gains(found: Reproduction, row: Row, clock: str = PRICE) -> dict[str, float]:
    """Return speed-ups over production of each ablation and of our plan (``joint``); empty unless all have a time."""
    times = {name: row.get(f"{name}_{clock}") for name in (START, *found.ablations, OURS)}
    start = times.pop(START)
    if start is None or any(seconds is None for seconds in times.values()):
        return {}
    return {"joint" if name == OURS else name: start / seconds for name, seconds in times.items() if seconds}


def speed_up_cells(found: Reproduction) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield name, points, median, maximum, ties, points without a plan: the best baseline, baselines, then ablations."""
    total = len(planned(found))
    for name in (BEST, *found.rivals, *found.ablations):
        values = speed_ups(found, name)
        yield shown_name(name), *middle_and_most(values), str(num_ties(found, values)), str(total - len(values))


def middle_and_most(values: Sequence[float]) -> tuple[str, str, str]:
    """Return number of points, median and maximum of speed-ups."""
    figures = (f"{median(values):.3f}", f"{max(values):.2f}") if values else ("–", "–")
    return str(len(values)), *figures


def shown_name(name: str) -> str:
    """Return a contender's name in words."""
    return f"{name} only" if name in ("placement", "schedule", "network") else name.replace("_and_", " and ")


def design_report(found: Reproduction) -> RenderableType:
    """Counts, and the table of contenders."""
    done = f"{count(len(found.rows))} of {count(found.num_drawn)} drawn, {count(found.num_run)} run now"
    facts = grid(
        [
            ("design space", f"{found.space.name}: {count(len(found.space.combinations))} combinations"),
            ("points", done),
            ("status", ", ".join(f"{count(number)} {status}" for status, number in found.statuses.items()) or "–"),
            ("lower estimates", f"on {len(lost(found))} (point, plan) pairs"),
            *((("estimate and simulation", _agreement(off)),) if (off := distinct(replayed_off(found))) else ()),
        ]
    )
    heads = ("ours over", "points", "median", "maximum", "ties", "no plan")
    table = columns(heads, right=heads[1:])
    for cells in speed_up_cells(found):
        add(table, *cells, style="bold" if cells[0] == BEST else "")
    return Group(facts, section("Speed-up of our plan", table), *(Text(f"slower: {line}") for line in lost(found)[:5]))


def _agreement(off: Sequence[Off]) -> str:
    worst = max(off, key=lambda one: abs(one.off))
    largest = f"{worst.off:+.0%} ({worst.name}, {worst.where})"
    return f"within {AGREES:.0%} on {num_agreeing(off)} of {len(off)} plans; largest {largest}"


def design_json(found: Reproduction, files: Sequence[object]) -> str:
    """The summary for programs."""
    speed_up_over = {}
    for name in (BEST, *found.rivals, *found.ablations):
        values = speed_ups(found, name)
        speed_up_over["best_rival" if name == BEST else name] = {
            "points": len(values),
            "median": median(values) if values else None,
            "maximum": max(values, default=None),
            "ties": num_ties(found, values),
        }
    data = {
        "space": found.space.name,
        "combinations": len(found.space.combinations),
        "drawn": found.num_drawn,
        "done": len(found.rows),
        "run": found.num_run,
        "status": dict(found.statuses),
        "speed_up_over": speed_up_over,
        "slower": lost(found),
        "replayed": {"plans": len(off := distinct(replayed_off(found))), "agreeing": num_agreeing(off)},
        "files": [str(path) for path in files],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)
