"""An explanation as tables: runner-ups, binding resources, sensitivities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.compression import why_encoded
from scaleacross.report.cost import COMPONENT_MEANING, chance, expectation
from scaleacross.report.format import add, cell, columns, count, grid, percent, plural, section
from scaleacross.report.summary import NO_FIGURE, FirstLines, effect
from scaleacross.spec.explanation import Explanation, FailureWhatIf, RunnerUp, Sensitivity, by_what_more_brings
from scaleacross.units import human_seconds

SHOWN_FIRST = 3
"""Lines of each kind in the summary."""
SHOWN_CHANGES = 2
"""Component changes per runner-up in the table; the JSON has all."""


SECTIONS: Final[Mapping[str, Callable[[Explanation], RenderableType | None]]] = {
    "runner-ups": lambda found: _runner_ups(found),
    "phases": lambda found: _phases(found),
    "sensitivities": lambda found: _sensitivities(found),
    "network": lambda found: _network(found) if found.network else None,
    "failures": lambda found: _failures(found.failures) if found.failures else None,
}
"""Sections of an explanation by name; None where this plan has no content for one."""


def explanation_report(explanation: Explanation) -> RenderableType:
    """Return all sections of the explanation."""
    facts = [("plan", explanation.name), ("step", human_seconds(explanation.step_s))]
    if explanation.interval is not None:
        facts.append(("measured", expectation(explanation.interval)))
    facts.append(("took", human_seconds(explanation.seconds)))
    parts = (make(explanation) for make in SECTIONS.values())
    return Group(grid(facts), *(part for part in parts if part is not None))


def explanation_sections(explanation: Explanation, names: Sequence[str]) -> RenderableType:
    """Return the named sections in the order asked for; one without content says so."""
    return Group(*(SECTIONS[name](explanation) or Text(f"{name}: this plan has nothing to say here") for name in names))


def explanation_summary(explanation: Explanation) -> FirstLines:
    """Return the largest bottlenecks, what the longest phases wait for, and the runner-ups that lose least."""
    rows = by_what_more_brings(explanation.sensitivities)
    phases = sorted((one for one in explanation.phases if one.seconds), key=lambda one: -(one.seconds or 0.0))
    # searches that were cut short come last: their runner-up may be faster than what they found
    others = sorted(
        (one for one in explanation.runner_ups if one.step_s is not None),
        key=lambda one: (_cut(one), one.step_s or 0.0),
    )
    untried = sum(one.status == "not_tried" for one in explanation.runner_ups)
    cut = sum(map(_cut, explanation.runner_ups))
    step = f"{human_seconds(explanation.step_s)} per step"
    if explanation.simulated_s is not None:
        estimate = human_seconds(explanation.step_s)
        step = (
            f"{human_seconds(explanation.simulated_s)} per step, simulated; what follows is of its estimate, {estimate}"
        )
    facts = [("plan", f"{explanation.name}: {step}")]
    facts += [("measured", expectation(explanation.interval))] if explanation.interval else []
    facts += [("bottleneck", effect(row, explanation.step_s)) for row in rows[:SHOWN_FIRST]]
    facts += [
        (
            "waits for",
            f"{COMPONENT_MEANING.get(one.name, one.name)} {human_seconds(one.seconds or 0.0)}: {one.resource}",
        )
        for one in phases[:SHOWN_FIRST]
    ]
    facts += [("runner-up", _runner_up(one)) for one in others[:SHOWN_FIRST]]
    if untried or cut:
        facts.append(_left_open(untried, cut))
    facts.append(("more", "--full, --section NAME, --quiet"))
    return FirstLines(_once(facts))


def _left_open(untried: int, cut: int) -> tuple[str, str]:
    """Return the line on ``untried`` decisions without a search and ``cut`` searches that the limit ended."""
    way_out = "the limit came first: raise --time-limit, --cpu-limit or --work-limit"
    searches = f"{count(cut)} search{'' if cut == 1 else 'es'}"
    if not untried:
        return "cut short", f"{searches} of runner-ups; {way_out}"
    also = f", and {searches} cut short" if cut else ""
    return "not tried", f"{plural(untried, 'decision')}{also}; {way_out}"


def explanation_line(explanation: Explanation) -> str:
    """The explanation in one line, for ``--quiet``."""
    rows = by_what_more_brings(explanation.sensitivities)
    said = effect(rows[0], explanation.step_s) if rows else NO_FIGURE
    return cell(f"{explanation.name}: {human_seconds(explanation.step_s)}; {said}").plain


def _runner_up(one: RunnerUp) -> str:
    runner_up, costs, share = _lost(one)
    text = f"{one.decision} {runner_up}, not {one.chosen}: {costs} ({share})"
    return f"{text}; {_bound(one)}" if _cut(one) else text


def _cut(one: RunnerUp) -> bool:
    """Return whether the limit ended this search; its best plan then loses at least as much as the true runner-up."""
    return one.status == "best_found"


def _bound(one: RunnerUp) -> str:
    return f"search cut short, bound {human_seconds(one.bound_s)}" if one.bound_s else "search cut short, no bound yet"


def _once(facts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the facts with each repeated label shown once."""
    labels = [label for label, _ in facts]
    return [("" if index and labels[index - 1] == label else label, text) for index, (label, text) in enumerate(facts)]


def _failures(found: FailureWhatIf) -> RenderableType:
    """Return when twice the fault units pay off, and how many spare hosts do."""
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
            "; ".join([*([_bound(one)] if _cut(one) else []), *one.reason.split("; ")[:SHOWN_CHANGES]]),
            style="" if one.step_s is not None else "dim",
        )
    return section("Runner-up of every decision: the best plan that decides it otherwise, everything else free", table)


def _lost(one: RunnerUp) -> tuple[str, str, str]:
    if one.difference_s is None or one.difference_fraction is None:
        return "–", "–", "–"
    sign = "−" if one.difference_s < 0 else "+"
    most = "≤ " if _cut(one) else ""
    share = f"{most}{sign}{percent(abs(one.difference_fraction))}"
    return str(one.runner_up), f"{most}{sign}{human_seconds(abs(one.difference_s))}", share


def _network(explanation: Explanation) -> RenderableType:
    heads = ("of", "payload", "each", "library's defaults", "limited by", "instead", "would take")
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
        shown = "–" if row.elasticity is None else f"{row.elasticity:+.3f}".replace("-", "−")
        add(table, row.figure, shown, _signed(row.less_s), _signed(row.more_s), row.note or _trunks(row))
    return section("Sensitivity of the step time, this decision kept", table)


def _trunks(row: Sensitivity) -> str:
    """Describe the effect of wider inter-building links alone; '' for other figures."""
    return "" if row.trunks_more_s is None else f"{_signed(row.trunks_more_s)} with wider inter-building links alone"


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return "does not fit"
    return "0" if seconds == 0 else f"{'+' if seconds > 0 else '−'}{human_seconds(abs(seconds))}"
