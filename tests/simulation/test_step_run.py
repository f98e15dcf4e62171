"""Simulations of plans: folded equals unfolded, closed forms hold, step times agree, and bad input is refused."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import instances
import scaleacross as sa
from oracles.messages import Route, add_collective
from scaleacross.errors import InputError, ScaleAcrossError
from scaleacross.schedules import collective as c
from scaleacross.simulation import step_run
from scaleacross.simulation.connections import Connection, Way
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.patterns import ring_fixed_s
from scaleacross.simulation.segments import CrossingMessages, Segment, piped
from scaleacross.spec.parallelism import PipelineChoice
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import COMPONENTS, Decision, Plan
from scaleacross.step.graph import Call
from scaleacross.workloads.problem import problem_of

FEW = (4, 7, 10, 24)


@cache
def small_plans(seeds: tuple[int, ...]) -> tuple[Plan, ...]:
    """Plans of random toy machines with one and with two accelerator types."""
    out = []
    for seed, make in itertools.product(seeds, (instances.random_job, instances.mixed_job)):
        try:
            out.append(sa.plan(make(seed), time_limit_s=10, gap_tolerance=0.1, alternatives=False))
        except ScaleAcrossError:
            continue
    return tuple(out)


@pytest.mark.heavy
@pytest.mark.parametrize("seeds", [FEW, pytest.param((6, 15, 17, 23), marks=pytest.mark.slow)], ids=str)
def test_folded_runs_equal_unfolded_ones(seeds: tuple[int, ...]) -> None:
    """A simulation of one block per class takes as long as one of all ranks.

    Some plans must have fewer classes than ranks.
    """
    saved = 0
    for plan in small_plans(seeds):
        folded, whole = sa.simulate(plan), sa.simulate(plan, fold=False)
        assert folded.folding == "exact"
        assert folded.step_s == pytest.approx(whole.step_s, rel=1e-9), plan.job.name
        assert sum(row.num_ranks for row in folded.rows) == plan.degrees.world_size
        saved += whole.num_classes - folded.num_classes
    assert saved > (50 if seeds == FEW else 25)


def num_routes(plan: Plan) -> int:
    """Number of kinds of pipelines.

    They differ in the ranks that send to another building and in the ranks whose tp or cp group straddles two.
    """
    building = np.repeat(np.arange(len(plan.placement.fill)), [share.num_accelerators for share in plan.placement.fill])
    stride = strides(plan.degrees, plan.placement.axis_order)

    def in_groups(values: np.ndarray, axis: str) -> np.ndarray:
        return values.reshape(-1, getattr(plan.degrees, axis), stride[axis]).swapaxes(1, 2)

    pipelines = in_groups(building, "pp")
    facts = [pipelines != np.roll(pipelines, -1, axis=2)]
    for axis in ("tp", "cp"):
        groups = in_groups(building, axis)
        straddles = np.broadcast_to((groups != groups[..., :1]).any(axis=2, keepdims=True), groups.shape)
        facts.append(in_groups(straddles.swapaxes(1, 2).reshape(-1), "pp"))
    return len(np.unique(np.concatenate(facts, axis=2).reshape(-1, 3 * plan.degrees.pp), axis=0))


@pytest.mark.heavy
@pytest.mark.parametrize("degrees", [(2, 2, 4), (4, 1, 4), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("hosts", [(3, 5), (7, 9)], ids=str)
def test_runs_folded_by_pipeline_alone_are_close(
    hosts: tuple[int, int], degrees: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks folded by pipeline rank and by where their pipeline leaves buildings give nearly the same step.

    Replicas straddle buildings. The traffic of one block counts for all blocks of its class.
    """
    pinned = dict(zip(("tp", "cp", "pp"), degrees, strict=True)) | {"ep": 1}
    shape = {"sequence_length": 8192, "global_batch_sequences": 64, "num_accelerators": 4 * sum(hosts)}
    plan = sa.plan(instances.plain_job(*hosts, degrees=pinned, schedules="1F1B", **shape), alternatives=False)
    whole = sa.simulate(plan, fold=False)
    monkeypatch.setattr(step_run, "_most_classes", lambda plan: plan.degrees.pp)
    folded = sa.simulate(plan)
    assert (folded.folding, folded.num_classes) == ("rounded", plan.degrees.pp * num_routes(plan))
    assert folded.step_s == pytest.approx(whole.step_s, rel=2e-3)
    assert folded.component("tp") == pytest.approx(whole.component("tp"), rel=1e-6)


