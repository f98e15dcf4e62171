"""Charts of a plan's placement: buildings and the links between them, and every rank with its coordinates."""

from __future__ import annotations

from math import cos, pi, sin
from typing import Any

from scaleacross.report.format import count, percent, rate
from scaleacross.report.page.chart import ACCENT, FAINT, INK, PALETTE, Chart, bars, field, tips, values
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import coordinates, strides
from scaleacross.spec.plan import Plan
from scaleacross.spec.simulation import LinkUse
from scaleacross.spec.topology import Topology, trunk_bytes_per_s

MAX_CELLS = 2048
"""Most cells of the placement chart; with more ranks, a cell stands for a block of them."""
COLUMNS = 64
NAMED_LINKS = 3
"""Most links whose load the map itself shows."""
SHOWN_LINKS = 24
WIDE = {"domain": [-0.35, 1.35], "nice": False}
TALL = {"domain": [-0.15, 1.15], "nice": False}


def site_map(plan: Plan, simulated: tuple[LinkUse, ...] = ()) -> Chart:
    """Return a map of buildings, the links between them, and the used share of every link.

    ``simulated`` holds the links' use in both directions; without it a link's load is that of the busiest of its level.
    """
    topology = Topology.model_validate(plan.job.topology)
    used = {share.building: share.num_accelerators for share in plan.placement.fill}
    spots = _spots(len(topology.buildings))
    at = {one.name: spot for one, spot in zip(topology.buildings, spots, strict=True)}
    largest = max(one.num_accelerators for one in topology.buildings)
    nodes = [
        {
            "building": one.name,
            "region": topology.region_of(one.name),
            "x": at[one.name][0],
            "y": at[one.name][1],
            "accelerators": one.num_accelerators,
            "used": used.get(one.name, 0),
            "said": f"{count(used.get(one.name, 0))} of {count(one.num_accelerators)}",
            "type": one.accelerator.name,
            "size": 500 + 1500 * one.num_accelerators / largest,
        }
        for one in topology.buildings
    ]
    few = len(topology.trunks) <= NAMED_LINKS
    edges = [_edge(plan, topology, index, at, simulated) for index in range(len(topology.trunks))]
    hidden = {"axis": None}
    x, y = field("x", "q", scale=WIDE, **hidden), field("y", "q", scale=TALL, **hidden)
    layers: list[dict[str, Any]] = [
        {
            "data": values(edges),
            "mark": {"type": "rule", "color": FAINT, "strokeWidth": 3},
            "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}, "tooltip": _edge_tips()},
        },
        {
            "data": values(edges),
            "mark": {"type": "text", "dy": -9, "color": ACCENT, "fontWeight": "bold", "stroke": None},
            "encoding": {
                "x": field("middle", "q", scale=WIDE, **hidden),
                "y": field("height", "q", scale=TALL, **hidden),
                "text": {"field": "said"},
                "tooltip": _edge_tips(),
            },
        },
        {
            "data": values(nodes),
            "mark": {"type": "circle", "opacity": 1, "stroke": INK},
            "encoding": {
                "x": x,
                "y": y,
                "size": {"field": "size", "type": "quantitative", "scale": None, "legend": None},
                "color": {"condition": {"test": "datum.used > 0", "value": PALETTE[2]}, "value": "#ffffff"},
                "tooltip": tips(
                    Building="building", Region="region", Type="type", Accelerators="accelerators", Used="used"
                ),
            },
        },
    ]
    if not few:
        layers.pop(1)  # so many figures on crossing lines cannot be told apart: a chart of their own has them
    for name, dy, halo in (("building", 34, True), ("said", 48, True), ("building", 34, False), ("said", 48, False)):
        mark: dict[str, Any] = {
            "type": "text",
            "dy": dy,
            "color": INK,
            "fontWeight": "bold" if name == "building" else "normal",
        }
        mark |= {"stroke": "white", "strokeWidth": 5, "strokeJoin": "round"} if halo else {}
        layers.append({"data": values(nodes), "mark": mark, "encoding": {"x": x, "y": y, "text": {"field": name}}})
    spec = {"height": 170 if len(nodes) <= 2 else 400, "layer": layers}
    how = "as simulated" if simulated else "of the busiest link of its level"
    loads = f"; on every link the share of its capacity that a step uses, {how}" if few else ""
    note = f"Accelerators used of those there are{loads}."
    rows = [{name: node[name] for name in ("building", "region", "type", "accelerators", "used")} for node in nodes]
    rows += [
        {"link": edge["link"], "capacity": edge["capacity"], "load": edge["load"], "free": edge["free"]}
        for edge in edges
    ]
    return Chart("site", "Buildings and the links between them", note, spec, rows)


def trunk_loads(plan: Plan, simulated: tuple[LinkUse, ...] = ()) -> Chart | None:
    """Return the load of every inter-building link as bars; None where the map has room for it, or there is no link."""
    topology = Topology.model_validate(plan.job.topology)
    if len(topology.trunks) <= NAMED_LINKS:
        return None
    at = {one.name: (0.0, 0.0) for one in topology.buildings}
    edges = [_edge(plan, topology, index, at, simulated) for index in range(len(topology.trunks))]
    rows = [
        {"link": edge["link"], "used": edge["used"], "said": edge["said"], "free": edge["free"]}
        for edge in sorted(edges, key=lambda edge: -edge["used"])
    ]
    left = f" The {SHOWN_LINKS} fullest of {len(rows)}." if len(rows) > SHOWN_LINKS else ""
    how = "as simulated" if simulated else "of the busiest link of its level"
    spec = bars(rows[:SHOWN_LINKS], "link", "used", "share of the capacity over the step", "said")
    note = f"Share of the capacity that a step uses, {how}.{left}"
    return Chart("trunks", "Load of the links between buildings", note, spec, rows)


