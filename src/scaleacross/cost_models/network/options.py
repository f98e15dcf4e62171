"""Every way to run one collective on a group, with its time and the bytes per level.

Symbols and formulas as in ``collective_laws``: S bytes, level l with fanout f_l, W_l what a group has for leaving a child, α_l
latency. ``collectives.Group`` prices the best of these ways, so the fastest option here is what a search promises.

* library        a group inside one scale-up domain whose curve is measured
* ring, tree     as there
* hierarchical   every combination of algorithms per level and chunks; direct exchange of f−1 messages at once is left out: what
                 it costs (incast) is not priced here
* all-to-all     direct (one latency) and pairwise (every level its steps one after the other); two-level over the
                 outermost level: the same far bytes in fewer, larger messages, after a phase inside

None of a group that leaves its domain is faster than the measured curve of as many ranks as one domain holds, nor than what
NCCL's protocols take at least inside a building (``protocol_times``); encoded messages know no protocols.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.collective_laws import (
    ALL_LEVELS,
    CHUNKS,
    OUTER_LEVELS,
    Laws,
    fewest_steps,
    inner_of,
    laws,
    layered_busy_s,
    layered_s,
    ring_busy_s,
    ring_fixed_s,
    steps_of,
    tree_busy_s,
)
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import RACK, SCALE_UP
from scaleacross.cost_models.links import Links, exchange_s_per_byte, group_bandwidth
from scaleacross.cost_models.network.compression import coded_laws, sent_ratio
from scaleacross.cost_models.protocol_times import ProtocolTimes, exchange_latency_s
from scaleacross.spec.network import LINK_LEVELS, CurveOp
from scaleacross.spec.network_choice import LEAST_PIECE_BYTES, Algorithm, Compression, LevelAlgorithm, LevelStep


class Option(NamedTuple):
    """One way.

    Attributes:
        name: as a schedule of ``schedules.collective`` is named; levels outermost first.
        algorithm: as a plan names it; None: no plan chooses it.
        steps: what each level of a hierarchical way runs, outermost first.
        num_chunks: chunks that follow one another.
        time_s: alone on the network, launch included.
        busy_s: of it, those in which networks beyond the scale-up domain are busy (no latencies), as ``collectives.Timed``.
        level_bytes: [level] -> bytes that one group sends into one child.
    """

    name: str
    algorithm: Algorithm | None
    steps: tuple[LevelStep, ...]
    num_chunks: int
    time_s: float
    level_bytes: dict[int, float]
    busy_s: float = 0.0


class _Level(NamedTuple):
    """A level that the group crosses, and what all members in one child have for leaving it."""

    level: int
    fanout: int
    members: float
    bytes_per_s: float
    latency_s: float


def options(
    op: CurveOp,
    size_bytes: float,
    shape: GroupShape,
    links: Links,
    launch_s: float,
    compression: Compression | None = None,
) -> list[Option]:
    """All options, fastest first; empty for a group of one.

    Args:
        op: all_reduce, all_gather, reduce_scatter (``size_bytes`` of the full tensor) or all_to_all (bytes that one rank sends in
            all, itself included).
        shape: exact shape of the groups, one row.
        links: figures of the levels, one row.
        launch_s: fixed start-up of a collective.
        compression: how messages of a reduction travel on some levels; then trees, whose ranks pass on sums of many levels, are
            left out.
    """
    crossed = _crossed(op, shape, links)
    if not crossed:
        return []
    measured = measured_s(op, size_bytes, float(shape.degree), links)
    if crossed[-1].level == SCALE_UP and not math.isnan(measured):
        return [Option("library", "library", (), 1, measured, _bytes(op, size_bytes, crossed, shape))]
    ways = (
        _all_to_all(
            size_bytes,
            crossed,
            shape,
            handshakes_s=float(exchange_latency_s(shape, links)) - launch_s,
            curves=not math.isnan(measured),
        )
        if op == "all_to_all"
        else _reductions(op, size_bytes, crossed, shape, links, launch_s, compression, curves=not math.isnan(measured))
    )
    floor = 0.0 if math.isnan(measured) else measured
    timed = (way._replace(time_s=max(way.time_s + launch_s, floor)) for way in ways)
    return sorted(timed, key=lambda way: way.time_s)


def measured_s(op: CurveOp, size: float, degree: float, links: Links) -> float:
    """Seconds, of size ``size`` bytes, by the curve of as many ranks as a domain holds, NaN without one."""
    if links.curves is None:
        return math.nan
    return float(curve_s(links.curves, links.curve, op, np.array(degree), np.array(size)))


def _bytes(op: CurveOp, size: float, crossed: Sequence[_Level], shape: GroupShape) -> dict[int, float]:
    """Bytes that one group sends into one child of each level where levels exchange among their own children."""
    if op == "all_to_all":
        return _exchanged(size, crossed, float(shape.degree))
    passes, share = 2 if op == "all_reduce" else 1, shape.taken_in(by_rank=op != "all_reduce")
    return {level.level: passes * float(share[level.level]) * size for level in crossed}


def _exchanged(size: float, crossed: Sequence[_Level], degree: float) -> dict[int, float]:
    """The same of an all-to-all among ``degree`` ranks."""
    return {level.level: size * level.members * (degree - level.members) / degree for level in crossed}


def _crossed(op: CurveOp, shape: GroupShape, links: Links) -> list[_Level]:
    """Crossed levels, innermost first."""
    rate = group_bandwidth(shape, links)
    if op == "all_to_all":
        leaving = shape.members * (shape.degree - shape.members) / shape.degree
        rate = leaving / np.maximum(exchange_s_per_byte(shape, links), np.finfo(float).tiny)
    return [
        _Level(
            level,
            int(f),
            float(shape.members[level]),
            float(rate[level]),
            float(links.latency[level]),
        )
        for level, f in enumerate(shape.fanout)
        if f > 1
    ]


def _reductions(
    op: CurveOp,
    size: float,
    crossed: Sequence[_Level],
    shape: GroupShape,
    links: Links,
    launch_s: float,
    compression: Compression | None,
    *,
    curves: bool,
) -> Iterator[Option]:
    """Ring, tree, and every combination of algorithms per level and chunks."""
    num_bytes = np.array(size)
    library = None
    if curves and links.curves is not None and compression is None:
        library = ProtocolTimes(shape, links, links.curves, lambda values: values)

    def at_least(seconds: float, least_s: Floats | None) -> float:
        return seconds if least_s is None else max(seconds, float(least_s) - launch_s)

    def law_of(steps: Floats | None = None) -> Laws:
        if compression is None:
            return laws(shape, links, counted, steps, by_rank=op != "all_reduce")
        return coded_laws(shape, links, counted, compression, steps, by_rank=op != "all_reduce")

    ratio = sent_ratio(compression)
    counted = OUTER_LEVELS if curves else ALL_LEVELS
    inner = None
    if curves and links.curves is not None and shape.fanout[SCALE_UP] > 1:
        inner = inner_of(op, shape.fanout[SCALE_UP], links.curves, links.curve)
    law, passes, degree = law_of(), 2 if op == "all_reduce" else 1, float(shape.degree)
    ring_bytes = {level.level: passes * (degree - 1) / degree * size / ratio[level.level] for level in crossed}
    seconds = passes * float(law.ring_s_per_byte * size + ring_fixed_s(num_bytes, law))
    ring_least = library.ring_s(op, num_bytes) if library else None
    layered_least = None if library is None or ring_least is None else library.layered_s(ring_least)
    seconds = at_least(seconds, ring_least)
    yield Option("ring", "ring", (), 1, seconds, ring_bytes, float(ring_busy_s(num_bytes, law, passes)))
    if op == "all_reduce" and compression is None:
        part = float(library.share) / 2 if library else 1.0
        tree_bytes = {level.level: 2 * part * size for level in crossed}
        seconds = float(part * law.tree_s_per_byte * size + law.tree_s)
        seconds = at_least(seconds, library.tree_s(num_bytes) if library else None)
        yield Option("double_tree", "tree", (), 1, seconds, tree_bytes, part * float(tree_busy_s(num_bytes, law)))
    level_bytes = {level: sent / ratio[level] for level, sent in _bytes(op, size, crossed, shape).items()}
    phases = [level for level in crossed if level.level >= (RACK if curves else SCALE_UP)]
    for named in product(*(_algorithms(level) for level in reversed(phases))):
        steps = tuple(
            LevelStep(level=LINK_LEVELS[level.level], algorithm=name)
            for level, name in zip(reversed(phases), named, strict=True)
        )
        if len(steps) == 1 and not inner and steps[0].algorithm == "ring":
            continue  # the ring above
        law = law_of(steps_of(steps, shape.fanout))
        for chunks in CHUNKS:
            if chunks > 1 and size / chunks < LEAST_PIECE_BYTES:
                break
            seconds = float(layered_s(num_bytes, chunks, law, passes, inner))
            seconds = at_least(seconds, layered_least)
            free_s = layered_s(num_bytes, chunks, law.without_windows, passes, inner)
            inside = ("library",) if inner else ()
            name = f"hierarchical({', '.join((*named, *inside))})"
            busy = layered_busy_s(free_s, num_bytes, law, passes)
            yield Option(name, "hierarchical", steps, chunks, seconds, level_bytes, float(busy))


def _algorithms(level: _Level) -> list[LevelAlgorithm]:
    """What a level can run; halving and doubling where it saves steps."""
    out: list[LevelAlgorithm] = ["ring"]
    if float(fewest_steps(np.array(float(level.fanout)))) < level.fanout - 1:
        out.append("halving_doubling")
    return out


def _all_to_all(
    size: float, crossed: Sequence[_Level], shape: GroupShape, *, handshakes_s: float, curves: bool
) -> Iterator[Option]:
    """Every level's bytes over its links, all levels at once; what differs is how many messages wait for one another.

    In two levels everything is first exchanged among the m ranks below the outermost level, for all its children; then what a
    child lacks of it crosses, past every level on its way. Of each level's links that takes no less than the direct exchange.
    """
    entering = _exchanged(size, crossed, float(shape.degree))
    outer = [level for level in crossed if level.level >= RACK] if curves else crossed
    slowest = max(entering[level.level] / level.bytes_per_s for level in outer)
    least_s = handshakes_s if curves else 0.0
    waits = max(least_s, max(level.latency_s for level in outer))
    yield Option("direct", "pairwise", (), 1, slowest + waits, entering)
    partners = {level.level: (level.fanout - 1) * level.members for level in crossed}
    waits = max(least_s, sum(partners[level.level] * level.latency_s for level in crossed))
    yield Option("pairwise", None, (), 1, slowest + waits, entering)
    far, inner = crossed[-1], crossed[:-1]
    if far.members > 1:
        gathered = _exchanged(size, inner, far.members)
        outside = float(shape.taken_in(by_rank=True)[far.level])
        passing = {level.level: size * outside * level.members for level in crossed}
        inside = max((gathered[level.level] / level.bytes_per_s for level in inner), default=0.0)
        across = max(passing[level.level] / level.bytes_per_s for level in outer)
        near = max((level.latency_s for level in inner), default=0.0)
        sent = {level: num_bytes + gathered.get(level, 0.0) for level, num_bytes in passing.items()}
        waits = max(least_s, near + far.latency_s)
        yield Option("two_level", None, (), 1, inside + across + waits, sent)
