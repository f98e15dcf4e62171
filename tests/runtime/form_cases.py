"""What the ranks run in ``test_torch_forms.py``."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from fault_cases import outcome
from rank_pool import make_group
from torch.nn.parallel import DistributedDataParallel

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.schedules.collective import Operation

ALGORITHMS = {
    Operation.ALL_REDUCE: "ring",
    Operation.ALL_GATHER: "ring",
    Operation.REDUCE_SCATTER: "direct",
    Operation.ALL_TO_ALL: "pairwise",
    Operation.BROADCAST: "chain",
}


def planned_group(size: int) -> Any:
    """All operations planned."""
    return make_group(range(size), fixed(ALGORITHMS, tuple(range(size)), LinkSettings(1 << 18, 1 << 15)), 30.0)


def short_forms(rank: int, size: int) -> list[str]:
    """Methods of the group as torch's documentation calls them; the names of those that do something else."""
    group = planned_group(size)
    mine, total, every = torch.full((4,), rank + 1.0), size * (size + 1) / 2, torch.arange(1.0, size + 1)
    limit = timedelta(seconds=30)
    sizes = [1] * size
    whole, part = torch.empty(4 * size), torch.empty(4)
    shards, spread = [torch.empty(4) for _ in range(size)], [torch.full((4,), float(r)) for r in range(size)]
    rows = torch.empty(size)

    def summed(*args: Any, **named: Any) -> bool:
        tensor = mine.clone()
        group.allreduce(*([[tensor]] if named.pop("listed", False) else [tensor]), *args, **named).wait()
        return bool((tensor == total).all())

    def sent(call: Any) -> bool:
        tensor = mine.clone()
        call(tensor).wait()
        return bool((tensor == 2.0).all())

    def gathered(work: Any, found: list[torch.Tensor]) -> bool:
        work.wait()
        return bool((torch.cat(found).view(size, 4)[:, 0] == every).all())

    def scattered(work: Any) -> bool:
        work.wait()
        return bool((part == rank * size).all())

    def reduced() -> bool:
        tensor = mine.clone()
        group.reduce(tensor, 0).wait()
        return rank != 0 or bool((tensor == total).all())

    def exchanged(work: Any) -> bool:
        work.wait()
        return bool((rows == torch.arange(float(size)) * 10 + rank).all())

    outgoing = rank * 10 + torch.arange(float(size))
    found = {
        "allreduce": summed(),
        "allreduce of a list": summed(listed=True),
        "allreduce with op": summed(dist.ReduceOp.SUM),
        "allreduce with names": summed(op=dist.ReduceOp.SUM, timeout=limit),
        "broadcast": sent(lambda t: group.broadcast(t, 1)),
        "broadcast with a name": sent(lambda t: group.broadcast(t, root=1)),
        "allgather": gathered(group.allgather(shards, mine), shards),
        "allgather of lists": gathered(group.allgather([shards], [mine]), shards),
        "_allgather_base": gathered(group._allgather_base(whole, mine), [whole]),
        "reduce_scatter": scattered(group.reduce_scatter(part, spread)),
        "reduce_scatter of lists": scattered(group.reduce_scatter([part], [spread])),
        "reduce_scatter with op": scattered(group.reduce_scatter(part, spread, op=dist.ReduceOp.SUM)),
        "_reduce_scatter_base": scattered(group._reduce_scatter_base(part, torch.cat(spread))),
        "reduce": reduced(),
        "alltoall_base": exchanged(group.alltoall_base(rows, outgoing, sizes, sizes)),
        "barrier": group.barrier().wait() is not None,
        "monitored_barrier": group.monitored_barrier(limit) is None,
        "barrier with a limit": group.barrier(timeout=limit).wait() is not None,
    }
    return [name for name, right in found.items() if not right]


def sparse_gradients(rank: int, size: int) -> tuple[float, float]:
    """A sparse all-reduce, and DDP of an embedding with sparse gradients: largest differences from the dense sums."""
    group = planned_group(size)
    dense = torch.zeros(6)
    dense[rank] = rank + 1.0
    sparse = dense.to_sparse()
    dist.all_reduce(sparse, group=group)
    expected = torch.tensor([i + 1.0 if i < size else 0.0 for i in range(6)])
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Embedding(6, 3, sparse=True), process_group=group)
    model(torch.tensor([rank])).sum().backward()
    gradient = model.module.weight.grad.to_dense()
    means = torch.tensor([1.0 / size if i < size else 0.0 for i in range(6)])[:, None].expand(6, 3)
    return float((sparse.to_dense() - expected).abs().max()), float((gradient - means).abs().max())


def eight_bit_floats(rank: int, size: int) -> list[float]:
    """Reductions of each 8-bit type: small integers, which all of these types hold."""
    group = planned_group(size)
    out = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            tensor = torch.full((1000,), float(rank + 1)).to(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            out.append(float(tensor[7].float()))
    return out


def a_type_that_nobody_reduces(rank: int, size: int) -> tuple[str, float]:
    """An unsupported type raises an error of its own, and the group continues."""
    group = planned_group(size)
    kind, _, _ = outcome(lambda: dist.all_reduce(torch.ones(10).to(torch.uint16), group=group))
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    return kind, float(tensor[0])


def coalesced_before_the_others(rank: int, size: int, folder: str) -> tuple[bool, list[float]]:
    """An asynchronous collective of several tensors lets callers continue while rank 0 has not joined."""
    group = planned_group(size)
    store = dist.FileStore(f"{folder}/coalesced", size)
    tensors = [torch.full((100,), float(i)) for i in range(3)]
    if rank == 0:
        store.wait([f"called-{other}" for other in range(1, size)], timedelta(seconds=60))
    work = group.allreduce_coalesced(tensors)
    early = rank == 0 or not work.is_completed()
    store.set(f"called-{rank}", "1")
    future = work.get_future()
    work.wait()
    assert len(future.wait()) == len(tensors) and work.is_completed() and work.is_success()
    return early, [float(tensor[0]) for tensor in tensors]


def a_limit_over_send_and_receive(rank: int, size: int) -> float:
    """Seconds until a collective ends that nobody else joins, over gloo's send and receive.

    Its own limit applies, not the group's.
    """
    policy = fixed(ALGORITHMS, tuple(range(size)), LinkSettings())
    group, elapsed_s = make_group(range(size), policy, 60.0, point_to_point=True), 0.0
    group.allreduce([torch.ones(4)]).wait()  # gloo looks for its peers in the first
    dist.barrier()
    if rank == 0:
        began = time.monotonic()
        kind = outcome(lambda: group.allreduce([torch.ones(4)], timeout=timedelta(seconds=1)).wait())[0]
        elapsed_s = time.monotonic() - began if kind == "CollectiveError" else -1.0
    dist.barrier()
    return elapsed_s
