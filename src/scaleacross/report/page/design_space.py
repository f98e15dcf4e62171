"""report.html of a published design space: the speed-up of our plans, by baseline and by axis."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from scaleacross.report.design_space import (
    BEST,
    SHOWN_AXES,
    place,
    planned,
    shown_name,
    speed_ups,
    uncut,
)
from scaleacross.report.format import count
from scaleacross.report.page.chart import INK, PALETTE, Chart, bars, field, tips, values
from scaleacross.spec.design_space import START

if TYPE_CHECKING:
    from scaleacross.api.reproducing import Reproduction

ENDED: Final = "baseline ran to its end"
CUT: Final = "baseline cut short"


def space_page(found: Reproduction) -> tuple[str, list[tuple[str, str]], list[Chart]]:
    """Return title, facts and charts. Facts use only points where the baseline ran to its end."""
    rows = planned(found)
    facts = [
        ("points", f"{count(len(found.rows))} done of {count(found.num_drawn)} drawn, {count(len(rows))} with a plan")
    ]
    for name in (START, BEST):
        own = speed_ups(found, name, uncut(found, name))
        if own:
            told = f"median {median(own):.3f}, most {max(own):.2f}, on the {len(own)} points where it ran to its end"
            facts.append((f"over {shown_name(name)}", told))
    charts = [_sorted(found, name) for name in (START, BEST) if speed_ups(found, name)]
    return f"Design space {found.space.name}", facts, [*charts, *_where(found)]


def _sorted(found: Reproduction, name: str) -> Chart:
    """Return a chart with a mark per point of the space, the smallest speed-up first."""
    ended = uncut(found, name)
    rows: list[dict[str, Any]] = []
    for row in planned(found):
        own = speed_ups(found, name, [row])
        if own:
            rows.append({"point": place(row), "speed-up": own[0], "tuning": ENDED if row in ended else CUT})
    rows.sort(key=lambda one: float(one["speed-up"]))
    numbered = [{"number": index, **one} for index, one in enumerate(rows)]
    encoding = {
        "x": field("number", "q", "points, sorted"),
        "y": field("speed-up", "q", f"speed-up over {shown_name(name)}", scale={"type": "log"}),
        "shape": field("tuning", "n", None),
        "color": field("tuning", "n", None, scale={"domain": [ENDED, CUT], "range": [PALETTE[0], PALETTE[1]]}),
        "tooltip": tips(Point="point", **{"Speed-up": "speed-up", "Tuning": "tuning"}),
    }
    spec = {
        "height": 280,
        "data": values(numbered),
        "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.9, "stroke": INK, "strokeWidth": 0.3},
        "encoding": encoding,
    }
    note = "By estimated step time. Where the limit cut a baseline's tuning short, the speed-up says little."
    return Chart(f"over-{name.replace(' ', '-')}", f"Speed-up over {shown_name(name)}", note, spec, numbered)


def _where(found: Reproduction) -> Iterator[Chart]:
    """Yield the median speed-up over production by every axis of the space, where production ran to its end."""
    rows: list[dict[str, Any]] = []
    ended = uncut(found, START)
    for axis in SHOWN_AXES:
        for value in sorted({row[axis] for row in ended}):
            own = speed_ups(found, START, [row for row in ended if row[axis] == value])
            if own:
                label = (
                    f"{axis.replace('_', ' ')} {value:,}"
                    if isinstance(value, int)
                    else f"{axis.replace('_', ' ')} {value}"
                )
                said = f"{median(own):.3f} on {len(own)} points"
                rows.append({"where": label, "median": median(own), "said": said})
    if rows:
        note = f"Median over {START}, where its tuning ran to its end."
        yield Chart("where", "Where the speed-up is", note, bars(rows, "where", "median", "speed-up", "said"), rows)
