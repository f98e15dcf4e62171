"""Hierarchical collectives: reduce-scatter within, 1/g of the data per accelerator across, all-gather within.

A layout nests ranks as the network does: ``((0, 1), (2, 3, 4))`` are two buildings, ``(((0, 1), (2, 3)), ((4, 5), (6, 7)))`` two
buildings of two hosts. Each level has its own algorithm. At the outermost level, carrier r of every child forms a team with its
counterparts. With children of unequal size there are as many carriers as the smallest child has ranks. Every other rank
hands its parts to carrier (index mod carriers) of its own child and gets them back from it.

With equal children every byte that must cross a level crosses it once: (K−1)/K·S enter each of K children in an
all-gather.
Source: Cho et al., BlueConnect (2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from scaleacross.errors import InputError
from scaleacross.schedules.collective.team import Phases, Team, blocks_of, everybody
from scaleacross.schedules.collective.transfer import Steps, recv, send

Layout: TypeAlias = "int | tuple[Layout, ...]"
"""A rank, or a level of the network with its children."""


def ranks_of(layout: Layout) -> list[int]:
    """Return all ranks of a layout, in order."""
    if isinstance(layout, int):
        return [layout]
    return [rank for child in layout for rank in ranks_of(child)]


def depth_of(layout: Layout) -> int:
    """Return the number of levels of a layout: 1 for a flat group. Raises InputError if branches differ."""
    if isinstance(layout, int):
        return 0
    depths = {depth_of(child) for child in layout}
    if len(depths) != 1:
        raise InputError(f"a layout needs the same number of levels everywhere, got {sorted(depths)} below {layout}")
    return depths.pop() + 1


def all_gather(layout: Layout, rank: int, blocks: Mapping[int, Sequence[int]], phases: Sequence[Phases]) -> Steps:
    """Yield the steps of one rank: the outermost level first with its own part, then inner levels with all that
    arrived.

    Args:
        layout: all ranks, nested by network level.
        rank: the rank whose steps are returned.
        blocks: [rank] -> blocks that it holds at the start.
        phases: algorithm of each level, outermost first.
    """
    level = _Level.of(layout, rank, blocks)
    if level is None:
        team, me, parts = _flat(layout, rank, blocks)
        yield from phases[0].all_gather(team, me, parts)
        return
    host = level.ranks[level.mine % level.carriers]
    if level.mine >= level.carriers:
        yield (send(host, blocks[rank]),)
    else:
        yield tuple(recv(guest, blocks[guest]) for guest in level.guests)
        yield from phases[0].all_gather(level.team, level.child, level.parts)
    yield from all_gather(level.inside, rank, level.inner_blocks, phases[1:])


def reduce_scatter(layout: Layout, rank: int, blocks: Mapping[int, Sequence[int]], phases: Sequence[Phases]) -> Steps:
    """Yield the steps of one rank: the innermost level first with all blocks, then outer levels with fewer.

    It is the mirror image of ``all_gather``.

    Args:
        layout, rank, phases: as in ``all_gather``.
        blocks: [rank] -> blocks whose sum it holds at the end.
    """
    level = _Level.of(layout, rank, blocks)
    if level is None:
        team, me, parts = _flat(layout, rank, blocks)
        yield from phases[0].reduce_scatter(team, me, parts)
        return
    yield from reduce_scatter(level.inside, rank, level.inner_blocks, phases[1:])
    host = level.ranks[level.mine % level.carriers]
    if level.mine >= level.carriers:
        yield (recv(host, blocks[rank], level.team.total),)
    else:
        yield from phases[0].reduce_scatter(level.team, level.child, level.parts)
        yield tuple(send(guest, blocks[guest], level.team.total) for guest in level.guests)


def _flat(layout: Layout, rank: int, blocks: Mapping[int, Sequence[int]]) -> tuple[Team, int, list[Sequence[int]]]:
    members = ranks_of(layout)
    return everybody(len(members), members), members.index(rank), [blocks[m] for m in members]


class _Level(NamedTuple):
    """The outermost level of a layout from the view of one rank.

    Attributes:
        inside: the child that contains the rank; ``child``: its index, ``ranks``: its ranks, ``mine``: index of the
            rank in them.
        carriers: ranks per child that exchange messages with other children.
        guests: ranks of the child whose parts this rank carries in addition to its own.
        team, parts: its counterparts, one per child, and the blocks that each of them carries.
        inner_blocks: [rank of the child] -> blocks that it carries within the child.
    """

    inside: Layout
    child: int
    ranks: list[int]
    mine: int
    carriers: int
    guests: list[int]
    team: Team
    parts: list[Sequence[int]]
    inner_blocks: dict[int, Sequence[int]]

    @classmethod
    def of(cls, layout: Layout, rank: int, blocks: Mapping[int, Sequence[int]]) -> _Level | None:
        """Return the level; None where the children of the layout are ranks."""
        if isinstance(layout, int) or isinstance(layout[0], int):
            return None
        children = [ranks_of(child) for child in layout]
        child = next(index for index, ranks in enumerate(children) if rank in ranks)
        ranks = children[child]
        mine, carriers = ranks.index(rank), min(map(len, children))
        carried = [[blocks_of(blocks[r] for r in ranks[c::carriers]) for ranks in children] for c in range(carriers)]
        seat = mine % carriers
        return cls(
            inside=layout[child],
            child=child,
            ranks=ranks,
            mine=mine,
            carriers=carriers,
            guests=ranks[mine + carriers :: carriers] if mine < carriers else [],
            team=Team([ranks[seat] for ranks in children], [sum(1 << r for r in ranks) for ranks in children]),
            parts=carried[seat],
            inner_blocks={r: blocks_of(carried[k]) if k < carriers else () for k, r in enumerate(ranks)},
        )
