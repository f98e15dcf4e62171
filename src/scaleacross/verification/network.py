"""V9: a decision's network is possible on its groups, within the job's budgets, and its stated figures recompute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS, Levels
from scaleacross.cost_models.network.codec import CODECS, PLAIN_BYTES, crosses, encodings_of, figures, is_encodable
from scaleacross.cost_models.network.resources import Held, crossed_beyond, held_together
from scaleacross.cost_models.network.trunks import budgets_bytes, hidden_windows, loads_bytes, over
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.traffic import Flow
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import MOVES, Algorithm, CollectiveOp, CommunicatorChoice
from scaleacross.spec.plan import Decision, Plan
from scaleacross.verification.figures import TOLERANCE

# operation -> algorithms that can run it
RUNS: Final[Mapping[CollectiveOp, tuple[Algorithm, ...]]] = {
    "all_reduce": ("library", "ring", "tree", "hierarchical"),
    "all_gather": ("library", "ring", "hierarchical"),
    "reduce_scatter": ("library", "ring", "hierarchical"),
    "all_to_all": ("library", "pairwise"),
    "send": ("point_to_point",),
}


def v9_network(
    job: Job,
    decision: Decision,
    cost: PlanCost,
    shapes: Mapping[str, GroupShape],
    accelerators: Sequence[Accelerator],
) -> Iterator[str]:
    """Yield what is wrong with the network of a decision.

    Args:
        cost: the decision's traffic and collectives, recomputed.
        shapes: its groups.
        accelerators: the types that it uses.
    """
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
        shape = shapes[flow.shape]
        wrong = (
            *_impossible(choice, flow, shape),
            *_driven(job, choice, accelerators),
            *_miscoded(job, choice, shape, accelerators),
        )
        yield from (f"V9: {' '.join(choice.key)}: {what}" for what in wrong)
    held, limits = held_together(known, shapes), job.network
    budgets = (limits.max_channels, limits.max_queue_pairs, limits.max_buffer_bytes)
    for name, amount, budget in zip(Held._fields, held, budgets, strict=True):
        if amount > budget:
            yield f"V9: communicators hold {amount:,} {name} on an accelerator, the job allows {budget:,.0f}"


def v9_trunks(
    job: Job, decision: Decision, cost: PlanCost, shapes: Mapping[str, GroupShape], levels: Levels
) -> Iterator[str]:
    """Yield overlap windows in which inter-building links carry more than the job allows, if a network is chosen."""
    fraction = job.network.max_trunk_fraction
    if fraction is None or decision.network is None:
        return
    budgets = budgets_bytes(fraction, cost.volumes, levels)
    for line in over(loads_bytes(decision, cost, shapes), budgets, hidden_windows(job)):
        yield f"V9: {line} by max_trunk_fraction {fraction:g}"


def _impossible(choice: CommunicatorChoice, flow: Flow, shape: GroupShape) -> Iterator[str]:
    """Yield what is impossible in a choice: algorithm, connections, channels, chunks, or steps of its groups."""
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
    if not math.isclose(choice.chunk_bytes * choice.num_chunks, flow.size_bytes, rel_tol=TOLERANCE):
        yield f"{choice.num_chunks} chunks of {choice.chunk_bytes:,.0f} bytes are not the {flow.size_bytes:,.0f} that are sent"
    fanout = shape.fanout.reshape(NUM_LEVELS)
    crossed = [name for name, children in zip(LINK_LEVELS, fanout, strict=True) if children > 1]
    if choice.steps and [step.level for step in choice.steps][::-1] not in (beyond, crossed):
        yield f"steps on {', '.join(step.level for step in choice.steps)}; the group crosses {', '.join(crossed[::-1])}"


def _driven(job: Job, choice: CommunicatorChoice, accelerators: Sequence[Accelerator]) -> Iterator[str]:
    """Yield what is wrong with the driver of a choice."""
    if choice.driver == "multiprocessors":
        return
    if choice.driver not in job.network.drivers:
        yield f"driven by {choice.driver}; the job allows {', '.join(job.network.drivers)} (network.drivers)"
    if choice.op not in MOVES:
        yield f"driven by {choice.driver}, which moves bytes and adds nothing up: it runs {', '.join(MOVES)}"
    if choice.driver == "host" and any(one.host is None for one in accelerators):
        yield "driven by the host, which is not stated for all accelerators"


def _miscoded(
    job: Job, choice: CommunicatorChoice, shape: GroupShape, accelerators: Sequence[Accelerator]
) -> Iterator[str]:
    """Yield what is wrong with the codec of a choice: not allowed, not possible, or with wrong figures."""
    own, asked = choice.compression, job.network.compression
    if own is None:
        return
    if asked is None:
        yield f"compression by {own.codec}, which job.network.compression does not allow"
        return
    if own.codec == "bounded":
        yield "compression by bounded: how short it makes messages depends on the values, so a plan cannot estimate it"
        return
    if own.codec not in asked.codecs or not set(own.levels) <= set(asked.levels):
        yield (
            f"{own.codec} on {', '.join(own.levels)}; the job allows {', '.join(asked.codecs)} on {', '.join(asked.levels)}"
        )
    if not is_encodable(choice.op, choice.payload) or job.optimizer.reduce_bytes != PLAIN_BYTES:
        yield f"compression by {own.codec}: codecs take gradients that are reduced in {PLAIN_BYTES:g} bytes, nothing else"
        return
    if choice.algorithm not in ("ring", "hierarchical"):
        yield f"compression by {own.codec}: rings and hierarchical algorithms run encoded, {choice.algorithm} does not"
    strange = [level for level in own.levels if not crosses(shape, (level,))]
    if strange:
        yield f"compression on {', '.join(strange)}, which its groups do not cross"
    ratio, rate = figures(own.codec, accelerators)
    error = CODECS[own.codec].relative_error * float(encodings_of(choice, shape, own.levels))
    stated = {
        "ratio": (own.ratio, ratio),
        "encode_bytes_per_s": (own.encode_bytes_per_s, rate),
        "decode_bytes_per_s": (own.decode_bytes_per_s, rate),
        "relative_error": (own.relative_error, error),
    }
    for name, (said, found) in stated.items():
        if not math.isclose(said, found, rel_tol=TOLERANCE):
            yield f"compression.{name} is stated as {said:g}, recomputes as {found:g}"
    if error > asked.max_relative_error * (1 + 1e-9):
        yield f"encodings of a result are off by up to {error:.2%} together, the job allows {asked.max_relative_error:.2%}"


def v9_report(plan: Plan, cost: PlanCost, library: PlanCost, shapes: Mapping[str, GroupShape]) -> Iterator[str]:
    """Yield figures of the plan's network that do not recompute; ``library``: cost under the library's defaults."""
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
        if not math.isclose(said, found, rel_tol=TOLERANCE):
            yield f"V9: network.{name} is stated as {said}, recomputes as {found}"
    if plan.network.bound_s > plan.network.step_s * (1 + TOLERANCE):
        yield f"V9: the network's bound of {plan.network.bound_s} s exceeds the step of {plan.network.step_s} s"
    times = {one.name: one.time_s for one in cost.collectives}
    for flow, one in zip(cost.sent, cost.collectives, strict=True):
        for term in plan.network.terms:
            same = (term.communicator, term.op, term.payload) == (flow.shape, flow.op, flow.what)
            if same and not math.isclose(term.time_s, times[one.name], rel_tol=TOLERANCE):
                yield f"V9: network: {one.name} is stated as {term.time_s} s, recomputes as {one.time_s} s"
