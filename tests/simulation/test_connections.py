"""Properties of connections reduce link rates: windows over the round trip, channels, loss, and hashing of flows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import instances
import scaleacross as sa
from scaleacross.simulation.connections import Connection, Way, fullest_over_mean
from scaleacross.simulation.fabric import CAMPUS, RACK, Haul
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.network_choice import CommunicatorChoice, LevelAlgorithm, LevelStep
from scaleacross.spec.network_choice import Connection as ConnectionChoice
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision, Plan, PredictedCollective


def way(**settings: Any) -> Way:
    whole = {"channel_bytes_per_s": 50e9, "window_bytes": 8e6, "queue_pairs": 2, "hashed": True} | settings
    return Way("ring", connections=((CAMPUS, Connection(**whole)),))


# --- one connection -----------------------------------------------------------------------------------------------------


def test_the_tightest_of_line_channels_and_window_holds() -> None:
    assert way().rate(CAMPUS, 1e-3, 40e9) == pytest.approx(8e6 / 2e-3)
    assert way().rate(CAMPUS, 1e-6, 40e9) == 40e9
    assert way(channel_bytes_per_s=25e9).rate(CAMPUS, 1e-6, 40e9) == 25e9
    assert way().rate(RACK, 1e-3, 40e9) == 40e9  # no connection is stated for the level


def test_a_lost_packet_costs_its_window() -> None:
    """A lost packet costs its window under go-back-N.

    4 MB in flight per queue pair are 1,000 packets of 4,000 bytes. The efficiency is (1−p)/(1−p+p·W) with p = 0.1 %.
    """
    lossy = way().rate(CAMPUS, 1e-3, 40e9, Haul(1e-3, 4000.0))
    assert lossy == pytest.approx(8e6 / 2e-3 * 0.999 / (0.999 + 1.0))
    selective = way().rate(CAMPUS, 1e-3, 40e9, Haul(1e-3, np.inf))
    assert selective == pytest.approx(8e6 / 2e-3 * 0.999)


# --- hashing ------------------------------------------------------------------------------------------------------------


def test_hashed_flows_leave_the_fullest_link_to_set_the_pace() -> None:
    assert fullest_over_mean(100, 1, 0) == 1.0
    assert fullest_over_mean(1, 8, 0) == 8.0  # one flow has one link of eight
    assert 1 < fullest_over_mean(10**7, 8, 0) < 1.01  # many flows use all links evenly


def test_what_is_drawn_is_what_is_expected() -> None:
    """Drawn collisions agree with the expectation.

    Two flows on two links meet in half of all draws, so the fullest link has 1.5 flows on average.
    """
    drawn = [fullest_over_mean(2, 2, seed) for seed in range(2000)]
    assert np.mean(drawn) == pytest.approx(1.5, abs=0.05)
    assert drawn[7] == fullest_over_mean(2, 2, 7)
    assert fullest_over_mean(2, 2, None) == pytest.approx(1.5, abs=0.15)


# --- in a plan ----------------------------------------------------------------------------------------------------------


def crossing(latency_us: float, **trunk: Any) -> Plan:
    """A pipeline of two ranks, each one accelerator in its own building, with the library's network settings."""
    topology = instances.plain_topology(1, 1, accelerators_per_host=1)
    topology["trunks"] = [instances.plain_trunk("b0", "b1", 400.0, latency_us) | trunk]
    decision = Decision(
        degrees=Degrees(pp=2),
        pipeline=PipelineChoice(schedule="1F1B", micro_batch_sequences=4),
        recompute="none",
        shard="none",
        placement=Placement(
            axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"),
            fill=(BuildingShare(building="b0", num_accelerators=1), BuildingShare(building="b1", num_accelerators=1)),
        ),
    )
    return sa.evaluate((instances.plain_job(topology=topology), decision))


def test_a_decision_without_a_network_is_held_to_the_library_s_window() -> None:
    """The library's window limits a decision without a network.

    Messages of 8.4 MB take 50 ms one way, with 4 MiB per channel in flight. Each takes two round trips, in simulation
    and estimate.
    """
    far = crossing(50_000)
    message = next(one for one in far.collectives if one.op == "send")
    assert far.decision.network is None
    assert message.level == "campus"
    wide = far.model_copy(update={"decision": far.decision.model_copy(update={"network": (unlimited(message),)})})
    saved = sa.simulate(far).step_s - sa.simulate(wide).step_s
    assert saved > 2 * 0.1
    assert abs(sa.simulate(far).difference) < 0.05


