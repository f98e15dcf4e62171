"""Tables as a search sees them: equal ones in groups, each with only the options that some plan may need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.options import Fleet, Option, ShardingProblem, Spread


@dataclass(frozen=True)
class Alike:
    """Tables with equal options: their indices in the problem, and the remaining options as (index, option)."""

    tables: tuple[int, ...]
    options: tuple[tuple[int, Option], ...]


def alike_tables(problem: ShardingProblem, only: Sequence[int] | None = None) -> list[Alike]:
    """Groups of equal tables, without options that fit no rank or that another one replaces at no loss."""
    found: dict[tuple[bytes, ...], list[int]] = {}
    for table in range(len(problem.tables)) if only is None else only:
        found.setdefault(tuple(_key(option) for option in problem.options[table]), []).append(table)
    room = problem.fleet.capacity.max(axis=0)
    return [Alike(tuple(tables), tuple(_needed(problem.options[tables[0]], room))) for tables in found.values()]


def _key(option: Option) -> bytes:
    numbers = np.concatenate([option.seconds, option.memory, [option.num_shards]])
    return option.spread.encode() + bytes([option.in_one_host]) + numbers.tobytes()


def _needed(options: Sequence[Option], room: Floats) -> list[tuple[int, Option]]:
    """Options that fit a rank and that no other option replaces at no loss.

    A replacement uses the same ranks, or some of the ranks that the option loads.
    """
    if not options:
        return []
    figures = np.array([[*option.seconds, *option.memory] for option in options])
    kind = np.array([(_RANKS[option.spread], option.num_shards) for option in options])
    rank, shards = kind[:, :1], kind[:, 1:]
    confined = np.array([[option.in_one_host] for option in options])
    same = (rank == rank.T) & (shards == shards.T) & (confined <= confined.T)
    within = (shards == 1) & (rank < rank.T)
    replaces = (same | within) & (figures[:, None] <= figures[None]).all(axis=2)
    fits = (figures[:, len(options[0].seconds) :] <= room).all(axis=1)
    # of two options that replace each other, the one with the lower index stays
    first = replaces & ~(replaces.T & (np.arange(len(options))[:, None] > np.arange(len(options))))
    np.fill_diagonal(first, False)
    kept = fits & ~first[fits].any(axis=0)
    return [(index, options[index]) for index in np.flatnonzero(kept).tolist()]


_RANKS: Final[Mapping[Spread, int]] = {"one": 0, "unit": 1, "all": 2}


@dataclass(frozen=True)
class Place:
    """A place for a whole table in the relaxation, and what the table adds to every class of ranks there.

    ``seconds`` (classes,) and ``memory`` (classes, tiers) are sums over the ranks of a class; ``shard_s`` is the
    longest shard.
    """

    group: int
    option: int
    seconds: Floats
    memory: Floats
    shard_s: float


def places_of(groups: Sequence[Alike], fleet: Fleet) -> list[Place]:
    """Every kind of place of every option: one per class for single ranks, one per composition for hosts."""
    classes = np.eye(fleet.num_classes)
    everywhere = np.bincount(fleet.rank_class, minlength=fleet.num_classes)[None, :].astype(float)
    hosts = [np.bincount(fleet.rank_class[unit], minlength=fleet.num_classes) for unit in fleet.units]
    units = np.unique(np.array(hosts), axis=0).astype(float) if hosts else np.zeros((0, fleet.num_classes))
    out = []
    for number, group in enumerate(groups):
        for index, option in group.options:
            kinds = {"one": classes * option.num_shards, "unit": units, "all": everywhere}[option.spread]
            for counts in kinds:
                dearest = float(option.seconds[counts > 0].max())
                out.append(Place(number, index, counts * option.seconds, counts[:, None] * option.memory, dearest))
    return out


def class_capacity(fleet: Fleet) -> tuple[Ints, Floats]:
    """Number of ranks (classes,) and bytes (classes, tiers) of every class."""
    ranks = np.bincount(fleet.rank_class, minlength=fleet.num_classes)
    room = np.zeros((fleet.num_classes, fleet.capacity.shape[1]))
    np.add.at(room, fleet.rank_class, fleet.capacity)
    return ranks, room


def closed(problem: ShardingProblem, groups: Sequence[Alike], kept: Collection[tuple[int, int]]) -> ShardingProblem:
    """The problem in which options not in ``kept``, as (group, option) pairs, fit no rank; indices stay the same."""
    options = list(problem.options)
    for number, group in enumerate(groups):
        listed = {index for index, _ in group.options if (number, index) in kept}
        nowhere = [
            one if index in listed else replace(one, memory=np.full_like(one.memory, np.inf))
            for index, one in enumerate(options[group.tables[0]])
        ]
        for table in group.tables:
            options[table] = tuple(nowhere)
    return replace(problem, options=tuple(options))
