"""Plans built by hand: two buildings in two zones each, hosts of four accelerators, Llama 3.1 8B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import virtual_stage
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS, LevelLink, LinkLevel, NetworkTechnology, Trunk
from scaleacross.spec.parallelism import (
    Axis,
    ContextExchange,
    Degrees,
    GridAxis,
    PipelineChoice,
    ScheduleName,
    ShardLevel,
    split_layers,
)
from scaleacross.spec.placement import BuildingShare, Device, Placement, devices
from scaleacross.spec.plan import CostBreakdown, Decision, Plan, PredictedCollective, SolveReport
from scaleacross.spec.recomputation import Recompute
from scaleacross.spec.topology import Building, BuildingLinks, Region, Topology
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.workload import Workload

TITAN_ORDER: tuple[GridAxis, ...] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
ACCELERATORS_PER_HOST = 4


def llama3_8b() -> DenseTransformer:
    """Llama 3.1 8B (arXiv 2407.21783, table 3): 8,030,261,248 parameters."""
    return DenseTransformer(
        name="llama3_1_8b",
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocabulary_size=128256,
        gated_mlp=True,
        tied_embedding=False,
    )


def accelerator(name: str = "H100-SXM") -> Accelerator:
    """Round figures: nothing here depends on them."""
    return Accelerator(
        name=name,
        peak_flop_per_s={"bf16": 1e15},
        memory_bytes=80e9,
        memory_bandwidth_bytes_per_s=3e12,
        reserved_memory_bytes=1e9,
        num_multiprocessors=132,
        gemm_tile_rows=128,
        gemm_tile_cols=256,
        gemm_efficiency_fraction=0.7,
        attention_efficiency_fraction=0.6,
        memory_efficiency_fraction=0.9,
        kernel_launch_s=1e-6,
    )


def building(name: str, num_hosts: int, load_balancing: str = "ecmp", accelerator_name: str = "H100-SXM") -> Building:
    """A building with one host per rack and two racks per zone."""
    nic = NetworkTechnology(
        name="roce", bandwidth_bytes_per_s=50e9, efficiency_fraction=0.9, load_balancing=load_balancing
    )
    nvlink = NetworkTechnology(name="nvlink", bandwidth_bytes_per_s=450e9, efficiency_fraction=0.8)
    return Building(
        name=name,
        accelerator=accelerator(accelerator_name),
        accelerators_per_host=ACCELERATORS_PER_HOST,
        hosts_per_rack=1,
        racks_per_zone=2,
        num_hosts=num_hosts,
        links=BuildingLinks(
            scale_up=LevelLink(technology=nvlink, one_way_latency_s=1e-6),
            rack=LevelLink(technology=nic, one_way_latency_s=2e-6),
            zone=LevelLink(technology=nic, one_way_latency_s=4e-6),
            building=LevelLink(technology=nic, one_way_latency_s=7e-6),
        ),
    )


def two_buildings(
    num_hosts: Sequence[int] = (2, 3),
    *,
    names: Sequence[str] = ("east", "west"),
    latency_s: float = 20e-6,
    load_balancing: str = "ecmp",
    accelerator_name: str = "H100-SXM",
) -> Topology:
    """Buildings of one region joined by an inter-building link."""
    return Topology(
        name="pair",
        regions=(
            Region(
                name="north",
                buildings=tuple(
                    building(name, hosts, load_balancing, accelerator_name)
                    for name, hosts in zip(names, num_hosts, strict=True)
                ),
            ),
        ),
        trunks=(Trunk(between=(names[0], names[1]), one_way_latency_s=latency_s),),
    )


def unit(topology: Topology, device: Device, level: LinkLevel) -> tuple[object, ...]:
    """The unit within which ``level``'s link joins devices.

    Two devices of one unit need no outer level.
    """
    rack = (device.building, device.zone, device.rack)
    on_host = topology.building(device.building).scale_up_domain == "host"
    return {
        "scale_up": (*rack, device.host) if on_host else rack,
        "rack": rack,
        "zone": rack[:2],
        "building": rack[:1],
        "campus": (topology.region_of(device.building),),
        "region": (),
    }[level]


def spans(topology: Topology, placement: Placement, degrees: Degrees) -> dict[Axis, LinkLevel]:
    """Outermost level of every axis, from neighbours one coordinate apart. The emitter has its own code for this."""
    where = list(devices(topology, placement))
    out: dict[Axis, LinkLevel] = {}
    stride = 1
    for axis in placement.axis_order:
        for position, device in enumerate(where):
            coordinate = position // stride % degrees.of(axis)
            if coordinate + 1 < degrees.of(axis):
                other = where[position + stride]
                level = next(
                    level for level in LINK_LEVELS if unit(topology, device, level) == unit(topology, other, level)
                )
                out[axis] = max(out.get(axis, level), level, key=LINK_LEVELS.index)
        stride *= degrees.of(axis)
    return out


def make_plan(
    degrees: Degrees,
    axis_order: tuple[GridAxis, ...] = TITAN_ORDER,
    *,
    topology: Topology | None = None,
    allocation: Sequence[tuple[str, int]] | None = None,
    workload: Workload | None = None,
    schedule: ScheduleName = "1F1B",
    num_chunks: int = 1,
    num_micro_batches: int = 8,
    recompute: Recompute = "none",
    shard: ShardLevel = "optimizer",
    context_exchange: ContextExchange = "ring",
    name: str = "unit-test",
    **job: Any,
) -> Plan:
    """A plan of the given shape with arbitrary costs.

    ``allocation``, the allocation, defaults to the first hosts of the topology.
    """
    topology = topology or two_buildings(_hosts_for(degrees.world_size))
    placement = Placement(axis_order=axis_order, fill=_shares(allocation or _first(topology, degrees.world_size)))
    placement = placement.model_copy(update={"spans": spans(topology, placement, degrees)})
    workload = workload or llama3_8b()
    parts = split_layers(workload.profile().num_layers, degrees.pp * num_chunks)
    places = SCHEDULES[schedule].placement
    stages = tuple(
        tuple(parts[virtual_stage(places, degrees.pp, rank, chunk)] for chunk in range(num_chunks))
        for rank in range(degrees.pp)
    )
    settings: dict[str, Any] = {
        "sequence_length": 4096,
        "global_batch_sequences": degrees.dp * num_micro_batches,
        **job,
    }
    collectives = tuple(_collective(axis, degrees.of(axis), level) for axis, level in placement.spans.items())
    return Plan(
        job=Job(name=name, workload=workload, topology=topology, **settings),  # type: ignore[arg-type]
        decision=Decision(
            degrees=degrees,
            pipeline=PipelineChoice(schedule=schedule, num_chunks=num_chunks),
            recompute=recompute,
            shard=shard,
            context_exchange=context_exchange,
            placement=placement,
        ),
        layers_per_stage=stages,
        num_micro_batches=num_micro_batches,
        cost=CostBreakdown(
            step_s=5.0, compute_s=4.0, bubble_s=1.0, exposed_s={}, optimizer_s=0.0, tokens_per_s=1.0, model_flop_per_s=1.0,
            mfu=0.4,
        ),
        memory=(),
        traffic=(),
        collectives=collectives,
        report=SolveReport(
            status="evaluated", objective_s=5.0, bound_s=4.0, gap=0.2, num_candidates=1, num_pruned=0, num_placed=1,
            seconds=0.1, seed=0, versions={},
        ),
    )  # fmt: skip


def _hosts_for(world_size: int) -> tuple[int, int]:
    hosts = -(-world_size // ACCELERATORS_PER_HOST)
    return max(1, hosts * 2 // 5), max(1, hosts - hosts * 2 // 5)


def _first(topology: Topology, world_size: int) -> list[tuple[str, int]]:
    out, left = [], world_size
    for place in topology.buildings:
        if left:
            out.append((place.name, min(left, place.num_accelerators)))
            left -= out[-1][1]
    return out


def _shares(allocation: Sequence[tuple[str, int]]) -> tuple[BuildingShare, ...]:
    return tuple(BuildingShare(building=name, num_accelerators=count) for name, count in allocation)


def _collective(axis: Axis, size: int, level: LinkLevel) -> PredictedCollective:
    return PredictedCollective(
        name=f"{axis} all_reduce", axis=axis, op="all_reduce", group_size=size, bytes_per_rank=1e6, per_step=2.0, level=level,
        algorithm="ring", time_s=1e-3,
    )  # fmt: skip
