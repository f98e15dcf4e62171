"""The HTML pages that commands write, and the charts on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scaleacross.report.comparison import comparison_line
from scaleacross.report.format import count, percent
from scaleacross.report.page.chart import Chart
from scaleacross.report.page.pipeline import pipeline_chart, simulated_chart
from scaleacross.report.page.site import placement, site_map, trunk_loads
from scaleacross.report.page.step import step_charts
from scaleacross.report.page.studies import (
    baselines,
    front_chart,
    simulated_links,
    simulated_parts,
    sweep_charts,
    weeks_charts,
)
from scaleacross.report.summary import plan_facts
from scaleacross.spec.comparison import Comparison
from scaleacross.spec.goodput import LongRun
from scaleacross.spec.plan import Plan
from scaleacross.spec.simulation import LinkUse, SimulatedStep
from scaleacross.spec.summary import PlanSummary
from scaleacross.spec.timeline import PipelineTimeline
from scaleacross.units import human_seconds

if TYPE_CHECKING:
    from scaleacross.api.frontier import Pareto
    from scaleacross.api.sweeping import SweepResult

Facts = list[tuple[str, str]]
Contents = tuple[str, Facts, list[Chart]]
"""Title, facts and charts of a page (``html.page``)."""


def plan_page(plan: Plan, found: PlanSummary, timeline: PipelineTimeline | None) -> Contents:
    """Return a plan's page: site, step, pipeline, memory, placement, sensitivities, alternatives."""
    return plan.job.name, plan_facts(plan, found), list(_plan_charts(plan, found, timeline))


def _site(plan: Plan, simulated: tuple[LinkUse, ...] = ()) -> Iterator[Chart]:
    """Yield the map, and the loads of links where the map has no room for them."""
    yield site_map(plan, simulated)
    loads = trunk_loads(plan, simulated)
    if loads is not None:
        yield loads


def _plan_charts(plan: Plan, found: PlanSummary | None, timeline: PipelineTimeline | None) -> Iterator[Chart]:
    yield from _site(plan)
    first, *rest = step_charts(plan, found.bottlenecks if found else ())
    yield first
    if timeline is not None:
        yield pipeline_chart(timeline)
    yield from rest
    yield placement(plan)


def comparison_page(comparison: Comparison, found: PlanSummary, timeline: PipelineTimeline | None) -> Contents:
    """Return the baselines' chart, then our plan."""
    plan = comparison.plan
    facts = [("comparison", comparison_line(comparison)), *plan_facts(plan, found)]
    return f"{plan.job.name}: baselines", facts, [baselines(comparison), *_plan_charts(plan, found, timeline)]


def front_page(front: Pareto) -> Contents:
    """Return the front, then the best plan by its first objective."""
    facts = [("points", count(len(front.points))), ("objectives", " and ".join(front.objectives))]
    facts += [("note", note) for note in front.notes]
    charts = [front_chart(front)]
    if front.points:
        charts += _plan_charts(front.points[0].plan, None, None)
    return "Plans between two objectives", facts, charts


def sweep_page(result: SweepResult) -> Contents:
    """Return tokens (samples) per second over the varied fields."""
    facts = [("points", f"{count(len(result.rows))}, {count(result.num_distinct)} distinct")]
    facts.append(("status", ", ".join(f"{count(number)} {status}" for status, number in result.statuses.items())))
    if result.best is not None:
        best = result.best
        varied = ", ".join(f"{path} {best[path]}" for path in result.study.paths)
        facts.append(("best", f"point {best['point']}: {human_seconds(float(best['step_s']))} ({varied})"))
    return f"Study {result.study.name}", facts, list(sweep_charts(result))


def simulation_page(plan: Plan, step: SimulatedStep) -> Contents:
    """Return a simulated step: its parts and the plan's, timeline, links."""
    facts = [
        (
            "step",
            f"{human_seconds(step.step_s)}; its estimate is {human_seconds(step.predicted_step_s)} ({step.difference:+.1%})",
        ),
        ("ranks", f"{count(step.num_ranks)} in {count(step.num_classes)} classes"),
    ]
    facts += [("what if", step.change)] if step.change else []
    charts = [*_site(plan, step.links), simulated_parts(step)]
    if any(row.spans for row in step.rows):
        charts.append(simulated_chart(step))
    if step.links:
        charts.append(simulated_links(step))
    return f"{step.plan_name}, simulated", facts, charts


def weeks_page(name: str, run: LongRun) -> Contents:
    """Return weeks of training under failures."""
    shares = run.goodput_fraction
    facts: Sequence[tuple[str, str]] = [
        ("days", f"{run.days:g}, {count(run.draws)} draws"),
        ("goodput", f"{percent(shares['mean'])} in the mean, {percent(shares['p5'])} to {percent(shares['p95'])}"),
        ("interruptions", f"{run.interruptions:,.1f}"),
    ]
    return f"{name}, {run.days:g} days", list(facts), list(weeks_charts(run))
