"""Seconds per byte and fixed seconds of every algorithm over the crossed levels, for arrays of group shapes.

Symbols as in ``collectives``: S bytes, level l with fanout f_l, W_l what a group has for leaving a child, R_l what a ring
of it has (``links.ring_bandwidth``), α_l latency. Beyond the scale-up domain all levels share one network adapter of b_l bytes/s
per accelerator, m_l of them in a child.

* ring           (d−1)/d · S / R + max_w (Σ_w α − Σ_w (1/R − 1/R_l) · S/d)      R = min_l R_l
                 over stretches w of at most d−1 hops: a block that waits for the slowest hop is not late by the latency of a
                 faster one (``_walks``)
* tree           2 · S / min_l R_l + 2 · Σ_l ⌈log2 f_l⌉ · α_l
* hierarchical   A = Σ steps_l · α_l        steps f_l − 1 of a ring, log2 f_l of halving and doubling (powers of two)
                 in B and M, of a gather or scatter, the largest (n−m)/n in place of (f_l−1)/f_l, where a child has m of its
                 parent's n ranks; neither is less than what a building takes in over all links that lead there
                 B = Σ (f_l−1)/f_l / W_l    one level after the other
                 M = the busiest resource: the scale-up domain's links, each level's uplink or trunk with all that passes it on
                     its way farther out, or the adapter, Σ_{l > scale-up} (f_l−1)/f_l / (m_l·b_l)

                 P = Σ steps_l · o_l        o_l what every message of a further chunk adds

                 in k chunks: A + S·B/k + (k−1)·(S·M/k + P), since chunks follow one another and different resources work at
                 the same time, B ≥ M (Chan, Heimlich, Purkayastha and van de Geijn, 2007, price pipelines so; the first
                 chunk's messages are in A). With a phase of its own inside the domain, of i(S) seconds:

                     A + S·B/k + i(S/k) + (k−1)·(max(S·M/k, i(S/k)) + P)

An all-reduce passes every level twice; both passes share its links. In chunks it waits less for the outermost level: of the 2·s
messages of a chunk in a row over it (s steps, c seconds of bytes each) all but the last are on their way while other chunks send,

                     less (2s − 1) · min(α, (k−1) · c)

Played message by message, 2 to 4 buildings of 2 or 4, 94 % of all-reduces take that within 10 % (63 % without).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK
from scaleacross.cost_models.links import Links, group_bandwidth, ring_bandwidth, uplinks_on_the_way
from scaleacross.spec.network import LINK_LEVELS, CurveOp
from scaleacross.spec.network_choice import LEAST_PIECE_BYTES, CommunicatorChoice, LevelStep, num_pieces

ALL_LEVELS: Final = np.ones(NUM_LEVELS, dtype=bool)
OUTER_LEVELS: Final = np.arange(NUM_LEVELS) >= RACK

CHUNKS: Final = (1, 2, 4, 8, 16, 32)
Inner = Callable[[Floats], Floats]
"""Seconds of the phases inside a scale-up domain for a chunk of so many bytes, both of an all-reduce."""


class Laws(NamedTuple):
    """Ring, hierarchical and (all-reduce by a) tree, each (...): seconds per byte and fixed seconds of one pass.

    ``ring_latencies_s`` and ``ring_hidden_s_per_byte`` (..., stretches) of a ring: Σ α, and what a byte hides of it.
    ``hierarchical_s_per_byte``, ``busiest_s_per_byte``, ``hierarchical_s`` and ``messages_s`` are B, M, A and P of the module
    docstring, ``far_steps`` s, ``far_s_per_byte`` S-th parts of s·c, ``far_s`` α, and ``far_exposed`` the one of 2·s.
    Windows of connections may leave links idle: ``ring_busy`` is the share of a ring's or tree's seconds per byte in which its
    thinnest link is busy, ``busy_s_per_byte`` and ``busy_busiest_s_per_byte`` are B and M without them.
    """

    ring_s_per_byte: Floats
    ring_latencies_s: Floats
    ring_hidden_s_per_byte: Floats
    hierarchical_s_per_byte: Floats
    busiest_s_per_byte: Floats
    hierarchical_s: Floats
    messages_s: Floats
    far_steps: Floats
    far_s: Floats
    far_s_per_byte: Floats
    far_exposed: Floats
    tree_s_per_byte: Floats
    tree_s: Floats
    ring_busy: Floats
    busy_s_per_byte: Floats
    busy_busiest_s_per_byte: Floats

    @property
    def without_windows(self) -> Laws:
        """The laws of hierarchical collectives on links that no window leaves idle."""
        return self._replace(
            hierarchical_s_per_byte=self.busy_s_per_byte, busiest_s_per_byte=self.busy_busiest_s_per_byte
        )


def laws(
    shape: GroupShape, links: Links, counted: Bools, steps: Floats | None = None, *, by_rank: bool = False
) -> Laws:
    """The formulas of the module docstring; only ``counted`` levels limit bandwidth or are phases.

    Args:
        steps: messages one after another on each level; None: as few as any algorithm needs (``fewest_steps``).
        by_rank: of a gather or scatter (``GroupShape.taken_in``).
    """
    if isinstance(shape, RelaxedShape):
        return _bounds(shape, links, counted)
    shape = shape.farthest
    moved = shape.taken_in(by_rank=by_rank)
    each = moved / np.where(counted, group_bandwidth(shape, links), np.inf)
    thinnest, busiest = _thinnest(shape, links, counted), _busiest_s_per_byte(shape, links, counted, moved)
    steps = fewest_steps(shape.fanout) if steps is None else steps
    overhead = np.zeros(()) if links.message_overhead is None else links.message_overhead
    far = _outermost(shape, counted, steps, links.latency, each)
    found = Laws(
        (shape.degree - 1) / shape.degree / thinnest,
        *_walks(shape, links, thinnest),
        each.sum(axis=-1),
        busiest,
        (counted * steps * links.latency).sum(axis=-1),
        (counted * steps * overhead).sum(axis=-1),
        *far,
        np.ones(np.shape(far[0])),
        2 / thinnest,
        2 * (np.ceil(np.log2(shape.fanout)) * links.latency).sum(axis=-1),
        *_busy(shape, links, counted, moved, each.sum(axis=-1), busiest),
    )
    return _entered(found, shape, links) if by_rank else found


def _entered(found: Laws, shape: GroupShape, links: Links) -> Laws:
    """With B and M no less than what every building takes in has over all links that lead there, farther levels' bytes too."""
    reached = links.capacity[..., CAMPUS]
    if links.ratio is not None:  # what enters may be shortened as on either level
        ratio = np.broadcast_to(links.ratio, np.shape(links.capacity))[..., CAMPUS:]
        reached = reached * ratio.max(axis=-1) / ratio[..., 0]
    least = shape.entering / reached
    names = "hierarchical_s_per_byte", "busiest_s_per_byte", "busy_s_per_byte", "busy_busiest_s_per_byte"
    return found._replace(**{name: np.maximum(getattr(found, name), least) for name in names})