def laid(hosts: tuple[int, ...], axis_order: str, batches: tuple[int, ...] = (), **degrees: int) -> Decision:
    """A 1F1B decision with sharded optimizers over buildings with the given numbers of hosts.

    ``batches`` are the micro-batches of the four replicas of each building, if they differ.
    """
    buildings = [f"b{index}" for index in range(len(hosts))]
    allocation = [
        {"building": name, "num_accelerators": 4 * count} for name, count in zip(buildings, hosts, strict=True)
    ]
    decision = {
        "degrees": degrees,
        "pipeline": {"schedule": "1F1B"},
        "recompute": "none",
        "shard": "optimizer",
        "placement": {"axis_order": axis_order.split(), "fill": allocation},
    }
    if batches:
        shares = zip(buildings, batches, strict=True)
        decision["batch_shares"] = [
            {"buildings": [name], "num_replicas": 4, "num_micro_batches": count} for name, count in shares
        ]
    return Decision.model_validate(decision)


def test_what_a_pipeline_waits_for_a_trunk_reaches_all_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for an inter-building link delays all ranks of its pipeline.

    Two of four pipelines cross such a link, at different ranks, with every micro-batch. Classes by rank alone lost this
    wait for the other ranks.
    """
    hosts = (11, 9, 12)
    topology = instances.plain_topology(*hosts)
    for trunk in topology["trunks"]:
        trunk["one_way_latency_us"] = 5e4
    job = instances.plain_job(topology=topology, sequence_length=8192, global_batch_sequences=128)
    plan = sa.evaluate((job, laid(hosts, "tp cp pp dp_shard dp_replicate", tp=4, pp=8, dp_shard=4)))
    whole = sa.simulate(plan, fold=False)
    monkeypatch.setattr(step_run, "_most_classes", lambda plan: plan.degrees.pp)
    folded = sa.simulate(plan)
    assert (folded.folding, folded.num_classes) == ("rounded", plan.degrees.pp * num_routes(plan))
    assert folded.num_classes < whole.num_classes
    assert folded.step_s == pytest.approx(whole.step_s, rel=1e-3)


@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
def test_a_group_that_straddles_buildings_makes_the_step_of_coarse_classes_too(
    shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A straddling group determines the step even with coarse classes.

    One group of thirty-two straddles two buildings 50 ms apart, and every layer of its ranks waits for it.
    """
    hosts, axes = (21, 43), {"tp": 4, "cp": 2, "dp_shard": 32}
    if shard == "parameters":
        hosts, axes = (20, 44), {"tp": 4, "dp_shard": 16, "dp_replicate": 4}
    topology = instances.plain_topology(*hosts)
    topology["trunks"][0]["one_way_latency_us"] = 5e4
    job = instances.plain_job(topology=topology, sequence_length=8192, global_batch_sequences=128)
    decision = laid(hosts, "tp cp pp dp_shard dp_replicate", **axes).model_copy(update={"shard": shard})
    plan = sa.evaluate((job, decision))
    whole = sa.simulate(plan, fold=False)
    monkeypatch.setattr(step_run, "_most_classes", lambda plan: 1)
    folded = sa.simulate(plan)
    assert folded.folding == "rounded"
    assert folded.step_s == pytest.approx(whole.step_s, rel=1e-2)


def test_seconds_are_those_of_the_replica_that_others_wait_for() -> None:
    """Components are those of the replica that others wait for.

    One of two pipelines has a stage 50 ms away. Its messages count, not the all-reduce in which the other one waits.
    """
    topology = instances.plain_topology(3, 1)
    topology["trunks"][0]["one_way_latency_us"] = 5e4
    job = instances.plain_job(topology=topology)
    plan = sa.evaluate((job, laid((3, 1), "tp cp pp dp_shard dp_replicate", tp=4, pp=2, dp_replicate=2)))
    near = sa.evaluate((instances.plain_job(3, 1), plan.decision))
    assert plan.cost.component("pp") > 0.5 * (plan.cost.step_s - near.cost.step_s) > 0.25 * plan.cost.step_s
    assert plan.cost.component("dp") < plan.cost.component("pp")


