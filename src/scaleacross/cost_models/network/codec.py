"""Codecs for gradients that cross a slow level: their compression ratio, their time on an accelerator, and their error.

Figures of one encoding of fp32 elements, in blocks of 256 that share a one-byte scale (run by ``runtime.codecs``):

=============  ======================  ================================================
codec          bytes per element       error over the largest element of the block, ≤
=============  ======================  ================================================
``bf16``       2                       2^-8
``fp8_block``  1 + 1/256               2^-4 + 2^-17
``int8_block`` 1 + 1/256               1/127
``int4_block`` 1/2 + 1/256             1/7
=============  ======================  ================================================

Encoding and decoding are element-wise kernels. They read or write 4 bytes of an element and write or read the encoded
ones. They attain the share of memory bandwidth of such kernels (``Accelerator.memory_efficiency_fraction``, with the
source that the accelerator's entry states):

    rate = memory bandwidth · share / (1 + 1/ratio)       bytes/s of the message before encoding

unless the accelerator's entry has a measured rate (``Accelerator.codec_bytes_per_s``).
Assumed: nothing else uses the memory meanwhile, and a reduction that decodes takes no longer than one that does not.

Errors of partial sums add up: the error of a result is that of all encodings on its way together. A decoded value is
encoded again without change, so a gather encodes once, however many ranks pass it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collective_laws import steps_of
from scaleacross.cost_models.groups import GroupShape
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.network_choice import BlockCodecName, CommunicatorChoice, Compression

PLAIN_BYTES: Final = 4.0
"""Bytes of an element before encoding: codecs take fp32."""


class Codec(NamedTuple):
    """Bytes of an encoded element, and the error of one encoding relative to the largest element of its block."""

    element_bytes: float
    relative_error: float

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after."""
        return PLAIN_BYTES / self.element_bytes


CODECS: Final[Mapping[BlockCodecName, Codec]] = {
    "bf16": Codec(2.0, 2.0**-8),
    "fp8_block": Codec(1 + 1 / 256, 2.0**-4 + 2.0**-17),
    "int8_block": Codec(1 + 1 / 256, 1 / 127),
    "int4_block": Codec(1 / 2 + 1 / 256, 1 / 7),
}
"""Codecs with known figures. ``bounded`` is not among them: its ratio and relative error depend on the values."""


def is_encodable(op: str, payload: str) -> bool:
    """Whether messages of a collective may be encoded: only reductions of gradients, which are sums of noisy terms."""
    return op in ("all_reduce", "reduce_scatter") and payload in ("gradients", "expert gradients")


def figures(codec: BlockCodecName, accelerators: Sequence[Accelerator]) -> tuple[float, float]:
    """Ratio, and bytes/s before encoding of one encoding or one decoding, on the slowest of ``accelerators``."""
    ratio = CODECS[codec].ratio
    return ratio, min(one.codec_bytes_per_s.get(codec, _memory_rate(one, ratio)) for one in accelerators)


def _memory_rate(one: Accelerator, ratio: float) -> float:
    return one.memory_bandwidth_bytes_per_s * one.memory_efficiency_fraction / (1 + 1 / ratio)


def compression(codec: BlockCodecName, levels: Sequence[LinkLevel], accelerators: Sequence[Accelerator]) -> Compression:
    """A codec on some levels, with its rates on the slowest accelerator and the error of one encoding."""
    ratio, rate = figures(codec, accelerators)
    return Compression(
        codec=codec,
        levels=tuple(levels),
        ratio=ratio,
        encode_bytes_per_s=rate,
        decode_bytes_per_s=rate,
        relative_error=CODECS[codec].relative_error,
    )


def offers(job: Job, accelerators: Sequence[Accelerator]) -> tuple[Compression, ...]:
    """Compressions that a plan may choose: each undominated codec on the outermost one, two, … of the job's levels.

    There are none where the job does not ask for any, or reduces gradients in other than 4 bytes.
    """
    asked = job.network.compression
    if asked is None or job.optimizer.reduce_bytes != PLAIN_BYTES:
        return ()
    levels = [level for level in LINK_LEVELS if level in asked.levels]
    return tuple(
        compression(name, levels[first:], accelerators)
        for name in undominated(asked.codecs)
        for first in reversed(range(len(levels)))
    )


def best_ratio(job: Job) -> float:
    """Largest ratio of the job's codecs for gradients; 1 where nothing may be encoded."""
    asked = job.network.compression
    if asked is None or job.optimizer.reduce_bytes != PLAIN_BYTES:
        return 1.0
    return max(CODECS[name].ratio for name in asked.codecs)


def undominated(names: Sequence[BlockCodecName]) -> list[BlockCodecName]:
    """Codecs for which no other one has at least the same ratio and less error."""

    def beaten(name: BlockCodecName) -> bool:
        own = CODECS[name]
        return any(
            CODECS[other].ratio >= own.ratio and CODECS[other].relative_error < own.relative_error for other in names
        )

    return [name for name in names if not beaten(name)]


def crosses(shape: GroupShape, levels: Sequence[LinkLevel]) -> bool:
    """Whether a group crosses one of some levels."""
    return bool(np.any((shape.fanout > 1) & np.isin(LINK_LEVELS, levels)))


def encodings_of(choice: CommunicatorChoice, shape: GroupShape, levels: Sequence[LinkLevel]) -> Floats:
    """``num_encodings`` for the algorithm of a choice."""
    level_by_level = choice.algorithm == "hierarchical"
    return num_encodings(choice.op, shape, levels, steps_of(choice.steps, shape.fanout) if level_by_level else None)


def num_encodings(op: str, shape: GroupShape, levels: Sequence[LinkLevel], steps: Floats | None = None) -> Floats:
    """Largest number of encodings that a reduced element passes through, (...).

    A ring passes every boundary once, except for the hop that a block does not make. Level by level, a partial sum
    makes as many steps as the level has. An all-reduce encodes the result once more to distribute it.

    Args:
        steps: messages one after another on each level, (..., NUM_LEVELS); None: a ring through all ranks.
    """
    on = np.isin(LINK_LEVELS, levels)
    if steps is None:
        # a ring returns over its outermost level, and a block makes one hop less than there are ranks
        closing = on[np.maximum(shape.span, 0)]
        crossings = np.minimum((shape.pairs * on).sum(axis=-1) + closing, shape.degree - 1)
    else:
        crossings = (steps * on).sum(axis=-1)
    spread = (op == "all_reduce") * np.any((shape.fanout > 1) & on, axis=-1)
    encodings: Floats = crossings + spread
    return encodings
