"""The network of a placed plan: no choice within the budgets gives a shorter step, the library's defaults included."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from instances import link, plain_job, plain_topology, plain_trunk
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.network.resources import held
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.cost_models.traffic import Flow
from scaleacross.solvers import network_between
from scaleacross.solvers.choose_network import NetworkProblem, NetworkSolution
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.solvers.network_options import FlowOption, Wire, queued_options
from scaleacross.solvers.network_report import network_report
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem, problem_of


def slow_and_quick(sequence_length: int, tflop_per_s: float, **network: object) -> tuple[Problem, Decision]:
    """A decision of two stages, the second on accelerators eight times as fast.

    Keys and values cross hosts whose ports carry four channels. The first stage is the busiest, and its attention
    overlaps with all its gathers. On the second stage gathers take longer than attention.
    """
    topology = plain_topology(4, 4)
    topology["trunks"][0] = plain_trunk("b0", "b1", 400.0)
    slow, quick = topology["regions"][0]["buildings"]
    for building in (slow, quick):
        building["links"] |= {"rack": link(100.0, 5.0), "zone": link(100.0, 10.0), "building": link(100.0, 20.0)}
    own = {"name": "slow", "peak_tflop_per_s": {"bf16": tflop_per_s}, "memory_bytes": 8e10}
    slow["accelerator"] = slow["accelerator"] | own
    quick["accelerator"] = slow["accelerator"] | {"name": "quick", "peak_tflop_per_s": {"bf16": 8 * tflop_per_s}}
    wide = {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "intermediate_size": 4096}
    workload = plain_job().model_dump()["workload"] | wide
    problem = problem_of(
        plain_job(topology=topology, workload=workload, sequence_length=sequence_length, network=network)
    )
    allocation = [{"building": name, "num_accelerators": 16} for name in ("b0", "b1")]
    placement = {"axis_order": ("tp", "cp", "dp_shard", "dp_replicate", "pp"), "fill": allocation}
    decision = Decision(
        degrees=Degrees(tp=4, cp=2, pp=2, dp_replicate=2),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="none",
        placement=Placement.model_validate(placement),
    )
    return problem, decision


def channels(decision: Decision) -> int:
    """Channels that all communicators hold; each one holds the most of its collectives."""
    most: defaultdict[str, int] = defaultdict(int)
    for choice in decision.network or ():
        most[choice.communicator] = max(most[choice.communicator], choice.num_channels)
    return sum(most.values())


def fastest_by_channels(options: list[FlowOption]) -> list[FlowOption]:
    """The fastest option for every number of channels."""
    found: dict[int, FlowOption] = {}
    for one in sorted(options, key=lambda option: option.time_s):
        found.setdefault(one.choice.num_channels, one)
    return list(found.values())


@pytest.mark.parametrize(
    ("sequence_length", "tflop_per_s", "budget"),
    [(8192, 200.0, 9), pytest.param(32768, 800.0, 6, marks=pytest.mark.heavy)],
)
def test_waits_of_ranks_that_are_not_the_busiest_count(sequence_length: int, tflop_per_s: float, budget: int) -> None:
    """Slower gathers of a rank that is not the busiest lengthen the step.

    The budget has channels for one or two of three communicators. The busiest rank exposes no gathers.
    """
    problem, decision = slow_and_quick(sequence_length, tflop_per_s, max_channels=budget)
    found = with_network(problem, decision)
    assert found.cost.cost.exposed_s["cp"] == 0.0
    assert channels(found.decision) <= budget
    prices = []
    for chosen in product(*map(fastest_by_channels, found.options.values())):
        other = decision.model_copy(update={"network": tuple(option.choice for option in chosen)})
        if channels(other) <= budget:
            prices.append(plan_cost(problem.job, problem.profile, problem.topology, other).cost.step_s)
    assert found.cost.cost.step_s == pytest.approx(min(prices), rel=1e-9)
    assert max(prices) > 1.01 * min(prices)
    assert not found.library_kept


def slowest(problem: NetworkProblem, seed: int = 0) -> NetworkSolution:
    """A solution that is slower by the model than the best."""
    chosen = tuple(block[-1] for block in problem.blocks)
    return NetworkSolution(chosen, problem.exposed_s(chosen), 0.0, "optimal")


def test_the_library_is_kept_where_the_choice_is_estimated_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan keeps the library's defaults if the model's choice has a longer step time.

    The test replaces the choice by a bad one. The report says that the defaults remain.
    """
    problem, decision = slow_and_quick(8192, 200.0)
    known = with_network(problem, decision)
    monkeypatch.setattr(network_between, "choose", slowest)
    found = with_network(problem, decision)
    assert found.library_kept and not known.library_kept
    assert found.cost.cost.step_s == pytest.approx(found.library_step_s, rel=1e-9)
    assert found.least_step_s <= known.cost.cost.step_s < found.cost.cost.step_s
    library = plan_cost(problem.job, problem.profile, problem.topology, decision).collectives
    assert [one.algorithm for one in found.cost.collectives] == [one.algorithm for one in library]
    report = network_report(problem, found)
    assert report is not None and report.library_kept and report.status == "feasible"


def test_a_budget_that_forbids_the_library_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, decision = slow_and_quick(8192, 200.0, max_channels=9)
    monkeypatch.setattr(network_between, "choose", slowest)
    found = with_network(problem, decision)
    assert not found.library_kept
    assert found.cost.cost.step_s > found.library_step_s
    assert channels(found.decision) == 3


def test_gradients_on_trunks_hold_connections_to_as_many_peers_as_the_groups_that_cross_most() -> None:
    """Connections for gradients between buildings count the peers of the groups that cross most levels.

    Groups of one pipeline rank reach two buildings, and those of all ranks reach four.
    """
    job = plain_job(topology=plain_topology(2, 2, 2, 2))
    allocation = [BuildingShare(building=f"b{index}", num_accelerators=8) for index in range(4)]
    levels = build_levels(problem_of(job).topology, allocation)
    whole = exact_shape(8, 4, levels)
    far = np.arange(NUM_LEVELS) >= CAMPUS
    two = replace(
        whole, fanout=np.where(far, np.minimum(whole.fanout, 2.0), whole.fanout), crossing=np.ones(NUM_LEVELS)
    )
    flow = Flow("dp", "reduce_scatter", "gradients", "dp_shard", 1e9, {"gradients": 1.0})
    links = links_of(levels)  # two groups saturate the inter-building link, whose latency asks for large windows
    links = links._replace(
        latency=np.where(far, 0.01, links.latency), capacity=np.where(far, 2 * links.bandwidth, links.capacity)
    )
    shared = Wire(whole, links, 1e-5, 0.0, np.zeros(NUM_LEVELS, dtype=bool))
    options = queued_options(flow, replace(shared, shape=two), shared, waited=False)
    assert any(option.choice.algorithm == "hierarchical" for option in options)
    assert all(option.held == held(option.choice, whole) for option in options)
