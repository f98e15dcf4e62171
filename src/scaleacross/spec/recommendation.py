"""Recommendation jobs and plans: how each embedding table is split, over which ranks, and in which memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from scaleacross.spec.accelerator import Precision
from scaleacross.spec.base import Name, Spec, each_once, one_is_a_list
from scaleacross.spec.exchange_codec import ExchangeCompression, ExchangeCompressionRequest, TableCodec
from scaleacross.spec.network_choice import Driver

Sharding = Literal["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise"]
"""How a table is split, in TorchRec's words.

``table_row_wise`` splits rows, ``table_column_wise`` columns, over the ranks of one host.
"""
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
POOLED_ONLY: tuple[Sharding, ...] = ("table_row_wise", "table_column_wise")
"""Shardings of pooled tables only: TorchRec's EmbeddingCollection has neither (distributed/embedding.py)."""

Kernel = Literal["dense", "fused", "fused_uvm_caching", "fused_uvm", "key_value"]
"""Memory that holds the rows, in TorchRec's words.

``dense``: HBM of every rank, as a dense layer. ``fused``: HBM. ``fused_uvm_caching``: host memory with a cache in HBM.
``fused_uvm``: host memory alone. ``key_value``: SSD.
"""
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
CACHED: tuple[Kernel, ...] = ("fused_uvm_caching", "key_value")
"""Kernels with a cache in HBM."""
CacheFraction = Annotated[float, Field(gt=0, le=1)]
"""Share of a table's rows that its cache in HBM holds."""
CACHE_FRACTIONS: tuple[CacheFraction, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Default cache shares, from which a plan chooses one for every table.

The list is our choice; more shares make proofs take longer.
"""

Tier = Literal["hbm", "host_memory", "ssd"]
TIERS: tuple[Tier, ...] = get_args(Tier)

CostModel = Literal["scaleacross", "torchrec"]
SampleRule = Literal["as_they_come", "in_building", "everywhere"]
"""Ranks among which samples are redistributed to balance their computation."""
SAMPLE_RULES: tuple[SampleRule, ...] = get_args(SampleRule)
StorePrecision = Literal["fp32", "fp16", "bf16"]
BYTES_OF: dict[StorePrecision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
TableOptimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]


_LISTS = ("shardings", "kernels", "cache_fraction", "replica_groups", "sample_rules", "drivers")


class RecommendationJob(Spec):
    """A recommendation model to train. ``catalogue`` resolves names and paths; a resolved job is self-contained."""

    name: Name
    workload: str | dict[str, Any] = Field(
        description="name of the catalogue (recommendation), path of a YAML, path of a CSV of tables, or a mapping"
    )
    topology: str | dict[str, Any] = Field(description="catalogue name, path, or a mapping")
    global_batch_samples: PositiveInt = Field(description="samples per optimizer step")
    num_accelerators: PositiveInt | None = Field(
        default=None, description="the first so many, building by building; default: all"
    )
    table_precision: StorePrecision = Field(default="fp32", description="of rows, wherever they are stored")
    exchange_precision: StorePrecision = Field(default="fp32", description="of the vectors that ranks exchange")
    dense_precision: Precision = Field(default="bf16", description="of the matrix multiplications")
    optimizer: TableOptimizer = Field(
        default="rowwise_adagrad", description="its state: none, one figure per row, one or two per element (fp32)"
    )
    shardings: tuple[Sharding, ...] = Field(
        default=("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise"),
        description="allowed ways to split a table; table_column_wise is column_wise inside a host",
    )
    kernels: tuple[Kernel, ...] = Field(
        default=KERNELS, description="allowed memories; those that the topology does not state drop out"
    )
    least_column_width: PositiveInt = Field(default=32, description="columns of a column shard, at least")
    cache_fraction: tuple[CacheFraction, ...] = Field(
        default=CACHE_FRACTIONS,
        description="allowed shares of a table that its cache in HBM holds; of several the plan chooses one for every table",
    )
    reserved_fraction: float = Field(
        default=0.15, ge=0, lt=1, description="share of HBM kept for activations and fragmentation"
    )
    replica_groups: tuple[PositiveInt, ...] = Field(
        default=(1,), description="allowed numbers of groups that each hold all tables (2D sparse parallelism)"
    )
    sync_interval_steps: PositiveInt = Field(default=1, description="steps between two averages over the groups")
    lengths: str | dict[str, Any] | None = Field(
        default=None,
        description="of histories, for family sequence_rec: a law ({kind: …}) or the path of a CSV with a column length",
    )
    sample_rules: tuple[SampleRule, ...] = Field(
        default=SAMPLE_RULES, description="allowed ways to share samples of unequal length out over ranks"
    )
    compression: ExchangeCompressionRequest | None = Field(
        default=None,
        description="None: vectors travel as they are; else the plan chooses whose travel coded, where and how",
    )
    drivers: tuple[Driver, ...] = Field(
        default=("multiprocessors",),
        description="what may move the bytes of the all-to-alls of vectors and gradients, as ``network.drivers`` of a job for "
        "training; partial sums are added up by multiprocessors in any case",
    )
    cost_model: CostModel = Field(
        default="scaleacross", description="scaleacross: all levels of the topology; torchrec: its planner's estimator"
    )

    @model_validator(mode="before")
    @classmethod
    def _objects_become_mappings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        keys = ("workload", "topology")
        return {k: v.model_dump(mode="json") if k in keys and isinstance(v, BaseModel) else v for k, v in data.items()}

    _lists = field_validator(*_LISTS, mode="before")(one_is_a_list)
    _each_once = field_validator(*_LISTS)(each_once)

    @model_validator(mode="after")
    def _kernels_add_up(self) -> RecommendationJob:
        if "multiprocessors" not in self.drivers:
            raise ValueError("drivers: reductions need multiprocessors, which must be among the drivers")
        if self.cost_model == "torchrec" and len(self.drivers) > 1:
            raise ValueError("cost_model torchrec has no drivers: leave them out, or use scaleacross")
        return self


class TablePlacement(Spec):
    """Placement of one table, the same in every replica group; ``ranks`` are ranks within a group."""

    table: Name
    sharding: Sharding
    kernel: Kernel
    ranks: tuple[NonNegativeInt, ...] = Field(
        min_length=1,
        description="data_parallel, row_wise: all; table_wise: one; column_wise: of each column shard; table_row_wise: of a host",
    )
    column_width: PositiveInt = Field(description="columns of a shard; the table's dimension where columns are whole")
    cache_fraction: CacheFraction | None = Field(
        default=None,
        description="share of the rows that the cache in HBM holds; None: no cache",
    )


class Extent(NamedTuple):
    """Block of a table that one shard holds, and the rank within the group that stores it."""

    rank: int
    first_row: int
    rows: int
    first_column: int
    columns: int


def shard_extents(placement: TablePlacement, rows: int, dimension: int) -> list[Extent]:
    """List every shard of a table of ``rows`` × ``dimension``, in the order of ``placement.ranks``.

    Rows are cut into blocks of ⌈rows/ranks⌉, as TorchRec cuts them, so the last ranks may hold no rows.
    """
    ranks = placement.ranks
    if placement.sharding == "data_parallel":
        return [Extent(rank, 0, rows, 0, dimension) for rank in ranks]
    if placement.sharding in ("row_wise", "table_row_wise"):
        block = -(-rows // len(ranks))
        cuts = [min(rows, block * index) for index in range(len(ranks) + 1)]
        return [Extent(rank, cuts[i], cuts[i + 1] - cuts[i], 0, dimension) for i, rank in enumerate(ranks)]
    width = placement.column_width
    return [Extent(rank, 0, rows, width * i, width) for i, rank in enumerate(ranks)]


def adds_partial_sums(sharding: Sharding, pooled: bool) -> bool:
    """Whether ranks send partial sums over the rows that they hold of a sample.

    Rows that are not pooled are sent individually by the one rank that holds them.
    """
    return pooled and sharding in ("row_wise", "table_row_wise")


def sends_vectors(sharding: Sharding, pooled: bool) -> bool:
    """Whether whole vectors travel by an all-to-all.

    It runs over the whole group, or between hosts after a reduction inside each host.
    """
    return sharding != "data_parallel" and not (sharding == "row_wise" and pooled)


class RecommendationDecision(Spec):
    """Everything that the solver chooses."""

    num_groups: PositiveInt = 1
    replicas: Literal["outer", "inner"] = Field(
        default="outer",
        description="outer: a group is a run of neighbouring ranks; inner: replicas are neighbours, groups stride over them",
    )
    tables: tuple[TablePlacement, ...] = Field(min_length=1)
    codecs: tuple[TableCodec, ...] = Field(default=(), description="of the tables whose vectors travel coded forward")
    sample_rule: SampleRule | None = Field(default=None, description="None: samples are alike")
    driver: Driver = Field(
        default="multiprocessors", description="what moves the bytes of the all-to-alls of vectors and gradients"
    )


class SampleSharing(Spec):
    """Predicted effect of redistributing samples by one rule."""

    rule: SampleRule
    busiest_over_mean: float = Field(
        description="cost of the busiest rank's samples over the mean rank's, by drawn batches"
    )
    idle_fraction: float = Field(description="of the mean rank's time in the layers over histories")
    moved_bytes: float = Field(description="row numbers that a rank sends")
    exchange_s: float = Field(description="all-to-all of samples")
    seconds: float = Field(description="layers over histories of the busiest rank, both ways, and the exchange")


class EarlyRows(Spec):
    """Predicted effect of prefetching the vectors of the next batch."""

    collision_fraction: float = Field(description="share of a batch's vectors whose rows the batch before updates")
    fetch_s: float = Field(description="look-ups and exchange forward of the busiest rank, s")
    exposed_s: float = Field(description="what they add to the step: behind no computation, or taken from products, s")
    driver: Driver = Field(
        default="multiprocessors", description="what moves the bytes: of those allowed, the one that adds least"
    )


class RankLoad(Spec):
    """Time per step and memory of one rank of a group."""

    rank: NonNegativeInt
    building: Name
    host: NonNegativeInt = Field(description="in the building")
    seconds: float = Field(description="look-ups, exchange and sync of its shards")
    lookup_s: float
    exchange_s: float
    sync_s: float
    taken_s: float = Field(default=0.0, description="what products lose that run concurrently with the exchange, s")
    memory_bytes: dict[Tier, float]
    capacity_bytes: dict[Tier, float]


class EmbeddingCost(Spec):
    """One step in seconds; the parts add up to ``step_s``."""

    step_s: float
    busiest_rank_s: float = Field(description="look-ups, exchange and sync of the busiest rank")
    dense_s: float = Field(description="dense networks beyond what overlaps with look-ups and exchange")
    all_reduce_s: float = Field(
        default=0.0, description="all-reduce of dense gradients, on the links of the exchange; 0: older plans hid it"
    )
    start_s: float = Field(description="latencies and launches of the collectives")
    samples_per_s: float
    top_s: float | None = Field(
        default=None, description="computation that waits for the vectors, both ways; None: older plans, torchrec"
    )
    bottom_s: float | None = Field(default=None, description="computation of the bottom MLP, both ways")


class SearchReport(Spec):
    """Status, bound and gap of the plan."""

    status: Literal["optimal", "gap_tolerance", "time_limit", "evaluated"]
    objective_s: float = Field(description="busiest rank, s")
    bound_s: float = Field(description="no plan of the allowed kinds has a busiest rank below this, s")
    gap: float = Field(description="(objective − bound) / objective")
    seconds: float
    seed: int
    methods: tuple[str, ...] = Field(default=(), description="what found the plan and the bound")
    notes: tuple[str, ...] = ()
    fewer_buildings: str = Field(
        default="",
        description="that one building alone takes less per step, and the way out; empty: no such plan was found",
    )


FAILURES_NOT_COUNTED = (
    "failure rates of the topology (reliability) are not counted: samples/s are those of steps without failures, and no "
    "checkpoint, spare host or recovery is planned for tables"
)
"""Note of plans whose topology states how often its parts fail."""


OF_IDLE = "idle: "
"""Beginning of the notes on buildings that a plan leaves idle because they run another collective library."""


class RecommendationPlan(Spec):
    """A plan with its job, step time and proof. All output of the tool comes from it."""

    schema_version: Literal["recommendation-1"] = "recommendation-1"
    job: RecommendationJob
    decision: RecommendationDecision
    cost: EmbeddingCost
    ranks: tuple[RankLoad, ...] = Field(description="of the first group")
    compression: ExchangeCompression | None = Field(default=None, description="None: the job does not ask")
    samples: tuple[SampleSharing, ...] = Field(
        default=(), description="of histories of unequal length: fastest rule first"
    )
    early_rows: EarlyRows | None = Field(default=None, description="not part of the cost; None: groups, or torchrec")
    report: SearchReport

    @model_validator(mode="before")
    @classmethod
    def _older_plans_have_one_cache_fraction(cls, data: Any) -> Any:
        """Give every cached table of an older plan the one share that its job states."""
        try:
            stated, tables = data["job"]["cache_fraction"], data["decision"]["tables"]
        except (KeyError, TypeError):
            return data
        if not isinstance(stated, int | float):
            return data
        filled = [{"cache_fraction": stated, **one} if one.get("kernel") in CACHED else one for one in tables]
        return {**data, "decision": {**data["decision"], "tables": filled}}


class EmbeddingBaselineResult(Spec):
    """Result of one baseline for the job, under the same cost model."""

    name: Name
    rule: str
    step_s: float | None = None
    busiest_rank_s: float | None = None
    speed_up: float | None = Field(default=None, description="its step over ours")
    torchrec_ms: float | None = Field(default=None, description="its score by TorchRec's estimator")
    seconds: float = 0.0
    complete: bool = True
    reason: str = ""


class EmbeddingComparison(Spec):
    """Our plan and those of the baselines."""

    plan: RecommendationPlan
    torchrec_ms: float | None = Field(default=None, description="our plan's score by TorchRec's estimator")
    rivals: tuple[EmbeddingBaselineResult, ...]


class BusyTable(Spec):
    """A table of the busiest rank, and the fastest other way to place it."""

    table: Name
    sharding: Sharding
    kernel: Kernel
    cache_fraction: CacheFraction | None = Field(default=None, description="None: no cache")
    seconds: float = Field(description="on this rank")
    memory_bytes: dict[Tier, float] = Field(description="on this rank")
    other: str = Field(default="", description="sharding, kernel and cache of the fastest other option of a shard")
    other_s: float | None = Field(default=None, description="its seconds per rank that it loads")


class TierValue(Spec):
    """Time of the busiest rank if a memory had another size."""

    tier: Tier
    used_fraction: float = Field(description="of the memory of all ranks")
    fullest_fraction: float = Field(description="of the memory of the fullest rank")
    change: str
    busiest_rank_s: float | None = Field(default=None, description="best of all plans found that fit; None: no plan")


class BuildingValue(Spec):
    """The best plan found without one of the buildings that the plan uses."""

    building: Name
    step_s: float | None = None
    samples_per_s: float | None = None
    changes: tuple[str, ...] = Field(
        default=(), description="what the building changes, largest part of the step first"
    )
    reason: str = Field(default="", description="why there is no plan without it")


class EmbeddingExplanation(Spec):
    """Tables that keep the busiest rank busy, and changes that would help."""

    plan: RecommendationPlan
    busiest_rank: NonNegativeInt
    binding: tuple[BusyTable, ...] = Field(description="its tables, slowest first")
    tiers: tuple[TierValue, ...]
    as_it_is_s: float = Field(
        description="busiest rank of the best plan found that fits the memories as they are, s: below the plan's where the "
        "searches of the explanation found a faster one"
    )
    buildings: tuple[BuildingValue, ...] = Field(default=(), description="where the plan uses several")
