"""How long ``scaleacross diagnose`` takes on many ranks: dumps of a made-up job in which one rank is stuck.

    python benchmarks/diagnose_scale.py [--ranks 1024 4096 16384] [--operations 32]

Ranks form a grid of tensor (8), pipeline (16) and data groups. One rank stops in the middle; whoever meets it in a group waits,
and so, group by group, does everybody. Dumps are pickles in PyTorch's format as the flight recorder writes them.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TENSOR, PIPELINE = 8, 16
BEGIN_NS = 1_700_000_000_000_000_000
KINDS = (("tp", "all_reduce"), ("tp", "all_gather"), ("dp", "reduce_scatter"), ("pp", "all_reduce"))


def groups_of(rank: int, world: int) -> dict[str, tuple[str, list[int]]]:
    """axis -> (name, ranks) of the groups that hold ``rank``: tp fastest, then pp, then dp."""
    tensor, rest = rank % TENSOR, rank // TENSOR
    stage, replica = rest % PIPELINE, rest // PIPELINE
    block = TENSOR * PIPELINE
    return {
        "tp": (f"tp.{rest}", list(range(rank - tensor, rank - tensor + TENSOR))),
        "pp": (f"pp.{replica}.{tensor}", [replica * block + s * TENSOR + tensor for s in range(PIPELINE)]),
        "dp": (f"dp.{stage}.{tensor}", list(range(rank % block, world, block))),
    }


def last_operations(world: int, culprit: int, operations: int) -> list[int]:
    """[rank] -> operations that it has issued: the culprit half of them; who waits for it, or for a waiter, as far as it came."""
    issued = [operations] * world
    issued[culprit] = operations // 2
    changed = {culprit}
    while changed:
        following: set[int] = set()
        for rank in changed:
            for number in range(issued[rank], operations):
                axis, _ = KINDS[number % len(KINDS)]
                for peer in groups_of(rank, world)[axis][1]:
                    if issued[peer] > number + 1:
                        issued[peer] = number + 1
                        following.add(peer)
        changed = following
    return issued


def dump(rank: int, world: int, issued: int, culprit: int) -> dict[str, Any]:
    """What the recorder of ``rank`` writes; its last operation is under way, the culprit's is not."""
    groups = groups_of(rank, world)
    counts = dict.fromkeys(groups, 0)
    entries = []
    for number in range(issued):
        axis, op = KINDS[number % len(KINDS)]
        counts[axis] += 1
        begin = BEGIN_NS + number * 10_000_000 + rank
        stuck = number == issued - 1 and rank != culprit
        entries.append(
            {
                "frames": [],
                "record_id": number,
                "pg_id": list(groups).index(axis),
                "process_group": (groups[axis][0], axis),
                "collective_seq_id": counts[axis],
                "p2p_seq_id": 0,
                "op_id": number + 1,
                "profiling_name": f"gloo:{op}",
                "time_created_ns": begin,
                "input_sizes": [[1 << 20]],
                "input_dtypes": ["bfloat16"],
                "output_sizes": [[1 << 20]],
                "output_dtypes": ["bfloat16"],
                "state": "started" if stuck else "completed",
                "time_discovered_started_ns": begin + 1000,
                "time_discovered_completed_ns": None if stuck else begin + 5_000_000,
                "retired": not stuck,
                "is_p2p": False,
                "scaleacross": {"op": op, "bytes": 2 << 20, "predicted_s": 0.004, "awaited": True, "cursors": {}},
            }
        )
    config = {name: {"name": name, "desc": axis, "ranks": str(ranks)} for axis, (name, ranks) in groups.items()}
    return {"version": "2.10", "pg_config": config, "entries": entries, "rank": rank, "world_size": world}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--operations", type=int, default=32)
    options = parser.parse_args()
    for world in options.ranks:
        culprit = world // 3
        with tempfile.TemporaryDirectory() as folder:
            issued = last_operations(world, culprit, options.operations)
            for rank in range(world):
                content = pickle.dumps(dump(rank, world, issued[rank], culprit), 4)
                (Path(folder) / f"trace_rank_{rank}").write_bytes(content)
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
            command = [sys.executable, "-c", "from scaleacross.cli import main; main()", "diagnose", folder, "--json"]
            start, cpu = time.perf_counter(), _children_s()
            found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            wall, cpu = time.perf_counter() - start, _children_s() - cpu
        root = found["root"]
        right = root["ranks"] == [culprit] and not found["others"]
        print(
            f"{world:6d} ranks, {found['num_operations']:8d} operations, {size / 1e6:6.1f} MB: {wall:6.1f} s ({cpu:.1f} s CPU); "
            f"{found['verdict']} {root['ranks']}, {root['num_victims']} victims of {found['num_stuck_operations']} stuck: "
            f"{'right' if right else 'WRONG'}"
        )


def _children_s() -> float:
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
