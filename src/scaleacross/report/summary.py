"""The first lines of a report: the decision, its step time, bottlenecks and cost, and how to start it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from scaleacross.report.cost import expectation, refereed
from scaleacross.report.folding import folded_at_words
from scaleacross.report.format import LABEL_STYLE, cell, count, gib, large, percent, plural
from scaleacross.report.plan import not_read
from scaleacross.spec.explanation import Sensitivity
from scaleacross.spec.improvement import OF_SETTINGS
from scaleacross.spec.parallelism import GRID_AXES, Axis
from scaleacross.spec.plan import Alternative, Plan, SolveReport
from scaleacross.spec.summary import PlanSummary, TokenCost
from scaleacross.spec.topology import Topology
from scaleacross.units import human_seconds
from scaleacross.workloads.space import within

MAX_LINES: Final = 15
CUT: Final = " …"
SHOWN_BOTTLENECKS: Final = 2
NAMED_BUILDINGS: Final = 3
MOSTLY: Final = 0.95
"""Fraction of the saving of more bandwidth. Where wider inter-building links alone save less than this, their part is
stated. A choice.
"""
NO_FIGURE: Final = "more of no figure of the topology changes the step time"
ALONE: Final = " alone"
"""Suffix of the label of the alternative that uses one building only."""
LITTLE: Final = 0.1
"""Fraction of the other buildings' share of accelerators. Where they bring less than this, the report says so. A
choice.
"""
PROVED: Final = 1e-4
"""Gap up to which the best estimate counts as proved (``solvers.search_state.ENOUGH``)."""
OFF_ESTIMATE: Final = 0.01
"""Relative difference of simulated and estimated step from which it is stated: a choice."""
REASONS: Final = ("more", "next best", "otherwise", "runner-up")
"""Labels of facts that lose their last words before any other."""
STATUS_WORDS: Final = {
    "optimal": "optimal",
    "gap_tolerance": "searched to the end but for the gap",
    "time_limit": "best found when the search ended, not proved",
    "evaluated": "as given, nothing was searched",
}


class FirstLines:
    """Labelled facts in at most ``limit`` lines, folded between words; the longest are cut where room is short."""

    def __init__(self, facts: Sequence[tuple[str, str]], limit: int = MAX_LINES) -> None:
        self.facts, self.limit = [(label, cell(text)) for label, text in facts], limit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, at ``options.max_width`` cells."""
        indent = max(cell_len(label) for label, _ in self.facts) + 2
        room = options.max_width - indent
        folded = [folded_at_words(text, room) for _, text in self.facts]
        # drop the last line of one fact at a time, until all fit or each has one line
        while sum(map(len, folded)) > self.limit and max(map(len, folded)) > 1:
            longest = max(zip(folded, self.facts, strict=True), key=lambda one: _cut_first(len(one[0]), one[1][0]))[0]
            longest.pop()
            longest[-1] = _cut(longest[-1], room)
        for (label, _), lines in zip(self.facts, folded, strict=True):
            for number, line in enumerate(lines):
                line.truncate(room, overflow="ellipsis")  # a name that is longer than a line
                lead = Text(("" if number else label).ljust(indent), style=LABEL_STYLE)
                yield lead.append_text(line)


def _cut_first(lines: int, label: str) -> tuple[bool, bool, int]:
    """Return the sort key of a fact when one must lose a line: reasons are cut before decisions, long ones first."""
    return lines > 1, label in REASONS, lines


def _cut(line: Text, room: int) -> Text:
    """Return ``line`` without its last words, so that it ends with an ellipsis in ``room`` cells."""
    words = line.plain.split()
    while len(words) > 1 and cell_len(" ".join(words) + CUT) > room:
        words.pop()
    return Text(" ".join(words).rstrip(";,:") + CUT)


def plan_summary(plan: Plan, found: PlanSummary, written: bool = False) -> FirstLines:
    """Return the first lines of a plan's report.

    Args:
        plan: the plan.
        found: bottlenecks and token costs (``api.summarise``).
        written: launch files were written; the command that submits them then follows on a separate line.
    """
    facts = [
        *plan_facts(plan, found),
        ("more", "--full, --section NAME, --quiet; scaleacross explain PLAN"),
        (
            "submit",
            "on every launcher: SUBMIT.md; with SLURM:" if written else "-o DIR writes launch files and SUBMIT.md",
        ),
    ]
    return FirstLines(facts, MAX_LINES - written)


def plan_facts(plan: Plan, found: PlanSummary) -> list[tuple[str, str]]:
    """Return label and text of every fact in the first lines."""
    bottlenecks = found.bottlenecks[:SHOWN_BOTTLENECKS]
    return [
        ("plan", f"{plan.job.name}: {choice(plan)}"),
        *_topology(plan),
        *not_read(plan),
        ("step time", f"{human_seconds(plan.cost.step_s)} · {_rates(plan)}"),
        *([("measured", expectation(plan.interval))] if plan.interval else []),
        ("memory", headroom(plan)),
        ("buildings", buildings(plan)),
        *_little_bought(plan),
        ("bottleneck", "; ".join(effect(row, plan.estimated.step_s) for row in bottlenecks) or NO_FIGURE),
        *_next_best(plan),
        *(("settings", note.removeprefix(OF_SETTINGS)) for note in plan.report.notes if note.startswith(OF_SETTINGS)),
        ("proof", proof_words(plan.report, plan.simulated_s)),
        *([("referee", refereed(plan.report))] if plan.report.finalists else []),
        *([("cost", _cost(found.money) + _unpaid(plan))] if found.money else []),
        *([("energy", _cost(found.energy))] if found.energy else []),
    ]


