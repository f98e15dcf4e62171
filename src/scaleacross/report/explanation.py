"""An explanation as three tables: what was second, what binds, what the step answers to."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.compression import why_encoded
from scaleacross.report.cost import COMPONENT_MEANING, chance, expectation
from scaleacross.report.format import add, columns, grid, percent, section
from scaleacross.spec.explanation import Explanation, FailureWhatIf, RunnerUp
from scaleacross.units import human_seconds

SHOWN_CHANGES = 2
"""Component changes per runner-up in the table; the JSON has all."""
STATUS_MARK = {"proved": "", "best_found": " (best found)", "none": "", "not_tried": ""}


def explanation_report(explanation: Explanation) -> RenderableType:
    """Everything in the explanation."""
    facts = [("plan", explanation.name), ("step", human_seconds(explanation.step_s))]
    if explanation.interval is not None:
        facts.append(("measured", expectation(explanation.interval)))
    facts.append(("took", human_seconds(explanation.seconds)))
    parts = [_runner_ups(explanation), _phases(explanation), _sensitivities(explanation)]
    if explanation.network:
        parts.append(_network(explanation))
    if explanation.failures is not None:
        parts.append(_failures(explanation.failures))
    return Group(grid(facts), *parts)


def _failures(found: FailureWhatIf) -> RenderableType:
    """When twice the fault units pay, and how many spare hosts do."""
    heads = ("failure rate", "fault units", "goodput", "pay unless the step is longer by")
    table = columns(heads, right=heads)
    for one in found.units:
        rate = f"{one.rate_factor:g} times"
        add(table, rate, f"{one.num_units:,}", percent(one.goodput_fraction), f"{one.step_longer_fraction:.2%}")
    factor = found.paying_rate_factor
    rate = "at no rate looked at" if factor is None else f"beyond {factor:.3g} times the plan's failure rate"
    lines = [Text(f"Twice the fault units pay for a step longer by 1 % {rate}.")]
    if found.spares is not None:
        lines.append(
            Text(
                f"Spare hosts worth more than hosts that train: {found.spares.spares:,}. Without spares "
                f"{percent(found.spares.lost_without_fraction)} of the tokens wait for a host, with them "
                f"{percent(found.spares.lost_with_fraction)}."
            )
        )
    return section("Failures: what more fault units and spare hosts would bring", table, *lines)


def _runner_ups(explanation: Explanation) -> RenderableType:
    heads = ("decision", "chosen", "runner-up", "costs", "of step", "chance", "why")
    table = columns(heads, right=("costs", "of step", "chance"), flexible=("chosen", "runner-up", "why"))
    for one in explanation.runner_ups:
        add(
            table,
            one.decision,
            one.chosen,
            *_lost(one),
            "–" if one.probability_plan_faster is None else chance(one.probability_plan_faster),
            "; ".join(one.reason.split("; ")[:SHOWN_CHANGES]),
            style="" if one.step_s is not None else "dim",
        )
    return section("Runner-up of every decision: the best plan that decides it otherwise, everything else free", table)


def _lost(one: RunnerUp) -> tuple[str, str, str]:
    if one.difference_s is None or one.difference_fraction is None:
        return "–", "–", "–"
    sign = "−" if one.difference_s < 0 else "+"
    share = f"{sign}{percent(abs(one.difference_fraction))}"
    return f"{one.runner_up}{STATUS_MARK[one.status]}", f"{sign}{human_seconds(abs(one.difference_s))}", share


def _network(explanation: Explanation) -> RenderableType:
    heads = ("of", "payload", "each", "library's defaults", "answers to", "instead", "would take")
    table = columns(heads, right=("each", "library's defaults", "would take"), flexible=("payload", "instead"))
    for term in explanation.network:
        other = ("–", "–") if term.instead_s is None else (term.instead or "–", human_seconds(term.instead_s))
        times = (human_seconds(term.time_s), human_seconds(term.library_s))
        add(table, term.communicator, term.payload, *times, term.decided_by, *other)
    said = (
        Text(f"{term.communicator} {term.payload}: {why_encoded(term.compression)}")
        for term in explanation.network
        if term.compression is not None
    )
    return section("Why every collective runs as it does", table, *said)


def _phases(explanation: Explanation) -> RenderableType:
    table = columns(("phase", "time", "waits for", "% of it per % of"), right=("time",), flexible=("% of it per % of",))
    for phase in explanation.phases:
        seconds = "–" if phase.seconds is None else human_seconds(phase.seconds)
        add(table, COMPONENT_MEANING.get(phase.name, phase.name), seconds, phase.resource, phase.why)
    return section("What binds every phase", table)


def _sensitivities(explanation: Explanation) -> RenderableType:
    change = explanation.sensitivities[0].change_fraction
    less, more = f"{change:.0%} less", f"{change:.0%} more"
    table = columns(("figure", "% per %", less, more, ""), right=("% per %", less, more), flexible=("",))
    for row in explanation.sensitivities:
        elasticity = "–" if row.elasticity is None else f"{row.elasticity:+.3f}".replace("-", "−")
        add(table, row.figure, elasticity, _signed(row.less_s), _signed(row.more_s), row.note)
    return section("What the step time answers to, this decision kept", table)


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return "does not fit"
    return "0" if seconds == 0 else f"{'+' if seconds > 0 else '−'}{human_seconds(abs(seconds))}"
