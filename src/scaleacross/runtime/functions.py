"""Collectives as plain functions: no launch file, no ``init_process_group``, the algorithm by name.

    store = torch.distributed.TCPStore("10.0.0.1", 29500, world_size, is_master=rank == 0)
    group = functions.group(store, rank, world_size, {"all_reduce": "hierarchical(ring, direct)"}, layout=((0, 1), (2, 3)))
    functions.all_reduce(group, gradients)
    work = functions.reduce_scatter(group, shard, gradients, async_op=True)

Names and argument order are those of torch.distributed. Each returns None when it is done, or a work with ``async_op``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from scaleacross.errors import InputError
from scaleacross.runtime.codecs import codec_named
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.process_group import Options, ScaleAcrossGroup
from scaleacross.schedules.collective import Layout, Operation


def group(
    store: dist.Store,
    rank: int,
    size: int,
    algorithms: Mapping[str, str],
    layout: Layout | None = None,
    codec: str | None = None,
    error_bound: float | None = None,
    settings: LinkSettings | None = None,
    timeout_s: float = 600.0,
    name: str = "group",
) -> ScaleAcrossGroup:
    """A group of ``size`` ranks that meet in ``store``.

    Args:
        algorithms: operation -> algorithm (``policy.named_schedule`` lists them); what is not named runs on gloo.
        layout: ranks as the network nests them; flat if None.
        codec: for messages between the outermost children of ``layout``, by the names of ``codecs``.
        error_bound: of codec ``bounded``: the most that an element may be off per crossing.
        settings: how links are used.
        name: unique among the groups that share ``store``.

    Raises:
        InputError: an operation or codec that does not exist, a bound that is missing or of no use.
    """
    known = {operation.value: operation for operation in Operation}
    if unknown := sorted(set(algorithms) - set(known)):
        raise InputError(f"no operation '{unknown[0]}': choose from {', '.join(known)}")
    policy = fixed(
        {known[operation]: algorithm for operation, algorithm in algorithms.items()},
        tuple(range(size)) if layout is None else layout,
        settings or LinkSettings(),
        codec=None if codec is None else codec_named(codec, error_bound),
    )
    prefixed = dist.PrefixStore(name, store)
    return ScaleAcrossGroup(prefixed, rank, size, timedelta(seconds=timeout_s), name, range(size), Options(policy))


def all_reduce(group: ScaleAcrossGroup, tensor: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Any:
    """Reduce ``tensor`` in place."""
    options = AllreduceOptions()
    options.reduceOp = op
    return _done(group.allreduce([tensor], options), async_op)


def reduce_scatter(
    group: ScaleAcrossGroup, output: Tensor, tensor: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False
) -> Any:
    """Reduce ``tensor``; shard ``rank`` goes to ``output``."""
    options = ReduceScatterOptions()
    options.reduceOp = op
    return _done(group.reduce_scatter_single(output, tensor, options), async_op)


def all_gather(group: ScaleAcrossGroup, output: Tensor, tensor: Tensor, async_op: bool = False) -> Any:
    """Everybody's ``tensor`` into ``output``."""
    return _done(group.all_gather_single(output, tensor, AllgatherOptions()), async_op)


def broadcast(group: ScaleAcrossGroup, tensor: Tensor, root: int = 0, async_op: bool = False) -> Any:
    """``tensor`` of ``root`` into everybody's."""
    options = BroadcastOptions()
    options.rootRank = root
    return _done(group.broadcast([tensor], options), async_op)


def all_to_all(
    group: ScaleAcrossGroup,
    output: Tensor,
    tensor: Tensor,
    output_splits: Sequence[int] = (),
    input_splits: Sequence[int] = (),
    async_op: bool = False,
) -> Any:
    """Rows of ``tensor`` by destination into rows of ``output`` by source; without splits the same number for all."""
    options = AllToAllOptions()
    work = group.all_to_all_single(output, tensor, list(output_splits), list(input_splits), options)
    return _done(work, async_op)


def _done(work: Any, async_op: bool) -> Any:
    if async_op:
        return work
    work.wait()
    return None
