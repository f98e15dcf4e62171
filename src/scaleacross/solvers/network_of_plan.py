"""The network of a placed plan: its flows as blocks of ``choose_network``, and the choice as part of the decision.

``with_network`` is called for every placed candidate that may become the plan. The search itself compares ideal
networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from scaleacross.cost_models.axes import Networks, network_of, searched_network
from scaleacross.cost_models.candidates import Bools
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Layout, layout_of
from scaleacross.cost_models.levels import CAMPUS, Levels, build_levels
from scaleacross.cost_models.links import Links, links_of
from scaleacross.cost_models.network.codec import offers
from scaleacross.cost_models.overlap import GRADIENTS, PARAMETERS
from scaleacross.cost_models.plan_cost import PlanCost, groups_of, plan_cost, step_seconds
from scaleacross.cost_models.replica_kinds import KnownReplicas
from scaleacross.cost_models.step import exact_shapes, hbm_lost_s
from scaleacross.cost_models.traffic import Flow
from scaleacross.cost_models.waiting_groups import WAITED_GROUPS, waiting_groups
from scaleacross.cost_models.window_traffic import windows_of
from scaleacross.solvers.choose_network import (
    NetworkProblem,
    NetworkSolution,
    rounded_budgets,
)
from scaleacross.solvers.network_between import chosen_between
from scaleacross.solvers.network_blocks import SAME_STEP, BlockEstimator, blocks_of, once_windows
from scaleacross.solvers.network_combinations import Combination, combined, fastest_everywhere, uncontended, undominated
from scaleacross.solvers.network_drivers import with_best_drivers
from scaleacross.solvers.network_options import (
    KERNELS,
    NOTHING_BETWEEN,
    Between,
    FlowOption,
    Wire,
    common_options,
    hashed_levels,
    library_option,
    queued_options,
)
from scaleacross.solvers.pay_compression import paying
from scaleacross.solvers.trunk_loads import TrunkLoads
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.placement import BuildingShare, communicator_axes
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem

Options = dict[tuple[str, str, str], list[FlowOption]]


@dataclass(frozen=True)
class Networked:
    """A placed decision with its network and cost, and how the network was chosen.

    Attributes:
        options: every option by (communicator, operation, payload).
        library_step_s: step time with the library's default network.
        least_step_s: lower bound on the step time of this decision with any network.
        saved_s: seconds that the codec of a collective saves.
        library_kept: whether the library's defaults were faster than the network chosen by the model. The budgets allow
            them, so the decision states them.
    """

    decision: Decision
    cost: PlanCost
    solution: NetworkSolution | None
    options: Options
    num_options: int
    library_step_s: float
    least_step_s: float
    saved_s: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    library_kept: bool = False


def with_network(problem: Problem, decision: Decision, seed: int = 0) -> Networked:
    """The decision with the network that makes its step shortest, or the library's defaults if the job asks for them.

    Raises:
        ValueError: the decision has no placement.
        InfeasibleError: no choice keeps to the budgets of ``job.network``.
    """
    bare = decision.model_copy(update={"network": None})
    placed = _Placed.of(problem, bare)
    library = placed.cost(bare, "library")
    if problem.job.network.settings == "library":
        return Networked(bare, library, None, {}, 0, library.cost.step_s, library.cost.step_s)
    made, solution = chosen_between(partial(network_problem, placed, bare, library), seed)
    if len(problem.job.network.drivers) > 1:
        solution = with_best_drivers(made.problem, solution, lambda one: placed.step_s(_decided(bare, one, library)))
    networked = _decided(bare, solution, library)
    cost = placed.cost(networked)
    paid = paying(problem.job, made.without, solution, cost.cost.step_s, seed)
    if paid.plain:
        networked = _decided(bare, paid.solution, library)
        cost = placed.cost(networked)
    num_options, library_step_s = made.problem.num_options, library.cost.step_s
    found = Networked(
        networked, cost, paid.solution, made.options, num_options, library_step_s, cost.cost.step_s, paid.saved_s
    )
    # the model adds up options one by one, so the whole step may still be shorter with the library's defaults
    if library_step_s < cost.cost.step_s * (1 - SAME_STEP):
        found = _library_kept(placed, bare, found, made, library)
    # without a proof, the ideal network of the search is the lower bound
    if found.library_kept or placed.distinguishes(bare) or not made.proves(paid.solution, cost):
        best = searched_network(problem.job, placed.levels.accelerators)
        found = replace(found, least_step_s=min(found.least_step_s, placed.cost(bare, best).cost.step_s))
    return found


def _library_kept(placed: _Placed, bare: Decision, found: Networked, made: MadeProblem, library: PlanCost) -> Networked:
    """The library's defaults (cost ``library``) if budgets allow them and they are faster, else ``found``."""
    chosen = made.library(library)
    if found.solution is None or not made.problem.allows(chosen):
        return found
    solution = replace(found.solution, chosen=chosen, exposed_s=made.problem.exposed_s(chosen), status="feasible")
    stated = _decided(bare, solution, library)
    cost = placed.cost(stated)
    if cost.cost.step_s >= found.cost.cost.step_s:
        return found
    return replace(
        found,
        decision=stated,
        cost=cost,
        solution=solution,
        least_step_s=cost.cost.step_s,
        saved_s={},
        library_kept=True,
    )


