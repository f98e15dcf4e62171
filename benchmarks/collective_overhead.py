"""CPU of the executor's collectives over loopback, against gloo's, on the same tensors and in the same run.

    python benchmarks/collective_overhead.py [--processes 4] [--sizes 1024,…] [--operations …] [--transports …] [--table]

Rounds alternate between both. A figure is the CPU of all processes for one collective (user and system, all threads), the median
of the rounds; a ratio is the median of the rounds' ratios. CPU hardly depends on who else computes; wall time does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.process_group import Options
from scaleacross.schedules.collective import Operation

ALGORITHMS = {
    Operation.ALL_REDUCE: "ring",
    Operation.REDUCE_SCATTER: "ring",
    Operation.ALL_GATHER: "ring",
    Operation.BROADCAST: "tree",
    Operation.ALL_TO_ALL: "direct",
}
SIZES = tuple(1 << power for power in (10, 14, 16, 18, 20, 22, 24, 26))
TRANSPORTS = {"memory": True, "TCP": False}
ROUNDS = 7
BUSY_BYTES = 4 << 20
MAX_RUNS = 50


def main() -> None:
    """Print one JSON line, or a row of a table, per operation, size and transport."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes of the whole tensor")
    parser.add_argument("--operations", default=",".join(operation.value for operation in ALGORITHMS))
    parser.add_argument("--transports", default=",".join(TRANSPORTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--table", action="store_true", help="rows of a Markdown table")
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_rank, (arguments, port), nprocs=arguments.processes, start_method="spawn")


def _rank(rank: int, arguments: argparse.Namespace, port: int) -> None:
    size = arguments.processes
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    import scaleacross.runtime  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    for transport in arguments.transports.split(","):
        policy = fixed(ALGORITHMS, tuple(range(size)), LinkSettings(share_memory=TRANSPORTS[transport]))
        group = dist.new_group(backend="cpu:scaleacross", pg_options=Options(policy))
        for num_bytes in map(int, arguments.sizes.split(",")):
            for name, run in _collectives(num_bytes, size):
                if name in arguments.operations.split(","):
                    figures = _compared(run, group, num_bytes, arguments.rounds)
                    if rank == 0:
                        _print(arguments.table, {"processes": size, "transport": transport, "op": name, **figures})
    dist.destroy_process_group()


def _collectives(num_bytes: int, size: int) -> Iterator[tuple[str, Callable[[Any], object]]]:
    tensor, other, shard = torch.zeros(num_bytes // 4), torch.empty(num_bytes // 4), torch.zeros(num_bytes // 4 // size)
    yield "all_reduce", lambda group: dist.all_reduce(tensor, group=group)
    yield "reduce_scatter", lambda group: dist.reduce_scatter_single(shard, tensor, group=group)
    yield "all_gather", lambda group: dist.all_gather_single(tensor, shard, group=group)
    yield "broadcast", lambda group: dist.broadcast(tensor, 0, group=group)
    yield "all_to_all", lambda group: dist.all_to_all_single(other, tensor, group=group)


def _compared(run: Callable[[Any], object], group: Any, num_bytes: int, rounds: int) -> dict[str, Any]:
    runs = max(2, min(MAX_RUNS, BUSY_BYTES // num_bytes))
    for warm in (group, None):
        run(warm)
    rows = [(_cpu_s(lambda: run(group), runs), _cpu_s(lambda: run(None), runs)) for _ in range(rounds)]
    ours, gloo = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(row[0] / row[1] for row in rows)
    return {"bytes": num_bytes, "ratio": round(ratio, 2), "ms": round(1e3 * ours, 3), "gloo_ms": round(1e3 * gloo, 3)}


def _cpu_s(run: Callable[[], object], runs: int) -> float:
    """Of all processes, of one run."""
    dist.barrier()
    before = _own_cpu_s()
    for _ in range(runs):
        run()
    dist.barrier()
    spent = torch.tensor((_own_cpu_s() - before) / runs, dtype=torch.float64)
    dist.all_reduce(spent)
    return float(spent)


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _print(table: bool, figures: dict[str, Any]) -> None:
    print("| " + " | ".join(map(str, figures.values())) + " |" if table else json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