def unlimited(message: PredictedCollective) -> CommunicatorChoice:
    """The library's algorithm with a window larger than the inter-building link can fill."""
    link = ConnectionChoice(
        level="campus", queue_pairs=128, segment_bytes=1 << 30, outstanding=256, load_balancing="spray"
    )
    return CommunicatorChoice(
        communicator="pp",
        op="send",
        payload="activations",
        algorithm="point_to_point",
        chunk_bytes=message.bytes_per_rank,
        num_channels=32,
        connections=(link,),
    )


def test_loss_slows_a_simulation_as_it_slows_the_estimate() -> None:
    clean, lossy = crossing(50_000), crossing(50_000, loss_fraction=0.01)
    assert sa.simulate(lossy).step_s > 1.5 * sa.simulate(clean).step_s
    assert abs(sa.simulate(lossy).difference) < 0.05


@pytest.mark.parametrize("level", ["scale_up", "campus"])
def test_halving_and_doubling_saves_latency_in_a_simulation(level: LinkLevel) -> None:
    """Halving and doubling saves latency in the simulation.

    Gradients of four ranks take 2 steps of a scatter and 2 of a gather instead of 3 and 3. This saves two latencies.
    """
    latency_us, apart = 30_000.0, level == "campus"
    topology = instances.plain_topology(*([1] * 4 if apart else [1]), accelerators_per_host=1 if apart else 4)
    names = [building["name"] for building in topology["regions"][0]["buildings"]]
    topology["trunks"] = [instances.plain_trunk(a, b, 400.0, latency_us) for a, b in itertools.combinations(names, 2)]
    for building in topology["regions"][0]["buildings"]:
        building["links"] = building["links"] | {"scale_up": instances.link(10.0, latency_us)}
    allocation = tuple(BuildingShare(building=name, num_accelerators=4 // len(names)) for name in names)
    decision = Decision(
        degrees=Degrees(dp_replicate=4),
        pipeline=PipelineChoice(schedule="1F1B", micro_batch_sequences=4),
        recompute="none",
        shard="none",
        placement=Placement(axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"), fill=allocation),
    )
    plan = sa.evaluate((instances.plain_job(topology=topology), decision))

    def step_s(algorithm: LevelAlgorithm) -> float:
        link = ConnectionChoice(
            level=level, queue_pairs=128, segment_bytes=1 << 30, outstanding=256, load_balancing="spray"
        )
        choice = CommunicatorChoice(
            communicator="dp_replicate",
            op="all_reduce",
            payload="gradients",
            algorithm="hierarchical",
            steps=(LevelStep(level=level, algorithm=algorithm),),
            chunk_bytes=1e9,
            num_channels=32,
            connections=(link,) if apart else (),
        )
        collectives = tuple(one.model_copy(update={"algorithm": "hierarchical"}) for one in plan.collectives)
        chosen = plan.decision.model_copy(update={"network": (choice,)})
        return sa.simulate(plan.model_copy(update={"decision": chosen, "collectives": collectives})).step_s

    assert step_s("ring") - step_s("halving_doubling") == pytest.approx(2 * latency_us * 1e-6)


def test_a_seed_draws_other_collisions_and_the_same_seed_the_same() -> None:
    """Equal seeds draw equal collisions, and other seeds draw others.

    Four rings of gradients cross four parallel links. In some draws two rings share a link, in others none do.
    """
    topology = instances.plain_topology(1, 1)
    wire = topology["regions"][0]["buildings"][0]["links"]["building"]["technology"]
    for building in topology["regions"][0]["buildings"]:
        building["links"]["building"]["technology"] = wire | {"load_balancing": "ecmp"}
    line = wire["bandwidth_gbyte_per_s"] * wire["efficiency_fraction"]
    topology["trunks"] = [instances.plain_trunk("b0", "b1", 4 * line, 100.0)]
    decision = Decision(
        degrees=Degrees(tp=4, dp_replicate=2),
        pipeline=PipelineChoice(schedule="1F1B", micro_batch_sequences=8),
        recompute="none",
        shard="none",
        placement=Placement(
            axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"),
            fill=(BuildingShare(building="b0", num_accelerators=4), BuildingShare(building="b1", num_accelerators=4)),
        ),
    )
    plan = sa.evaluate((instances.plain_job(topology=topology), decision))
    times = {sa.simulate(plan, what_if=[f"seed={seed}"]).step_s for seed in range(12)}
    assert 1 < len(times) <= 4
    assert min(times) < sa.simulate(plan).step_s < max(times)  # the plan states their mean
    assert sa.simulate(plan, what_if=["seed=3"]).step_s in times
    assert sa.simulate(plan, what_if=["seed=3"], fold=False).step_s == pytest.approx(
        sa.simulate(plan, what_if=["seed=3"]).step_s
    )
