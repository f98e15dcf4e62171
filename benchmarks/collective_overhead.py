"""What the executor costs: 16 MiB over loopback on 4 processes, against gloo in the same run, on the same tensors.

    python benchmarks/collective_overhead.py [--processes 4] [--mib 16] [--rounds 9]

Rounds alternate between both, and the median of the per-round ratios is stated, so that a busy machine slows both. CPU seconds
are those of rank 0's process: they hardly depend on who else computes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.process_group import Options
from scaleacross.schedules.collective import Operation

RUNS = 6


def main() -> None:
    """Print one JSON line per operation and transport."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(
        _rank,
        (arguments.processes, port, arguments.mib << 20, arguments.rounds),
        nprocs=arguments.processes,
        start_method="spawn",
    )


def _rank(rank: int, size: int, port: int, num_bytes: int, rounds: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    import scaleacross.runtime  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    algorithms = {Operation.ALL_REDUCE: "ring", Operation.REDUCE_SCATTER: "ring"}
    tensor, shard = torch.zeros(num_bytes // 4), torch.empty(num_bytes // 4 // size)
    for shared in (True, False):
        policy = fixed(algorithms, tuple(range(size)), LinkSettings(share_memory=shared))
        group = dist.new_group(backend="cpu:scaleacross", pg_options=Options(policy))
        for name, run in (
            ("all_reduce", lambda group: dist.all_reduce(tensor, group=group)),
            ("reduce_scatter", lambda group: dist.reduce_scatter_single(shard, tensor, group=group)),
        ):
            rows = [(*_timed(lambda g=group, r=run: r(g)), *_timed(lambda r=run: r(None))) for _ in range(rounds)]
            if rank == 0:
                ours, cpu, gloo, gloo_cpu = (statistics.median(column) for column in zip(*rows, strict=True))
                ratio = statistics.median(row[0] / row[2] for row in rows)
                print(
                    json.dumps(
                        {
                            "op": name,
                            "transport": "shared memory" if shared else "TCP",
                            "ratio": round(ratio, 2),
                            "ms": round(1e3 * ours, 1),
                            "gloo_ms": round(1e3 * gloo, 1),
                            "cpu_ms": round(1e3 * cpu, 1),
                            "gloo_cpu_ms": round(1e3 * gloo_cpu, 1),
                        }
                    ),
                    flush=True,
                )
    dist.destroy_process_group()


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU) seconds of one run."""
    run()
    dist.barrier()
    cpu, wall = _cpu_s(), time.perf_counter()
    for _ in range(RUNS):
        run()
    return (time.perf_counter() - wall) / RUNS, (_cpu_s() - cpu) / RUNS


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
