"""The simulation's model of NCCL's protocols over nodes agrees with the estimate."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from scaleacross.calibration.across_nodes import _fill
from scaleacross.cost_models.collectives import ALGORITHM_NAMES, Group
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import CAMPUS, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.plan_traffic import bytes_out
from scaleacross.cost_models.protocol_times import ProtocolTimes, exchange_latency_s
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow
from scaleacross.simulation.calls import Calls
from scaleacross.simulation.connections import Way
from scaleacross.simulation.library import Library
from scaleacross.simulation.machine import build_machine
from scaleacross.spec.network import CollectiveCurve, CurveOp, NetworkTechnology
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.topology import Trunk
from scaleacross.step.setting import Op
from scaleacross.validation.machines import machine_named, topology_of


@pytest.mark.parametrize(("gpu", "stride"), [("H100", 1), ("H100", 4), ("H100", 8), ("A100-80GB", 1), ("B200", 2)])
@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_simulation_and_estimate_read_the_protocols_alike(gpu: str, stride: int, nodes: int) -> None:
    topology = topology_of(machine_named(gpu, ""), 8 * nodes)
    levels = build_levels(topology, _fill(topology))
    degree, links = 8 * nodes // stride, links_of(levels)
    assert links.curves is not None
    estimate = ProtocolTimes(one_row(exact_shape(degree, stride, levels)), links, links.curves, lambda values: values)
    technology = topology.buildings[0].links.scale_up.technology
    ours, rate = Library(degree, nodes, technology), float(estimate._rate[0])
    alike = 0.25 if gpu.startswith("A100") else 0.03  # small collectives of eight A100 are not measured
    assert ours.share == pytest.approx(float(estimate.share[0]))
    for size in 2.0 ** np.arange(10, 33, 2):
        assert ours.tree_s(size, rate) == pytest.approx(float(estimate.tree_s(np.array([size]))[0]), rel=alike), size
        for op in get_args(CurveOp)[:3]:
            assert ours.ring_s(op, size, rate) == pytest.approx(
                float(estimate.ring_s(op, np.array([size]))[0]), rel=alike
            )


@pytest.mark.parametrize(
    ("algorithm", "op"),
    [("ring", "all_gather"), ("tree", "all_reduce"), ("hierarchical", "all_gather"), ("pairwise", "all_to_all")],
)
def test_a_simulated_collective_takes_at_least_what_the_protocols_take(algorithm: str, op: Op) -> None:
    """A simulated collective takes at least the time of the protocols.

    For the hierarchical algorithm groups have one rank in each of four nodes. Its only phase is then a ring.
    """
    topology = topology_of(machine_named("H100", ""), 32)
    placement = Placement(
        axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"),
        fill=(BuildingShare(building="building", num_accelerators=32),),
    )
    alone = algorithm == "hierarchical"
    degrees = Degrees(tp=8, dp_shard=4) if alone else Degrees(dp_shard=32)
    kinds = {"dp_shard": ["ring", "pairwise", "hierarchical"]}
    machine, size = build_machine(topology, placement, degrees, kinds, width=1), 2.0**12
    group = machine.group_of("dp_shard", machine.block_classes[0])
    (segment,) = Calls(machine, 0.0).of("dp_shard", group, (op,), (Way(algorithm),), size)
    library = Library(degrees.dp_shard, 4, topology.buildings[0].links.scale_up.technology)
    levels = build_levels(topology, placement.fill)
    handshakes_s = float(exchange_latency_s(exact_shape(degrees.dp_shard, degrees.tp, levels), links_of(levels)))
    expected = {
        "ring": library.ring_s("all_gather", size, segment.cap_bytes_per_s),
        "tree": library.tree_s(size, segment.cap_bytes_per_s),
        "hierarchical": library.ring_s("all_gather", size, segment.cap_bytes_per_s),
        "pairwise": handshakes_s + size / segment.cap_bytes_per_s,
    }
    assert segment.fixed_s + segment.amount / segment.cap_bytes_per_s == pytest.approx(expected[algorithm])


@pytest.mark.parametrize(("algorithm", "op"), [("ring", "all_gather"), ("ring", "all_reduce"), ("tree", "all_reduce")])
def test_a_collective_over_two_buildings_takes_no_less_than_over_one(algorithm: str, op: Op) -> None:
    """A collective over two buildings takes at least the time over one.

    Both have as many nodes and bytes. The link between buildings is not the bottleneck, and no switch reduces data.
    """
    one = topology_of(machine_named("A100-80GB", ""), 64)
    (half,) = topology_of(machine_named("A100-80GB", ""), 32).buildings
    trunk = Trunk(between=("a", "b"), one_way_latency_s=1e-5, bandwidth_bytes_per_s=1e15)
    halves = tuple(half.model_copy(update={"name": name}) for name in ("a", "b"))
    region = one.regions[0].model_copy(update={"buildings": halves})
    two = one.model_copy(update={"regions": (region,), "trunks": (trunk,)})
    size, simulated, estimated = 2.0**12, [], []
    for topology, allocation in ((one, {"building": 64}), (two, {"a": 32, "b": 32})):
        shares = tuple(BuildingShare(building=name, num_accelerators=count) for name, count in allocation.items())
        placement = Placement(axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"), fill=shares)
        machine = build_machine(topology, placement, Degrees(dp_shard=64), {"dp_shard": ["ring"]}, width=1)
        group = machine.group_of("dp_shard", machine.block_classes[0])
        (segment,) = Calls(machine, 0.0).of("dp_shard", group, (op,), (Way(algorithm),), size)
        simulated.append(segment.fixed_s + segment.amount / segment.cap_bytes_per_s)
        levels = build_levels(topology, shares)
        own = Group(one_row(exact_shape(64, 1, levels)), links_of(levels), 0.0)
        code = ALGORITHM_NAMES.index(algorithm)
        timed = own._way(op, np.array([size]), 2 if op == "all_reduce" else 1, None, (code,))
        estimated.append(float(timed.time_s[0]))
    assert simulated[1] >= simulated[0] * (1 - 1e-9)
    assert estimated[1] >= estimated[0] * (1 - 1e-9)


def test_a_scatter_stands_in_for_a_gather_that_was_not_measured() -> None:
    """The curve of a scatter replaces the missing curve of a gather, and latencies use the same factor as in the
    estimate."""
    scatter = CollectiveCurve(op="reduce_scatter", num_ranks=2, time_s={1024: 3e-5, 2**30: 1e-2})
    technology = NetworkTechnology(name="x", bandwidth_bytes_per_s=1e11, efficiency_fraction=1, curves=(scatter,))
    library = Library(4, 4, technology)
    assert library.ring_s("all_gather", 1024.0, 1e10) == library.ring_s("reduce_scatter", 1024.0, 1e10) > 5e-5


@pytest.mark.parametrize(("op", "crossing"), [("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_reduce", 1.0)])
def test_the_smaller_of_two_buildings_takes_in_what_it_lacks(op: Op, crossing: float) -> None:
    """The smaller of two buildings receives what it does not have.

    48 and 16 ranks use one level after the other over a link of 1 GB/s. Three quarters of a gather enter the building
    with 16.
    """
    one = topology_of(machine_named("A100-80GB", ""), 64)
    trunk = Trunk(between=("a", "b"), one_way_latency_s=0.0, bandwidth_bytes_per_s=1e9)
    halves = tuple(one.buildings[0].model_copy(update={"name": name}) for name in ("a", "b"))
    region = one.regions[0].model_copy(update={"buildings": halves})
    two = one.model_copy(update={"regions": (region,), "trunks": (trunk,)})
    shares = (BuildingShare(building="a", num_accelerators=48), BuildingShare(building="b", num_accelerators=16))
    placement = Placement(axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"), fill=shares)
    machine = build_machine(two, placement, Degrees(dp_shard=64), {"dp_shard": ["hierarchical"]}, width=1)
    group, size = machine.group_of("dp_shard", machine.block_classes[0]), 2.0**36
    parts = Calls(machine, 0.0).of("dp_shard", group, (op,), (Way("hierarchical"),), size)
    assert sum(part.moving_s for part in parts) == pytest.approx(crossing * size / 1e9, rel=0.05)
    levels = build_levels(two, shares)
    own = Group(one_row(exact_shape(64, 1, levels)), links_of(levels), 0.0)
    passes = 2 if op == "all_reduce" else 1
    timed = own._way(op, np.array([size]), passes, None, (ALGORITHM_NAMES.index("hierarchical"),))
    assert float(timed.time_s[0]) == pytest.approx(crossing * size / 1e9, rel=0.05)
    flow, shape = Flow("dp_shard", op, "parameters", "dp_shard", size, {}), exact_shape(64, 1, levels)
    assert bytes_out(flow, "hierarchical", shape, CAMPUS, PipelineChoice(schedule="1F1B")) == pytest.approx(
        crossing * size
    )
