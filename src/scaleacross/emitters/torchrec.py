"""TorchRec's ShardingPlan, as JSON and as a Python file that builds it, with the constraints that lead its planner there."""

from __future__ import annotations

import json
from typing import Any, Final

from scaleacross.errors import EmitError
from scaleacross.spec.recommendation import RecommendationPlan, TablePlacement, shard_extents
from scaleacross.workloads.recommendation import Dlrm

MODULE: Final = "sparse_arch.embedding_bag_collection"
"""Path of the collection in TorchRec's own DLRM (torchrec.models.dlrm)."""

_SCRIPT: Final = '''"""Sharding plan of {name!r} for TorchRec, written by scaleacross.

    plan = sharding_plan()                       # or sharding_plan("path.of.your.collection")
    model = DistributedModelParallel(module, plan=plan, sharders=[EmbeddingBagCollectionSharder()])
{groups}
``constraints()`` holds TorchRec's own planner to the same shardings and kernels.
"""

import json
from pathlib import Path

from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

PLAN = json.loads((Path(__file__).parent / "sharding_plan.json").read_text())


def _spec(shards, device):
    places = [s["placement"] if device == "cuda" else s["placement"].partition("/")[0] + "/" + device for s in shards]
    metadata = [ShardMetadata(s["offsets"], s["sizes"], place) for s, place in zip(shards, places)]
    return EnumerableShardingSpec(metadata) if metadata else None


def _cache(table):
    share = table["cache_load_factor"]
    return None if share is None else CacheParams(load_factor=share)


def sharding_plan(module=PLAN["module"], device="cuda"):
    """The plan of the collection at ``module``; ``device="cpu"`` to try it on gloo."""
    tables = {{
        name: ParameterSharding(
            sharding_type=table["sharding_type"],
            compute_kernel=table["compute_kernel"],
            ranks=table["ranks"],
            sharding_spec=_spec(table["shards"], device),
            cache_params=_cache(table),
        )
        for name, table in PLAN["tables"].items()
    }}
    return ShardingPlan(plan={{module: EmbeddingModuleShardingPlan(tables)}})


def constraints():
    """By table, for ``EmbeddingShardingPlanner(constraints=...)``."""
    return {{
        name: ParameterConstraints(
            sharding_types=[table["sharding_type"]],
            compute_kernels=[table["compute_kernel"]],
            min_partition=table["min_partition"],
            pooling_factors=table["pooling_factors"],
            is_weighted=table["is_weighted"],
            cache_params=_cache(table),
        )
        for name, table in PLAN["tables"].items()
    }}
'''


def render(plan: RecommendationPlan) -> dict[str, str]:
    """``torchrec/sharding_plan.json`` and ``torchrec/sharding_plan.py``.

    Raises:
        EmitError: a table lives on SSD, which its collections reach only through a kernel of their own setup, or something else
            than kernels moves vectors.
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
    script = _SCRIPT.format(name=plan.job.name, groups=_group_note(plan))
    return {"torchrec/sharding_plan.json": json.dumps(whole, indent=1) + "\n", "torchrec/sharding_plan.py": script}


def _group_note(plan: RecommendationPlan) -> str:
    if plan.decision.num_groups == 1:
        return ""
    return (
        "\nThe plan is that of one group of ranks: wrap the model in DMPCollection with sharding_group_size and\n"
        "use_inter_host_allreduce of sharding_plan.json in place of DistributedModelParallel.\n"
    )


def _per_host(plan: RecommendationPlan) -> dict[int, int]:
    """Device index of every rank on its host."""
    seen: dict[tuple[str, int], int] = {}
    out = {}
    for load in plan.ranks:
        out[load.rank] = seen.get((load.building, load.host), 0)
        seen[load.building, load.host] = out[load.rank] + 1
    return out


def _shards(placement: TablePlacement, rows: int, dimension: int, device: dict[int, int]) -> list[dict[str, Any]]:
    """Shards as its ShardMetadata; none of a data-parallel table, which has no sharding spec."""
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