def _busy(
    shape: GroupShape, links: Links, counted: Bools, moved: Floats, whole: Floats, busiest: Floats
) -> tuple[Floats, Floats, Floats]:
    """``ring_busy``, and B and M without windows, from B and M with them."""
    if links.adapter is None:
        return _ring_busy(shape, links, counted), whole, busiest
    free = links._replace(bandwidth=links.adapter)
    each = moved / np.where(counted, group_bandwidth(shape, free), np.inf)
    return _ring_busy(shape, links, counted), each.sum(axis=-1), _busiest_s_per_byte(shape, free, counted, moved)


def _ring_busy(shape: GroupShape, links: Links, counted: Bools) -> Floats:
    """R over R without windows, 1 where no level limits either."""
    thinnest = _thinnest(shape, links, counted)
    if links.adapter is None:
        return np.ones(np.shape(thinnest))
    with np.errstate(invalid="ignore"):
        share = thinnest / _thinnest(shape, links._replace(bandwidth=links.adapter), counted)
    return np.nan_to_num(share, nan=1.0)


def _thinnest(shape: GroupShape, links: Links, counted: Bools) -> Floats:
    """R, (...)."""
    out: Floats = np.where(counted, ring_bandwidth(shape, links), np.inf).min(axis=-1)
    return out


