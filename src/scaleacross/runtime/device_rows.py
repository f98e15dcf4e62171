"""Writes and reads messages of ``row_codec`` from and to tensors on an accelerator: stage ``packed``.

Rows are quantised, compared and packed on their device, so only the coded bytes pass the host. Kernels and references
give the same numbers, and any reader of ``row_codec`` reads the messages. Distinct rows are in the order of their
codes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.row_codec.message import OUTSIDE, Coded, RowCodec, as_it_is, coded_of, message_of, read_rows
from scaleacross.row_codec.quantiser import LARGEST_CODE, step_of
from scaleacross.row_codec.stages import packed_width
from scaleacross.runtime.requirement import kernels, runs_kernels

STAGE = "packed"


def write_rows(rows: Tensor, codec: RowCodec) -> bytes:
    """Return the message of fp32 ``rows`` (rows, width), finite, by a codec of stage ``packed``.

    Raises:
        InputError: infinities, NaN, or more than 65,535 columns.
    """
    if not bool(torch.isfinite(rows).all()):
        raise InputError(
            f"{int((~torch.isfinite(rows)).sum()):,} elements are infinite or NaN: no bound holds for them"
        )
    own = rows.detach().contiguous()
    step = step_of(float(own.abs().max()) if own.numel() else 0.0, codec.bound)
    codes, off = quantised(own, step, codec.bound)
    distinct, index = torch.unique(codes, dim=0, return_inverse=True)
    places = torch.nonzero(off.reshape(-1))[:, 0]
    least = int(distinct.min()) if distinct.numel() else 0
    parts = Coded(
        step,
        least,
        (len(own), len(distinct), own.shape[1]),
        (STAGE, _packed(distinct.reshape(-1) - least)),
        (STAGE, _packed(index.to(torch.int32)) if len(distinct) < len(own) else b""),
        places.cpu().numpy(),
        own.reshape(-1)[places].cpu().numpy(),
    )
    return message_of(parts) or as_it_is(own.cpu().numpy())


def read_rows_on(data: bytes, device: torch.device) -> Tensor:
    """Return the rows of any message, on ``device``. Raises InputError as ``read_rows`` does."""
    parts = coded_of(data)
    if parts is None or parts.codes[0] != STAGE or (parts.row_index[1] and parts.row_index[0] != STAGE):
        return torch.from_numpy(read_rows(data)).to(device)
    num_rows, distinct, width = parts.shape
    codes = _unpacked(parts.codes[1], distinct * width, device).reshape(distinct, width) + parts.least
    values = (codes.to(torch.float64) * parts.step).to(torch.float32)
    if parts.row_index[1]:
        index = _unpacked(parts.row_index[1], num_rows, device).to(torch.int64)
        if bool(((index < 0) | (index >= distinct)).any()):
            raise InputError(OUTSIDE)
        values = values[index]
    out = values.reshape(-1)
    out[torch.from_numpy(parts.places.astype(np.int64)).to(device)] = torch.from_numpy(parts.values.copy()).to(device)
    return out.reshape(num_rows, width)


def quantised(values: Tensor, step: float, bound: float) -> tuple[Tensor, Tensor]:
    """Return (codes int32, whether each decodes to more than the bound off, bool), both of the shape of ``values``."""
    if runs_kernels(values):
        codes, off = kernels("row_codec").quantise_by_kernel(values, step, bound)
        return codes, off
    return quantise_reference(values, step, bound)


def quantise_reference(values: Tensor, step: float, bound: float) -> tuple[Tensor, Tensor]:
    """Compute ``quantised`` in torch."""
    wide = values.to(torch.float64)
    whole = torch.round(wide / step)
    whole = torch.where(whole.abs() <= LARGEST_CODE, whole, 0.0)
    off = ((whole * step).to(torch.float32).to(torch.float64) - wide).abs() > bound
    return whole.to(torch.int32), off


def pack_reference(numbers: Tensor, width: int) -> Tensor:
    """Return int32 ``numbers`` of ``width`` bits, one behind the other, as int32 words, in torch."""
    lanes = torch.nn.functional.pad(numbers, (0, -len(numbers) % 32)).to(torch.int64).reshape(-1, 1, 32)
    # bits by which lane i starts after word k; negative where it started in an earlier word
    ahead = torch.arange(32, device=numbers.device) * width - 32 * torch.arange(width, device=numbers.device)[:, None]
    up = torch.where((ahead >= 0) & (ahead < 32), lanes << ahead.clamp(0, 31), 0)
    down = torch.where((ahead < 0) & (ahead > -32), lanes >> (-ahead).clamp(0, 31), 0)
    return ((up | down) & 0xFFFFFFFF).sum(2).reshape(-1).to(torch.int32)


def unpack_reference(words: Tensor, width: int, count: int) -> Tensor:
    """Return int32 (count,) from the words of ``pack_reference``."""
    if not width:
        return torch.zeros(count, dtype=torch.int32, device=words.device)
    groups = torch.nn.functional.pad(words.reshape(-1, width).to(torch.int64) & 0xFFFFFFFF, (0, 1))
    bits = torch.arange(32, device=words.device) * width
    shift = bits % 32
    low, high = groups[:, bits // 32] >> shift, groups[:, bits // 32 + 1] << (32 - shift)
    return ((low | high) & ((1 << width) - 1)).reshape(-1)[:count].to(torch.int32)


def _packed(numbers: Tensor) -> bytes:
    """Return ``numbers`` as stage ``packed`` writes them."""
    width = int(numbers.max()).bit_length() if numbers.numel() else 0
    pack = kernels("row_codec").pack_by_kernel if runs_kernels(numbers) else pack_reference
    words = pack(numbers.contiguous(), width).cpu().numpy().astype("<i4", copy=False)
    return bytes([width]) + words.tobytes()[: -(-numbers.numel() * width // 8)]


def _unpacked(data: bytes, count: int, device: torch.device) -> Tensor:
    width = packed_width(data, count)
    filled = data[1:] + bytes(-len(data[1:]) % max(4, 4 * width))
    words = torch.from_numpy(np.frombuffer(filled, "<i4").astype(np.int32)).to(device)
    unpack = kernels("row_codec").unpack_by_kernel if runs_kernels(words) else unpack_reference
    numbers: Tensor = unpack(words, width, count)
    return numbers
