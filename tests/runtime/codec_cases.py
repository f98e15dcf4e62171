"""What the ranks run in ``test_codecs.py``: two buildings of two ranks, encoded between them."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from rank_pool import make_group

from scaleacross.runtime.codecs import BOUNDED, codec_named
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.encoding import GRAIN, Encoding
from scaleacross.runtime.policy import fixed
from scaleacross.schedules.collective import Operation

LAYOUT = ((0, 1), (2, 3))
NUMEL = 40_001


BOUND = 1e-3


def codec_of(name: str) -> Encoding:
    """The codec called ``name``, with the bound of these cases."""
    return codec_named(name, BOUND if name == BOUNDED else None)


def error_bound(codec: str, values: torch.Tensor) -> torch.Tensor:
    """Largest error of each element, as the table of ``codecs`` states it; 2^-127 below the range of fp32."""
    if codec == "bf16":
        return values.abs() * 2.0**-8 + 2.0**-133
    if codec == BOUNDED:
        return torch.full_like(values, BOUND)
    missing = -values.numel() % GRAIN
    blocks = torch.nn.functional.pad(values, (0, missing)).view(-1, GRAIN).abs()
    most = blocks.amax(1, keepdim=True)
    largest = {"int8_block": 127, "int4_block": 7}.get(codec)
    bound = (most / largest).expand_as(blocks) if largest else blocks * 2.0**-4 + most * 2.0**-17
    return bound.reshape(-1)[: values.numel()] * (1 + 1e-6) + 2.0**-127


def compressed(rank: int, codec: str, point_to_point: bool = False) -> dict[str, Any]:
    """Checksums of what every rank must share, and the worst error over its bound."""
    ring = "hierarchical(ring, ring)"
    algorithms = {Operation.ALL_REDUCE: ring, Operation.ALL_GATHER: ring, Operation.REDUCE_SCATTER: ring}
    groups = []
    for one in (None, codec_of(codec)):
        policy = fixed(algorithms, LAYOUT, LinkSettings(1 << 18, 1 << 14), 2, one)
        groups.append(make_group(range(4), policy, point_to_point=point_to_point))
    inputs = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(r)) for r in range(4)]
    exact, sent, checksums = torch.stack(inputs).double().sum(0), [], []
    for group in groups:
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, group=group)
        sent.append(group._communicator.bytes_by_peer())
    checksums.append(zlib.crc32(tensor.numpy().tobytes()))
    ratio = group._queue._recorder.records()[-1].compression_ratio
    # One crossing of a partial sum and one of the result; each block of the code is part of one block of the schedule.
    partial = (inputs[0] + inputs[1]).abs() + (inputs[2] + inputs[3]).abs()
    bound = (2 if codec == BOUNDED else 2 * 2.5) * _most_nearby(error_bound(codec, partial))
    worst = float(((tensor.double() - exact).abs() / (bound + 1e-5)).max())
    gathered = torch.empty(4 * NUMEL)
    dist.all_gather_single(gathered, inputs[rank], group=groups[1])
    checksums.append(zlib.crc32(gathered.numpy().tobytes()))
    error = (gathered - torch.cat(inputs)).abs().view(4, -1)
    worst = max(worst, max(float((error[r] / _most_nearby(error_bound(codec, inputs[r]))).max()) for r in range(4)))
    far = [peer for peer in range(4) if (peer < 2) != (rank < 2)]
    return {
        "checksums": checksums,
        "worst_ratio": worst,
        "ratio_in_trace": ratio,
        "far_bytes": sum(sent[1].get(peer, 0) for peer in far),
        "plain_bytes": sum(sent[0].get(peer, 0) for peer in far),
    }


def _most_nearby(bound: torch.Tensor) -> torch.Tensor:
    """The largest bound within a block on either side, because blocks of the code and of the schedule begin at
    different places."""
    padded = torch.nn.functional.pad(bound[None, None], (GRAIN, GRAIN))
    return torch.nn.functional.max_pool1d(padded, 2 * GRAIN + 1, 1)[0, 0]