def _busiest_s_per_byte(shape: GroupShape, links: Links, counted: Bools, moved: Floats) -> Floats:
    """M, (...)."""
    bandwidth = np.where(counted, group_bandwidth(shape, links), np.inf)
    port = links.bandwidth if links.adapter is None else links.adapter
    adapter = np.where(counted & OUTER_LEVELS, moved / (shape.members * port), 0.0).sum(axis=-1)
    uplinks = moved * shape.crossing / links.capacity
    inner = uplinks_on_the_way(shape, links)
    if inner is not None:
        uplinks = uplinks + ((moved / shape.members)[..., None] / inner).sum(axis=-2)
    busiest = np.where(counted, np.maximum(moved / bandwidth, uplinks), 0.0).max(axis=-1)
    return np.maximum(busiest, adapter)


def _around_s(shape: RelaxedShape, links: Links) -> Floats:
    """Latencies of a ring: a block passes all hops but the one into its source, the way back from the last rank among them.

    The longest such way leaves out a hop of least latency. A lower bound on monotone links: the ring closes over the outermost
    level that the group crosses.
    """
    hops, crossed = shape.pairs > 0, shape.fanout > 1
    nearest = np.where(hops, links.latency, np.inf).min(axis=-1)
    farthest = np.where(crossed, links.latency, 0.0).max(axis=-1)
    around: Floats = (shape.pairs * links.latency).sum(axis=-1) + np.maximum(0.0, farthest - nearest)
    return around


def _walks(shape: GroupShape, links: Links, thinnest: Floats) -> tuple[Floats, Floats]:
    """Latencies of a ring's stretches and, per byte of the tensor, what they hide behind the slowest hop, each (..., 3).

    Of all its hops but the nearest; of all outermost hops without those inside the largest of the children that they join; of
    one farthest hop.
    """
    hops, crossed = shape.pairs > 0, shape.fanout > 1
    with np.errstate(divide="ignore"):
        slack = np.maximum(0.0, 1 / thinnest[..., None] - 1 / ring_bandwidth(shape, links)) / shape.degree[..., None]
    outermost = np.arange(NUM_LEVELS) == shape.span[..., None]
    farthest = np.where(crossed, links.latency, 0.0).max(axis=-1)
    closed = shape.pairs + outermost  # the way back from the last rank
    every, single = closed - (hops & (np.cumsum(hops, axis=-1) == 1)), np.where(outermost, 1.0, 0.0)
    children = np.maximum(1.0, np.where(outermost, closed, 0.0).sum(axis=-1))
    inside = np.maximum(0.0, shape.degree - children)
    kept = 1 - (_largest_child(shape, children) - 1) / np.maximum(1.0, inside)
    around = np.where(outermost, closed, closed * kept[..., None])
    most = np.where((inside > 0)[..., None], around, every)
    latencies = np.stack([(each * links.latency).sum(axis=-1) for each in (every, most)] + [farthest], axis=-1)
    hidden = np.stack([(each * slack).sum(axis=-1) for each in (every, most, single)], axis=-1)
    return latencies, hidden


def _largest_child(shape: GroupShape, children: Floats) -> Floats:
    """Ranks in the largest of the ``children`` that a ring's outermost hops join: beyond buildings the last may be smaller."""
    others = (shape.degree - shape.tail) / np.maximum(1.0, children - 1)
    return np.where(shape.span >= CAMPUS, np.maximum(shape.tail, others), shape.degree / children)


