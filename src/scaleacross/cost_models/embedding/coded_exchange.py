"""Effect of coding on the exchange of vectors: seconds per byte by codec and levels, and break-even link rates.

Symbols: a rank sends V bytes of vectors in all, of which the share x goes to ranks apart by the coded levels; a codec
of ratio r encodes T_c and decodes T_d bytes of vectors per second on one accelerator.

    time / V = max over levels of 1/(r_l · B_l)  +  x · (1/T_c + 1/T_d)

B_l is the rate of level l for its part of the exchange (``Group.all_to_all``), and r_l the ratio of its bytes. Bytes
between two ranks are coded where the outermost level between them is a coded one. Let a_k be the share of a level's
bytes for ranks apart by level k ≥ l. Then r_l is Σ a_k / Σ (a_k/r where k is coded, else a_k), and x is Σ a_k over the
coded levels. Encode, send, decode follow one another: nothing is pipelined. On one link of rate B alone the speed-up is
1 / (1/r + B·(1/T_c + 1/T_d)), above 1 below

    B* = (1 − 1/r) / (1/T_c + 1/T_d)                                            the break-even rate

Assumed: every rank sends as much as it receives, and times of tables add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.embedding.exchange import ExchangeGroups, moved_slope, slope
from scaleacross.cost_models.levels import SCALE_UP
from scaleacross.cost_models.links import exchange_s_per_byte
from scaleacross.cost_models.network.compression import on_levels, shortened
from scaleacross.spec.exchange_codec import ANY_TABLE, CodecFigures, ExchangeCompressionRequest, TableCodec
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.network_choice import Driver


@dataclass(frozen=True)
class ForwardSlopes:
    """Seconds per byte of vectors forward, over the group, and between hosts after a reduction inside them."""

    all_to_all: float
    across_hosts: float


@dataclass(frozen=True)
class CodecOffer:
    """A codec for one table's vectors, and its seconds per byte over the group."""

    codec: TableCodec
    s_per_byte: float


def message_speed_up(ratio: ArrayLike, link: ArrayLike, encode: ArrayLike, decode: ArrayLike) -> Floats:
    """Speed-up of one message on a link; all rates in bytes/s of the message before encoding."""
    codec = 1 / np.asarray(encode, dtype=np.float64) + 1 / np.asarray(decode)
    return np.asarray(1 / (1 / np.asarray(ratio) + np.asarray(link) * codec))


def break_even_bytes_per_s(ratio: ArrayLike, encode: ArrayLike, decode: ArrayLike) -> Floats:
    """Link rate per rank below which a codec makes a message faster; 0 where it does not shorten messages."""
    codec = 1 / np.asarray(encode, dtype=np.float64) + 1 / np.asarray(decode)
    return np.maximum(0.0, 1 - 1 / np.asarray(ratio, dtype=np.float64)) / codec


def aggregate_ratio(plain_bytes: ArrayLike, ratios: ArrayLike) -> float:
    """Bytes before over bytes after of many messages: ΣV / Σ(V/r)."""
    size = np.asarray(plain_bytes, dtype=np.float64)
    return float(size.sum() / (size / np.asarray(ratios)).sum())


