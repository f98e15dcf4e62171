"""A recommendation plan of four ranks in two buildings that has every sharding, for tests that execute it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaleacross.api import evaluate_recommendation
from scaleacross.catalogue import load_topology
from scaleacross.catalogue.recommendation import load_recommendation_job
from scaleacross.spec.recommendation import RecommendationDecision, RecommendationPlan, Sharding, TablePlacement

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "recommendation" / "four_ranks.yaml"
TABLES = [
    {"name": "whole", "rows": 60, "dimension": 32, "pooling": [2.0, 1.0]},
    {"name": "rows", "rows": 37, "dimension": 32, "pooling": 3},
    {"name": "host", "rows": 90, "dimension": 64, "pooling": 2},
    {"name": "columns", "rows": 50, "dimension": 64, "pooling": 2},
    {"name": "copied", "rows": 11, "dimension": 32, "pooling": 1},
]
WAYS: dict[str, tuple[Sharding, tuple[int, ...], int]] = {
    "whole": ("table_wise", (2,), 32),
    "rows": ("row_wise", (0, 1, 2, 3), 32),
    "host": ("table_row_wise", (2, 3), 64),
    "columns": ("column_wise", (3, 0), 32),
    "copied": ("data_parallel", (0, 1, 2, 3), 32),
}


def mixed_plan(batch: int = 32, ways: dict[str, Any] | None = None, **fields: Any) -> RecommendationPlan:
    """Every sharding once, on two hosts of two accelerators each."""
    data = load_topology(ROOT / "examples" / "testbed" / "two_buildings.yaml").model_dump(mode="json")
    for region in data["regions"]:
        for building in region["buildings"]:
            building |= {"num_hosts": 1, "accelerators_per_host": 2, "hosts_per_rack": 1}
    workload = {"name": "mixed", "family": "dlrm", "tables": TABLES, "top_mlp": [8, 1]}
    stated = {
        "name": "mixed",
        "workload": workload,
        "topology": data,
        "global_batch_samples": batch,
        "optimizer": "sgd",
    }
    job = load_recommendation_job({**stated, **fields})[0]
    size = 4 // max(job.replica_groups)
    placements = []
    for table, (sharding, ranks, width) in (ways or WAYS).items():
        kernel = "dense" if sharding == "data_parallel" else "fused"
        own = tuple(sorted({rank % size for rank in ranks})) if size < 4 else ranks
        placements.append(TablePlacement(table=table, sharding=sharding, kernel=kernel, ranks=own, column_width=width))
    return evaluate_recommendation(
        job, RecommendationDecision(num_groups=max(job.replica_groups), tables=tuple(placements))
    )