def ring_fixed_s(size: Floats, law: Laws) -> Floats:
    """What one pass of a ring takes beyond its bytes over the slowest hop: the longest of its stretches."""
    late: Floats = (law.ring_latencies_s - law.ring_hidden_s_per_byte * np.asarray(size)[..., None]).max(axis=-1)
    return np.maximum(0.0, late)


def ring_busy_s(size: Floats, law: Laws, passes: int) -> Floats:
    """Seconds of ``passes`` of a ring in which its busiest link is busy."""
    busy: Floats = passes * law.ring_s_per_byte * size * law.ring_busy
    return busy


def tree_busy_s(size: Floats, law: Laws) -> Floats:
    """Likewise of a tree's all-reduce."""
    busy: Floats = law.tree_s_per_byte * size * law.ring_busy
    return busy


def layered_busy_s(seconds: Floats, size: Floats, law: Laws, passes: int) -> Floats:
    """Likewise of a hierarchical collective of ``seconds`` by ``without_windows``; latencies that chunks hide free no link."""
    return np.maximum(seconds - passes * law.hierarchical_s, passes * law.busy_busiest_s_per_byte * size)


def _outermost(
    shape: GroupShape, counted: Bools, steps: Floats, latency: Floats, s_per_byte: Floats
) -> tuple[Floats, Floats, Floats]:
    """Steps over the outermost counted level, latency of one, seconds per byte of all; no latency where one level is all."""
    crossed, latency, s_per_byte = np.broadcast_arrays(counted & (shape.fanout > 1), latency, s_per_byte)
    outermost = crossed.shape[-1] - 1 - np.argmax(crossed[..., ::-1], axis=-1)[..., None]
    own, each, bytes_s = (
        np.take_along_axis(part, outermost, axis=-1)[..., 0]
        for part in (np.where(crossed, steps, 1.0), latency, s_per_byte)
    )
    several = crossed.any(axis=-1) & ((shape.fanout > 1).sum(axis=-1) > 1)
    return own, np.where(several, each, 0.0), bytes_s


def fewest_steps(fanout: Floats) -> Floats:
    """log2 f where halving and doubling can run (powers of two), else the f − 1 of a ring."""
    doublings = np.log2(fanout)
    return np.where(doublings == np.floor(doublings), doublings, fanout - 1)


def steps_of(steps: Sequence[LevelStep], fanout: Floats) -> Floats:
    """Messages one after another on each level: as ``steps`` say, a ring's elsewhere."""
    out = np.array(fanout, dtype=np.float64) - 1
    for step in steps:
        if step.algorithm == "halving_doubling":
            level = LINK_LEVELS.index(step.level)
            out[..., level] = np.ceil(np.log2(fanout[..., level]))
    return out


def inner_of(op: CurveOp, num_ranks: Floats, curves: Floats, curve: Ints | int) -> Inner:
    """Phases inside a domain by their measured curves: both of an all-reduce, its own curve where they are unknown."""

    def seconds(of: CurveOp, size: Floats) -> Floats:
        return curve_s(curves, curve, of, num_ranks, size)

    def inner(size: Floats) -> Floats:
        if op != "all_reduce":
            return seconds(op, size)
        both = seconds("reduce_scatter", size) + seconds("all_gather", size)
        return np.where(np.isnan(both), seconds("all_reduce", size), both)

    return inner


def layered_s(size: Floats, chunks: Floats | int, law: Laws, passes: int, inner: Inner | None = None) -> Floats:
    """Seconds of a hierarchical collective in k chunks; ``inner`` as in the module docstring."""
    piece = size / chunks
    each, busiest = passes * law.hierarchical_s_per_byte * piece, passes * law.busiest_s_per_byte * piece
    inside = inner(piece) if inner else np.zeros(())
    more: Floats = (chunks - 1) * (np.maximum(busiest, inside) + passes * law.messages_s)
    if passes > 1:
        sent = (chunks - 1) * law.far_s_per_byte * piece / law.far_steps
        more = more - (passes * law.far_steps - law.far_exposed) * np.minimum(law.far_s, sent)
    seconds: Floats = passes * law.hierarchical_s + each + inside + more
    return seconds


