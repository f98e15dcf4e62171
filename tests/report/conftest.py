"""Hand-made plans, small enough to check by eye."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console, RenderableType

from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.base import Provenance
from scaleacross.spec.job import Job
from scaleacross.spec.network import LevelLink, NetworkTechnology, Trunk
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import (
    Alternative,
    Bound,
    CostBreakdown,
    Decision,
    LevelTraffic,
    Plan,
    PredictedCollective,
    SolveReport,
    StageMemory,
)
from scaleacross.spec.topology import Building, BuildingLinks, Region, Topology

GIB = 2.0**30

Render = Callable[..., str]


@pytest.fixture
def render() -> Render:
    """What a renderable looks like in a pipe of ``width`` columns."""

    def run(renderable: RenderableType, width: int = 120) -> str:
        out = io.StringIO()
        Console(file=out, width=width).print(renderable)
        return out.getvalue()

    return run


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(
        name="H100-SXM",
        peak_flop_per_s={"bf16": 989.5e12, "fp8": 1979e12},
        memory_bytes=80 * GIB,
        memory_bandwidth_bytes_per_s=3.35e12,
        reserved_memory_bytes=4 * GIB,
        num_multiprocessors=132,
        gemm_tile_rows=128,
        gemm_tile_cols=256,
        gemm_efficiency_fraction=0.7,
        attention_efficiency_fraction=0.5,
        memory_efficiency_fraction=0.85,
        kernel_launch_s=2e-6,
        provenance={
            "memory_gib": Provenance(source="a public datasheet", status="datasheet"),
            "gemm_efficiency_fraction": Provenance(source="an educated guess", status="assumed"),
        },
    )


@pytest.fixture
def network() -> NetworkTechnology:
    return NetworkTechnology(
        name="RoCE-400",
        bandwidth_bytes_per_s=50e9,
        efficiency_fraction=0.9,
        congestion_control="dcqcn",
        provenance={"bandwidth_gbit_per_s": Provenance(source="a switch's manual", status="paper")},
    )


@pytest.fixture
def topology(accelerator: Accelerator, network: NetworkTechnology) -> Topology:
    """A full building of 2 zones (64 accelerators) and a partly equipped one of 3 hosts (24)."""
    link = LevelLink(technology=network, one_way_latency_s=7e-6, oversubscription_ratio=2.0)
    links = BuildingLinks(scale_up=link, rack=link, zone=link, building=link)

    def building(name: str, **size: int) -> Building:
        return Building(
            name=name,
            accelerator=accelerator,
            accelerators_per_host=8,
            hosts_per_rack=2,
            racks_per_zone=2,
            links=links,
            **size,
        )

    buildings = (building("east", num_zones=2), building("west", num_hosts=3))
    trunk = Trunk(between=("east", "west"), oversubscription_ratio=4.0, one_way_latency_s=30e-6)
    return Topology(name="pair", regions=(Region(name="north", buildings=buildings),), trunks=(trunk,))


DECISION = Decision(
    degrees=Degrees(tp=8, pp=4, dp_replicate=2),
    pipeline=PipelineChoice(schedule="1F1B", micro_batch_sequences=2),
    recompute="selective",
    shard="none",
    placement=Placement(
        axis_order=("tp", "cp", "dp_shard", "pp", "dp_replicate"),
        fill=(
            BuildingShare(building="east", num_accelerators=40),
            BuildingShare(building="west", num_accelerators=24),
        ),
        spans={"tp": "scale_up", "pp": "zone", "dp_replicate": "campus"},
    ),
)

COST = CostBreakdown(
    step_s=10.0,
    compute_s=7.0,
    bubble_s=1.0,
    exposed_s={"tp": 0.5, "pp": 0.25, "dp": 1.0},
    optimizer_s=0.25,
    tokens_per_s=104857.6,
    model_flop_per_s=430e12,
    mfu=0.4345,
)

COLLECTIVES = (
    PredictedCollective(
        name="tp all_gather",
        axis="tp",
        op="all_gather",
        group_size=8,
        bytes_per_rank=256 * 2.0**20,
        per_step=1024,
        level="scale_up",
        algorithm="ring",
        time_s=0.6e-3,
    ),
    PredictedCollective(
        name="dp_replicate all_reduce",
        axis="dp_replicate",
        op="all_reduce",
        group_size=2,
        bytes_per_rank=5 * GIB,
        per_step=1,
        level="campus",
        algorithm="hierarchical",
        time_s=1.2,
    ),
)

REPORT = SolveReport(
    status="optimal",
    objective_s=10.0,
    bound_s=9.5,
    gap=0.05,
    bounds=(Bound(name="compute", step_s=6.0, why="all model FLOP at the stated efficiencies"),),
    num_candidates=3412,
    num_infeasible={"heads not divisible": 12, "memory": 3000},
    num_pruned=390,
    num_placed=10,
    seconds=1.25,
    seed=0,
    versions={"ortools": "9.15"},
    alternatives=(
        Alternative(label="too-big", decision=DECISION, step_s=None, reason="4.2 GiB short"),
        Alternative(label="second", decision=DECISION, step_s=11.0, reason="+1.00 s recomputation"),
        Alternative(label="first", decision=DECISION, step_s=10.212, reason="dp across: exposed reduce"),
        Alternative(label="fourth", decision=DECISION, step_s=12.0, reason="bubble"),
    ),
    notes=("24 accelerators stay idle",),
)


@pytest.fixture
def plan(topology: Topology) -> Plan:
    """tp 8 · pp 4 · dp_replicate 2 = 64 of 88 accelerators, 40 in the east and 24 in the west."""
    job = Job(
        name="demo",
        workload={"name": "tiny-llama"},
        topology=topology.model_dump(mode="json"),
        sequence_length=8192,
        global_batch_sequences=128,
    )
    return Plan(
        job=job,
        decision=DECISION,
        layers_per_stage=((7,), (8,), (8,), (7,)),
        num_micro_batches=32,
        cost=COST,
        memory=tuple(stage_memory(stage, layers) for stage, layers in enumerate((7, 8, 8, 7))),
        traffic=(
            LevelTraffic(
                level="campus",
                bytes_per_step={"dp_replicate": 25 * GIB},
                capacity_bytes_per_s=300e9,
                utilisation=0.0089,
            ),
        ),
        collectives=COLLECTIVES,
        report=REPORT,
    )


@pytest.fixture
def make_stage_memory() -> Callable[..., StageMemory]:
    return stage_memory


def stage_memory(stage: int, num_layers: int, activations: float = 20.0) -> StageMemory:
    """Memory of a stage with 10 GiB in each part, 4 reserved, of 80."""
    return StageMemory(
        stage=stage,
        num_layers=num_layers,
        parameters_bytes=10 * GIB,
        gradients_bytes=10 * GIB,
        optimizer_bytes=10 * GIB,
        activations_bytes=activations * GIB,
        buffers_bytes=0,
        reserved_bytes=4 * GIB,
        capacity_bytes=80 * GIB,
    )
