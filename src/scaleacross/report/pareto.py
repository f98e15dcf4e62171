"""A Pareto front as a table, CSV and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, large, percent
from scaleacross.spec.csv_table import csv_text
from scaleacross.spec.parallelism import Axis
from scaleacross.spec.summary import cost_columns
from scaleacross.units import human_seconds

if TYPE_CHECKING:
    from scaleacross.api.frontier import Pareto

AXES: tuple[Axis, ...] = get_args(Axis)


def pareto_report(front: Pareto) -> RenderableType:
    """Return the points as a table, best by the first objective at the top."""
    paid = [point.costs[0] for point in front.points]
    money = (f"{paid[0].unit} per M tokens", "as owned") if paid and paid[0] else ()
    numbers = ("point", *front.objectives, *money, "accelerators", "gap")
    table = columns((*numbers, "status", "buildings and degrees"), right=numbers, flexible=("buildings and degrees",))
    for index, point in enumerate(front.points):
        plan, report = point.plan, point.plan.report
        allocation = ", ".join(f"{share.building} {share.num_accelerators:,}" for share in plan.placement.fill)
        degrees = " ".join(f"{axis} {plan.degrees.of(axis)}" for axis in AXES if plan.degrees.of(axis) > 1)
        values = (_shown(name, value) for name, value in zip(front.objectives, point.values, strict=True))
        size = f"{plan.degrees.world_size:,}"
        cost = point.costs[0]
        spent = (f"{cost.used:,.4g}", f"{cost.owned:,.4g}") if cost and cost.owned is not None else ()
        add(table, str(index), *values, *spent, size, percent(report.gap), report.status, f"{allocation}: {degrees}")
    return Group(table, *(Text(f"• {note}") for note in front.notes))


def _shown(objective: str, value: float) -> str:
    return human_seconds(value) if objective == "step_time" else large(value)


def pareto_rows(front: Pareto) -> list[dict[str, Any]]:
    """One flat row per point."""
    rows: list[dict[str, Any]] = []
    for index, point in enumerate(front.points):
        report = point.plan.report
        limited = {f"limit_{name}": value for name, value in report.limits.items()}
        rows.append(
            {
                "point": index,
                **dict(zip(front.objectives, point.values, strict=True)),
                "optimised": point.plan.job.objective,
                **{f"limit_{name}": limited.get(f"limit_{name}") for name in front.objectives},
                "status": report.status,
                "gap": report.gap,
                "step_s": point.plan.cost.step_s,
                **cost_columns(*point.costs),
                "accelerators": point.plan.degrees.world_size,
                **point.plan.degrees.model_dump(),
                "fill": " ".join(f"{share.building}:{share.num_accelerators}" for share in point.plan.placement.fill),
            }
        )
    return rows


def pareto_csv(front: Pareto) -> str:
    """The rows as CSV."""
    return csv_text(pareto_rows(front))


def pareto_json(front: Pareto) -> str:
    """Return the rows with their decisions as JSON."""
    rows = [
        {**row, "decision": point.plan.decision.model_dump(mode="json")}
        for row, point in zip(pareto_rows(front), front.points, strict=True)
    ]
    data = {"objectives": list(front.objectives), "points": rows, "notes": list(front.notes)}
    return json.dumps(data, indent=2, ensure_ascii=False)