def stated_chunks(size: Floats, *choices: CommunicatorChoice) -> Floats:
    """``num_pieces`` of every size by a choice, or of one size by each of several."""
    every = [(one, choice) for choice in choices for one in size.ravel().tolist()]
    pieces = [num_pieces(one, choice.num_chunks, choice.chunk_bytes) for one, choice in every]
    return np.array(pieces, dtype=np.float64).reshape(size.shape if len(choices) == 1 else len(every))


def best_layered_s(size: Floats, law: Laws, passes: int, inner: Inner | None = None) -> Floats:
    """The least of ``layered_s`` over CHUNKS with pieces of LEAST_PIECE_BYTES or more."""
    if inner is None and not law.messages_s.any():  # the more chunks, the better: M ≤ B, more latency hides
        most = np.clip(np.floor(np.log2(np.maximum(size, 1.0) / LEAST_PIECE_BYTES)), 0.0, np.log2(CHUNKS[-1]))
        return layered_s(size, np.exp2(most), law, passes)
    best = layered_s(size, 1, law, passes, inner)
    for chunks in CHUNKS[1:]:
        if not (size / chunks >= LEAST_PIECE_BYTES).any():
            break
        cut = layered_s(size, chunks, law, passes, inner)
        best = np.where(size / chunks >= LEAST_PIECE_BYTES, np.minimum(best, cut), best)
    return best


def _bounds(shape: RelaxedShape, links: Links, counted: Bools) -> Laws:
    """Lower bounds of ``laws`` over all exact shapes that a relaxed one stands for, on monotone links.

    With n_l children touched by some group, fanouts f_l ≥ n_l/n_{l+1} and members ≤ d/n_l, so

        Σ (f_l−1)/f_l / (members_l · bandwidth_l) ≥ Σ (n_l−n_{l+1}) / (d · bandwidth_l),

    least for the least n_l where bandwidth falls outwards, over all levels (for B) and over those that share the adapter (for
    M; either the scale-up domain or the adapter has half of B, the one level of a known shape all of it); f−1 and ⌈log2 f⌉ are
    at least log2 f, so latencies are at least Σ log2(n_l/n_{l+1}) · α_l, least likewise; and half of the tensor or more leaves
    a child through one uplink. A ring takes its bytes or its latencies, whichever is longer (both on the one level of a known
    shape). Messages of further chunks are left out, and all of an all-reduce's latencies may hide behind its bytes:
    2·max(A, S·M · (k−1)/k) is then left of both.
    """
    thinnest = _thinnest(shape, links, counted)
    degree, crossed = shape.degree, (shape.fanout > 1) & counted
    doublings = np.log2(shape.fanout)
    steps = (counted * fewest_steps(shape.fanout) * links.latency).sum(axis=-1)
    hops = (np.ceil(doublings) * links.latency).sum(axis=-1)
    uplink = np.where(crossed, shape.crossing / links.capacity, 0.0).max(axis=-1) / 2
    each = counted * shape.pairs / links.bandwidth
    adapter, together = each[..., RACK:].sum(axis=-1) / degree, each.sum(axis=-1) / degree
    whole = np.maximum(together, uplink)
    busiest = np.maximum(np.where(shape.known, together, np.maximum(adapter, together / 2)), uplink)
    log_latency = (counted * doublings * links.latency).sum(axis=-1)
    return Laws(
        (degree - 1) / degree / thinnest,
        _around_s(shape, links)[..., None],
        np.where(shape.known, 0.0, (degree - 1) / degree / thinnest)[..., None],
        whole,
        busiest,
        np.where(shape.known, steps, log_latency),
        np.zeros(np.shape(log_latency)),
        np.ones(np.shape(log_latency)),
        np.where(shape.known, 0.0, log_latency),
        whole,
        np.zeros(np.shape(log_latency)),
        2 / thinnest,
        2 * np.where(shape.known, hops, (doublings * links.latency).sum(axis=-1)),
        _ring_busy(shape, links, counted),
        whole,
        busiest,
    )