def num_calls(schedule: str, shard: str, op: str) -> int:
    """Number of calls of ``op`` for parameters or gradients in a step of two stages."""
    job = instances.plain_job(2, schedules=schedule, shard=shard, sequence_length=8192, global_batch_sequences=32)
    decision = laid((2,), "tp cp pp dp_shard dp_replicate", pp=2, dp_shard=4).model_copy(
        update={"shard": shard, "pipeline": PipelineChoice(schedule=schedule)}
    )
    plan = sa.evaluate((job, decision))
    graph = step_run.simulate_step(plan, problem_of(plan.job)).graph
    nodes = (graph.node(number) for number in range(len(graph.of)))
    return sum(isinstance(node, Call) and node.use == "dp_shard" and op in node.ops for node in nodes)


def test_split_backward_passes_gather_sharded_parameters_too() -> None:
    """A pass of input gradients gathers the parameters of its layers, as a whole backward pass does."""
    assert num_calls("ZBH1", "parameters", "all_gather") == num_calls("1F1B", "parameters", "all_gather")
    assert num_calls("1F1B", "parameters", "all_gather") > 4 * num_calls("1F1B", "optimizer", "all_gather") > 0


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_split_backward_passes_reduce_sharded_gradients_too(shard: str) -> None:
    """A pass of weight gradients reduces the gradients of its layers with every micro-batch, as a whole backward pass
    does."""
    assert num_calls("ZBH1", shard, "reduce_scatter") == num_calls("1F1B", shard, "reduce_scatter")
    assert num_calls("1F1B", shard, "reduce_scatter") > 4 * num_calls("1F1B", "optimizer", "reduce_scatter") > 0


def test_unequal_batches_of_replicas_that_lie_side_by_side() -> None:
    """Replicas that are neighbours in a host may have different batches.

    Of four replicas in every host one starts its blocks.
    """
    job = instances.plain_job(2, 2, sequence_length=8192, global_batch_sequences=64)
    order = "dp_replicate tp cp pp dp_shard"
    plan = sa.evaluate((job, laid((2, 2), order, (10, 6), tp=2, dp_shard=2, dp_replicate=4)))
    folded, whole = sa.simulate(plan), sa.simulate(plan, fold=False)
    assert folded.step_s == pytest.approx(whole.step_s, rel=1e-9)
    busy = {row.name[-2:]: row.components_s["compute"] for row in folded.rows}
    assert busy["b0"] == pytest.approx(busy["b1"] * 10 / 6)


@pytest.mark.heavy
def test_components_add_up_to_the_step() -> None:
    for plan in small_plans(FEW):
        step = sa.simulate(plan)
        assert sum(step.component(name) for name in COMPONENTS) == pytest.approx(step.step_s)
        for row in step.rows:
            assert sum(row.components_s.values()) == pytest.approx(step.step_s)


def test_an_all_to_all_takes_as_long_on_a_thin_trunk_as_its_estimate_says() -> None:
    topology = instances.plain_topology(1, 1)
    topology["trunks"] = [instances.plain_trunk("b0", "b1", gbyte_per_s=0.5)]
    job = instances.plain_job(topology=topology, workload=instances.moe())
    plan = sa.evaluate((job, laid((1, 1), "tp cp pp dp_shard dp_replicate", dp_shard=8, ep=8)))
    step = sa.simulate(plan)
    assert plan.cost.component("ep") > 0.5 * plan.cost.step_s
    assert step.component("ep") == pytest.approx(plan.cost.component("ep"), rel=0.05)


def test_published_rows_agree_with_their_estimate() -> None:
    """Published rows agree with their step times.

    For Llama 3 405B on 8,192 H100 every component is within 5 % of the step, and the step within 2 %.
    """
    step = sa.simulate(sa.evaluate("llama3_table4_row1"))
    assert step.num_classes < 50
    assert abs(step.difference) < 0.02
    assert not step.flags


def test_a_plan_that_states_no_work_is_refused() -> None:
    found = sa.plan(instances.plain_job(1, schedules=["1F1B"]), gap_tolerance=0.5, alternatives=False, simulated=False)
    plan = found.model_copy(update={"work": None})
    with pytest.raises(InputError, match="does not state its computation"):
        sa.simulate(plan)


