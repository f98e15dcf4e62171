"""The load at which a pipeline across two sites stops moving fewer bytes than data parallelism.

Bytes come from the cost model's own traffic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import scaleacross as sa
from instances import plain_building, plain_trunk
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology

TABLE = yaml.safe_load(Path(__file__).with_name("crosspipe_crossover.yaml").read_text(encoding="utf-8"))
SEQUENCE_LENGTH = 256  # short, so that batches have fine steps
SITES = Topology.model_validate(
    {
        "name": "two-sites",
        "regions": [{"name": "r", "buildings": [plain_building(name, 1, accelerators_per_host=1) for name in "ab"]}],
        "trunks": [plain_trunk("a", "b")],
    }
)


def bytes_across(workload: Any, degrees: Degrees, num_sequences: int) -> float:
    """Bytes of a step that leave one site, per direction, all axes."""
    loaded = sa.load_workload(workload)
    job = Job(
        name="crossover",
        workload=loaded,
        topology=SITES,
        sequence_length=SEQUENCE_LENGTH,
        global_batch_sequences=num_sequences,
        optimizer={"reduce_bytes": 2.0},  # 16-bit gradients and parameters are sent, as in the paper
    )
    decision = Decision(
        degrees=degrees,
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="optimizer" if degrees.dp_shard > 1 else "none",
        placement=Placement(
            axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"),
            fill=tuple(BuildingShare(building=name, num_accelerators=1) for name in "ab"),
        ),
    )
    traffic = plan_cost(job, loaded.profile(), SITES, decision).traffic
    return sum(next(level for level in traffic if level.level == "campus").bytes_per_step.values())


@pytest.mark.heavy
@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: f"{row['published']:.3g}")
def test_crossover_is_parameters_over_hidden_size(row: dict[str, Any]) -> None:
    """Sequences per step, by bisection, above which the pipeline moves more bytes than data parallelism."""
    profile = sa.load_workload(row["workload"]).profile()
    data_parallel = bytes_across(row["workload"], Degrees(dp_shard=2), 1000)
    fewer, more = 0, 1_000_000
    while more - fewer > 1:
        middle = (fewer + more) // 2
        if bytes_across(row["workload"], Degrees(pp=2), middle) < data_parallel:
            fewer = middle
        else:
            more = middle
    law = profile.total_parameters / profile.head.hidden_size / SEQUENCE_LENGTH
    print(f"published {row['published']:.3g}, ours {more * SEQUENCE_LENGTH:.4g} tokens per step")
    assert fewer < law * (1 + TABLE["tolerance"])
    assert more > law * (1 - TABLE["tolerance"])
    assert more * SEQUENCE_LENGTH == pytest.approx(row["published"], rel=row["published_tolerance"])
