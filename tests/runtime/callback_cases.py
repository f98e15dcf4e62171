"""What the ranks run in ``test_callbacks.py``."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from fault_cases import group_of, outcome
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel


def chained(rank: int, size: int) -> tuple[float, float]:
    """A callback communicates and waits, alone and in a chain.

    Return the callback's result and the tensor.
    """
    group: Any = group_of(size, 30.0)
    tensor = torch.full((1000,), float(rank + 1))

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        value = future.value()[0].clone()
        dist.all_reduce(value, group=group)
        return value

    def once_more(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        value = future.value().clone()
        return dist.all_reduce(value, group=group, async_op=True).get_future().wait()[0]

    work = dist.all_reduce(tensor, group=group, async_op=True)
    value = work.get_future().then(again).then(once_more).wait()
    return float(value[0]), float(tensor[0])


def compressed_by_power_sgd(rank: int, size: int) -> list[float]:
    """Weights after steps under torch's own hook, whose callbacks communicate."""
    torch.manual_seed(3)
    group: Any = group_of(size, 30.0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64), process_group=group)
    state = power_sgd.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    data = torch.Generator().manual_seed(rank)
    for _ in range(5):
        model.zero_grad()
        model(torch.randn(8, 64, generator=data)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
    return [float(p.double().sum()) for p in model.module.parameters()]


def queued_behind_a_late_one(rank: int, size: int) -> list[tuple[str, str, float]]:
    """Two collectives are queued, and the last rank joins neither."""
    group: Any = group_of(size, 2.0)
    if rank == size - 1:
        time.sleep(6.0)
        return []
    works = [dist.all_reduce(torch.ones(100), group=group, async_op=True) for _ in range(2)]
    return [outcome(work.wait) for work in works]


def callback_that_fails(rank: int, size: int) -> tuple[str, float]:
    """An exception of a callback belongs to its future, and the group continues."""
    group: Any = group_of(size, 30.0)

    def fail(_: object) -> None:
        raise ValueError("no such bucket")

    future = dist.all_reduce(torch.ones(10), group=group, async_op=True).get_future().then(fail)
    text = ""
    try:
        future.wait()
    except (RuntimeError, ValueError) as error:
        text = str(error)
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    return text, float(tensor[0])
