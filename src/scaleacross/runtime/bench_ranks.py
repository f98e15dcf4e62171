"""The program that every rank of ``scaleacross bench`` runs, under torchrun."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scaleacross.runtime.bench import REQUEST_VARIABLE, BenchRequest, sizes
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.policy import Policy, fixed, from_launch, layout_of
from scaleacross.runtime.process_group import BACKEND, Options
from scaleacross.runtime.start import rank_of_process, start
from scaleacross.schedules.collective import Operation
from scaleacross.spec.launch import LaunchConfig

TIMEOUT = timedelta(seconds=120)


def main() -> None:
    """Time every size on the rank's own group; rank 0 writes the rows."""
    stated = json.loads(os.environ[REQUEST_VARIABLE])
    out = Path(stated.pop("rows"))
    request = BenchRequest(**stated)
    config = read_launch(os.environ[LAUNCH_VARIABLE])
    torch.set_num_threads(1)
    rank = rank_of_process()
    start(config, rank, timeout_s=TIMEOUT.total_seconds(), backend="gloo")
    mine: list[tuple[Any, Policy, Sequence[int]]] = []
    gloo = None
    for ranks in config.groups(request.axis):  # type: ignore[arg-type]
        policy = _policy(config, ranks, request)
        group = dist.new_group(ranks, timeout=TIMEOUT, backend=f"cpu:{BACKEND}", pg_options=Options(policy))
        plain = dist.new_group(ranks, timeout=TIMEOUT, backend="gloo")
        if rank in ranks:
            mine.append((group, policy, ranks))
            gloo = plain
    ((group, policy, members),) = mine
    with (out if rank == 0 else Path(os.devnull)).open("a", encoding="utf-8") as rows:
        for size in sizes(request):
            row = _measure(request, size, group, gloo, members, policy)
            rows.write(json.dumps(row) + "\n")
            rows.flush()
    dist.destroy_process_group()


def _policy(config: LaunchConfig, ranks: Sequence[int], request: BenchRequest) -> Policy:
    if request.algorithm is None:
        return from_launch(config, ranks, LinkSettings())
    return fixed({Operation(request.op): request.algorithm}, layout_of(config, ranks), LinkSettings())


def _measure(
    request: BenchRequest, size: int, group: Any, gloo: Any, ranks: Sequence[int], policy: Policy
) -> dict[str, Any]:
    """Return the row of one size: wrong elements of a first run, then the time of the slowest rank of all groups."""
    place, n = ranks.index(dist.get_rank()), len(ranks)
    # fp32 elements, a multiple of the ranks so that all shards are equal
    count = size // 4 // n * n
    call, check = _operation(request.op, count, place, n, ranks[0])
    call(group)
    wrong = torch.tensor([float(check())])
    dist.all_reduce(wrong)
    chosen = policy.choose(Operation(request.op), 4 * count)
    return {
        "size_bytes": 4 * count,
        "num_elements": count,
        "num_wrong": int(wrong),
        "time_s": _seconds(lambda: call(group), request.iterations),
        "gloo_time_s": _seconds(lambda: call(gloo), request.iterations),
        "algorithm": "gloo" if chosen is None else chosen.schedule.name,
    }


def _seconds(run: Callable[[], object], iterations: int) -> float:
    """Return the mean seconds of one run on the slowest rank."""
    run()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        run()
    took = torch.tensor([(time.perf_counter() - start) / iterations])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _operation(op: str, count: int, place: int, n: int, root: int) -> tuple[Callable[[Any], object], Callable[[], int]]:
    """Return (run on a group, count of wrong elements of the first run). Values are small integers: sums are exact."""
    shard = count // n
    index = torch.arange(count)

    def values(rank: int) -> torch.Tensor:
        return ((index * 7 + 13 * rank) % 5).float()

    if op == "all_reduce":
        tensor, expected = values(place), sum(values(rank) for rank in range(n))
        return lambda group: dist.all_reduce(tensor, group=group), lambda: _wrong(tensor, expected)
    if op == "broadcast":
        tensor = values(place)
        return lambda group: dist.broadcast(tensor, root, group=group), lambda: _wrong(tensor, values(0))
    mine = values(place)
    if op == "all_gather":
        output, own = torch.empty(count), mine[:shard].clone()
        expected = torch.cat([values(rank)[:shard] for rank in range(n)])
        return lambda group: dist.all_gather_single(output, own, group=group), lambda: _wrong(output, expected)
    if op == "reduce_scatter":
        output = torch.empty(shard)
        expected = sum(values(rank) for rank in range(n))[place * shard : (place + 1) * shard]
        return lambda group: dist.reduce_scatter_single(output, mine, group=group), lambda: _wrong(output, expected)
    output = torch.empty(count)
    expected = torch.cat([values(rank)[place * shard : (place + 1) * shard] for rank in range(n)])
    return lambda group: dist.all_to_all_single(output, mine, group=group), lambda: _wrong(output, expected)


def _wrong(found: torch.Tensor, expected: Any) -> int:
    return int((found != expected).sum())


if __name__ == "__main__":
    main()
