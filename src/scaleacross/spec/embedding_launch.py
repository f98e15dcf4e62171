"""The part of a launch file that states which rank holds which rows and columns of the embedding tables."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from scaleacross.spec.base import Name, Spec
from scaleacross.spec.recommendation import CacheFraction, Kernel, Sharding, StorePrecision, TableOptimizer


class TableShard(Spec):
    """A block of a table and the rank of a replica group that holds it."""

    rank: NonNegativeInt
    first_row: NonNegativeInt
    rows: NonNegativeInt
    first_column: NonNegativeInt
    columns: PositiveInt


class TableLaunch(Spec):
    """A table with its shards; a data-parallel table is whole on every rank."""

    name: Name
    rows: PositiveInt
    dimension: PositiveInt
    num_features: PositiveInt = Field(description="features that read it, each with an output of its own")
    pooled: bool = True
    sharding: Sharding
    kernel: Kernel
    cache_fraction: CacheFraction | None = Field(
        default=None, description="share of the rows that the cache in HBM holds; None: no cache"
    )
    shards: tuple[TableShard, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _shards_cover_the_table(self) -> TableLaunch:
        copies = len(self.shards) if self.sharding == "data_parallel" else 1
        if sum(one.rows * one.columns for one in self.shards) != copies * self.rows * self.dimension:
            raise ValueError(f"table '{self.name}': its shards do not hold each element once")
        return self


class EmbeddingLaunch(Spec):
    """Tables, shards and training settings that a runtime needs; ranks are those of a dp_shard group.

    The data-parallel axis dp_shard is one replica group, which holds all tables. dp_replicate joins the groups.
    """

    tables: tuple[TableLaunch, ...] = Field(min_length=1)
    samples_per_rank: PositiveInt
    precision: StorePrecision
    optimizer: TableOptimizer
    sync_interval_steps: PositiveInt = Field(default=1, description="steps between two averages over dp_replicate")
