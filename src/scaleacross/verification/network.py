"""V9: is the network of a decision possible on its groups and within the job's budgets, and do its stated figures recompute?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS
from scaleacross.cost_models.network.resources import Held, crossed_beyond, held_together
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.traffic import Flow
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import Algorithm, CollectiveOp, CommunicatorChoice
from scaleacross.spec.plan import Decision, Plan

RUNS: Final[Mapping[CollectiveOp, tuple[Algorithm, ...]]] = {
    "all_reduce": ("library", "ring", "tree", "hierarchical"),
    "all_gather": ("library", "ring", "hierarchical"),
    "reduce_scatter": ("library", "ring", "hierarchical"),
    "all_to_all": ("library", "pairwise"),
    "send": ("point_to_point",),
}


def v9_network(job: Job, decision: Decision, cost: PlanCost, shapes: Mapping[str, GroupShape]) -> Iterator[str]:
    """What is wrong with the network of a decision; ``shapes`` are its groups, ``cost`` its price."""
    if decision.network is None:
        return
    if job.network.settings == "library":
        yield "V9: the job leaves the network to the library, the decision states one"
    sent = {(flow.shape, flow.op, flow.what): flow for flow in cost.sent}
    known = []
    for choice in decision.network:
        flow = sent.get((choice.communicator, choice.op, choice.payload))
        if flow is None:
            yield f"V9: the plan has no {choice.op} of {choice.payload} on {choice.communicator}"
            continue
        known.append(choice)
        yield from (f"V9: {' '.join(choice.key)}: {wrong}" for wrong in _impossible(choice, flow, shapes[flow.shape]))
    held, limits = held_together(known, shapes), job.network
    budgets = (limits.max_channels, limits.max_queue_pairs, limits.max_buffer_bytes)
    for name, amount, budget in zip(Held._fields, held, budgets, strict=True):
        if amount > budget:
            yield f"V9: communicators hold {amount:,} {name} on an accelerator, the job allows {budget:,.0f}"


def _impossible(choice: CommunicatorChoice, flow: Flow, shape: GroupShape) -> Iterator[str]:
    beyond = [LINK_LEVELS[level] for level in crossed_beyond(shape)]
    if choice.algorithm not in RUNS[choice.op]:
        yield f"{choice.algorithm} does not run it; there are {', '.join(RUNS[choice.op])}"
    if choice.algorithm == "library" and beyond:
        yield f"the library's own choice is known inside one scale-up domain only; the group crosses {', '.join(beyond)}"
    if [one.level for one in choice.connections] != beyond:
        stated = ", ".join(one.level for one in choice.connections) or "none"
        yield f"connections for {stated}; the group crosses {', '.join(beyond) or 'nothing'} beyond its domain"
    if bool(choice.num_channels) != bool(beyond):
        yield f"{choice.num_channels} channels for a group that {'leaves' if beyond else 'stays in'} its domain"
    if not math.isclose(choice.chunk_bytes * choice.num_chunks, flow.size_bytes, rel_tol=1e-6):
        yield f"{choice.num_chunks} chunks of {choice.chunk_bytes:,.0f} bytes are not the {flow.size_bytes:,.0f} that are sent"
    fanout = shape.fanout.reshape(NUM_LEVELS)
    crossed = [name for name, children in zip(LINK_LEVELS, fanout, strict=True) if children > 1]
    if choice.steps and [step.level for step in choice.steps][::-1] not in (beyond, crossed):
        yield f"steps on {', '.join(step.level for step in choice.steps)}; the group crosses {', '.join(crossed[::-1])}"
    if choice.compression is not None:
        yield f"compression by {choice.compression.codec}: the runtime executes it, but no price has it yet; leave it out"
    for step in choice.steps:
        children = float(fanout[LINK_LEVELS.index(step.level)])
        if step.algorithm == "halving_doubling" and not math.log2(children).is_integer():
            yield f"halving and doubling over {children:g} children of {step.level}: that is no power of two"


def v9_report(plan: Plan, cost: PlanCost, library: PlanCost, shapes: Mapping[str, GroupShape]) -> Iterator[str]:
    """What the plan says about its network against what recomputes; ``library`` is the price under the library's defaults."""
    if plan.network is None:
        return
    held = held_together(plan.decision.network or (), shapes)
    stated = {
        "step_s": (plan.network.step_s, cost.cost.step_s),
        "library_step_s": (plan.network.library_step_s, library.cost.step_s),
        "held_channels": (plan.network.held_channels, held.channels),
        "held_queue_pairs": (plan.network.held_queue_pairs, held.queue_pairs),
        "held_buffer_bytes": (plan.network.held_buffer_bytes, held.buffer_bytes),
    }
    for name, (said, found) in stated.items():
        if not math.isclose(said, found, rel_tol=1e-6):
            yield f"V9: network.{name} is stated as {said}, recomputes as {found}"
    if plan.network.bound_s > plan.network.step_s * (1 + 1e-6):
        yield f"V9: the network's bound of {plan.network.bound_s} s exceeds the step of {plan.network.step_s} s"
    times = {one.name: one.time_s for one in cost.collectives}
    for flow, one in zip(cost.sent, cost.collectives, strict=True):
        for term in plan.network.terms:
            same = (term.communicator, term.op, term.payload) == (flow.shape, flow.op, flow.what)
            if same and not math.isclose(term.time_s, times[one.name], rel_tol=1e-6):
                yield f"V9: network: {one.name} is stated as {term.time_s} s, recomputes as {one.time_s} s"
