"""Error-bounded quantiser: no element is off by more than the bound, and a block takes the bits that its elements need.

The step is the largest power of two of at most twice the bound. So q = round(x / step) and q · step are exact in fp32,
and |x − q · step| ≤ step / 2 ≤ bound for every element. What has been unpacked is packed again without any change.

Signs go to the lowest bit (0, −1, 1, −2 → 0, 1, 2, 3). A block of 256 stores the bits that its largest element needs,
plane by plane: word w of plane b holds bit b of elements 32w to 32w + 31. A block with an element of 2^22 steps or
more, or one that is not finite, is stored unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from scaleacross.errors import InputError
from scaleacross.row_codec.quantiser import checked_bound
from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.requirement import kernels, runs_kernels

WORD_BITS = 32
WORDS_PER_PLANE = GRAIN // WORD_BITS
_LIMIT = 2.0**22
_RAW = WORD_BITS
_ALIGNMENT = 4


@dataclass(frozen=True)
class BoundedCodec:
    """Messages of the quantiser: bits per block, filled up to a multiple of 4 bytes, then the words in use.

    Attributes:
        bound: largest error of an element.

    Raises:
        InputError: the bound is not positive, or leaves the range of exact fp32.
    """

    bound: float

    def __post_init__(self) -> None:
        step_exponent(self.bound)

    @property
    def name(self) -> str:
        """Name with the bound, which all ranks must share."""
        return f"bounded to {self.bound:g}"

    def most_bytes(self, num_elements: int) -> int:
        """Return the bytes if every block is stored unchanged."""
        num_blocks = -(-num_elements // GRAIN)
        return _padded(num_blocks) + 4 * GRAIN * num_blocks

    def write(self, values: torch.Tensor, out: torch.Tensor) -> int:
        """Encode; the number of bytes depends on the values."""
        packed = pack(values.to(torch.float32), self.bound)
        num_blocks, num_words = packed.widths.numel(), int(packed.num_words)
        head = _padded(num_blocks)
        size = head + 4 * num_words
        out[:num_blocks].copy_(packed.widths)
        out[num_blocks:head].zero_()
        out[head:size].view(torch.int32).copy_(packed.words[:num_words])
        return size

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Decode to fp32."""
        num_blocks = -(-num_elements // GRAIN)
        words = data[_padded(num_blocks) :].view(torch.int32)
        packed = Packed(data[:num_blocks], words, step_exponent(self.bound), num_elements)
        return unpack(packed)

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return None: elements never travel unchanged."""
        del values
        return None


@dataclass(frozen=True)
class Packed:
    """The result of ``pack``. Blocks follow one another without gaps; only ``num_words`` of the words count.

    Attributes:
        widths: bits per element, uint8 per block; 32 for a block that is stored unchanged.
        words: int32, room for the worst case, which is ``GRAIN`` words per block.
        exponent: the step is 2^exponent.
        num_elements: elements of the tensor that was packed.
    """

    widths: torch.Tensor
    words: torch.Tensor
    exponent: int
    num_elements: int

    @property
    def num_words(self) -> torch.Tensor:
        """Words in use, int64 on the tensors' device, so that reading it does not wait for the device."""
        return self.widths.sum(dtype=torch.int64) * WORDS_PER_PLANE

    @property
    def num_bytes(self) -> int:
        """Bytes that must travel; waits for the device."""
        return int(self.num_words) * 4 + self.widths.numel()

    def starts(self) -> torch.Tensor:
        """Return the first word of every block, int64."""
        ends = self.widths.to(torch.int64).cumsum(0) * WORDS_PER_PLANE
        return ends - self.widths.to(torch.int64) * WORDS_PER_PLANE


def step_exponent(bound: float) -> int:
    """Return the exponent of the largest power of two ≤ 2 · bound.

    Raises:
        InputError: the bound is not positive, or its step leaves the range of exact fp32.
    """
    exponent = math.frexp(2 * checked_bound(bound))[1] - 1
    if not -100 <= exponent <= 100:
        raise InputError(f"an error bound must lie between 2^-101 and 2^99; got {bound}")
    return exponent


def pack(values: torch.Tensor, bound: float) -> Packed:
    """Pack fp32 ``values`` so that every element decodes to within ``bound``; infinities and NaNs stay unchanged."""
    packed: Packed = (kernels("bounded").pack_by_kernel if runs_kernels(values) else pack_reference)(values, bound)
    return packed


def unpack(packed: Packed) -> torch.Tensor:
    """Return fp32 (``packed.num_elements``,)."""
    values: torch.Tensor = (kernels("bounded").unpack_by_kernel if runs_kernels(packed.words) else unpack_reference)(
        packed
    )
    return values


def pack_reference(values: torch.Tensor, bound: float) -> Packed:
    """Compute ``pack`` in torch."""
    packed, blocks = room_for(values, bound), _rows(values)
    scaled = blocks * 2.0**-packed.exponent
    # negated, because a comparison with NaN is false
    raw = ~(scaled.abs() < _LIMIT).all(1)
    whole = torch.where(raw[:, None], 0.0, scaled).round_().to(torch.int32)
    codes = (whole << 1) ^ (whole >> 31)
    widths = torch.frexp(codes.amax(1).to(torch.float64))[1]  # bits of the largest
    codes = torch.where(raw[:, None], blocks.view(torch.int32), codes)
    packed.widths.copy_(torch.where(raw, _RAW, widths))
    lanes = torch.arange(WORD_BITS, device=values.device)
    tiles, starts = codes.view(-1, WORDS_PER_PLANE, WORD_BITS).to(torch.int64), packed.starts()
    for plane in range(int(packed.widths.max()) if packed.widths.numel() else 0):
        wanted = packed.widths > plane
        words = (((tiles[wanted] >> plane) & 1) << lanes).sum(2).to(torch.int32)
        packed.words[_places(starts[wanted], plane)] = words
    return packed


def unpack_reference(packed: Packed) -> torch.Tensor:
    """Compute ``unpack`` in torch."""
    num_blocks, device = packed.widths.numel(), packed.words.device
    tiles, starts = (
        torch.zeros(num_blocks, WORDS_PER_PLANE, WORD_BITS, dtype=torch.int32, device=device),
        packed.starts(),
    )
    lanes = torch.arange(WORD_BITS, dtype=torch.int32, device=device)
    for plane in range(int(packed.widths.max()) if packed.widths.numel() else 0):
        wanted = packed.widths > plane
        words = packed.words[_places(starts[wanted], plane)]
        tiles[wanted] |= ((words[:, :, None] >> lanes) & 1) << plane
    codes = tiles.view(num_blocks, GRAIN)
    decoded = (((codes >> 1) & 0x7FFFFFFF) ^ -(codes & 1)).to(torch.float32) * 2.0**packed.exponent
    out = torch.where((packed.widths == _RAW)[:, None], codes.view(torch.float32), decoded)
    return out.view(-1)[: packed.num_elements].clone()


def room_for(values: torch.Tensor, bound: float) -> Packed:
    """Return zeros of the size of the worst case of packed fp32 ``values``. Raises InputError for another type."""
    if values.dtype != torch.float32:
        raise InputError(f"the error-bounded quantiser takes fp32, not {values.dtype}")
    numel, device = values.numel(), values.device
    num_blocks = -(-numel // GRAIN)
    widths = torch.zeros(num_blocks, dtype=torch.uint8, device=device)
    words = torch.zeros(num_blocks * GRAIN, dtype=torch.int32, device=device)
    return Packed(widths, words, step_exponent(bound), numel)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` in rows of ``GRAIN``, the last one padded with zeros."""
    return torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % GRAIN)).view(-1, GRAIN)


def _places(starts: torch.Tensor, plane: int) -> torch.Tensor:
    """Return the words (blocks, words) of one plane of the blocks that begin at ``starts``."""
    return starts[:, None] + plane * WORDS_PER_PLANE + torch.arange(WORDS_PER_PLANE, device=starts.device)


def _padded(num_blocks: int) -> int:
    """Return the bytes of the widths, padded so that the words begin at a multiple of their size."""
    return -(-num_blocks // _ALIGNMENT) * _ALIGNMENT
