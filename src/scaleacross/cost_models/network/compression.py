"""Effect of a codec on links: seconds per byte of messages before encoding, and the bounds that a search needs.

Symbols: a level with bandwidth b per accelerator and W for all m members of a group in one child (``collective_laws``);
a codec of ratio r whose encoding and decoding together take c seconds per byte on one accelerator.

    one message       1/(r·W) + c/m         encode, send, decode, one after the other
    many chunks       the busiest of: the wire 1/(r·W), the adapter, and the codec Σ (f−1)/f · c/m, at the same time

The first law equals links of bandwidth 1/(1/(r·b) + c), and likewise for capacity, so every formula over links holds
for encoded messages. A window holds r times the message. Links that are r times as fast bound both from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.collective_laws import Laws, laws
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS
from scaleacross.cost_models.links import Links
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import Compression, Driver


@dataclass(frozen=True)
class Best:
    """Network choice that stands for the best of all options, encoded messages and other drivers than kernels included.

    Attributes:
        offers: codecs on levels, each with the error of one encoding.
        max_relative_error: limit on all encodings of a result together.
        drivers: allowed for gathers and all-to-alls.
    """

    offers: tuple[Compression, ...]
    max_relative_error: float
    drivers: tuple[Driver, ...] = ("multiprocessors",)


def on_levels(values: float, levels: Sequence[str], elsewhere: float) -> Floats:
    """``values`` on some levels and ``elsewhere`` on the others, (NUM_LEVELS,)."""
    return np.where(np.isin(LINK_LEVELS, levels), values, elsewhere)


def sent_ratio(compression: Compression | None) -> Floats:
    """Bytes of a message over bytes sent, per level."""
    return np.ones(NUM_LEVELS) if compression is None else on_levels(compression.ratio, compression.levels, 1.0)


def codec_s_per_byte(compression: Compression) -> Floats:
    """Seconds in which one accelerator encodes and decodes a byte of a message, per level."""
    seconds = 1 / compression.encode_bytes_per_s + 1 / compression.decode_bytes_per_s
    return on_levels(seconds, compression.levels, 0.0)


def shortened(links: Links, ratio: Floats) -> Links:
    """Links that carry ``ratio`` times as many bytes, per level."""
    adapter = None if links.adapter is None else links.adapter * ratio
    bandwidth, capacity = links.bandwidth * ratio, links.capacity * ratio
    return links._replace(bandwidth=bandwidth, capacity=capacity, adapter=adapter, ratio=ratio)


def encoded(links: Links, shape: GroupShape, compression: Compression) -> Links:
    """Links for messages that are encoded, sent and decoded one after the other."""
    fast, each = shortened(links, sent_ratio(compression)), codec_s_per_byte(compression)
    shared = shape.crossing / fast.capacity + each / shape.members
    with np.errstate(divide="ignore"):
        own = 1 / (1 / fast.bandwidth + each)
        capacity = np.where(each > 0, shape.crossing / shared, fast.capacity)
    return fast._replace(bandwidth=own, capacity=capacity)


def coded_laws(
    shape: GroupShape,
    links: Links,
    counted: Bools,
    compression: Compression,
    steps: Floats | None = None,
    *,
    by_rank: bool = False,
) -> Laws:
    """``collective_laws.laws`` for messages that travel encoded."""
    one = laws(shape, encoded(links, shape, compression), counted, steps, by_rank=by_rank)
    wire = laws(shape, shortened(links, sent_ratio(compression)), counted, steps, by_rank=by_rank)
    moved = shape.taken_in(by_rank=by_rank) / shape.members
    codec = np.where(counted, moved * codec_s_per_byte(compression), 0.0).sum(axis=-1)
    return one._replace(
        busiest_s_per_byte=np.maximum(wire.busiest_s_per_byte, codec),
        busy_busiest_s_per_byte=np.maximum(wire.busy_busiest_s_per_byte, codec),
    )


def fastest_links(links: Links, offers: Sequence[Compression]) -> Links:
    """Links as fast as the best offer on each level and no slower than those farther out, as bounds need them."""
    fast = shortened(links, np.max([sent_ratio(one) for one in offers], axis=0))
    bandwidth, capacity = (
        np.maximum.accumulate(part[..., ::-1], axis=-1)[..., ::-1] for part in (fast.bandwidth, fast.capacity)
    )
    return fast._replace(bandwidth=bandwidth, capacity=capacity)