def _decided(bare: Decision, solution: NetworkSolution, cost: PlanCost) -> Decision:
    """``bare`` with the choices of a solution."""
    choices = tuple(option.choice for one in solution.chosen for option in one.options)
    return bare.model_copy(update={"network": _in_order(choices, cost.sent)})


@dataclass(frozen=True)
class _Placed:
    """Problem, levels, layout and group shapes, which all networks of one placed decision share."""

    problem: Problem
    levels: Levels
    layout: Layout
    shapes: Mapping[str, GroupShape]
    _known: KnownReplicas = field(default_factory=KnownReplicas)

    @classmethod
    def of(cls, problem: Problem, decision: Decision) -> _Placed:
        placement = decision.placed
        levels, layout = build_levels(problem.topology, placement.fill), layout_of(problem.topology, decision)
        shapes = exact_shapes(decision.degrees, placement.axis_order, levels)
        return cls(problem, levels, layout, shapes)

    def distinguishes(self, decision: Decision) -> bool:
        """Whether stages wait for different groups: the best network of one may not be that of another."""
        if self.levels.by_type or decision.placement is None:
            return bool(self.levels.by_type)
        axes = communicator_axes(decision.degrees, decision.placement.axis_order)
        return bool(waiting_groups(groups_of(self.shapes, self.levels, "library"), axes, self.levels))

    def links(self, flow: Flow) -> list[Links]:
        """The links that a flow uses: one entry per accelerator type for groups inside a building that stages wait for.

        All other flows use the links of the whole allocation, one entry.
        """
        inside = flow.shape in WAITED_GROUPS and self.shapes[flow.shape].span < CAMPUS
        return [links_of(one) for one in (inside and self.levels.by_type.values()) or (self.levels,)]

    def cost(self, decision: Decision, network: Networks | None = None) -> PlanCost:
        """Cost of the decision under a network; None: its own."""
        problem = self.problem
        own = (problem.job, problem.profile, problem.topology, decision, self.shapes, self.levels, self.layout)
        return plan_cost(*own, network=network)

    def step_s(self, decision: Decision) -> float:
        """Step time of the decision in seconds, without the rest of ``cost``."""
        problem, groups = self.problem, groups_of(self.shapes, self.levels, network_of(decision))
        return step_seconds(problem.job, problem.profile, problem.topology, decision, groups, self.levels, self._known)


@dataclass(frozen=True)
class MadeProblem:
    """A network problem with the options that it was made from.

    Attributes:
        options: every option by (communicator, operation, payload).
        combined: makes the blocks of the problem from such options.
        in_windows: whether each block falls into overlap windows.
    """

    problem: NetworkProblem
    options: Options
    combined: Callable[[Options], tuple[tuple[Combination, ...], ...]]
    in_windows: tuple[bool, ...]

    def proves(self, solution: NetworkSolution, cost: PlanCost) -> bool:
        """Whether no choice makes a shorter step than ``solution``, whose cost is ``cost``.

        Three conditions must hold. The solution is the optimum of the model. Every block outside windows, which a
        pipeline does not simply add up, is the fastest that there is, and nothing else holds multiprocessors for less
        time. The step waits for the rank whose windows the model has.
        """
        if solution.status != "optimal":
            return False
        mine = list(zip(solution.chosen, self.problem.blocks, self.in_windows, strict=True))
        alone = [(one, block) for one, block, inside in mine if not inside]
        if not all(one is block[0] and fastest_everywhere(block) and self._leads(one) for one, block in alone):
            return False
        beyond = self.problem.exposed_s([one for one, _, inside in mine if inside])
        exposed = beyond + float(hbm_lost_s(cost.volumes)[0])
        # equal seconds show that the step waits for the rank whose windows the model has
        return math.isclose(exposed, cost.cost.exposed_s["dp"], rel_tol=1e-9)

    def _leads(self, one: Combination) -> bool:
        """Whether no other option of its collectives is faster or holds multiprocessors for less time."""
        return all(
            mine.time_s <= other.time_s and mine.held_s <= other.held_s
            for mine in one.options
            for other in self.options[mine.choice.key]
        )

    def library(self, cost: PlanCost) -> tuple[Combination, ...]:
        """The combinations of the library's defaults, whose cost is ``cost``."""
        stated: Options = {}
        for flow, collective in zip(cost.sent, cost.collectives, strict=True):
            key = flow.shape, flow.op, flow.what
            stated[key] = [library_option(self.options[key], collective.algorithm)]
        return tuple(block[0] for block in self.combined(stated))

    def without(self, keys: Iterable[tuple[str, str, str]]) -> NetworkProblem:
        """The problem in which the collectives in ``keys`` are not encoded."""
        plain = {key: [one for one in self.options[key] if one.choice.compression is None] for key in keys}
        return replace(self.problem, blocks=self.combined(self.options | plain))


