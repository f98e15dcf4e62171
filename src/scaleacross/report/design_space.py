"""What a design space came to: speed-ups over every contender, ties, what each dimension alone is worth, and where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, section

if TYPE_CHECKING:
    from scaleacross.api.reproducing import Reproduction

Row = Mapping[str, Any]
SHOWN_AXES: Final = ("model", "accelerators", "fleet", "buildings", "regions", "latency_ms", "oversubscription")
OURS: Final = "ours"
BEST: Final = "the best baseline"
START: Final = "production"
AGREES: Final = 0.05
"""Price and replay of a plan agree when they differ by no more than this share."""
SLOWER: Final = 1 - 1e-9
"""Below it a contender is faster than our plan by more than rounding."""
PRICE: Final = "s"
REPLAY: Final = "simulated_s"
"""Clocks: step times of contenders are the columns ``NAME_s`` and ``NAME_simulated_s``."""


def planned(found: Reproduction) -> list[Row]:
    """Points that have a plan of ours."""
    return [row for row in found.rows if f"{OURS}_s" in row]


def speed_up(row: Row, names: Sequence[str], clock: str = PRICE) -> tuple[float, str] | None:
    """Step time of the fastest of some contenders over ours, and whose it is; None when none of them, or ours, has a time."""
    times = [(row[f"{one}_{clock}"], one) for one in names if row.get(f"{one}_{clock}") is not None]
    ours = row.get(f"{OURS}_{clock}")
    if not times or ours is None:
        return None
    fastest_s, name = min(times)
    return fastest_s / ours, name


def speed_ups(found: Reproduction, name: str, rows: Sequence[Row] | None = None, clock: str = PRICE) -> list[float]:
    """Speed-up over a contender, or over the rival that is the fastest by the clock, on all points that have one."""
    names = found.rivals if name == BEST else (name,)
    every = (speed_up(row, names, clock) for row in (planned(found) if rows is None else rows))
    return [up for up, _ in filter(None, every)]


def uncut(found: Reproduction, name: str) -> list[Row]:
    """Points on which the tuning of a rival, or of all rivals, came to its end within its limit."""
    names = found.rivals if name == BEST else (name,)
    return [row for row in planned(found) if all(row.get(f"{one}_complete", True) for one in names)]


def num_ties(found: Reproduction, values: Sequence[float]) -> int:
    """Speed-ups within the tolerance of 1."""
    return sum(abs(value - 1) <= found.space.tie_tolerance for value in values)


def lost(found: Reproduction) -> list[str]:
    """Points where a contender's price is below the best that our search found, with by how much.

    That is our plan's, unless the referee chose a dearer one.
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
    """Price over replay − 1 of a plan that was replayed, and whose plan it is of which point.

    ``is_first``: no contender named before it has the same plan (the same price and replay) on this point.
    """

    off: float
    name: str
    where: str
    is_first: bool


def replayed_off(found: Reproduction) -> list[Off]:
    """Every contender's plan that was replayed."""
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
    """Equal plans of a point once."""
    return [one for one in off if one.is_first]


def num_agreeing(off: Sequence[Off]) -> int:
    """Plans whose price and replay differ by at most ``AGREES``."""
    return sum(abs(one.off) <= AGREES for one in off)


def place(row: Row) -> str:
    """A point in words."""
    return (
        f"{row['model']} on {row['accelerators']:,} {row['fleet']}, {row['buildings']} buildings in {row['regions']} "
        f"region{'s' if row['regions'] > 1 else ''}, {row['latency_ms']:g} ms, 1:{row['oversubscription']:g}"
    )


def single_gains(found: Reproduction, row: Row, clock: str = PRICE) -> dict[str, float]:
    """Speed-up over production: of each ablation alone, and of our plan (``joint``); empty unless all of them have a time."""
    times = {name: row.get(f"{name}_{clock}") for name in (START, *found.ablations, OURS)}
    start = times.pop(START)
    if start is None or any(seconds is None for seconds in times.values()):
        return {}
    return {"joint" if name == OURS else name: start / seconds for name, seconds in times.items() if seconds}


def contender_cells(found: Reproduction) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Name, points, median, maximum, ties, points without a plan: the best baseline, baselines, then ablations."""
    total = len(planned(found))
    for name in (BEST, *found.rivals, *found.ablations):
        values = speed_ups(found, name)
        yield shown_name(name), *middle_and_most(values), str(num_ties(found, values)), str(total - len(values))


def middle_and_most(values: Sequence[float]) -> tuple[str, str, str]:
    """Points, median and maximum of speed-ups."""
    figures = (f"{median(values):.3f}", f"{max(values):.2f}") if values else ("–", "–")
    return str(len(values)), *figures


def shown_name(name: str) -> str:
    """A contender in words."""
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
    for cells in contender_cells(found):
        add(table, *cells, style="bold" if cells[0] == BEST else "")
    return Group(facts, section("Speed-up of our plan", table), *(Text(f"slower: {line}") for line in lost(found)[:5]))


def _agreement(off: Sequence[Off]) -> str:
    worst = max(off, key=lambda one: abs(one.off))
    largest = f"{worst.off:+.0%} ({worst.name}, {worst.where})"
    return f"within {AGREES:.0%} on {num_agreeing(off)} of {len(off)} plans; largest {largest}"


def design_json(found: Reproduction, files: Sequence[object]) -> str:
    """The summary for programs."""
    contenders = {}
    for name in (BEST, *found.rivals, *found.ablations):
        values = speed_ups(found, name)
        contenders["best_rival" if name == BEST else name] = {
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
        "speed_up_over": contenders,
        "slower": lost(found),
        "replayed": {"plans": len(off := distinct(replayed_off(found))), "agreeing": num_agreeing(off)},
        "files": [str(path) for path in files],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)
