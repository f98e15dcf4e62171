"""What the ranks run in ``test_on_a_gpu.py``: all share one GPU, each as if it were on a host of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import collective_cases as cases
import torch
import torch.distributed as dist
from codec_cases import LAYOUT, NUMEL, codec_of
from rank_pool import join_job, make_group

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.schedules.collective import Operation

BACKEND = "cpu:scaleacross,cuda:scaleacross"
RING = "hierarchical(ring, ring)"
NAMES = {"reduce_scatter_single": "reduce_scatter_tensor", "all_gather_single": "all_gather_into_tensor"}
"""torch 2.13 -> before"""


def share_the_gpu(rank: int, size: int) -> None:
    """Set the variables that torchrun sets for ranks on one machine."""
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    for name, before in NAMES.items():
        if not hasattr(dist, name):
            setattr(dist, name, getattr(dist, before))


def set_up(rank: int, size: int) -> None:
    """One group whose algorithm the cases set."""
    share_the_gpu(rank, size)
    join_job(rank)
    cases.DEVICE = "cuda"
    cases.SIZES, cases.DTYPES = (1, 1003), (torch.float32, torch.bfloat16)
    switch = cases.Switch()
    cases.GROUPS[size, None] = (switch, make_group(range(size), switch.policy(), backend=BACKEND))


def compressed(rank: int, codec: str) -> list[bool]:
    """Whether sums and gathered tensors have the same bits as gloo's messages of the same schedule on a CPU."""
    algorithms = dict.fromkeys((Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER), RING)
    policy = fixed(algorithms, LAYOUT, LinkSettings(1 << 18, 1 << 14), 2, codec_of(codec))
    group = make_group(range(4), policy, backend=BACKEND, point_to_point=True)
    mine = torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))
    found: list[list[torch.Tensor]] = []
    for device in ("cpu", "cuda"):
        summed, gathered = mine.to(device, copy=True), torch.empty(4 * NUMEL, device=device)
        dist.all_reduce(summed, group=group)
        dist.all_gather_single(gathered, mine.to(device), group=group)
        found.append([summed.cpu(), gathered.cpu()])
    return [torch.equal(here, there) for here, there in zip(*found, strict=True)]


def streams(rank: int, size: int) -> dict[str, bool]:
    """Check the order of work on streams.

    A collective sees what the caller queued before it, although the host does not wait. Later work after ``wait`` sees
    its result. A tensor that is not contiguous keeps its memory. A future's callback sees the result.
    """
    switch, group = cases.GROUPS[size, None]
    switch.algorithm, switch.layout, switch.num_channels = "ring", tuple(range(size)), 1
    numel, found = 1 << 22, {}
    slow = torch.full((4096, 4096), 1 / 4096, device="cuda")
    for _ in range(60):
        slow = slow @ slow  # stays 1/4096 everywhere; takes longer than the calls below
    late = slow.view(-1)[:numel] * 4096 * (rank + 1)
    work = dist.all_reduce(late, group=group, async_op=True)
    work.wait()
    total = size * (size + 1) / 2
    found["order"] = bool((late + 0 == total).all())
    transposed = torch.full((2048, 2048), float(rank + 1), device="cuda").t()
    transposed[0] = 0.0
    work = dist.all_reduce(transposed, group=group, async_op=True)
    while not work.is_completed():  # all of it is queued, and the host has dropped what it held
        time.sleep(1e-3)
    others = [torch.full((2048, 2048), -7.0, device="cuda") for _ in range(4)]  # would take freed memory
    work.wait()
    found["strided"] = bool((transposed[1:] == total).all()) and bool((transposed[0] == 0).all()) and len(others) == 4
    tensor = torch.full((numel,), float(rank + 1), device="cuda")
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    found["future"] = bool((future.then(lambda done: done.value()[0] * 2).wait() == 2 * total).all())
    return found


def crossing(rank: int, size: int) -> list[bool]:
    """Messages to both neighbours in a ring, sent before any is received, as pipeline passes in both directions."""
    _, group = cases.GROUPS[size, None]
    numel = 1 << 24  # more than NCCL sends before the receiver asks for it
    before, after = (rank - 1) % size, (rank + 1) % size
    arrived = [torch.empty(numel, device="cuda") for _ in range(2)]
    operations = [
        *(
            dist.P2POp(dist.isend, torch.full((numel,), float(rank), device="cuda"), peer, group)
            for peer in (after, before)
        ),
        *(dist.P2POp(dist.irecv, tensor, peer, group) for tensor, peer in zip(arrived, (before, after), strict=True)),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [bool((tensor == peer).all()) for tensor, peer in zip(arrived, (before, after), strict=True)]


def trained(rank: int, kind: str, mesh: Sequence[int], steps: int) -> dict[str, Any]:
    """A small net under DDP or fully_shard on groups of this backend, and on all data in one process: losses by step."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    losses = {}
    for name in ("scaleacross", "whole"):
        torch.manual_seed(1)
        net: Any = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
        if name == "scaleacross":
            ring = dict.fromkeys((Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER), "ring")
            policy = fixed(ring, tuple(mesh), LinkSettings(1 << 18, 1 << 14), 1, None)
            group = make_group(mesh, policy, backend=BACKEND)
            if kind == "ddp":
                net = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()], process_group=group)
            else:
                net = fully_shard(net, mesh=DeviceMesh.from_group(group, "cuda"))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        losses[name] = []
        for step in range(steps):
            all_data = torch.randn(len(mesh), 32, 256, generator=torch.Generator().manual_seed(step)).cuda()
            data = all_data[rank] if name == "scaleacross" else all_data.flatten(0, 1)
            loss = (net(data) - data.roll(1, -1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().cpu()
            if name == "scaleacross":
                dist.all_reduce(mean)
                mean /= len(mesh)
            losses[name].append(float(mean))
        if name == "scaleacross":
            records = group._queue._recorder.records()
            losses["planned"] = sum(record.algorithm == "ring" for record in records)
    return losses
