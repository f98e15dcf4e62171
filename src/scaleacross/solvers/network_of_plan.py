"""The network of a placed plan: its flows as blocks of ``choose_network``, and the choice as part of the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import Networks, axis_terms, group_of, network_of, searched_network, windows_of
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Layout, layout_of
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import Links, links_of
from scaleacross.cost_models.network.codec import offers
from scaleacross.cost_models.network.reasons import decided_by
from scaleacross.cost_models.overlap import WINDOW_NAMES, occurrences, windows
from scaleacross.cost_models.plan_cost import PlanCost, placed_shapes, plan_cost
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.settings import Bools
from scaleacross.cost_models.step import exact_shapes, one_row
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.solvers.choose_network import (
    Combination,
    NetworkProblem,
    NetworkSolution,
    WindowLimits,
    choose,
    combined,
    held_by,
    rounded_budgets,
)
from scaleacross.solvers.network_options import FlowOption, Wire, flow_options, hashed_levels
from scaleacross.solvers.pay_compression import paying, reason
from scaleacross.solvers.trunk_loads import TrunkLoads
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.plan import Decision, NetworkReport, NetworkTerm
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem

TOGETHER: Final = (("tp",), ("cp",))
"""Communicators whose flows that the step waits for enter it together."""

Options = dict[tuple[str, str, str], list[FlowOption]]


@dataclass(frozen=True)
class Networked:
    """A placed decision with its network, priced, and how that was chosen.

    ``least_step_s``: no network of this decision has less; ``saved_s``: by the codec of a collective.
    """

    decision: Decision
    cost: PlanCost
    solution: NetworkSolution | None
    options: Options
    num_options: int
    library_step_s: float
    least_step_s: float
    saved_s: Mapping[tuple[str, str, str], float] = field(default_factory=dict)


def with_network(problem: Problem, decision: Decision, seed: int = 0) -> Networked:
    """The decision with the network that makes its step shortest, or the library's defaults where the job wants these.

    Raises:
        ValueError: the decision has no placement.
        InfeasibleError: no choice keeps to the budgets of ``job.network``.
    """
    bare = decision.model_copy(update={"network": None})
    placed = _Placed.of(problem, bare)
    library = placed.cost(bare, "library")
    if problem.job.network.settings == "library":
        return Networked(bare, library, None, {}, 0, library.cost.step_s, library.cost.step_s)
    made = network_problem(placed, bare, library)
    solution = choose(made.problem, seed=seed)
    networked = _decided(bare, solution, library)
    cost = placed.cost(networked)
    paid = paying(problem.job, made.without, solution, cost.cost.step_s, seed)
    if paid.plain:
        networked = _decided(bare, paid.solution, library)
        cost = placed.cost(networked)
    least = cost.cost.step_s
    if paid.solution.chosen != tuple(block[0] for block in made.problem.blocks):
        # windows of the model add up the traffic that the price lets run side by side, so its bound is not the plan's
        best = searched_network(problem.job, placed.levels.accelerators)
        least = min(least, placed.cost(bare, best).cost.step_s)
    num_options, library_step_s = made.problem.num_options, library.cost.step_s
    return Networked(networked, cost, paid.solution, made.options, num_options, library_step_s, least, paid.saved_s)


def _decided(bare: Decision, solution: NetworkSolution, cost: PlanCost) -> Decision:
    """``bare`` with the choices of a solution."""
    choices = tuple(option.choice for one in solution.chosen for option in one.options)
    return bare.model_copy(update={"network": _in_order(choices, cost.sent)})


@dataclass(frozen=True)
class _Placed:
    """What all networks of a placed decision share."""

    problem: Problem
    levels: Levels
    layout: Layout
    shapes: Mapping[str, GroupShape]

    @classmethod
    def of(cls, problem: Problem, decision: Decision) -> _Placed:
        placement = decision.placement
        if placement is None:
            raise ValueError("the decision has no placement")
        levels = build_levels(problem.topology, placement.fill)
        layout = layout_of(problem.topology, placement.fill, decision.degrees, placement.axis_order)
        shapes = exact_shapes(decision.degrees, placement.axis_order, levels, problem.profile.whole_experts)
        return cls(problem, levels, layout, shapes)

    def cost(self, decision: Decision, network: Networks | None = None) -> PlanCost:
        """Price of the decision under a network; None: its own."""
        problem = self.problem
        own = (problem.job, problem.profile, problem.topology, decision, self.shapes, self.levels, self.layout)
        return plan_cost(*own, network=network)


@dataclass(frozen=True)
class MadeProblem:
    """The problem, and every option by what it is for."""

    problem: NetworkProblem
    options: Options
    blocks_of: Callable[[Options], tuple[tuple[Combination, ...], ...]]

    def without(self, keys: Iterable[tuple[str, str, str]]) -> NetworkProblem:
        """The problem in which some collectives are not encoded."""
        plain = {key: [one for one in self.options[key] if one.choice.compression is None] for key in keys}
        return replace(self.problem, blocks=self.blocks_of(self.options | plain))


def network_problem(placed: _Placed, decision: Decision, cost: PlanCost) -> MadeProblem:
    """The blocks, windows and budgets of a placed decision; ``cost`` is its price (any network)."""
    problem, pricer = placed.problem, _Pricer(decision, cost.volumes, links_of(placed.levels), placed.shapes)
    hashed = _hashed(problem.topology, cost.placement.fill)
    limits = problem.job.network
    trunks = TrunkLoads.of(problem.job, decision, cost.volumes, placed.shapes, placed.levels)
    asked = limits.compression
    codecs = (offers(problem.job, placed.levels.accelerators), asked.max_relative_error) if asked else ()
    options: Options = {}
    for flow in cost.sent:
        own = (placed.shapes[flow.shape], pricer.links, cost.volumes.launch_s, cost.volumes.equal_copies, hashed)
        waited = not windows_of(flow, decision.shard)
        found = flow_options(flow, Wire(*own, *codecs), waited=waited)
        options[flow.shape, flow.op, flow.what] = (
            found if trunks is None else [trunks.loaded(flow, one) for one in found]
        )

    def blocks_of(some: Options) -> tuple[tuple[Combination, ...], ...]:
        return tuple(
            combined(
                [some[flow.shape, flow.op, flow.what] for flow in block],
                partial(pricer.price, block),
                (lambda _: ()) if trunks is None else partial(trunks.combined_load, block),
            )
            for block in _blocks(cost.sent, decision)
        )

    budgets = rounded_budgets(limits.max_channels, limits.max_queue_pairs, limits.max_buffer_bytes)
    allowed = () if trunks is None else trunks.budgets
    return MadeProblem(NetworkProblem(blocks_of(options), pricer.windows(), budgets, allowed), options, blocks_of)


@dataclass(frozen=True)
class _Pricer:
    """s and t of combinations, from the cost model of the step itself."""

    decision: Decision
    volumes: Volumes
    links: Links
    shapes: Mapping[str, GroupShape]

    def price(self, flows: Sequence[Flow], chosen: tuple[FlowOption, ...]) -> tuple[float, tuple[float, ...]]:
        """Seconds that the step waits for these flows, and what they add to each window."""
        inside = windows_of(flows[0], self.decision.shard)
        if inside:
            hidden, often = self._hidden(), self._often()
            seconds = chosen[0].time_s * float(self.volumes.work.buckets[0])
            own = tuple(seconds if row in inside and hidden[row] else 0.0 for row in range(len(WINDOW_NAMES)))
            return sum(often[row] * seconds for row in inside if not hidden[row]), own
        axis: GridAxis = "dp_shard" if flows[0].shape == "ep" else flows[0].axis  # type: ignore[assignment]
        stated: dict[tuple[str, str], CommunicatorChoice] = {
            (flow.op, flow.what): option.choice for flow, option in zip(flows, chosen, strict=True)
        }
        rows = {name: one_row(shape) for name, shape in self.shapes.items()}
        terms = axis_terms(
            axis,
            self.volumes,
            rows[axis],
            self.links,
            rows["expert"],
            rows["ep"],
            exact=True,
            network={flows[0].shape: stated},
        )
        waited = [seconds for name, seconds in terms.serial_s.items() if name != "dp"]
        return float(sum(waited, start=np.zeros(1))[0]), (0.0,) * len(WINDOW_NAMES)

    def windows(self) -> tuple[WindowLimits, ...]:
        """The windows of the step."""
        return tuple(
            WindowLimits(float(one.length_s[0]), float(one.least_fraction[0]), float(one.per_step[0]))
            for one in windows(self.volumes.settings, self.volumes.work)
        )

    def _hidden(self) -> tuple[bool, ...]:
        """Whether the job lets computation hide each window's traffic."""
        overlap = self.volumes.job.overlap
        return (overlap.gradient_reduce, overlap.parameter_gather, overlap.shard_prefetch, overlap.shard_prefetch)

    def _often(self) -> tuple[float, ...]:
        return tuple(float(each[0]) for each in occurrences(self.volumes.settings, self.volumes.work))


