"""Every way to run one collective on a group, with its time, the bytes per level, and a bound that no way can beat.

Symbols as in ``collectives``: S bytes, level l with fanout f_l, W_l what a group has for leaving a child, α_l latency.

* ring, double tree   as there
* hierarchical        one phase per crossed level and direction, t_l(s) = steps_l·α_l + (f_l−1)/f_l·s / W_l, where a level runs a
                      ring (f−1 steps) or halving/doubling (log2 f, powers of two). In k chunks

                          T = Σ t_l(S/k) + (k−1)·max over levels of what the level's phases need per chunk

                      since chunks follow one another and different levels work at the same time. The two phases of an
                      all-reduce on one level share its links. A measured curve replaces t of the scale-up level.
                      Direct exchange of f−1 messages at once is left out: what it costs (incast) is not priced here.
* all-to-all          direct (one latency) and pairwise (every level its steps one after the other); two-level over the
                      outermost level: the same far bytes in fewer, larger messages, after a phase inside

Bound, for any algorithm: the units of level l (n_l of them, m_l members each) must take in (n_l−1)/n_l·S each for a gather or
scatter and, on average, twice that for an all-reduce (Patarasuk and Yuan, 2009), m_l·(d−m_l)/d·S for an all-to-all; it can come
over level l or any level above:

    bytes / Σ_{j≥l} min(m_l·bandwidth_j, W_j)

the largest over levels (inner ones where units are equal), and one latency of the outermost level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.collectives import ALL_LEVELS, laws
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import SCALE_UP
from scaleacross.cost_models.links import Links, group_bandwidth
from scaleacross.spec.network import CurveOp

CHUNKS: Final = (1, 2, 4, 8, 16, 32)
MIN_CHUNK_BYTES: Final = 64 * 1024
"""Assumed: below this a chunk is dominated by per-message cost, so smaller messages are not cut."""


class Option(NamedTuple):
    """One way.

    Attributes:
        algorithm: as a schedule of ``schedules.collective`` is named; levels outermost first.
        num_chunks: chunks that follow one another.
        time_s: alone on the network, launch included.
        level_bytes: [level] -> bytes that one group sends into one child.
    """

    algorithm: str
    num_chunks: int
    time_s: float
    level_bytes: dict[int, float]


class _Level(NamedTuple):
    """A level that the group crosses: what one accelerator, and what all members in one child have for leaving it."""

    level: int
    fanout: int
    members: float
    each_bytes_per_s: float
    bytes_per_s: float
    latency_s: float


def options(op: CurveOp, size_bytes: float, shape: GroupShape, links: Links, launch_s: float) -> list[Option]:
    """All options, fastest first; empty for a group of one.

    Args:
        op: all_reduce, all_gather, reduce_scatter (``size_bytes`` of the full tensor) or all_to_all (bytes that one rank sends in
            all, itself included).
        shape: exact shape of the groups, one row.
        links: figures of the levels, one row.
        launch_s: fixed start-up of a collective.
    """
    crossed = _crossed(shape, links)
    if not crossed:
        return []
    ways = (
        _all_to_all(size_bytes, crossed, float(shape.degree))
        if op == "all_to_all"
        else _reductions(op, size_bytes, crossed, shape, links)
    )
    return sorted((way._replace(time_s=way.time_s + launch_s) for way in ways), key=lambda way: way.time_s)


def bound_s(op: CurveOp, size_bytes: float, shape: GroupShape, links: Links) -> tuple[float, int | None]:
    """Seconds that no algorithm can beat, and the level that says so (None for a group of one)."""
    crossed, degree = _crossed(shape, links), float(shape.degree)
    if not crossed:
        return 0.0, None
    needs = []
    for index, level in enumerate(crossed):
        units = math.prod(one.fanout for one in crossed[index:])
        if level is crossed[-1] or units * level.members == degree:
            rate = sum(min(level.members * one.each_bytes_per_s, one.bytes_per_s) for one in crossed[index:])
            needs.append((_must_enter(op, size_bytes, units, level.members, degree) / rate, level.level))
    seconds, busiest = max(needs)
    return seconds + crossed[-1].latency_s, busiest


def _must_enter(op: CurveOp, size_bytes: float, units: int, members: float, degree: float) -> float:
    """Bytes that must enter a unit with ``members`` of the group, one of ``units``."""
    if op == "all_to_all":
        return size_bytes * members * (degree - members) / degree
    return size_bytes * (units - 1) / units * (2 if op == "all_reduce" else 1)


def _crossed(shape: GroupShape, links: Links) -> list[_Level]:
    """Crossed levels, innermost first."""
    rate = group_bandwidth(shape, links)
    return [
        _Level(
            level,
            int(f),
            float(shape.members[level]),
            float(links.bandwidth[level]),
            float(rate[level]),
            float(links.latency[level]),
        )
        for level, f in enumerate(shape.fanout)
        if f > 1
    ]


def _reductions(
    op: CurveOp, size: float, crossed: Sequence[_Level], shape: GroupShape, links: Links
) -> Iterator[Option]:
    """Ring, tree, and every combination of algorithms per level and chunks."""
    law, passes, degree = laws(shape, links, ALL_LEVELS), 2 if op == "all_reduce" else 1, float(shape.degree)
    ring_bytes = {level.level: passes * (degree - 1) / degree * size for level in crossed}
    yield Option("ring", 1, passes * float(law.ring_s_per_byte * size + law.ring_s), ring_bytes)
    if op == "all_reduce":
        tree_bytes = {level.level: 2 * size for level in crossed}
        yield Option("double_tree", 1, float(law.tree_s_per_byte * size + law.tree_s), tree_bytes)
    level_bytes = {level.level: passes * (level.fanout - 1) / level.fanout * size for level in crossed}
    for steps in product(*(_algorithms(level, links) for level in reversed(crossed))):
        names, counts = zip(*steps, strict=True)
        for chunks in CHUNKS:
            if chunks > 1 and size / chunks < MIN_CHUNK_BYTES:
                break
            parts = [
                _phase_s(op, size / chunks, level, count, links)
                for level, count in zip(reversed(crossed), counts, strict=True)
            ]
            first, repeated = sum(whole for whole, _ in parts), max(again for _, again in parts)
            name = f"hierarchical({', '.join(names)})" if len(crossed) > 1 else names[0]
            yield Option(name, chunks, first + (chunks - 1) * repeated, level_bytes)


def _algorithms(level: _Level, links: Links) -> list[tuple[str, int]]:
    """(algorithm, steps) of one level; halving and doubling where it saves steps, unless a curve says what the level takes."""
    ring = [("ring", level.fanout - 1)]
    if level.level == SCALE_UP and links.curves is not None:
        return ring
    doublings = level.fanout.bit_length() - 1
    return [*ring, ("halving_doubling", doublings)] if level.fanout == 1 << doublings and doublings > 1 else ring


def _phase_s(op: CurveOp, size: float, level: _Level, steps: int, links: Links) -> tuple[float, float]:
    """Seconds of a level's phases for one chunk: the first time, and for every further chunk (links busy, latency hidden)."""
    passes = 2 if op == "all_reduce" else 1
    busy = passes * (level.fanout - 1) / level.fanout * size / level.bytes_per_s
    whole = busy + passes * steps * level.latency_s
    if level.level == SCALE_UP and links.curves is not None:
        ops: tuple[CurveOp, ...] = ("reduce_scatter", "all_gather") if op == "all_reduce" else (op,)
        measured = sum(
            float(curve_s(links.curves, links.curve, one, np.array(level.fanout), np.array(size))) for one in ops
        )
        if not np.isnan(measured):
            return measured, measured
    return whole, busy


def _all_to_all(size: float, crossed: Sequence[_Level], degree: float) -> Iterator[Option]:
    """Every level's bytes over its links, all levels at once; what differs is how many messages wait for one another."""
    entering = {level.level: size * level.members * (degree - level.members) / degree for level in crossed}
    slowest = max(entering[level.level] / level.bytes_per_s for level in crossed)
    yield Option("direct", 1, slowest + max(level.latency_s for level in crossed), entering)
    partners = {level.level: (level.fanout - 1) * level.members for level in crossed}
    waits = sum(partners[level.level] * level.latency_s for level in crossed)
    yield Option("pairwise", 1, slowest + waits, entering)
    far = crossed[-1]
    if far.members > 1:
        inside = max(
            (size * (level.fanout - 1) / level.fanout * level.members / level.bytes_per_s for level in crossed[:-1]),
            default=0.0,
        )
        near = max((level.latency_s for level in crossed[:-1]), default=0.0)
        across = entering[far.level] / far.bytes_per_s + far.latency_s
        more = {level.level: size * (level.fanout - 1) / level.fanout * level.members for level in crossed[:-1]}
        yield Option("two_level", 1, inside + near + across, {**more, far.level: entering[far.level]})
