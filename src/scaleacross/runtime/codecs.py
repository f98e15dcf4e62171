"""Codecs for messages that cross a slow level, by the name that a plan gives them.

==============  ======================  =======================================================================
codec           bytes per element       error of an element per crossing, m = largest of its block of 256
==============  ======================  =======================================================================
``bf16``        2                       2^-8 · |x|
``fp8_block``   1 + 1/256               2^-4 · |x| + m · 2^-17
``int8_block``  1 + 1/256               m / 127
``int4_block``  1/2 + 1/256             m / 7
``bounded``     depends on values       the ``error_bound`` that the plan states, whatever the element
==============  ======================  =======================================================================

A block with an element that is not finite decodes to NaN (``bounded`` transmits it unchanged). Errors of partial sums
add up over the crossings of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from scaleacross.errors import InputError
from scaleacross.runtime.block_codec import BlockCodec
from scaleacross.runtime.bounded_codec import BoundedCodec
from scaleacross.runtime.encoding import Encoding, Plain

BOUNDED: Final = "bounded"
CODECS: Final[Mapping[str, Encoding]] = {
    "bf16": Plain(torch.bfloat16, "bf16"),
    "fp8_block": BlockCodec("fp8_block", torch.float8_e4m3fn, 448.0),
    "int8_block": BlockCodec("int8_block", torch.int8, 127.0),
    "int4_block": BlockCodec("int4_block", torch.int8, 7.0, 4),
}
"""Codecs that need no bound."""


def codec_named(name: str, error_bound: float | None = None) -> Encoding:
    """Return the codec that a plan calls ``name``.

    Args:
        error_bound: absolute bound of ``bounded``, per element and crossing; None for the others.

    Raises:
        InputError: there is no such codec, or the bound is missing, out of range or of no use.
    """
    if name == BOUNDED:
        if error_bound is None:
            raise InputError("codec bounded needs an error_bound: the most that any element may be off per crossing")
        return BoundedCodec(error_bound)
    if name not in CODECS:
        raise InputError(f"no codec '{name}': choose from {', '.join((*CODECS, BOUNDED))}")
    if error_bound is not None:
        raise InputError(f"an error_bound of {error_bound:g} for codec {name}, which takes none: only bounded does")
    return CODECS[name]


def carries(codec: Encoding, dtype: torch.dtype) -> bool:
    """Return whether ``codec`` makes elements of ``dtype`` smaller, and ``dtype`` holds its decoded values exactly.

    Block codecs decode to at most 8 significant bits, which bf16 holds.
    """
    return dtype is torch.float32 or (dtype is torch.bfloat16 and isinstance(codec, BlockCodec))


def settling(codec: Encoding) -> Callable[[torch.Tensor], None]:
    """Return a function that rounds values in place to what ``codec`` can represent."""

    def settle(values: torch.Tensor) -> None:
        data = torch.empty(codec.most_bytes(values.numel()), dtype=torch.uint8, device=values.device)
        values.copy_(codec.read(data[: codec.write(values, data)], values.numel()))

    return settle
