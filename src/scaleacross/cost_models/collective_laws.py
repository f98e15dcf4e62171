"""Seconds per byte and fixed seconds of every algorithm over the crossed levels, for arrays of group shapes.

Symbols as in ``collectives``: S bytes, level l with fanout f_l, W_l the bandwidth at which a group sends out of a
child, R_l the same for one ring (``links.ring_bandwidth``), α_l latency. Beyond the scale-up domain all levels share
one network adapter of b_l bytes/s per accelerator. A group has m_l ranks in a child.

* ring           (d−1)/d · S / R + max_w (Σ_w α − Σ_w (1/R − 1/R_l) · S/d)      R = min_l R_l
                 over stretches w of at most d−1 hops. A block that waits for the slowest hop overlaps with a faster
                 hop's latency.
* tree           2 · S / min_l R_l + 2 · Σ_l ⌈log2 f_l⌉ · α_l
* hierarchical   A = Σ steps_l · α_l        steps f_l − 1 of a ring, ⌈log2 f_l⌉ of halving and doubling
                 B = Σ (f_l−1)/f_l / W_l    one level after the other
                 M = the busiest resource: the scale-up domain's links, the adapter, Σ_{l > scale-up}
                 (f_l−1)/f_l / (m_l·b_l), or a level's uplink or inter-building link with all bytes that pass it

                 P = Σ steps_l · o_l        o_l what every message of a further chunk adds

                 A gather or scatter has the largest (n−m)/n in place of (f_l−1)/f_l, where a child holds m of its
                 parent's n ranks. Neither is less than the time in which a building receives its bytes over all links
                 into it.

                 in k chunks: A + S·B/k + (k−1)·(S·M/k + P), because chunks follow one another and different resources
                 work at the same time, B ≥ M (pipelines as in Chan, Heimlich, Purkayastha and van de Geijn, 2007; A has
                 the messages of the first chunk). With a separate phase of i(S) seconds inside the domain:

                     A + S·B/k + i(S/k) + (k−1)·(max(S·M/k, i(S/k)) + P)

An all-reduce passes every level twice; both passes share its links. In a chunked all-reduce only one latency of the
outermost level is exposed, provided the other chunks carry enough bytes. A chunk sends 2·s messages in a row over that
level (s steps, c seconds of bytes each). All but the last overlap with the bytes of other chunks:

                     less (2s − 1) · min(α, (k−1) · c)

Simulated message by message (2 to 4 buildings of 2 or 4), 94 % of all-reduces are within 10 % of it (63 % without).
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
"""Maps the bytes of a chunk to the seconds of the phases inside a scale-up domain, both phases of an all-reduce."""


class Laws(NamedTuple):
    """Terms of the ring, hierarchical and tree laws, each (...): seconds per byte and fixed seconds of one pass.

    The tree law is that of an all-reduce. Of a ring, ``ring_latencies_s`` (..., stretches) is Σ α of each stretch and
    ``ring_hidden_s_per_byte`` the part of it that overlaps per byte of the tensor.
    ``hierarchical_s_per_byte``, ``busiest_s_per_byte``, ``hierarchical_s`` and ``messages_s`` are B, M, A and P of the
    module docstring. ``outermost_steps`` is s, ``outermost_s`` is α, ``outermost_s_per_byte`` is s·c per byte of a chunk, and
    ``outermost_exposed`` counts the exposed ones of the 2·s latencies.
    Windows of connections may leave links idle. ``ring_busy`` is the share of a ring's or tree's seconds per byte in
    which its slowest link is busy. ``busy_s_per_byte`` and ``busy_busiest_s_per_byte`` are B and M without windows.
    """

    ring_s_per_byte: Floats
    ring_latencies_s: Floats
    ring_hidden_s_per_byte: Floats
    hierarchical_s_per_byte: Floats
    busiest_s_per_byte: Floats
    hierarchical_s: Floats
    messages_s: Floats
    outermost_steps: Floats
    outermost_s: Floats
    outermost_s_per_byte: Floats
    outermost_exposed: Floats
    tree_s_per_byte: Floats
    tree_s: Floats
    ring_busy: Floats
    busy_s_per_byte: Floats
    busy_busiest_s_per_byte: Floats

    @property
    def without_windows(self) -> Laws:
        """The same laws with hierarchical collectives on links that no connection window leaves idle."""
        return self._replace(
            hierarchical_s_per_byte=self.busy_s_per_byte, busiest_s_per_byte=self.busy_busiest_s_per_byte
        )

    def within(self, other: Laws) -> bool:
        """Whether no algorithm takes longer than under ``other``, whatever the size and the number of chunks."""
        mine, others = self._least_parts, other._least_parts
        # latencies that overlap with other chunks are part of A alone
        overlapped_s = (other.outermost_steps - other.outermost_exposed / 2) * other.outermost_s
        latency = self.hierarchical_s <= other.hierarchical_s - overlapped_s
        return bool(latency.all()) and all(bool((a <= b).all()) for a, b in zip(mine, others, strict=True))

    @property
    def _least_parts(self) -> tuple[Floats, ...]:
        """Figures of which none makes an algorithm faster where it is larger."""
        ring = self.ring_s_per_byte
        walks = self.ring_latencies_s, ring[..., None] - self.ring_hidden_s_per_byte
        layered = self.hierarchical_s_per_byte, self.busiest_s_per_byte, self.messages_s
        busy = ring * self.ring_busy, self.busy_s_per_byte, self.busy_busiest_s_per_byte
        return ring, *walks, *layered, *busy, self.tree_s_per_byte, self.tree_s


def laws(
    shape: GroupShape, links: Links, counted: Bools, steps: Floats | None = None, *, by_rank: bool = False
) -> Laws:
    """Terms of the module docstring's formulas; only ``counted`` levels limit bandwidth or are phases.

    Args:
        steps: consecutive messages on each level; None: as few as any algorithm needs (``fewest_steps``).
        by_rank: True for a gather or scatter, whose parts belong to ranks (``GroupShape.taken_in``).
    """
    if isinstance(shape, RelaxedShape):
        return _bounds(shape, links, counted)
    moved = shape.taken_in(by_rank=by_rank)
    each = moved / np.where(counted, group_bandwidth(shape, links), np.inf)
    thinnest, busiest = _thinnest(shape, links, counted), _busiest_s_per_byte(shape, links, counted, moved)
    steps = fewest_steps(shape.fanout) if steps is None else steps
    overhead = np.zeros(()) if links.message_overhead is None else links.message_overhead
    outermost = _outermost(shape, counted, steps, links.latency, each)
    found = Laws(
        (shape.degree - 1) / shape.degree / thinnest,
        *_walks(shape, links, thinnest),
        each.sum(axis=-1),
        busiest,
        (counted * steps * links.latency).sum(axis=-1),
        (counted * steps * overhead).sum(axis=-1),
        *outermost,
        np.ones(np.shape(outermost[0])),
        2 / thinnest,
        2 * (np.ceil(np.log2(shape.fanout)) * links.latency).sum(axis=-1),
        *_busy(shape, links, counted, moved, each.sum(axis=-1), busiest),
    )
    return _entered(found, shape, links) if by_rank else found


def _entered(found: Laws, shape: GroupShape, links: Links) -> Laws:
    """``found`` with B and M at least what a building needs to receive its bytes over all links that lead there. Bytes
    from farther levels count."""
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
    """``ring_busy``, and B and M without connection windows; ``whole`` and ``busiest`` are B and M with them."""
    if links.adapter is None:
        return _ring_busy(shape, links, counted), whole, busiest
    free = links._replace(bandwidth=links.adapter)
    each = moved / np.where(counted, group_bandwidth(shape, free), np.inf)
    return _ring_busy(shape, links, counted), each.sum(axis=-1), _busiest_s_per_byte(shape, free, counted, moved)


def _ring_busy(shape: GroupShape, links: Links, counted: Bools) -> Floats:
    """R divided by R without connection windows, (...); 1 where no level limits either."""
    thinnest = _thinnest(shape, links, counted)
    if links.adapter is None:
        return np.ones(np.shape(thinnest))
    with np.errstate(invalid="ignore"):
        share = thinnest / _thinnest(shape, links._replace(bandwidth=links.adapter), counted)
    return np.nan_to_num(share, nan=1.0)


def _thinnest(shape: GroupShape, links: Links, counted: Bools) -> Floats:
    """R, the least ring bandwidth of all counted levels, bytes/s, (...)."""
    out: Floats = np.where(counted, ring_bandwidth(shape, links), np.inf).min(axis=-1)
    return out


def _busiest_s_per_byte(shape: GroupShape, links: Links, counted: Bools, moved: Floats) -> Floats:
    """M, seconds per byte of the busiest resource, (...)."""
    bandwidth = np.where(counted, group_bandwidth(shape, links), np.inf)
    port = links.bandwidth if links.adapter is None else links.adapter
    # one adapter carries the bytes of all levels beyond the domain, so their times add up
    adapter = np.where(counted & OUTER_LEVELS, moved / (shape.members * port), 0.0).sum(axis=-1)
    uplinks = moved * shape.crossing / links.capacity
    inner = uplinks_on_the_way(shape, links)
    if inner is not None:
        uplinks = uplinks + ((moved / shape.members)[..., None] / inner).sum(axis=-2)
    busiest = np.where(counted, np.maximum(moved / bandwidth, uplinks), 0.0).max(axis=-1)
    return np.maximum(busiest, adapter)


def _around_s(shape: RelaxedShape, links: Links) -> Floats:
    """Latency in seconds of a ring's longest path, for a lower bound on monotone links.

    A block passes all hops but the one into its source; the hop from the last rank back to the first counts among them.
    The longest such path leaves out a hop of least latency. The ring closes over the outermost crossed level.
    """
    hops, crossed = shape.pairs > 0, shape.fanout > 1
    nearest = np.where(hops, links.latency, np.inf).min(axis=-1)
    farthest = np.where(crossed, links.latency, 0.0).max(axis=-1)
    around: Floats = (shape.pairs * links.latency).sum(axis=-1) + np.maximum(0.0, farthest - nearest)
    return around


def _walks(shape: GroupShape, links: Links, thinnest: Floats) -> tuple[Floats, Floats]:
    """Latencies of three stretches of a ring, s, and the seconds per byte that overlap with them, each (..., 3).

    The stretches are: all hops but the nearest; all but those inside the largest child that outermost hops join; one
    outermost hop.
    """
    hops, crossed = shape.pairs > 0, shape.fanout > 1
    with np.errstate(divide="ignore"):
        # each hop carries blocks of S/d bytes, and a hop faster than the slowest idles for the difference
        slack = np.maximum(0.0, 1 / thinnest[..., None] - 1 / ring_bandwidth(shape, links)) / shape.degree[..., None]
    outermost = np.arange(NUM_LEVELS) == shape.span[..., None]
    farthest = np.where(crossed, links.latency, 0.0).max(axis=-1)
    closed = shape.pairs + outermost  # the way back from the last rank
    # the mask is true on the innermost level with a hop alone, so one hop there is left out
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
    """Ranks in the largest of the ``children`` that outermost hops join, (...). Beyond buildings the last may be
    smaller."""
    others = (shape.degree - shape.tail) / np.maximum(1.0, children - 1)
    return np.where(shape.span >= CAMPUS, np.maximum(shape.tail, others), shape.degree / children)


def ring_fixed_s(size: Floats, law: Laws) -> Floats:
    """Seconds of one ring pass beyond its bytes over the slowest hop: the longest exposed latency of its stretches."""
    late: Floats = (law.ring_latencies_s - law.ring_hidden_s_per_byte * np.asarray(size)[..., None]).max(axis=-1)
    return np.maximum(0.0, late)


def ring_busy_s(size: Floats, law: Laws, passes: int) -> Floats:
    """Seconds in which the busiest link is busy during ``passes`` passes of a ring."""
    busy: Floats = passes * law.ring_s_per_byte * size * law.ring_busy
    return busy


def tree_busy_s(size: Floats, law: Laws) -> Floats:
    """Seconds in which the busiest link is busy during an all-reduce by a tree."""
    busy: Floats = law.tree_s_per_byte * size * law.ring_busy
    return busy


def layered_busy_s(seconds: Floats, size: Floats, law: Laws, passes: int) -> Floats:
    """Seconds in which the busiest link is busy during a hierarchical collective.

    ``seconds`` is its time under ``without_windows``. Latencies that overlap with other chunks do not free the link.
    """
    return np.maximum(seconds - passes * law.hierarchical_s, passes * law.busy_busiest_s_per_byte * size)


def _outermost(
    shape: GroupShape, counted: Bools, steps: Floats, latency: Floats, s_per_byte: Floats
) -> tuple[Floats, Floats, Floats]:
    """Steps over the outermost counted level, seconds of one latency, and seconds per byte of all steps, (...) each.

    The latency is 0, so that none overlaps, where the group crosses one level only.
    """
    crossed, latency, s_per_byte = np.broadcast_arrays(counted & (shape.fanout > 1), latency, s_per_byte)
    outermost = crossed.shape[-1] - 1 - np.argmax(crossed[..., ::-1], axis=-1)[..., None]
    own, each, bytes_s = (
        np.take_along_axis(part, outermost, axis=-1)[..., 0]
        for part in (np.where(crossed, steps, 1.0), latency, s_per_byte)
    )
    several = crossed.any(axis=-1) & ((shape.fanout > 1).sum(axis=-1) > 1)
    return own, np.where(several, each, 0.0), bytes_s


def fewest_steps(fanout: Floats) -> Floats:
    """Fewest consecutive messages on each level: those of halving and doubling, ⌈log2 f⌉."""
    return np.ceil(np.log2(fanout))


def steps_of(steps: Sequence[LevelStep], fanout: Floats) -> Floats:
    """Consecutive messages on each level: as ``steps`` state, those of a ring on other levels."""
    out = np.array(fanout, dtype=np.float64) - 1
    for step in steps:
        if step.algorithm == "halving_doubling":
            level = LINK_LEVELS.index(step.level)
            out[..., level] = fewest_steps(fanout[..., level])
    return out


def inner_of(op: CurveOp, num_ranks: Floats, curves: Floats, curve: Ints | int) -> Inner:
    """Function of the seconds of phases inside a domain by measured curves.

    An all-reduce takes the curves of reduce-scatter plus all-gather, or its own curve where these are unknown.
    """

    def seconds(of: CurveOp, size: Floats) -> Floats:
        return curve_s(curves, curve, of, num_ranks, size)

    def inner(size: Floats) -> Floats:
        if op != "all_reduce":
            return seconds(op, size)
        both = seconds("reduce_scatter", size) + seconds("all_gather", size)
        return np.where(np.isnan(both), seconds("all_reduce", size), both)

    return inner


def layered_s(size: Floats, chunks: Floats | int, law: Laws, passes: int, inner: Inner | None = None) -> Floats:
    """Seconds of a hierarchical collective in ``chunks`` chunks, k; ``inner`` is i of the module docstring."""
    piece = size / chunks
    each, busiest = passes * law.hierarchical_s_per_byte * piece, passes * law.busiest_s_per_byte * piece
    inside = inner(piece) if inner else np.zeros(())
    more: Floats = (chunks - 1) * (np.maximum(busiest, inside) + passes * law.messages_s)
    if passes > 1:
        sent = (chunks - 1) * law.outermost_s_per_byte * piece / law.outermost_steps
        more = more - (passes * law.outermost_steps - law.outermost_exposed) * np.minimum(law.outermost_s, sent)
    seconds: Floats = passes * law.hierarchical_s + each + inside + more
    return seconds


def stated_chunks(size: Floats, *choices: CommunicatorChoice) -> Floats:
    """``num_pieces`` of every size under one choice, or of one size under each of several choices."""
    every = [(one, choice) for choice in choices for one in size.ravel().tolist()]
    pieces = [num_pieces(one, choice.num_chunks, choice.chunk_bytes) for one, choice in every]
    return np.array(pieces, dtype=np.float64).reshape(size.shape if len(choices) == 1 else len(every))


def best_layered_s(size: Floats, law: Laws, passes: int, inner: Inner | None = None) -> Floats:
    """The least of ``layered_s`` over CHUNKS whose pieces have LEAST_PIECE_BYTES or more."""
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

    With n_l children touched by some group, fanouts f_l ≥ n_l/n_{l+1} and members ≤ d/n_l:

        Σ (f_l−1)/f_l / (members_l · bandwidth_l) ≥ Σ (n_l−n_{l+1}) / (d · bandwidth_l)

    This is least for the least n_l where bandwidth falls outwards. B sums over all levels, M over those that share the
    adapter. (Either the scale-up domain or the adapter has half of B; the one level of a known shape has all of it.)
    f−1 and ⌈log2 f⌉ are at least log2 f, so latencies are at least Σ log2(n_l/n_{l+1}) · α_l, least likewise. Half of
    the tensor or more leaves a child through one uplink.

    A ring takes the longer of its bytes and its latencies (the sum on the one level of a known shape). Messages of
    further chunks are left out. All latencies of an all-reduce may overlap with its bytes, which leaves
    2·max(A, S·M · (k−1)/k).
    """
    thinnest = _thinnest(shape, links, counted)
    degree, crossed = shape.degree, (shape.fanout > 1) & counted
    doublings = np.log2(shape.fanout)
    each_s = fewest_steps(shape.fanout) * links.latency
    steps, hops = (counted * each_s).sum(axis=-1), each_s.sum(axis=-1)
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