def _blocks(sent: Sequence[Flow], decision: Decision) -> list[tuple[Flow, ...]]:
    """Flows that enter the step together, in the order in which they are sent."""
    waited = [flow for flow in sent if not windows_of(flow, decision.shard)]
    together = [tuple(flow for flow in waited if flow.shape in names) for names in TOGETHER]
    grouped = {id(flow) for block in together for flow in block}
    alone = [(flow,) for flow in sent if id(flow) not in grouped]
    return [block for block in (*together, *alone) if block]


def _hashed(topology: Topology, fill: Sequence[BuildingShare]) -> Bools:
    links = [topology.building(share.building).links for share in fill]
    return hashed_levels(
        [
            [one.technology.load_balancing for one in (each.scale_up, each.rack, each.zone, each.building)]
            for each in links
        ]
    )


def _in_order(choices: Sequence[CommunicatorChoice], sent: Sequence[Flow]) -> tuple[CommunicatorChoice, ...]:
    place: dict[tuple[str, str, str], int] = {
        (flow.shape, flow.op, flow.what): index for index, flow in enumerate(sent)
    }
    return tuple(sorted(choices, key=lambda choice: place[choice.key]))


def with_library_network(problem: Problem) -> Problem:
    """The problem of a job that leaves the network to the library's defaults."""
    network = problem.job.network.model_copy(update={"settings": "library"})
    job = problem.job.model_copy(update={"network": network})
    return Problem(job, problem.workload, problem.topology, problem.profile)