def end_to_end_speed_up(shares: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Step before over step after, when parts shrink from ``shares`` to ``after`` (same unit) and all others stay."""
    whole = sum(shares.values())
    return whole / (whole - sum(shares[name] - left for name, left in after.items()))


def coded_slope(group: Group, codec: TableCodec, driver: Driver = "multiprocessors") -> float:
    """Seconds per byte that a rank sends in all, for vectors coded with ``codec`` on its levels."""
    apart, coded = _apart(group), on_levels(1.0, codec.levels, 0.0) > 0
    sent = _and_farther(np.where(coded, apart / codec.ratio, apart))
    ratio = np.divide(_and_farther(apart), sent, where=sent > 0, out=np.ones_like(sent))
    wire = moved_slope(replace(group, links=shortened(group.links, ratio)), driver)
    return wire + float(apart[coded].sum()) * (1 / codec.encode_bytes_per_s + 1 / codec.decode_bytes_per_s)


def forward_slopes(groups: ExchangeGroups, codecs: Sequence[TableCodec]) -> dict[str, ForwardSlopes]:
    """Slopes of every table whose vectors travel coded, by table."""
    known: dict[TableCodec, ForwardSlopes] = {}
    out = {}
    for codec in codecs:
        kind = codec.model_copy(update={"table": ANY_TABLE})
        if kind not in known:
            each = (coded_slope(group, codec, groups.driver) for group in (groups.members, groups.across))
            known[kind] = ForwardSlopes(*each)
        out[codec.table] = known[kind]
    return out


def codec_offers(
    request: ExchangeCompressionRequest, figures: Sequence[CodecFigures], table: str, group: Group
) -> tuple[CodecOffer, ...]:
    """Codecs of a table that are faster than none and that no other one with as tight a bound outperforms.

    Args:
        figures: of the table (``figures_by_table``).
    """
    limit, plain = request.limit_of(table), slope(group.all_to_all)
    offers = []
    for one in figures:
        bound = one.bound_fraction or limit
        merged = one.merged_fraction or 0.0
        if not 0 < bound <= limit or (request.max_merged_fraction is not None and merged > request.max_merged_fraction):
            continue
        for levels in crossed_levels(group, request.levels):
            codec = TableCodec(
                table=table,
                encoder=one.encoder,
                bound_fraction=bound,
                ratio=one.ratio,
                encode_bytes_per_s=one.encode_bytes_per_s,
                decode_bytes_per_s=one.decode_bytes_per_s,
                levels=levels,
            )
            if (seconds := coded_slope(group, codec)) < plain:
                offers.append(CodecOffer(codec, seconds))
    # tightest bound first, so that every later offer must be faster than all before it
    offers.sort(key=lambda offer: (offer.codec.bound_fraction, offer.s_per_byte, len(offer.codec.levels)))
    out: list[CodecOffer] = []
    for offer in offers:
        if not out or offer.s_per_byte < out[-1].s_per_byte:
            out.append(offer)
    return tuple(out)


def figures_by_table(request: ExchangeCompressionRequest) -> dict[str, tuple[CodecFigures, ...]]:
    """Measured rows by table; rows for any table have the key ``any``."""
    rows = () if isinstance(request.measured, str) else request.measured
    out: dict[str, tuple[CodecFigures, ...]] = {}
    for one in rows:
        out[one.table] = (*out.get(one.table, ()), one)
    return out


def crossed_levels(group: Group, allowed: Sequence[LinkLevel]) -> list[tuple[LinkLevel, ...]]:
    """The outermost one, two, … of the allowed levels beyond the scale-up domain that the group crosses."""
    fanout = np.broadcast_to(group.shape.fanout, len(LINK_LEVELS))
    crossed = [level for i, level in enumerate(LINK_LEVELS) if i > SCALE_UP and fanout[i] > 1 and level in allowed]
    return [tuple(crossed[first:]) for first in reversed(range(len(crossed)))]


def rank_bytes_per_s(group: Group, level: LinkLevel) -> float:
    """Bytes/s of one rank across a level when all ranks exchange; infinite where no bytes cross it."""
    at = LINK_LEVELS.index(level)
    each = float(exchange_s_per_byte(group.shape, group.links)[..., at])
    share = float(_and_farther(_apart(group))[at])
    return share / each if each else float("inf")


def _apart(group: Group) -> Floats:
    """Share of a rank's bytes for ranks apart by each level and by none farther out, (NUM_LEVELS,)."""
    leaving = np.maximum(0.0, (group.shape.degree - group.shape.members) / group.shape.degree)  # a child of the level
    shares = np.broadcast_to(leaving, len(LINK_LEVELS))
    return np.maximum(0.0, shares - np.append(shares[1:], 0.0))


def _and_farther(shares: Floats) -> Floats:
    """Sum of the shares of each level and of all levels farther out."""
    out: Floats = np.cumsum(shares[::-1])[::-1]
    return out
