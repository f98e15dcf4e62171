"""Groups that meet in a store of their own, without ``init_process_group``, and collectives on them as plain functions.

    group = group_functions.group(store, rank, size, {"all_reduce": "ring"})
    group_functions.all_reduce(group, gradients)

Each collective returns None when it is done, or a work with ``async_op``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllreduceOptions, AllToAllOptions, BroadcastOptions

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.process_group import Options, ScaleAcrossGroup
from scaleacross.schedules.collective import Operation


def group(
    store: dist.Store,
    rank: int,
    size: int,
    algorithms: Mapping[str, str],
    settings: LinkSettings | None = None,
    timeout_s: float = 600.0,
    name: str = "group",
) -> ScaleAcrossGroup:
    """A flat group of ``size`` ranks that meet in ``store``.

    Args:
        algorithms: operation -> algorithm (``policy.named_schedule`` lists them); what is not named runs on gloo.
        settings: how links are used.
        name: unique among the groups that share ``store``.
    """
    named = {Operation(operation): algorithm for operation, algorithm in algorithms.items()}
    policy = fixed(named, tuple(range(size)), settings or LinkSettings())
    prefixed = dist.PrefixStore(name, store)
    return ScaleAcrossGroup(prefixed, rank, size, timedelta(seconds=timeout_s), name, range(size), Options(policy))


def all_reduce(group: ScaleAcrossGroup, tensor: Tensor, async_op: bool = False) -> Any:
    """Add ``tensor`` up in place."""
    return _done(group.allreduce([tensor], AllreduceOptions()), async_op)


def broadcast(group: ScaleAcrossGroup, tensor: Tensor) -> None:
    """``tensor`` of rank 0 into everybody's."""
    _done(group.broadcast([tensor], BroadcastOptions()))


def all_to_all(group: ScaleAcrossGroup, output: Tensor, tensor: Tensor) -> None:
    """Rows of ``tensor`` by destination into rows of ``output`` by source, the same number for all."""
    _done(group.all_to_all_single(output, tensor, [], [], AllToAllOptions()))


def _done(work: Any, async_op: bool = False) -> Any:
    if async_op:
        return work
    work.wait()
    return None
