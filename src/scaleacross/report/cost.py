"""Sections on step time, proof, alternatives and finalists of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, bar, cell, columns, count, grid, large, percent, plural, section
from scaleacross.spec.plan import COMPONENTS, OF_FINALISTS, Alternative, Finalist, Plan, SolveReport
from scaleacross.spec.step_errors import StepInterval
from scaleacross.units import human_seconds

COMPONENT_MEANING = {
    "compute": "computation of the busiest stage",
    "bubble": "pipeline bubble",
    "tp": "tensor-parallel, exposed",
    "cp": "context-parallel, exposed",
    "ep": "expert-parallel, exposed",
    "pp": "pipeline messages, exposed",
    "dp": "data-parallel, exposed",
    "optimizer": "optimizer and host work",
}
STATUS_MEANING = {
    "optimal": ("optimal: no plan of the searched space is faster under this model", "green"),
    "gap_tolerance": ("within the gap tolerance: a faster plan could save no more than the gap", "green"),
    "time_limit": (
        "time limit, or limit of work or CPU, reached: the best plan found so far, not proved optimal",
        "yellow",
    ),
    "evaluated": ("evaluated: the settings were given, nothing was searched", "cyan"),
}
NUM_ALTERNATIVES = 3
BAR_WIDTH = 30


def step(plan: Plan) -> RenderableType:
    """Return the step's components with bars and shares, then the rates that follow from them."""
    cost = plan.cost
    table = columns(("component", "time", "share", ""), right=("time", "share"))
    for name in COMPONENTS:
        seconds = cost.component(name)
        share = seconds / cost.step_s
        style = "" if seconds else "dim"
        colour = "green" if name == "compute" else "yellow"
        add(
            table,
            COMPONENT_MEANING[name],
            human_seconds(seconds),
            percent(share),
            Text(bar(share, BAR_WIDTH), style=colour),
            style=style,
        )
    table.add_section()
    add(table, "step", human_seconds(cost.step_s), percent(1.0), style="bold")
    speed = f"{large(cost.model_flop_per_s)}FLOP/s per accelerator (model FLOP)"
    rates = Text(f"{large(cost.tokens_per_s)} tokens/s · {speed} · MFU {percent(cost.mfu)}")
    lines = [cell(f"estimated by the search: {estimate_words(plan)}")] if plan.estimate else []
    lines += [] if plan.interval is None else [cell(f"measured: {expectation(plan.interval)}")]
    return section("Step time", table, Text(), rates, *lines)


def estimate_words(plan: Plan) -> str:
    """Describe the search's estimate relative to the simulated step; empty where the plan states the estimate only."""
    if plan.estimate is None:
        return ""
    difference = f"{plan.estimate.step_s / plan.cost.step_s - 1:+.1%}"
    return f"{human_seconds(plan.estimate.step_s)} ({difference} of the simulated step)"


def between(interval: StepInterval) -> str:
    """Return both ends of the interval, e.g. ``10.2 s to 14.1 s``."""
    return f"{human_seconds(interval.p10_s)} to {human_seconds(interval.p90_s)}"


def chance(probability: float) -> str:
    """Return a probability in whole percent; values beyond 99 % and below 1 % are never shown as certain."""
    return "> 99 %" if probability > 0.99 else "< 1 %" if probability < 0.01 else f"{probability * 100:.0f} %"


def expectation(interval: StepInterval) -> str:
    """Describe the interval and its basis in a sentence."""
    rests = [] if interval.seen else ["nobody published a step time of an accelerator and precision of this plan"]
    if interval.calibrated_runs:
        rests = [f"calibrated on {plural(interval.calibrated_runs, 'own run')} of this model"]
    rests += ["routed experts"] if interval.experts else []
    if interval.doublings_beyond:
        rests.append(f"{2**interval.doublings_beyond:.1f} times the largest job measured")
    if interval.spans_buildings:
        rests.append("no measured run spans buildings")
    half = f", half above {human_seconds(interval.p50_s)}" if interval.p50_s and not interval.calibrated_runs else ""
    return f"80 % are expected within {between(interval)}{half}" + (f" ({'; '.join(rests)})" if rests else "")


def proof(plan: Plan) -> RenderableType:
    """Return status, bound and gap, and the bounds that a reader can check by hand."""
    report = plan.report
    by_number = sorted(report.num_infeasible.items(), key=lambda item: -item[1])
    refused = "; ".join(f"{count(number)} {reason}" for reason, number in by_number)
    facts = grid(
        [
            ("status", status(report)),
            *_objective(report),
            *_headroom(report),
            ("searched", _searched(report)),
            *([("refused", refused)] if refused else []),
            ("solver", _solver(report)),
        ]
    )
    if not report.bounds:
        return section("Proof", facts)
    table = columns(("bound", "time", "of step", "why"), right=("time", "of step"), flexible=("why",))
    for bound in report.bounds:
        add(table, bound.name, human_seconds(bound.step_s), percent(bound.step_s / plan.estimated.step_s), bound.why)
    return section("Proof", facts, Text(), table)


def _objective(report: SolveReport) -> list[tuple[str, str]]:
    """Return rows on the bound of the objective and on the limits of the space."""
    value, within = report.objective, [f"{name} {limit:g}" for name, limit in report.limits.items()]
    rows = [("within", ", ".join(within))] if within else []
    if value is None:
        return [*rows, ("lower bound", f"{human_seconds(report.bound_s)} (gap {percent(report.gap)} of the step)")]
    parts = ", ".join(f"{name} {_amount(spent, value.unit)}" for name, spent in value.parts.items())
    return [
        *rows,
        ("objective", f"{value.name} {large(value.value)}, at most {large(value.bound)} (gap {percent(report.gap)})"),
        ("a step spends", f"{_amount(value.spent_per_step, value.unit)}: {parts}"),
    ]


