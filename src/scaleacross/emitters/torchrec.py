"""TorchRec's ShardingPlan, as JSON and as a Python file that builds it, with constraints that lead its planner to the
same plan.
"""

from __future__ import annotations

import json
from typing import Any, Final

from scaleacross.emitters.filling import filled
from scaleacross.errors import EmitError
from scaleacross.spec.recommendation import RecommendationPlan, TablePlacement, shard_extents
from scaleacross.workloads.recommendation import Dlrm

MODULE: Final = "sparse_arch.embedding_bag_collection"
"""Path of the collection in TorchRec's own DLRM (torchrec.models.dlrm)."""


def render(plan: RecommendationPlan) -> dict[str, str]:
    """Return ``torchrec/sharding_plan.json`` and ``torchrec/sharding_plan.py``.

    Raises:
        EmitError: a table is on SSD, which its collections access only through a kernel with a separate setup, or
            something else than kernels moves vectors.
    """
    if plan.decision.driver != "multiprocessors":
        raise EmitError(
            f"torchrec: vectors are planned to be moved by {plan.decision.driver}; TorchRec's all-to-alls have unequal parts, "
            "which NCCL sends by kernels: plan with drivers=[multiprocessors]"
        )
    model = Dlrm.model_validate(plan.job.workload)
    placed = {one.table: one for one in plan.decision.tables}
    per_host = _per_host(plan)
    tables: dict[str, Any] = {}
    for table in model.expanded():
        placement = placed[table.name]
        if placement.kernel == "key_value":
            raise EmitError(
                f"torchrec: table '{table.name}' lives on SSD; its key_value kernel needs paths that a plan does not state: "
                "plan without it (kernels: [dense, fused, fused_uvm_caching, fused_uvm])"
            )
        tables[table.name] = {
            "size": [table.rows, table.dimension],
            "sharding_type": placement.sharding,
            "compute_kernel": placement.kernel,
            "ranks": list(placement.ranks),
            "shards": _shards(placement, table.rows, table.dimension, per_host),
            "min_partition": placement.column_width if "column" in placement.sharding else None,
            "pooling_factors": list(table.pooling),
            "is_weighted": table.weighted,
            "is_pooled": table.pooled,
            "cache_load_factor": placement.cache_fraction,
        }
    groups = plan.decision.num_groups
    whole = {
        "module": MODULE,
        "world_size": len(plan.ranks) * groups,
        "sharding_group_size": len(plan.ranks),
        "use_inter_host_allreduce": plan.decision.replicas == "outer",
        "tables": tables,
    }
    notes = _group_note(plan) + _sequence_note(model)
    script = filled("sharding_plan.py.txt", name=repr(plan.job.name), groups=notes)
    return {"torchrec/sharding_plan.json": json.dumps(whole, indent=1) + "\n", "torchrec/sharding_plan.py": script}


def _group_note(plan: RecommendationPlan) -> str:
    if plan.decision.num_groups == 1:
        return ""
    return (
        "\nThe plan is that of one group of ranks: wrap the model in DMPCollection with sharding_group_size and\n"
        "use_inter_host_allreduce of sharding_plan.json in place of DistributedModelParallel.\n"
    )


def _sequence_note(model: Dlrm) -> str:
    names = [table.name for table in model.tables if not table.pooled]
    if not names:
        return ""
    named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"\nRows of {named} are not pooled: an EmbeddingCollection holds them,\n"
        'sharding_plan("path.of.it", pooled=False) with EmbeddingCollectionSharder.\n'
    )


def _per_host(plan: RecommendationPlan) -> dict[int, int]:
    """Map each rank to its device index on its host."""
    seen: dict[tuple[str, int], int] = {}
    out = {}
    for load in plan.ranks:
        out[load.rank] = seen.get((load.building, load.host), 0)
        seen[load.building, load.host] = out[load.rank] + 1
    return out


def _shards(placement: TablePlacement, rows: int, dimension: int, device: dict[int, int]) -> list[dict[str, Any]]:
    """Return shards as TorchRec's ShardMetadata; none for a data-parallel table, which has no sharding spec."""
    if placement.sharding == "data_parallel":
        return []
    return [
        {
            "offsets": [one.first_row, one.first_column],
            "sizes": [one.rows, one.columns],
            "placement": f"rank:{one.rank}/cuda:{device[one.rank]}",
        }
        for one in shard_extents(placement, rows, dimension)
    ]