def _topology(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the topology's description; it says where buildings are assumed."""
    described = plan.job.topology.get("description") if isinstance(plan.job.topology, dict) else None
    if described:
        yield "topology", str(described)


def plan_line(plan: Plan) -> str:
    """The plan in one line, for ``--quiet``."""
    rates = f"{human_seconds(plan.cost.step_s)}, {large(plan.cost.tokens_per_s)} tokens/s, MFU {percent(plan.cost.mfu)}"
    searched = "nothing searched" if plan.report.status == "evaluated" else f"gap {percent(plan.report.gap)}"
    return cell(f"{plan.job.name}: {rates}, {degrees(plan)}, {searched}").plain


def degrees(plan: Plan) -> str:
    """Return the degrees above 1, and the number of accelerators that they multiply to."""
    axes: tuple[Axis, ...] = (*GRID_AXES, "ep")
    named = [f"{axis} {plan.degrees.of(axis)}" for axis in axes if plan.degrees.of(axis) > 1]
    whole = plural(plan.degrees.world_size, "accelerator")
    return f"{' · '.join(named)} = {whole}" if named else whole


def choice(plan: Plan) -> str:
    """Describe degrees, pipeline schedule, recomputation and sharding."""
    chosen, pipeline = plan.decision, plan.decision.pipeline
    parts = [degrees(plan)]
    if plan.degrees.pp > 1:
        chunks = f", {pipeline.num_chunks} chunks per rank" if pipeline.num_chunks > 1 else ""
        parts.append(f"{pipeline.schedule}{chunks}")
    shares = {"activations": chosen.activation_offload, "optimizer states": chosen.optimizer_offload}
    offloaded = "".join(f", {share:.0%} of {what} on the host" for what, share in shares.items() if share)
    recompute = ", ".join(chosen.stage_recompute or (chosen.recompute,))
    parts.append(f"recompute {recompute}, shard {chosen.shard}{offloaded}")
    return "; ".join(parts)


def _rates(plan: Plan) -> str:
    tokens = f"{large(plan.cost.tokens_per_s)} tokens/s"
    if plan.goodput is not None:
        share = percent(plan.goodput.goodput_fraction)
        lacking = plan.goodput.spares_lacking
        beyond = f" with {plural(lacking, 'spare host')} beyond the topology" if lacking else ""
        tokens = f"{large(plan.goodput.useful_tokens_per_s)} useful tokens/s ({tokens}, goodput {share}{beyond})"
    return f"{tokens} · MFU {percent(plan.cost.mfu)} · {large(plan.cost.model_flop_per_s)}FLOP/s each"


def headroom(plan: Plan) -> str:
    """Describe the memory that the fullest stage leaves free."""
    fullest = max(plan.memory, key=lambda stage: stage.total_bytes / stage.capacity_bytes)
    free = fullest.capacity_bytes - fullest.total_bytes
    share = percent(free / fullest.capacity_bytes)
    return f"{gib(free)} of {gib(fullest.capacity_bytes)} GiB free ({share}) on the fullest stage, {fullest.stage}"


def buildings(plan: Plan) -> str:
    """Describe what the other buildings add to the largest, where known, then the accelerators used of each."""
    topology = Topology.model_validate(plan.job.topology)
    used = {share.building: share.num_accelerators for share in plan.placement.fill}
    bought = bought_by_others(plan)
    if len(topology.buildings) <= NAMED_BUILDINGS:
        libraries = {one.accelerator.collective_library for one in topology.buildings if one.name in used}
        parts = [
            f"{one.name} {count(used.get(one.name, 0))} of {count(one.num_accelerators)}"
            + (
                ""
                if one.accelerator.collective_library in libraries
                else f" (runs {one.accelerator.collective_library.upper()}, which cannot join the others)"
            )
            for one in topology.buildings
        ]
    else:
        whole = f"{count(sum(used.values()))} of {count(topology.num_accelerators)} accelerators"
        parts = [f"{whole}, in {len(used)} of {len(topology.buildings)} buildings"]
    return "; ".join((*([bought] if bought else []), *parts))


def _alone(plan: Plan) -> Alternative | None:
    """Return the alternative that uses only one building of the plan."""
    labels = {share.building + ALONE for share in plan.placement.fill}
    return next((one for one in plan.report.alternatives if one.label in labels), None)


def _little_bought(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield a warning where the other buildings bring less than ``LITTLE`` of their share of the accelerators."""
    alone = _alone(plan)
    if alone is None or alone.step_s is None:
        return
    home = alone.label.removesuffix(ALONE)
    others = sum(share.num_accelerators for share in plan.placement.fill if share.building != home)
    share, more = others / plan.degrees.world_size, alone.step_s / plan.estimated.step_s - 1
    if more < LITTLE * share:
        size = Topology.model_validate(plan.job.topology).building(home).num_accelerators
        without = "it" if len(plan.placement.fill) == 2 else "them"
        won = f"{percent(max(0.0, more))} more tokens/s for {percent(share)} of the accelerators"
        out = f"num_accelerators: {size} does without {without}, an objective per megawatt or currency unit weighs {without}"
        yield "little won", f"{won}: {out}"


def bought_by_others(plan: Plan) -> str:
    """Describe what the other buildings add to the largest one; empty where the search did not plan that one alone."""
    names, alone = [share.building for share in plan.placement.fill], _alone(plan)
    if alone is None:
        return ""
    home = alone.label.removesuffix(ALONE)
    others = " + ".join(name for name in names if name != home)
    if alone.step_s is None:
        makes = "makes" if len(names) == 2 else "make"
        return f"{home} alone cannot run the job ({alone.reason}): {others} {makes} it possible"
    verb = "brings" if len(names) == 2 else "bring"
    more = percent(alone.step_s / plan.estimated.step_s - 1)
    return f"{others} {verb} {more} more tokens/s than {home} alone ({human_seconds(alone.step_s)})"


def effect(row: Sensitivity, step_s: float) -> str:
    """Describe how more of the figure changes an estimated step of ``step_s`` seconds.

    The change was computed with the changed figure. A derivative would overstate it where the step soon has another
    bottleneck.
    """
    value = 100 * (row.more_s or 0.0) / step_s
    more = f"{100 * row.change_fraction:.0f} % more {row.figure}"
    said = f"{more} {'saves' if value < 0 else 'costs'} {abs(value):.2f} % of the step"
    if row.trunks_more_s is None or row.trunks_more_s <= MOSTLY * (row.more_s or 0.0):
        return said
    return f"{said} ({max(0.0, -100 * row.trunks_more_s / step_s):.2f} % where inter-building links alone are wider)"


def _next_best(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the alternative that loses least time; with another objective, the one of least step time.

    An alternative with a lower estimate than the plan is skipped where the objective is step time: the row ``referee``
    explains it.
    """
    timed, known = plan.report.objective is None, []
    for one in plan.report.alternatives:
        lost = (one.step_s or 0.0) - plan.estimated.step_s
        if one.step_s is not None and not one.label.endswith(ALONE) and (lost >= 0 or not timed):
            known.append((lost, one))
    if known:
        lost, best = min(known, key=lambda pair: pair[0])
        label = "next best" if timed else "otherwise"
        yield label, f"{'−' if lost < 0 else '+'}{human_seconds(abs(lost))} with {best.label}: {best.reason}"


def proof_words(report: SolveReport, simulated_s: float | None = None) -> str:
    """Describe status, bound and gap in a sentence, and how far the simulated step is from the estimate."""
    words = STATUS_WORDS[report.status]
    if report.status == "evaluated":
        return words
    least_s = min((one.price_s for one in report.finalists), default=report.objective_s)
    if report.status == "gap_tolerance" and math.isclose(least_s, report.bound_s, rel_tol=PROVED):
        words = "searched to the end, chosen among finalists by simulation"
    only = report.within or within(report.notes)  # a plan of an older version has notes alone
    words += f" ({', '.join(only)})" if only else ""
    value = report.objective
    if value is None:
        estimate, bound = human_seconds(report.objective_s), human_seconds(report.bound_s)
        if report.bound_s == report.objective_s:
            return f"{words}; estimate and bound {bound}{_off_estimate(report.objective_s, simulated_s)}"
        off = _off_estimate(report.objective_s, simulated_s)
        return f"{words}; estimate {estimate}, bound {bound}, gap {percent(report.gap)}{off}"
    return (
        f"{words}; estimate {large(value.value)} {value.name}, at most {large(value.bound)} (gap {percent(report.gap)})"
    )


def _off_estimate(estimate_s: float, simulated_s: float | None) -> str:
    more = 0.0 if simulated_s is None else simulated_s / estimate_s - 1
    if abs(more) < OFF_ESTIMATE:
        return ""
    return f"; the simulated step is {percent(abs(more))} {'below' if more < 0 else 'above'} the estimate"


def _unpaid(plan: Plan) -> str:
    lacking = plan.goodput.spares_lacking if plan.goodput else 0
    return f"; without the {plural(lacking, 'spare host')} beyond the topology" if lacking else ""


def _cost(found: TokenCost) -> str:
    kind = "useful tokens" if found.useful else "tokens"
    owned = ""
    if found.owned is not None and found.owned > found.used * 1.0005:
        owned = f"; {found.owned:,.4g} {found.unit} as owned, idle parts paid too"
    return f"{found.used:,.4g} {found.unit} per million {kind}{owned}"