def network_report(problem: Problem, networked: Networked) -> NetworkReport | None:
    """How the network was chosen, with the reason of every choice; None where the library's defaults hold."""
    decision, solution = networked.decision, networked.solution
    if solution is None or decision.network is None or decision.placement is None:
        return None
    held = held_by(solution.chosen)
    step_s = networked.cost.cost.step_s
    return NetworkReport(
        status="optimal" if networked.least_step_s >= step_s else "feasible",
        step_s=step_s,
        bound_s=networked.least_step_s,
        library_step_s=networked.library_step_s,
        num_options=networked.num_options,
        held_channels=held.channels,
        held_queue_pairs=held.queue_pairs,
        held_buffer_bytes=held.buffer_bytes,
        terms=tuple(_terms(problem, networked)),
    )


def _terms(problem: Problem, networked: Networked) -> Iterator[NetworkTerm]:
    """The reason of every choice."""
    decision, cost = networked.decision, networked.cost
    if decision.placement is None:
        return
    levels = build_levels(problem.topology, decision.placement.fill)
    links = links_of(levels)
    stated = {choice.key: choice for choice in decision.network or ()}
    shapes = placed_shapes(problem.profile, problem.topology, decision)
    for flow, predicted in zip(cost.sent, cost.collectives, strict=True):
        choice = stated[flow.shape, flow.op, flow.what]
        options = networked.options[choice.key]
        shape, launch_s = one_row(shapes[flow.shape]), cost.volumes.launch_s
        chosen = group_of(network_of(decision), flow.shape, shape, links, launch_s)
        library = group_of("library", flow.shape, shape, links, launch_s)
        other = min(
            (one for one in options if one.choice.label != choice.label),
            key=lambda one: one.time_s,
            default=None,
        )
        yield NetworkTerm(
            communicator=choice.communicator,
            op=choice.op,
            payload=choice.payload,
            time_s=predicted.time_s,
            library_s=float(time_of(flow, library, cost.volumes.equal_copies).time_s[0]),
            decided_by=decided_by(flow, chosen, cost.volumes.equal_copies),
            instead=None if other is None else other.choice.label,
            instead_s=None if other is None else other.time_s,
            compression=reason(
                problem.job,
                flow,
                next(one for one in options if one.choice == choice),
                options,
                shapes[flow.shape],
                levels.accelerators,
                networked.saved_s.get(choice.key),
            ),
        )