def network_problem(
    placed: _Placed, decision: Decision, cost: PlanCost, between: Mapping[str, Between] = MappingProxyType({})
) -> MadeProblem:
    """The blocks, windows and budgets of a placed decision.

    Args:
        cost: cost of the decision under any network.
        between: further connections to try, by communicator (``network_between``).
    """
    problem = placed.problem
    hashed = _hashed(problem.topology, cost.placement.fill)
    limits = problem.job.network
    trunks = TrunkLoads.of(problem.job, decision, cost.volumes, placed.shapes, placed.levels)
    asked = limits.compression
    codecs = (offers(problem.job, placed.levels.accelerators), asked.max_relative_error) if asked else ((), 0.0)
    options: Options = {}
    for flow in cost.sent:
        more = between.get(flow.shape, NOTHING_BETWEEN)
        over, whole = windows_of(flow, decision.shard), placed.shapes[flow.shape]
        overlapped = over or (flow.shape == "ep" and problem.job.experts.overlap_fraction > 0)
        drivers = limits.drivers if overlapped else KERNELS
        own = (cost.volumes.launch_s, cost.volumes.equal_copies, hashed, *codecs, drivers, more)
        wires = [Wire(whole, links, *own) for links in placed.links(flow)]
        # one rank's gradients may have inter-building links to themselves; then their group has its own shape
        apart = cost.gradient_shapes if over == (GRADIENTS,) else cost.rank_shapes if over != (PARAMETERS,) else {}
        alone = apart.get(flow.shape)
        if alone is None:
            found = common_options(flow, wires, waited=not over)
        else:
            found = queued_options(flow, replace(wires[0], shape=alone), wires[0], waited=not over)
        options[flow.shape, flow.op, flow.what] = (
            found if trunks is None else [trunks.loaded(flow, one) for one in found]
        )

    blocks = blocks_of(cost.sent, decision)
    inside = tuple(bool(once_windows(block[0], decision)) for block in blocks)
    budgets = rounded_budgets(limits.max_channels, limits.max_queue_pairs, limits.max_buffer_bytes)

    def step_s(network: tuple[CommunicatorChoice, ...]) -> float:
        return placed.step_s(decision.model_copy(update={"network": network}))

    fastest = {key: undominated(own)[0].choice for key, own in options.items()}
    estimator = BlockEstimator(decision, cost.volumes, fastest, step_s)

    def every(some: Options) -> tuple[tuple[Combination, ...], ...]:
        kept = [[undominated(some[flow.shape, flow.op, flow.what]) for flow in block] for block in blocks]
        if trunks is None:
            # this rule looks at resources only, so it does not hold where link loads are bounded, too
            kept = uncontended(kept, inside, budgets)
        return tuple(
            combined(
                own,
                partial(estimator.times, block),
                (lambda _: ()) if trunks is None else partial(trunks.combined_load, block),
            )
            for block, own in zip(blocks, kept, strict=True)
        )

    allowed = () if trunks is None else trunks.budgets
    made = NetworkProblem(every(options), cost.windows, float(cost.volumes.work.buckets[0]), budgets, allowed)
    return MadeProblem(made, options, every, inside)


def _hashed(topology: Topology, allocation: Sequence[BuildingShare]) -> Bools:
    links = [topology.building(share.building).links for share in allocation]
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
    """The same problem, whose job leaves the network to the library's defaults."""
    network = problem.job.network.model_copy(update={"settings": "library"})
    job = problem.job.model_copy(update={"network": network})
    return Problem(job, problem.workload, problem.topology, problem.profile)
