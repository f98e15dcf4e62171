"""The whole plan on the terminal, and its sections by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.rule import Rule

from scaleacross.report.cost import alternatives, finalists, notes, proof, step
from scaleacross.report.degraded import degraded
from scaleacross.report.format import cell
from scaleacross.report.goodput import goodput
from scaleacross.report.memory import memory
from scaleacross.report.plan import decision, placement
from scaleacross.report.traffic import collectives, network, traffic
from scaleacross.spec.plan import Plan

SECTIONS: Final[Mapping[str, Callable[[Plan], RenderableType | None]]] = {
    "decision": decision,
    "placement": placement,
    "step": step,
    "memory": lambda plan: memory(plan.memory),
    "traffic": lambda plan: traffic(plan) if plan.traffic else None,
    "collectives": lambda plan: collectives(plan) if plan.collectives else None,
    "network": lambda plan: network(plan) if any(one.connections for one in plan.decision.network or ()) else None,
    "goodput": lambda plan: goodput(plan, plan.goodput) if plan.goodput else None,
    "failures": lambda plan: degraded(plan) if plan.degraded else None,
    "proof": proof,
    "referee": lambda plan: finalists(plan) if plan.report.finalists else None,
    "alternatives": lambda plan: alternatives(plan) if plan.report.alternatives else None,
    "notes": lambda plan: notes(plan) if plan.report.notes else None,
}
"""Sections of a plan's report by name; None where this plan has no content for one."""

PAGE_COLUMNS: Final = 140
"""Columns of the text in report.html, which scrolls."""


def plan_report(plan: Plan) -> RenderableType:
    """Return all sections that have content."""
    return Group(Rule(cell(plan.job.name), style="dim"), *_shown(plan, list(SECTIONS)))


def plan_sections(plan: Plan, names: Sequence[str]) -> RenderableType:
    """Return the named sections in the order asked for; one without content says so."""
    return Group(*(SECTIONS[name](plan) or cell(f"{name}: this plan has nothing to say here") for name in names))


def section_texts(plan: Plan) -> dict[str, str]:
    """Map the name of every section with content to its plain text of ``PAGE_COLUMNS`` columns."""
    texts = {}
    for name, make in SECTIONS.items():
        part = make(plan)
        if part is not None:
            console = Console(file=StringIO(), width=PAGE_COLUMNS, markup=False, emoji=False, highlight=False)
            with console.capture() as captured:
                console.print(part)
            texts[name] = "\n".join(map(str.rstrip, captured.get().splitlines()))
    return texts


def _shown(plan: Plan, names: Sequence[str]) -> Iterator[RenderableType]:
    for name in names:
        part = SECTIONS[name](plan)
        if part is not None:
            yield part
