"""Every plan of a small problem, tried one by one: the oracle for ``joint`` in tests and benchmarks.

Nothing is pruned, bounded or vectorised. ``search_space``, ``candidates`` and ``place_parallelism`` take no part. The
rules R1–R9 (docstring of ``search_space``) are written again as plain loops.

Every candidate meets every axis order and every allocation (S1–S3, docstring of ``pools``). With several accelerator
types it also meets every balance (B1–B4, docstring of ``balance``). Each plan has the step time of
``verification.recompute``, from groups counted rank by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from math import ceil, lcm, prod
from typing import Final

from oracles.exhaustive_balance import BruteBalancer, runs
from scaleacross.cost_models.axes import searched_network
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.levels import accelerator_types, build_levels
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.cost_models.trunk_routes import Routes
from scaleacross.errors import InputError
from scaleacross.solvers.pools import AcceleratorPool, pools, shares
from scaleacross.solvers.search_space import MIN_TOKENS_PER_RANK
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, ContextExchange, Degrees, GridAxis, PipelineChoice, ScheduleName
from scaleacross.spec.placement import BuildingShare, Placement, strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import BY_STAGE
from scaleacross.targets import refused_by_own
from scaleacross.verification import Places, count_groups, places_of
from scaleacross.verification.failures import replicas_by_unit
from scaleacross.verification.shares import counted_layout
from scaleacross.workloads.problem import Problem

MAX_ACCELERATORS: Final = 64
"""Above this number of accelerators there are too many plans to try."""


Score = Callable[[Decision, PlanCost], float]
"""The score to minimise; inf refuses a plan."""


def _step_s(decision: Decision, cost: PlanCost) -> float:
    return cost.cost.step_s


@dataclass(frozen=True)
class ExhaustiveResult:
    """The best plan, its score (None and inf when no plan fits), and how many plans were tried.

    ``step_s`` is the score: the step time in seconds, unless another one was asked for.
    """

    decision: Decision | None
    step_s: float
    num_plans: int


def exhaustive(problem: Problem, score: Score = _step_s) -> ExhaustiveResult:
    """The plan with the least score among all of a problem with at most MAX_ACCELERATORS accelerators; the first of equals.

    Raises:
        InputError: the topology is larger than that.
    """
    size = problem.topology.num_accelerators
    if size > MAX_ACCELERATORS:
        raise InputError(f"{size} accelerators are too many to try every plan: at most {MAX_ACCELERATORS}")
    best: tuple[float, Decision | None] = (float("inf"), None)
    num_plans, pricer = 0, _Pricer(problem)
    for pool in pools(problem.topology):
        one_type = len(pool.accelerators) == 1
        # the search decides layers per stage on one accelerator type for the step time only
        equal = one_type and (problem.job.objective != "step_time" or problem.job.stages == "equal")
        for candidate in candidates(problem, pool):
            balancer = BruteBalancer(problem, pool, candidate)
            for placement in placements(pool, candidate.degrees):
                placed = candidate.model_copy(update={"placement": placement})
                if not pricer.may_fail(placed):
                    continue
                fits = False
                only_equal = equal or _period(candidate) > 1
                balances = [placed] if only_equal else balancer.balanced(pricer.layout(placed))
                by_stage = candidate.recompute == BY_STAGE
                for decision in balancer.by_stage(pricer.layout(placed)) if by_stage else balances:
                    decision = decision.model_copy(update={"placement": placement})
                    cost = pricer.cost(decision)
                    num_plans += 1
                    if not all(stage.fits for stage in cost.memory):
                        continue
                    fits, reached = True, score(decision, cost)
                    if reached < best[0]:
                        best = (reached, decision)
                if one_type and not fits:
                    break  # memory depends on no placement, only on the type
    return ExhaustiveResult(best[1], best[0], num_plans)


@dataclass
class _Pricer:
    """``verification.recompute`` with a cache of counted groups."""

    problem: Problem
    _places: dict[tuple[BuildingShare, ...], tuple[Places, Routes]] = field(default_factory=dict)
    _shapes: dict[tuple[tuple[BuildingShare, ...], int, int], GroupShape] = field(default_factory=dict)
    _layouts: dict[tuple[object, ...], Layout] = field(default_factory=dict)

    def layout(self, decision: Decision) -> Layout:
        if decision.placement is None:
            raise ValueError("the decision has no placement")
        key = (decision.degrees, decision.placement.axis_order, decision.placement.fill)
        if key not in self._layouts:
            self._layouts[key] = counted_layout(self.problem.topology, decision)
        return self._layouts[key]

    def may_fail(self, decision: Decision) -> bool:
        """C1 of ``every_placement``."""
        wanted = self.problem.job.failure_domains
        if wanted is None:
            return True
        lost = replicas_by_unit(self.problem.topology, decision, wanted.level)
        return all(len(replicas) <= wanted.max_replicas_lost for replicas in lost.values())

    def cost(self, decision: Decision) -> PlanCost:
        placement, degrees = decision.placement, decision.degrees
        if placement is None:
            raise ValueError("the decision has no placement")
        stride = strides(degrees, placement.axis_order)
        shapes = {str(axis): self._count(placement, degrees.of(axis), stride[axis]) for axis in GRID_AXES}
        first = stride["dp_shard"] if degrees.expert_lanes == 1 else min(stride["tp"], stride["cp"])
        if degrees.expert_lanes > 1 and 1 in (degrees.tp, degrees.cp):
            first = stride["tp"] if degrees.tp > 1 else stride["cp"]
        shapes["ep"] = self._count(placement, degrees.ep * degrees.expert_lanes, first)
        inner, outer = degrees.cp_inner, degrees.cp // degrees.cp_inner
        shapes["cp_inner"] = self._count(placement, inner, stride["cp"])
        shapes["cp_outer"] = self._count(placement, outer if inner > 1 else 1, stride["cp"] * inner)
        shapes["expert"] = self._count(placement, degrees.dp_shard // degrees.ep, stride["dp_shard"] * degrees.ep)
        problem, layout = self.problem, self.layout(decision)
        used = [problem.topology.building(share.building) for share in placement.fill]
        network = searched_network(problem.job, accelerator_types(used))
        return plan_cost(
            problem.job, problem.profile, problem.topology, decision, shapes, layout=layout, network=network
        )

    def _count(self, placement: Placement, degree: int, stride: int) -> GroupShape:
        key = (placement.fill, degree, stride)
        if key not in self._shapes:
            if placement.fill not in self._places:
                topology = self.problem.topology
                routes = build_levels(topology, placement.fill).routes
                self._places[placement.fill] = places_of(topology, placement), routes
            places, routes = self._places[placement.fill]
            self._shapes[key] = count_groups(places, degree, stride, routes)
        return self._shapes[key]


def placements(pool: AcceleratorPool, degrees: Degrees) -> Iterator[Placement]:
    """Every order of the axes of degree > 1, on every allocation.

    The granule of an allocation is a product of some but not all degrees.
    """
    active = [axis for axis in GRID_AXES if degrees.of(axis) > 1]
    idle = tuple(axis for axis in GRID_AXES if axis not in active)
    sizes = [degrees.of(axis) for axis in active]
    granules = {prod(some) for count in range(max(1, len(sizes))) for some in combinations(sizes, count)}
    for allocation in pool.allocations(degrees.world_size, sorted(granules)):
        for order in permutations(active):
            lanes = {axis for axis in ("tp", "cp") if axis in active} if degrees.expert_lanes > 1 else set()
            at = order.index("dp_shard") if lanes else 0
            if lanes and set(order[at - len(lanes) : at]) != lanes:
                continue
            yield Placement(axis_order=(*idle, *order), fill=shares(allocation))


def candidates(problem: Problem, pool: AcceleratorPool) -> Iterator[Decision]:
    """Every decision without placement that R1–R11 allow on a pool."""
    job, batch = problem.job, problem.job.global_batch_sequences
    for degrees in _all_degrees(problem, pool):
        for micro_batch in job.micro_batch_sequences:
            if batch % (degrees.dp * micro_batch):  # R4
                continue
            for pipeline in _pipelines(problem, degrees.pp, batch // (degrees.dp * micro_batch), micro_batch):
                for shard in job.shard:
                    if shard == "none" and (degrees.dp_shard > 1 or degrees.ep > 1):  # R8, R5
                        continue
                    if shard != "none" and degrees.dp_shard * degrees.cp == 1:  # R8
                        continue
                    if shard == "parameters_once" and degrees.pp > 1:  # R8
                        continue
                    on_host = job.activation_offload, job.optimizer_offload
                    for recompute, exchange, kept, states in product(
                        job.recompute, _exchanges(problem, degrees), *on_host
                    ):
                        decision = Decision(
                            degrees=degrees.model_copy(update={"cp_inner": exchange[1]}),
                            pipeline=pipeline,
                            recompute=recompute,
                            shard=shard,
                            context_exchange=exchange[0],
                            activation_offload=kept,
                            optimizer_offload=states,
                        )
                        if refused_by_own(job, problem.profile, decision):  # R10
                            continue
                        in_chunks = (
                            problem.profile.num_layers % (degrees.pp * pipeline.num_chunks * _period(decision)) == 0
                        )
                        if recompute == BY_STAGE and (kept or degrees.pp == 1):  # R11
                            continue
                        if _period(decision) == 1 or (in_chunks and not kept):  # R11
                            yield decision


def _period(decision: Decision) -> int:
    """d of ``full:n/d``, else 1."""
    return int(decision.recompute.partition("/")[2] or 1)


def _all_degrees(problem: Problem, pool: AcceleratorPool) -> Iterator[Degrees]:
    """R1–R6 and R9, as far as they depend on degrees only."""
    job, profile, most = problem.job, problem.profile, pool.num_accelerators
    whole_host = lcm(*(building.accelerators_per_host for building in pool.buildings))
    for tp in _allowed(job, "tp", most):
        if any(width % tp for width in _tensor_widths(problem)):  # R1
            continue
        for cp in _allowed(job, "cp", most // tp):
            halves = cp if cp == 1 else 2 * cp
            if job.sequence_length % halves or (job.sequence_length // cp) % tp:  # R2
                continue
            if cp > 1 and job.sequence_length // cp < MIN_TOKENS_PER_RANK:  # R2
                continue
            for pp in _allowed(job, "pp", most // (tp * cp)):
                if pp > profile.num_layers:  # R3
                    continue
                for dp_shard in _allowed(job, "dp_shard", most // (tp * cp * pp)):
                    for dp_replicate in _allowed(job, "dp_replicate", most // (tp * cp * pp * dp_shard)):
                        world = tp * cp * pp * dp_shard * dp_replicate
                        if not job.allows_accelerators(world):  # R6
                            continue
                        if not _worth_a_stage(job, profile.num_layers, pp, world // pp):  # R3
                            continue
                        if world % whole_host and whole_host % world:  # R6
                            continue
                        for ep in _allowed(job, "ep", dp_shard):
                            if dp_shard % ep or (profile.num_experts or 1) % ep:  # R5
                                continue
                            whole = Degrees(tp=tp, cp=cp, pp=pp, dp_shard=dp_shard, dp_replicate=dp_replicate, ep=ep)
                            yield from (
                                whole.model_copy(update={"expert_lanes": lanes})
                                for lanes in _lanes(problem, whole)
                                if job.degrees.allows("expert_lanes", lanes)
                            )


def _lanes(problem: Problem, degrees: Degrees) -> Iterator[int]:
    """R5 and R9: lanes of tp and cp with experts of their own."""
    experts, lanes, asked = problem.profile.num_experts, degrees.tp * degrees.cp, problem.job.expert_folding
    if not experts or lanes == 1 or "none" in asked:
        yield 1
    if experts and lanes > 1 and "tp_cp" in asked and experts % (lanes * degrees.ep) == 0 and degrees.dp_shard > 1:
        yield lanes


def _exchanges(problem: Problem, degrees: Degrees) -> Iterator[tuple[ContextExchange, int]]:
    """R2 and R9: the exchanges that let attention see the whole sequence, and cp_inner."""
    heads = [number for block, _ in problem.profile.blocks for number in block.heads]
    for kind in problem.job.context_exchange if degrees.cp > 1 else ("ring",):
        inner = [one for one in range(2, degrees.cp) if degrees.cp % one == 0] if kind == "all_to_all_ring" else [1]
        for one in inner:
            over = degrees.tp * (degrees.cp if kind == "all_to_all" else one)
            if over == degrees.tp or all(number % over == 0 for number in heads):
                yield kind, one


def _allowed(job: Job, axis: GridAxis | str, most: int) -> list[int]:
    """R9."""
    return [degree for degree in range(1, most + 1) if job.degrees.allows(axis, degree)]


def _tensor_widths(problem: Problem) -> Iterator[int]:
    """All dimensions that tp divides: heads, and the features of every product that is split."""
    for block, _ in problem.profile.blocks:
        yield from block.heads
        for gemm in block.gemms:
            if gemm.shard in ("column", "expert_column"):
                yield gemm.out_features
            elif gemm.shard in ("row", "expert_row"):
                yield gemm.in_features


def _worth_a_stage(job: Job, num_layers: int, pp: int, ranks: int) -> bool:
    """R3: whether a pipeline of ``pp`` ranks is worth trying.

    It is if the user names it, or if no shorter allowed pipeline has as few layers per stage. Layers count with
    embedding and head, and without.
    """
    named = job.degrees.pp
    if named == pp or (isinstance(named, tuple) and pp in named):
        return True
    return not any(
        job.degrees.allows("pp", fewer)
        and job.allows_accelerators(fewer * ranks)
        and all(ceil(count / fewer) == ceil(count / pp) for count in (num_layers, num_layers + 2))
        for fewer in range(1, pp)
    )


def _pipelines(problem: Problem, pp: int, num_micro_batches: int, micro_batch: int) -> Iterator[PipelineChoice]:
    """R3 (chunks) and R7."""
    job, layers = problem.job, problem.profile.num_layers
    ends = 0 if job.prediction_layers else 2
    for schedule in job.schedules:
        for num_chunks in job.num_chunks:
            if _schedule_exists(schedule, pp, num_micro_batches, num_chunks, layers, ends):
                yield PipelineChoice(schedule=schedule, num_chunks=num_chunks, micro_batch_sequences=micro_batch)


def _schedule_exists(
    schedule: ScheduleName, pp: int, num_micro_batches: int, num_chunks: int, layers: int, ends: int
) -> bool:
    if pp == 1:
        return schedule == "1F1B" and num_chunks == 1
    return pp * num_chunks <= layers + (ends if num_chunks > 1 else 0) and runs(
        schedule, pp, num_micro_batches, num_chunks
    )
