"""Every way to run one collective on a group, with its time and the bytes per level.

Symbols and formulas as in ``collective_laws``: S bytes, level l with fanout f_l, W_l a group's rate out of a child, α_l
latency. ``collectives.Group`` computes the best of these ways, so the fastest option here is the time that a search
assumes.

* library        a group inside one scale-up domain whose curve is measured
* ring, tree     as there
* hierarchical   every combination of algorithms per level and chunks; direct exchange of f−1 messages at once is left
                 out, because its incast is not modelled here
* all-to-all     direct (one latency) and pairwise (every level its steps one after the other); two-level over the
                 outermost level: the same far bytes in fewer, larger messages, after a phase inside

No option of a group that leaves its domain is faster than the measured curve of as many ranks as one domain holds. Nor
is it faster than the lower bounds of NCCL's protocols inside a building (``protocol_times``); these do not apply to
encoded messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.collective_laws import CHUNKS, fewest_steps
from scaleacross.cost_models.collectives import GatherOp, Group
from scaleacross.cost_models.connections import Connections
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import RACK, SCALE_UP
from scaleacross.cost_models.links import Links, exchange_s_per_byte
from scaleacross.cost_models.protocol_times import exchange_latency_s
from scaleacross.spec.network import LINK_LEVELS, CurveOp
from scaleacross.spec.network_choice import (
    LEAST_PIECE_BYTES,
    Algorithm,
    CommunicatorChoice,
    Compression,
    LevelAlgorithm,
    LevelStep,
)


class Way(NamedTuple):
    """One way to run a reduction.

    Attributes:
        name: name of its schedule in ``schedules.collective``; levels outermost first.
        algorithm: its name in a plan.
        steps: algorithm of each level of a hierarchical way, outermost first.
        num_chunks: chunks that follow one another.
    """

    name: str
    algorithm: Algorithm
    steps: tuple[LevelStep, ...] = ()
    num_chunks: int = 1


class Option(NamedTuple):
    """A way with its time.

    Attributes:
        name, steps, num_chunks: as in ``Way``.
        algorithm: its name in a plan; None: no plan chooses it.
        time_s: alone on the network, launch included.
        level_bytes: [level] -> bytes that one group sends into one child.
        busy_s: the part of ``time_s`` in which networks beyond the scale-up domain are busy (no latencies), as in
            ``collectives.Timed``.
    """

    name: str
    algorithm: Algorithm | None
    num_chunks: int
    time_s: float
    level_bytes: dict[int, float]
    steps: tuple[LevelStep, ...] = ()
    busy_s: float = 0.0


class _Level(NamedTuple):
    """A level that the group crosses, and the rate of all members in one child for leaving it."""

    level: int
    fanout: int
    members: float
    bytes_per_s: float
    latency_s: float


def options(op: CurveOp, size_bytes: float, shape: GroupShape, links: Links, launch_s: float) -> list[Option]:
    """All options, fastest first; empty for a group of one.

    Args:
        op: all_reduce, all_gather, reduce_scatter (``size_bytes`` of the full tensor) or all_to_all (bytes that one
            rank sends in all, itself included).
        shape: exact shape of the groups, one row.
        links: figures of the levels, one row.
        launch_s: fixed start-up of a collective.
    """
    if op == "all_to_all" and (shape.fanout > 1).any():
        crossed, measured = _crossed(shape, links), measured_s(op, size_bytes, float(shape.degree), links)
        if crossed[-1].level == SCALE_UP and not math.isnan(measured):
            return [Option("library", "library", 1, measured, _exchanged(size_bytes, crossed, float(shape.degree)))]
        handshakes_s = float(exchange_latency_s(shape, links)) - launch_s
        found = _all_to_all(size_bytes, crossed, shape, handshakes_s=handshakes_s, curves=not math.isnan(measured))
        floor = 0.0 if math.isnan(measured) else measured
        timed = [way._replace(time_s=max(way.time_s + launch_s, floor)) for way in found]
    elif op == "all_to_all":
        return []
    else:
        timed = [
            _reduction(op, size_bytes, Group(shape, links, launch_s), way) for way in ways(op, size_bytes, shape, links)
        ]
    return sorted(timed, key=lambda way: way.time_s)


def ways(
    op: CurveOp, size_bytes: float, shape: GroupShape, links: Links, compression: Compression | None = None
) -> Iterator[Way]:
    """Ring, tree, and every combination of algorithms per level and chunks; in a domain with curves, the library.

    Args:
        compression: encoding of messages on some levels. It excludes trees, whose ranks pass on sums of many levels.
    """
    levels = np.flatnonzero(shape.fanout > 1).tolist()
    if not levels:
        return
    curves = not math.isnan(measured_s(op, size_bytes, float(shape.degree), links))
    if curves and levels[-1] == SCALE_UP:
        yield Way("library", "library")
        return
    yield Way("ring", "ring")
    if op == "all_reduce" and compression is None:
        yield Way("double_tree", "tree")
    inside = ("library",) if curves and levels[0] == SCALE_UP else ()
    phases = [level for level in reversed(levels) if level >= (RACK if curves else SCALE_UP)]
    for named in product(*(_algorithms(float(shape.fanout[level])) for level in phases)):
        steps = tuple(
            LevelStep(level=LINK_LEVELS[level], algorithm=name) for level, name in zip(phases, named, strict=True)
        )
        if len(steps) == 1 and not inside and steps[0].algorithm == "ring":
            continue  # the ring above
        for chunks in CHUNKS:
            if chunks > 1 and size_bytes / chunks < LEAST_PIECE_BYTES:
                break
            yield Way(f"hierarchical({', '.join((*named, *inside))})", "hierarchical", steps, chunks)


def _reduction(op: GatherOp | Literal["all_reduce"], size: float, group: Group, way: Way) -> Option:
    """Option of a way, timed like a stated choice of the group."""
    shape, links = group.shape, group.links
    choice = CommunicatorChoice(
        communicator="dp_shard",  # any will do: the group reads operation, algorithm and chunks alone
        op=op,
        payload="",
        algorithm=way.algorithm,
        steps=way.steps,
        num_chunks=way.num_chunks,
        chunk_bytes=size / way.num_chunks,
        num_channels=1,
    )
    own, num_bytes = group.running(choice), np.array(size)
    timed = own.all_reduce(num_bytes) if op == "all_reduce" else own.gather(num_bytes, op)
    passes, degree, levels = 2 if op == "all_reduce" else 1, float(shape.degree), np.flatnonzero(shape.fanout > 1)
    if way.algorithm == "ring":
        sent = dict.fromkeys(levels.tolist(), passes * (degree - 1) / degree * size)
    elif way.algorithm == "tree":
        library = Connections(shape, links, lambda values: values).protocols
        sent = {level: (float(library.share) if library else 2.0) * size for level in levels.tolist()}
    else:  # levels exchange among their own children
        share = shape.taken_in(by_rank=op != "all_reduce")
        sent = {level: passes * float(share[level]) * size for level in levels.tolist()}
    return Option(way.name, way.algorithm, way.num_chunks, float(timed.time_s), sent, way.steps, float(timed.busy_s))


def measured_s(op: CurveOp, size: float, degree: float, links: Links) -> float:
    """Seconds for ``size`` bytes by the curve of as many ranks as a domain holds; NaN without one."""
    if links.curves is None:
        return math.nan
    return float(curve_s(links.curves, links.curve, op, np.array(degree), np.array(size)))


def _exchanged(size: float, crossed: Sequence[_Level], degree: float) -> dict[int, float]:
    """Bytes that one group sends into one child of each level in an all-to-all among ``degree`` ranks."""
    return {level.level: size * level.members * (degree - level.members) / degree for level in crossed}


def _crossed(shape: GroupShape, links: Links) -> list[_Level]:
    """Levels that an all-to-all crosses, innermost first."""
    leaving = shape.members * (shape.degree - shape.members) / shape.degree
    # levels that nothing crosses take no time; the bound avoids a division by zero
    rate = leaving / np.maximum(exchange_s_per_byte(shape, links), np.finfo(float).tiny)
    return [
        _Level(level, int(f), float(shape.members[level]), float(rate[level]), float(links.latency[level]))
        for level, f in enumerate(shape.fanout)
        if f > 1
    ]


def _algorithms(fanout: float) -> list[LevelAlgorithm]:
    """Algorithms that a level can run; halving and doubling only where it saves steps."""
    out: list[LevelAlgorithm] = ["ring"]
    if float(fewest_steps(np.array(fanout))) < fanout - 1:
        out.append("halving_doubling")
    return out


def _all_to_all(
    size: float, crossed: Sequence[_Level], shape: GroupShape, *, handshakes_s: float, curves: bool
) -> Iterator[Option]:
    """Options of an all-to-all. All send every level's bytes over its links at once; they differ in latencies.

    In two levels, everything is first exchanged among the m ranks below the outermost level, for all its children. Then
    what a child lacks crosses, past every level on its way. On each level's links that takes no less than the direct
    exchange.
    """
    entering = _exchanged(size, crossed, float(shape.degree))
    outer = [level for level in crossed if level.level >= RACK] if curves else crossed
    slowest = max(entering[level.level] / level.bytes_per_s for level in outer)
    least_s = handshakes_s if curves else 0.0
    waits = max(least_s, max(level.latency_s for level in outer))
    yield Option("direct", "pairwise", 1, slowest + waits, entering)
    partners = {level.level: (level.fanout - 1) * level.members for level in crossed}
    waits = max(least_s, sum(partners[level.level] * level.latency_s for level in crossed))
    yield Option("pairwise", None, 1, slowest + waits, entering)
    outermost, inner = crossed[-1], crossed[:-1]
    if outermost.members > 1:
        gathered = _exchanged(size, inner, outermost.members)
        outside = float(shape.taken_in(by_rank=True)[outermost.level])
        passing = {level.level: size * outside * level.members for level in crossed}
        inside = max((gathered[level.level] / level.bytes_per_s for level in inner), default=0.0)
        across = max(passing[level.level] / level.bytes_per_s for level in outer)
        near = max((level.latency_s for level in inner), default=0.0)
        sent = {level: num_bytes + gathered.get(level, 0.0) for level, num_bytes in passing.items()}
        waits = max(least_s, near + outermost.latency_s)
        yield Option("two_level", None, 1, inside + across + waits, sent)
