"""Common form of table placement, used by the search, the checker and both cost models.

A *rank* is one accelerator of a replica group. Ranks of one *class* (accelerator type and share of host memory) take
equal times. An option of a table loads whole ranks: ``num_shards`` single ranks of its choice (spread ``one``), every
rank of one unit (``unit``), or all ranks (``all``). Load is additive: a rank takes the sum of its shards' seconds and
holds the sum of their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.spec.recommendation import CACHED, TIERS, Kernel, Sharding
from scaleacross.workloads.recommendation import EmbeddingTable

Spread = Literal["one", "unit", "all"]
LOOKUP, EXCHANGE, SYNC = range(3)
NUM_TIERS = len(TIERS)
SPREADS: dict[Sharding, Spread] = {
    "data_parallel": "all",
    "row_wise": "all",
    "table_row_wise": "unit",
    "table_wise": "one",
    "column_wise": "one",
    "table_column_wise": "one",
}


@dataclass(frozen=True)
class Option:
    """One way to place a table.

    Attributes:
        parts: look-up, exchange and sync of one shard on a rank of each class, s per step, (classes, 3).
        memory: whole bytes of one shard on a rank that holds it, (NUM_TIERS,).
        num_shards: shards that go to ranks of their own choice; 1 for the other spreads.
        cache_fraction: share of the rows that a cache in HBM holds; None: there is no cache.
    """

    sharding: Sharding
    kernel: Kernel
    parts: Floats
    memory: Floats
    num_shards: int
    column_width: int
    cache_fraction: float | None = None

    @property
    def kind(self) -> tuple[Sharding, Kernel, int, float | None]:
        """Key that identifies an option among those of a table."""
        return self.sharding, self.kernel, self.column_width, self.cache_fraction

    @property
    def spread(self) -> Spread:
        """Which ranks a shard loads."""
        return SPREADS[self.sharding]

    @property
    def in_one_host(self) -> bool:
        """Whether its several shards must lie inside one host."""
        return self.sharding == "table_column_wise" and self.num_shards > 1

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of one shard on a rank of each class, (classes,)."""
        whole: Floats = self.parts.sum(axis=1)
        return whole


def cache_fractions(kernel: Kernel, allowed: Sequence[float]) -> Sequence[float | None]:
    """Cache fractions that a table with this kernel may have: the allowed ones for a kernel with a cache, else None."""
    return allowed if kernel in CACHED else (None,)


@dataclass(frozen=True)
class Fleet:
    """The ranks of one replica group.

    Attributes:
        rank_class: class of each rank, (ranks,).
        capacity: bytes that shards may use, (ranks, NUM_TIERS).
        units: ranks of every host, (units, ranks of one); empty where hosts differ in size: no table is split then.
        building: of every rank, its name.
        host: of every rank, its number in the building.
    """

    rank_class: Ints
    capacity: Floats
    units: tuple[Ints, ...]
    building: tuple[str, ...]
    host: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return len(self.rank_class)

    @property
    def num_classes(self) -> int:
        """Classes of ranks."""
        return int(self.rank_class.max()) + 1

    @cached_property
    def host_of(self) -> Ints:
        """Number of the host of every rank, from 0, over all buildings, (ranks,)."""
        number = {place: at for at, place in enumerate(dict.fromkeys(zip(self.building, self.host, strict=True)))}
        return np.array([number[place] for place in zip(self.building, self.host, strict=True)])

    @cached_property
    def hosts(self) -> tuple[Ints, ...]:
        """Ranks of every host, whatever their sizes."""
        return tuple(np.flatnonzero(self.host_of == number) for number in range(int(self.host_of.max()) + 1))


def holders(option: Option, fleet: Fleet) -> int:
    """Number of shards of a table on all ranks together, repeats counted."""
    of_unit = len(fleet.units[0]) if fleet.units else 1
    return {"one": option.num_shards, "unit": of_unit, "all": fleet.num_ranks}[option.spread]


@dataclass(frozen=True)
class ShardingProblem:
    """Tables with their options over the ranks of one group."""

    tables: tuple[EmbeddingTable, ...]
    options: tuple[tuple[Option, ...], ...]
    fleet: Fleet


@dataclass(frozen=True)
class Assignment:
    """A choice for every table: index of its option, and the ranks that hold its shards.

    For spread ``one``, ``ranks`` has one rank per shard, in column order, repeats allowed. For ``unit`` it has those of
    the unit, for ``all`` all.
    """

    option: tuple[int, ...]
    ranks: tuple[Ints, ...]


def loads_of(problem: ShardingProblem, assignment: Assignment) -> tuple[Floats, Floats]:
    """Load of every rank: parts (ranks, 3) in s, bytes (ranks, NUM_TIERS)."""
    fleet = problem.fleet
    parts, memory = np.zeros((fleet.num_ranks, 3)), np.zeros((fleet.num_ranks, NUM_TIERS))
    for options, choice, ranks in zip(problem.options, assignment.option, assignment.ranks, strict=True):
        option = options[choice]
        np.add.at(parts, ranks, option.parts[fleet.rank_class[ranks]])
        np.add.at(memory, ranks, option.memory)
    return parts, memory


def busiest(problem: ShardingProblem, assignment: Assignment) -> float:
    """Seconds of the busiest rank."""
    return float(loads_of(problem, assignment)[0].sum(axis=1).max())


def fits(problem: ShardingProblem, assignment: Assignment) -> bool:
    """Whether every rank holds its shards, tier by tier."""
    return bool((loads_of(problem, assignment)[1] <= problem.fleet.capacity).all())


def whole_bytes(figures: Sequence[float]) -> Floats:
    """Bytes rounded up, so that sums of them are exact."""
    return np.ceil(np.asarray(figures, dtype=np.float64))
