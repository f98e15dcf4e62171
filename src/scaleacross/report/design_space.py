"""What a design space came to: speed-ups over every contender, ties, what each dimension alone is worth, and where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, section
from scaleacross.spec.design_space import DesignSpace

Row = Mapping[str, Any]
SHOWN_AXES: Final = ("model", "accelerators", "fleet", "buildings", "regions", "latency_ms", "oversubscription")
OURS: Final = "ours"
BEST: Final = "the best rival"
START: Final = "production"
AGREES: Final = 0.05
"""Price and replay of a plan agree when they differ by no more than this share."""
SLOWER: Final = 1 - 1e-9
"""Below it a contender is faster than our plan by more than rounding."""


class Reproduced(Protocol):
    """What is shown of a design space (``api.reproducing.Reproduction``)."""

    @property
    def space(self) -> DesignSpace: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def num_drawn(self) -> int: ...
    @property
    def num_run(self) -> int: ...
    @property
    def rivals(self) -> Sequence[str]: ...
    @property
    def ablations(self) -> Sequence[str]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def statuses(self) -> Mapping[str, int]: ...


def planned(found: Reproduced) -> list[Row]:
    """Points that have a plan of ours."""
    return [row for row in found.rows if f"{OURS}_s" in row]


def speed_up(row: Row, name: str, rivals: Sequence[str]) -> float | None:
    """Step time of a contender, or of the best rival, over ours; None when it has no plan."""
    names = rivals if name == BEST else (name,)
    times = [row[f"{one}_s"] for one in names if row.get(f"{one}_s") is not None]
    return min(times) / row[f"{OURS}_s"] if times else None


def speed_ups(found: Reproduced, name: str, rows: Sequence[Row] | None = None) -> list[float]:
    """``speed_up`` of all points that have one."""
    every = (speed_up(row, name, found.rivals) for row in (planned(found) if rows is None else rows))
    return [value for value in every if value is not None]


def num_ties(found: Reproduced, values: Sequence[float]) -> int:
    """Speed-ups within the tolerance of 1."""
    return sum(abs(value - 1) <= found.space.tie_tolerance for value in values)


def lost(found: Reproduced) -> list[str]:
    """Points where a contender is faster than our plan, with by how much."""
    out = []
    for row in planned(found):
        for name in (*found.rivals, *found.ablations):
            value = speed_up(row, name, found.rivals)
            if value is not None and value < SLOWER:
                out.append(f"{place(row)}: {name} takes {value:.4f} of our step")
    return out


def replayed_off(found: Reproduced) -> list[tuple[float, str]]:
    """Price over replay − 1 of every plan that was replayed, and whose plan it is of which point."""
    return [
        (row[f"{name}_priced_s"] / row[f"{name}_simulated_s"] - 1, f"{name}, {place(row)}")
        for row in planned(found)
        for name in (OURS, *found.rivals)
        if f"{name}_simulated_s" in row
    ]


def num_agreeing(off: Sequence[tuple[float, str]]) -> int:
    """Plans whose price and replay differ by at most ``AGREES``."""
    return sum(abs(one) <= AGREES for one, _ in off)


def place(row: Row) -> str:
    """A point in words."""
    return (
        f"{row['model']} on {row['accelerators']:,} {row['fleet']}, {row['buildings']} buildings in {row['regions']} "
        f"region{'s' if row['regions'] > 1 else ''}, {row['latency_ms']:g} ms, 1:{row['oversubscription']:g}"
    )


def single_gains(found: Reproduced, row: Row) -> dict[str, float]:
    """Speed-up over production: of each ablation alone, and of our plan (``joint``); empty without a plan of production."""
    start = row.get(f"{START}_s")
    if start is None or any(row.get(f"{name}_s") is None for name in found.ablations):
        return {}
    gains = {name: start / row[f"{name}_s"] for name in found.ablations}
    return gains | {"joint": start / row[f"{OURS}_s"]}


def contender_cells(found: Reproduced) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Name, points, median, maximum, ties, points without a plan: the best rival, rivals, then ablations."""
    total = len(planned(found))
    for name in (BEST, *found.rivals, *found.ablations):
        values = speed_ups(found, name)
        figures = (f"{median(values):.3f}", f"{max(values):.2f}") if values else ("–", "–")
        label = f"{name} only" if name in ("placement", "schedule", "network") else name.replace("_and_", " and ")
        yield label, str(len(values)), *figures, str(num_ties(found, values)), str(total - len(values))


def design_report(found: Reproduced) -> RenderableType:
    """Counts, and the table of contenders."""
    done = f"{count(len(found.rows))} of {count(found.num_drawn)} drawn, {count(found.num_run)} run now"
    facts = grid(
        [
            ("design space", f"{found.space.name}: {count(len(found.space.combinations))} combinations"),
            ("points", done),
            ("status", ", ".join(f"{count(number)} {status}" for status, number in found.statuses.items()) or "–"),
            ("we are slower", f"on {len(lost(found))} (point, contender) pairs"),
            *((("price and replay", _agreement(off)),) if (off := replayed_off(found)) else ()),
        ]
    )
    heads = ("ours over", "points", "median", "maximum", "ties", "no plan")
    table = columns(heads, right=heads[1:])
    for cells in contender_cells(found):
        add(table, *cells, style="bold" if cells[0] == BEST else "")
    return Group(facts, section("Speed-up of our plan", table), *(Text(f"slower: {line}") for line in lost(found)[:5]))


def _agreement(off: Sequence[tuple[float, str]]) -> str:
    worst = max(off, key=lambda pair: abs(pair[0]))
    return f"within {AGREES:.0%} on {num_agreeing(off)} of {len(off)} plans; largest {worst[0]:+.0%} ({worst[1]})"


def design_json(found: Reproduced, files: Sequence[object]) -> str:
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
        "replayed": {"plans": len(off := replayed_off(found)), "agreeing": num_agreeing(off)},
        "files": [str(path) for path in files],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)