def _headroom(report: SolveReport) -> list[tuple[str, str]]:
    """Return a row on the cost of the memory that the job keeps free, as far as the search knows it."""
    room = report.headroom
    if room is None:
        return []
    kept = f"{percent(room.fraction)} of every memory is kept free (memory_headroom_fraction)"
    if room.num_candidates == 0:
        return [("headroom", f"{kept}, which rules out no candidate that may be faster")]
    what = f"{kept}, which alone rules out {count(room.num_candidates)} candidates"
    if room.bound_s is None:
        return [("headroom", what)]
    if room.bound_s >= report.objective_s:
        return [("headroom", f"{what}, none of them faster")]
    most = percent(1 - room.bound_s / report.objective_s)
    return [
        ("headroom", f"{what}, none faster than {human_seconds(room.bound_s)}: it costs {most} of the step at most")
    ]


def _amount(spent: float, unit: str) -> str:
    return f"{large(spent)}{unit}" if unit == "J" and spent >= 1e3 else f"{spent:,.4g} {unit}"


def status(report: SolveReport) -> Text:
    """Return the solver's status in words; each status is a different statement about optimality."""
    words, style = STATUS_MEANING[report.status]
    words = words.replace("faster", "better") if report.objective else words
    return Text(words, style=style)


def alternatives(plan: Plan, limit: int = NUM_ALTERNATIVES) -> RenderableType:
    """Return the best alternatives with their reasons; feasible ones first, by step time.

    The same settings in another placement are added where none of these shows why the plan is placed as it is.
    """
    table = columns(("plan", "step", "lost by", "reason"), right=("step", "lost by"), flexible=("plan", "reason"))
    ranked = sorted(plan.report.alternatives, key=lambda a: float("inf") if a.step_s is None else a.step_s)
    placed = [other for other in ranked if _only_placed_otherwise(plan, other)]
    shown = ranked[:limit] if any(other in ranked[:limit] for other in placed) else [*ranked[:limit], *placed[:1]]
    for other in shown:
        if other.step_s is None:
            times = "–", "infeasible"
        else:
            times = human_seconds(other.step_s), human_seconds(other.step_s - plan.estimated.step_s)
        add(table, other.label, *times, other.reason)
    return section("Best alternatives", table)


def _only_placed_otherwise(plan: Plan, other: Alternative) -> bool:
    same = {"placement": plan.decision.placement}
    return other.decision != plan.decision and other.decision.model_copy(update=same) == plan.decision


def finalists(plan: Plan) -> RenderableType:
    """Return the finalists of the simulation, the plan first, and how the choice relates to the estimates."""
    found = plan.report.finalists
    table = columns(
        ("finalist", "schedule", "estimated", "simulated"), right=("estimated", "simulated"), flexible=("finalist",)
    )
    for one in found:
        pipeline, degrees = one.decision.pipeline, one.decision.degrees
        replayed = f"refused: {one.reason}" if one.replayed_s is None else human_seconds(one.replayed_s)
        add(
            table,
            f"{degrees}{_in_order(one, found)}",
            f"{pipeline.schedule} x{pipeline.num_chunks}",
            human_seconds(one.price_s),
            replayed,
        )
    return section("Referee: the plan with the fastest simulation", table, Text(), Text(refereed(plan.report)))


def _in_order(one: Finalist, found: Sequence[Finalist]) -> str:
    """Return a finalist's order of buildings, where another one has the same buildings in another order; else empty."""

    def names(other: Finalist) -> tuple[str, ...]:
        placement = other.decision.placement
        return () if placement is None else tuple(share.building for share in placement.fill)

    mine = names(one)
    others = any(sorted(names(other)) == sorted(mine) and names(other) != mine for other in found)
    return f"; {', '.join(mine)}" if others else ""


def refereed(report: SolveReport) -> str:
    """Describe the choice among the finalists of a report in a sentence; its bound on estimates gives their gap."""
    found, bound_s = report.finalists, report.bound_s
    num_simulated = sum(one.replayed_s is not None for one in found)
    simulated = f"{num_simulated} of {plural(len(found), 'finalist')} simulated"
    few = (note.removeprefix(OF_FINALISTS) for note in report.notes if note.startswith(OF_FINALISTS))
    simulated += "".join(f" ({note})" for note in few)
    best = min(found, key=lambda one: one.price_s)
    ends = "bound and gap are of estimates"
    if num_simulated == 0:
        return f"{simulated}: the simulation refused all, so the estimate chose; {ends}"
    if best.price_s == found[0].price_s:
        return f"{simulated}: the best estimate is the fastest there too; {ends}"
    lost = "is refused" if best.replayed_s is None else f"takes {human_seconds(best.replayed_s)} there"
    ours, least = human_seconds(found[0].price_s), human_seconds(best.price_s)
    gap = percent(max(0.0, 1 - bound_s / best.price_s))
    costs = f"the plan is estimated at {ours}; the best estimate, {least} (gap {gap}), {lost}"
    return f"{simulated}: {costs}; {ends}"


def notes(plan: Plan) -> RenderableType:
    """Return the solver's remarks, one per line."""
    return section("Notes", *(cell(f"• {note}") for note in plan.report.notes))


def _searched(report: SolveReport) -> str:
    if report.status == "evaluated":
        return "one plan, as given"
    infeasible = sum(report.num_infeasible.values())
    return (
        f"{count(report.num_candidates)} candidates: {count(infeasible)} refused, {count(report.num_pruned)} excluded by their "
        f"lower bound, {count(report.num_placed)} placed exactly"
    )


def _solver(report: SolveReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"{human_seconds(report.seconds)}, seed {report.seed}" + (f" ({versions})" if versions else "")
