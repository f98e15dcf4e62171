"""The whole plan as one renderable: decided, placed, timed, stored, moved, proved, rejected."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.rule import Rule

from scaleacross.report.cost import alternatives, finalists, notes, proof, step
from scaleacross.report.degraded import degraded
from scaleacross.report.format import cell
from scaleacross.report.goodput import goodput
from scaleacross.report.memory import memory
from scaleacross.report.plan import decision, placement
from scaleacross.report.traffic import collectives, network, traffic
from scaleacross.spec.plan import Plan


def plan_report(plan: Plan) -> RenderableType:
    """Everything in the plan that a person decides by. Sections without content are left out."""
    return Group(*_sections(plan))


def _sections(plan: Plan) -> Iterator[RenderableType]:
    yield Rule(cell(plan.job.name), style="dim")
    yield decision(plan)
    yield placement(plan)
    yield step(plan)
    yield memory(plan.memory)
    if plan.traffic:
        yield traffic(plan)
    if plan.collectives:
        yield collectives(plan)
    if any(choice.connections for choice in plan.decision.network or ()):
        yield network(plan)
    if plan.goodput is not None:
        yield goodput(plan, plan.goodput)
    if plan.degraded:
        yield degraded(plan)
    yield proof(plan)
    if plan.report.finalists:
        yield finalists(plan)
    if plan.report.alternatives:
        yield alternatives(plan)
    if plan.report.notes:
        yield notes(plan)