# --- a ring of different hops -----------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 2.0, 4.0, 10.0]), st.sampled_from([0.0, 0.1, 1.0, 5.0])), min_size=2, max_size=9
    )
)
@example([(1.0, 0.0), (10.0, 0.0)] * 10 + [(1.0, 5.0), (10.0, 0.0)])  # the long-haul hop is the last of many slow ones
@settings(max_examples=200, deadline=None)
def test_ring_of_unequal_hops_takes_what_its_steps_take(hops: list[tuple[float, float]]) -> None:
    """A ring of different hops takes the time of its messages.

    The closed form is compared with a simulation of every message.
    """
    n, size = len(hops), 12.0
    rate, latency = (np.array(part) for part in zip(*hops, strict=True))
    links = Simulation(rate)
    schedule = c.flat(c.Operation.ALL_GATHER, "ring", n)
    add_collective(links, schedule, lambda a, _: Route([(a, 1.0)], float(latency[a])), lambda _: size / n)
    closed = (n - 1) * size / n / rate.min() + ring_fixed_s(size / n, rate, latency)
    assert closed == pytest.approx(links.run().total_s)


# --- the network decision -----------------------------------------------------------------------------------------------


def test_chunks_that_follow_one_another_take_the_longest_phase_and_one_chunk_of_the_others() -> None:
    """Chunks take the longest phase plus one chunk of the others.

    Phases take 4 and 2 s over two links. This is 6 s in sequence, and 4 + 2/4 s in four chunks.
    """
    phases = [Segment(8.0, ((0, 1.0),), 2.0, 0.0), Segment(2.0, ((1, 1.0),), 1.0, 0.0)]
    one = piped(phases, 4)
    run = Simulation(np.array([2.0, 1.0]))
    run.flow("piped", one.amount, one.load, one.fixed_s, cap_bytes_per_s=one.cap_bytes_per_s)
    assert run.run().total_s == pytest.approx(4.5)


@pytest.mark.parametrize("chunks", [1, 4, 32])
def test_chunks_of_phases_over_one_link_take_turns_on_it(chunks: int) -> None:
    """Chunks of two phases over one link share it.

    Phases of 4 and 2 s take 6 s for any number of chunks.
    """
    link = ((0, 0.5),)  # seconds per byte while all groups send
    phases = [Segment(8.0, ((0, 1.0),), math.inf, 0.0, link), Segment(4.0, ((0, 1.0),), math.inf, 0.0, link)]
    one = piped(phases, chunks)
    run = Simulation(np.array([2.0]))
    run.flow("piped", one.amount, one.load, one.fixed_s, cap_bytes_per_s=one.cap_bytes_per_s)
    assert run.run().total_s == pytest.approx(6.0)


def test_messages_of_further_chunks_add_up_and_far_ones_travel_while_others_are_sent() -> None:
    phases = [Segment(8.0, ((0, 1.0),), 2.0, 1.0), Segment(2.0, ((1, 1.0),), 1.0, 0.0)]
    plain = piped(phases, 4).fixed_s
    assert piped(phases, 4, messages_s=0.25).fixed_s == pytest.approx(plain + 3 * 0.25)
    for latency_s, hidden in ((0.3, 0.3), (3.0, 2.0 * 3 / 4)):
        assert piped(phases, 4, CrossingMessages(2, latency_s, 2.0)).fixed_s == pytest.approx(plain - hidden)


def test_a_window_over_the_round_trip_caps_a_message() -> None:
    way = Way("ring", connections=((4, Connection(25e9, 1e6, 1, False)),))
    assert way.rate(4, 0.01) == pytest.approx(5e7)
    assert way.rate(1, 0.01) == np.inf


def test_a_short_window_slows_a_plan_that_crosses_buildings() -> None:
    degrees = {"pp": 2, "tp": 2, "dp_replicate": 4}
    job = instances.plain_job(2, 2, num_accelerators=16, degrees=degrees, shard=["none"], schedules=["1F1B"])
    plan = sa.plan(job, time_limit_s=10, alternatives=False)
    assert plan.decision.network
    tiny = [
        choice.model_copy(
            update={"connections": tuple(c.model_copy(update={"segment_bytes": 64}) for c in choice.connections)}
        )
        for choice in plan.decision.network
    ]
    short = plan.model_copy(update={"decision": plan.decision.model_copy(update={"network": tuple(tiny)})})
    assert sa.simulate(short).step_s > 1.2 * sa.simulate(plan).step_s


def test_sharded_gradients_are_scattered_once() -> None:
    """Without replicas the setting ``gradient_reduce`` changes nothing.

    Scatters of shards belong to the backward passes.
    """
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 8, "dp_replicate": 1}
    hidden, waited = (
        sa.simulate(
            sa.plan(instances.plain_job(2, degrees=degrees, shard=["parameters"], overlap=overlap), alternatives=False)
        )
        for overlap in ({"gradient_reduce": True}, {"gradient_reduce": False})
    )
    assert hidden.step_s == pytest.approx(waited.step_s)