def _spots(number: int) -> list[tuple[float, float]]:
    """Return positions of buildings: a row for one or two, a circle for more."""
    if number == 1:
        return [(0.5, 0.6)]
    if number == 2:
        return [(0.0, 0.6), (1.0, 0.6)]
    turns = [2 * pi * index / number + pi / 2 for index in range(number)]
    return [(0.5 + 0.5 * cos(turn), 0.55 + 0.45 * sin(turn)) for turn in turns]


def _edge(
    plan: Plan, topology: Topology, index: int, at: dict[str, tuple[float, float]], simulated: tuple[LinkUse, ...]
) -> dict[str, Any]:
    trunk = topology.trunks[index]
    here, there = trunk.between
    (x, y), (x2, y2) = at[here], at[there]
    level = "campus" if topology.region_of(here) == topology.region_of(there) else "region"
    own = [one.mean_utilisation for one in simulated if {here, there} <= set(one.name.split()) and "trunk" in one.name]
    mean = [one.utilisation for one in plan.traffic if one.level == level]
    used = max(own) if own else mean[0] if mean and not simulated else 0.0
    capacity = trunk_bytes_per_s(topology, trunk) / trunk.oversubscription_ratio
    return {
        "x": x, "y": y, "x2": x2, "y2": y2, "middle": (x + x2) / 2, "height": (y + y2) / 2,
        "link": f"{here} – {there}",
        "capacity": rate(capacity),
        "used": used,
        "load": percent(used),
        "said": f"{percent(used)} of {rate(capacity)}",
        "free": percent(1 - used),
    }  # fmt: skip


def _edge_tips() -> list[dict[str, Any]]:
    return tips(Link="link", Capacity="capacity", Load="load", Free="free")


def placement(plan: Plan) -> Chart:
    """Return every rank, or block of neighbouring ranks, with its coordinates in the tooltip."""
    degrees, order = plan.degrees, plan.placement.axis_order
    block = 1
    while degrees.world_size > MAX_CELLS * block:
        block *= 2
    shown: GridAxis = "pp" if degrees.pp > 1 else next((axis for axis in reversed(order) if degrees.of(axis) > 1), "tp")
    cells: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    across = min(COLUMNS, -(-max(share.num_accelerators for share in plan.placement.fill) // block))
    first, line = 0, 0.0
    for share in plan.placement.fill:
        end = first + share.num_accelerators
        heads.append({"line": line + 0.5, "said": f"{share.building}: ranks {count(first)} to {count(end - 1)}"})
        line += 1.4
        starts = range(first, end, block)
        for index, start in enumerate(starts):
            last = min(start + block, end) - 1
            where = {
                "c": index % across,
                "r": round(line + index // across, 2),
                "n": start,
                "l": last,
                "b": share.building,
            }
            cells.append({**where, "v": coordinates(degrees, order, start)[shown], "at": _between(plan, start, last)})
        line += -(-len(starts) // across) + 0.4
        first = end
    what = "rank" if block == 1 else f"block of {block} ranks"
    note = f"A cell is a {what}, in the order of the ranks; its shade is the {shown} coordinate. Hover for all coordinates."
    rows = [
        {"axis": axis, "degree": degrees.of(axis), "outermost level": plan.placement.spans.get(axis, "–")}
        for axis in order
    ]
    return Chart(
        "placement", "Which rank sits where", note, _cells(cells, heads, (across, line), f"{shown} coordinate"), rows
    )


def _between(plan: Plan, first: int, last: int) -> str:
    """Return coordinates of the ranks from ``first`` to ``last`` on every axis of degree above 1."""
    degrees, order = plan.degrees, plan.placement.axis_order
    low, high, steps = coordinates(degrees, order, first), coordinates(degrees, order, last), strides(degrees, order)
    parts = []
    for axis in GRID_AXES:
        if degrees.of(axis) > 1:
            # a block of at least one period of the axis holds all its coordinates
            whole = last - first + 1 >= steps[axis] * degrees.of(axis)
            span = "all" if whole else str(low[axis]) if low[axis] == high[axis] else f"{low[axis]}–{high[axis]}"
            parts.append(f"{axis} {span}")
    return ", ".join(parts)


def _cells(
    cells: list[dict[str, Any]], heads: list[dict[str, Any]], size: tuple[int, float], title: str
) -> dict[str, Any]:
    """Return squares building by building; ``size``: squares in a line, and lines."""
    columns, lines = size
    legend = {"title": title, "format": "d", "gradientLength": 160}
    x = field("c", "q", axis=None, scale={"domain": [0, columns], "nice": False})
    y = field("r", "q", axis=None, scale={"domain": [0, lines], "reverse": True, "nice": False})
    squares = {
        "data": values(cells),
        "transform": [{"calculate": "datum.c + 0.94", "as": "c2"}, {"calculate": "datum.r + 0.94", "as": "r2"}],
        "mark": {"type": "rect"},
        "encoding": {
            "x": x,
            "x2": {"field": "c2"},
            "y": y,
            "y2": {"field": "r2"},
            "color": field("v", "q", title, scale={"scheme": "cividis"}, legend=legend),
            "tooltip": tips(**{"First rank": "n", "Last rank": "l", "Coordinates": "at", "Building": "b"}),
        },
    }
    names = {
        "data": values(heads),
        "mark": {"type": "text", "align": "left", "color": INK, "fontWeight": "bold", "baseline": "middle"},
        "encoding": {"x": {"value": 0}, "y": field("line", "q"), "text": {"field": "said"}},
    }
    return {"height": int(max(80, lines * (13 if lines < 40 else 9))), "layer": [squares, names]}
