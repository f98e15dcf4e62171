"""Builds collective schedules from the phases of algorithms, one file each; ``check`` proves the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.plugins import Plugin, Registry, expect, guarded_steps
from scaleacross.schedules.collective import all_to_all as exchange
from scaleacross.schedules.collective import bruck, direct, halving_doubling, hierarchical, ring, tree
from scaleacross.schedules.collective.hierarchical import Layout, depth_of, ranks_of
from scaleacross.schedules.collective.team import Parts, Phases, everybody
from scaleacross.schedules.collective.transfer import CollectiveSchedule, Kind, Operation, Step, Steps, Transfer

__all__ = [
    "PHASES",
    "CollectiveSchedule",
    "Kind",
    "Layout",
    "Operation",
    "Step",
    "Transfer",
    "all_to_all",
    "broadcast",
    "flat",
    "layered",
    "tree_all_reduce",
]

_BUNDLED: Final[Mapping[str, Phases]] = {
    "ring": Phases(ring.reduce_scatter, ring.all_gather),
    "bidirectional_ring": Phases(ring.reduce_scatter, ring.bidirectional_all_gather),
    "halving_doubling": Phases(halving_doubling.reduce_scatter, halving_doubling.all_gather),
    "bruck": Phases(bruck.reduce_scatter, bruck.all_gather),
    "direct": Phases(direct.reduce_scatter, direct.all_gather),
}


def _accept(plugin: Plugin, phases: Any) -> Phases:
    return Phases(*(guarded_steps(plugin, phase) for phase in expect(phases, Phases)))


PHASES: Final = Registry[str, Phases]("collectives", _BUNDLED, _accept)
"""Name -> algorithm that a level can run, bundled ones first. Some are named after their all-gather alone."""


def flat(
    operation: Operation, algorithm: str, num_ranks: int, num_channels: int = 1, order: Sequence[int] | None = None
) -> CollectiveSchedule:
    """Return the schedule of an all-reduce, reduce-scatter or all-gather among n equal ranks.

    Args:
        operation: one of the three.
        algorithm: a name of ``PHASES``.
        num_ranks: n.
        num_channels: chunks that are pipelined.
        order: ring order of the ranks; rank order if None.

    Raises:
        InputError: unknown algorithm or operation, no ranks or channels, or an order that is no permutation.
    """
    phases = _phases(algorithm)
    members = range(num_ranks) if order is None else order
    _require_permutation(members, num_ranks)
    team, places = everybody(num_ranks, members), {rank: place for place, rank in enumerate(members)}
    parts: Parts = [(member,) for member in members]

    def program(rank: int, _: int) -> Steps:
        if operation is not Operation.ALL_GATHER:
            yield from phases.reduce_scatter(team, places[rank], parts)
        if operation is not Operation.REDUCE_SCATTER:
            yield from phases.all_gather(team, places[rank], parts)

    sends = None if algorithm != "direct" else lambda s, d, _: direct.sends(operation, s, d)
    return _schedule(algorithm, operation, num_ranks, num_ranks, program, num_channels, sends)


def layered(
    operation: Operation, layout: Layout, algorithms: Sequence[str], num_channels: int = 1
) -> CollectiveSchedule:
    """Return the schedule of an all-reduce, reduce-scatter or all-gather that runs level by level.

    Args:
        operation: one of the three.
        layout: ranks 0 … n−1, nested as the network is, e.g. ``((0, 1), (2, 3, 4))``.
        algorithms: a name of ``PHASES`` per level, outermost first.
        num_channels: chunks that are pipelined through the levels.

    Raises:
        InputError: unknown algorithm or operation, a layout that misses ranks, or not one algorithm per level.
    """
    ranks = ranks_of(layout)
    _require_permutation(ranks, len(ranks))
    if depth_of(layout) != len(algorithms):
        raise InputError(f"{len(algorithms)} algorithms for a layout of {depth_of(layout)} levels")
    phases = [_phases(name) for name in algorithms]
    blocks = {rank: (rank,) for rank in ranks}

    def program(rank: int, _: int) -> Steps:
        if operation is not Operation.ALL_GATHER:
            yield from _without_empty(hierarchical.reduce_scatter(layout, rank, blocks, phases))
        if operation is not Operation.REDUCE_SCATTER:
            yield from _without_empty(hierarchical.all_gather(layout, rank, blocks, phases))

    name = f"hierarchical({', '.join(algorithms)})" if len(algorithms) > 1 else algorithms[0]
    return _schedule(name, operation, len(ranks), len(ranks), program, num_channels)


def tree_all_reduce(num_ranks: int, num_chunks: int = 1) -> CollectiveSchedule:
    """Return an all-reduce by a double binary tree; channels 2c and 2c + 1 run chunk c of its two halves."""
    team = everybody(num_ranks)

    def program(rank: int, channel: int) -> Steps:
        return tree.tree_all_reduce(team, rank, (0,), shifted=channel % 2 == 1)

    return _schedule("double_tree", Operation.ALL_REDUCE, num_ranks, 1, program, 2 * num_chunks, num_parallel=2)


def broadcast(num_ranks: int, algorithm: str = "tree", num_channels: int = 1) -> CollectiveSchedule:
    """Return a broadcast from rank 0: ``tree`` (binomial) or ``chain`` (for many chunks); InputError on other names."""
    programs = {"tree": tree.broadcast, "chain": tree.chain_broadcast}
    if algorithm not in programs:
        raise InputError(f"no broadcast '{algorithm}': choose from {', '.join(programs)}")
    team = everybody(num_ranks)
    return _schedule(
        algorithm,
        Operation.BROADCAST,
        num_ranks,
        1,
        lambda rank, _: programs[algorithm](team, rank, (0,)),
        num_channels,
    )


def all_to_all(buildings: Sequence[Sequence[int]], algorithm: str, num_channels: int = 1) -> CollectiveSchedule:
    """Return an all-to-all among the ranks of all ``buildings``: ``direct``, ``pairwise`` or ``two_level``.

    Raises:
        InputError: unknown algorithm, or buildings that do not hold every rank once.
    """
    num_ranks = sum(map(len, buildings))
    _require_permutation([rank for building in buildings for rank in building], num_ranks)
    programs: dict[str, Callable[[int, int], Steps]] = {
        "direct": lambda rank, _: exchange.direct(num_ranks, rank),
        "pairwise": lambda rank, _: exchange.pairwise(num_ranks, rank),
        "two_level": lambda rank, _: exchange.two_level(buildings, rank),
    }
    if algorithm not in programs:
        raise InputError(f"no all-to-all '{algorithm}': choose from {', '.join(programs)}")
    sends = None if algorithm == "two_level" else lambda s, d, _: exchange.direct_sends(num_ranks, s, d)
    return _schedule(algorithm, Operation.ALL_TO_ALL, num_ranks, num_ranks**2, programs[algorithm], num_channels, sends)


def _schedule(
    name: str,
    operation: Operation,
    num_ranks: int,
    num_blocks: int,
    program: Callable[[int, int], Steps],
    num_channels: int,
    sends: Callable[[int, int, int], Iterable[Transfer]] | None = None,
    num_parallel: int = 1,
) -> CollectiveSchedule:
    if num_ranks < 1 or num_channels < 1:
        raise InputError(f"{name}: needs at least one rank and one channel, got {num_ranks} and {num_channels}")
    return CollectiveSchedule(name, operation, num_ranks, num_blocks, program, num_channels, num_parallel, sends)


def _phases(name: str) -> Phases:
    if name not in PHASES:
        raise InputError(f"no collective algorithm '{name}': choose from {', '.join(PHASES)}")
    return PHASES[name]


def _require_permutation(ranks: Sequence[int], num_ranks: int) -> None:
    if sorted(ranks) != list(range(num_ranks)):
        raise InputError(f"expected every rank 0 … {num_ranks - 1} once, got {list(ranks)[:16]}")


def _without_empty(steps: Steps) -> Steps:
    """Drop empty messages, which carriers without own blocks would send."""
    return (tuple(transfer for transfer in step if transfer.blocks) for step in steps)
