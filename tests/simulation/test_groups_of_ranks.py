"""Parameters travel over the groups of each pipeline rank: estimates of stages in and across buildings agree with the
simulation."""

from __future__ import annotations

import pytest

import scaleacross as sa
from design_points import placed, point

WITHIN = 0.02


@pytest.mark.parametrize(
    ("schedule", "shards"),
    [(("1F1B", 1), {"dp_shard": 256}), (("Interleaved1F1B", 2), {"dp_shard": 32, "dp_replicate": 8})],
    ids=["shards cross", "shards and replicas cross"],
)
def test_only_stages_across_buildings_wait_for_inter_building_links(
    schedule: tuple[str, int], shards: dict[str, int]
) -> None:
    job = point(model="llama3.1-70b", accelerators=8192, buildings=3, regions=3)
    decision = placed(
        schedule, "tp cp dp_replicate dp_shard pp", (2736, 2728, 2728), "parameters", tp=4, cp=2, pp=4, **shards
    )
    # 28 % and 20 % too high if all stages went at the pace of the two that lie in two buildings
    step = sa.simulate(sa.evaluate((job, decision)))
    assert abs(step.difference) < WITHIN, step.difference
