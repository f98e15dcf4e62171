"""Random faults in a group of four processes: does every survivor name the rank that is to blame?

``python benchmarks/random_faults.py --faults 60`` draws a fault and a rank each time: killed, stopped, cut off, never arriving,
another size, another collective. It prints a line per fault and fails where a survivor's error does not name the rank. A mismatch
has two ends; the rank must be one of them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runtime"))

import fault_cases
import liveness_cases
import torch.distributed as dist
from rank_pool import RankPool, join_job

SIZE, START_S = 4, 120.0
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "never arriving": None}
WORDS = {
    "killed": "",
    "stopped": "is stopped",
    "never arriving": "is not here yet",
    "cut off": "is unreachable",
    "another size": "",
    "another collective": "",
}


def main() -> int:
    """Draw, run, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    seeded, pool, named = random.Random(arguments.seed), None, 0
    for number in range(arguments.faults):
        fault, wrong = seeded.choice(sorted(WORDS)), seeded.randrange(SIZE)
        if pool is None:
            pool = RankPool(SIZE, {"SCALEACROSS_HEARTBEAT_S": "1", "SCALEACROSS_PATIENCE_S": "3"})
            pool.run(join_job, limit_s=START_S)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            said = run(pool, fault, wrong, folder)
        blind = [text for text in said if f"rank {wrong}" not in text or WORDS[fault] not in text]
        named += not blind
        took = time.monotonic() - began
        print(
            f"{number + 1:3d} {fault:18s} rank {wrong} {took:5.1f} s  {blind or 'named by all'}",
            flush=True,
        )
        if fault == "killed":
            pool.close()
            pool = None
    if pool is not None:
        pool.close()
    print(f"{named} of {arguments.faults} named on every survivor")
    return 0 if named == arguments.faults else 1


def run(pool: RankPool, fault: str, wrong: int, folder: str) -> list[str]:
    """What the others say."""
    if fault == "cut off":
        said = pool.run(liveness_cases.cut_off, SIZE, wrong, folder, 120.0)
        return [text for rank, (_, text) in enumerate(said) if rank != wrong]
    if fault.startswith("another"):
        case = fault_cases.sizes_differ if fault == "another size" else fault_cases.kinds_differ
        said = pool.run(case, SIZE, wrong)
        return [text for rank, (_, text, _) in enumerate(said) if rank != wrong]
    return hang(pool, wrong, folder, SIGNALS[fault])


def hang(pool: RankPool, wrong: int, folder: str, number: int | None) -> list[str]:
    """All but ``wrong`` go on to the next collective; it gets the signal."""
    limit_s = 6.0 if number is None else 120.0
    for rank in range(SIZE):
        pool.post(rank, liveness_cases.ready_to_hang, SIZE, wrong, folder, limit_s)
    store: Any = dist.FileStore(f"{folder}/hang-{wrong}", SIZE)
    store.wait([f"ready-{rank}" for rank in range(SIZE)], timedelta(seconds=START_S))
    process_id = pool._processes[wrong].pid
    if number is not None and process_id is not None:
        os.kill(process_id, number)
    said = [pool.take(rank)[1] for rank in range(SIZE) if rank != wrong]
    if number != signal.SIGKILL and process_id is not None:
        store.set("go on", "1")
        os.kill(process_id, signal.SIGCONT)
        pool.take(wrong)
    return said


if __name__ == "__main__":
    sys.exit(main())
