"""Four replicas, one of which is killed every so often: torchft over gloo, torchft over our group, and our own replicas.

``python benchmarks/torchft_kills.py --kills 3 --every 20`` runs the three in turn, with the same model and pace. It
prints, of the replica that is never killed: committed steps, steps computed and dropped, and the longest time between
two committed steps from a kill until a second before the next. Needs torchft (``pip install torchft-nightly``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runtime"))

import replica_cases
import torchft_cases

REPLICAS = "0123"


def main() -> None:
    """Run the three, a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of a step beside its sum")
    arguments = parser.parse_args()
    for name in ("torchft, gloo", "torchft, scaleacross", "scaleacross"):
        with tempfile.TemporaryDirectory() as folder:
            if name == "scaleacross":
                job: Any = replica_cases.Job(Path(folder), len(REPLICAS), pace_s=arguments.pace)
            else:
                job = torchft_cases.Job(Path(folder), name.endswith("scaleacross"), arguments.pace)
            try:
                print(json.dumps({"run": name, **_run(job, arguments.kills, arguments.every)}), flush=True)
            finally:
                job.close()


def _run(job: Any, kills: int, every_s: float) -> dict[str, Any]:
    for replica in REPLICAS:
        job.start(replica)
    job.until(lambda: any(_is_step(line) and _members(line) == len(REPLICAS) for line in job.lines("0")))
    began, killed = time.time(), []
    for number in range(kills):
        time.sleep(max(began + (number + 1) * every_s - time.time(), 0.0))
        replica = REPLICAS[1 + number % (len(REPLICAS) - 1)]
        job.processes[replica].kill()
        killed.append(time.time())
        job.processes[replica].join()
        time.sleep(2.0)
        job.start(replica)
    time.sleep(every_s)
    lines = [line for line in job.lines("0") if _is_step(line) and line[-1] >= began]
    times = [line[-1] for line in lines if line[1] is not False]
    gaps = list(pairwise(times))
    usual_s = statistics.median(b - a for a, b in gaps)
    worst = [max(b - a for a, b in gaps if a <= kill + every_s - 1 and b >= kill) for kill in killed]
    return {
        "committed": len(times),
        "dropped": len(lines) - len(times),
        "median_step_s": round(usual_s, 3),
        "late_after_a_kill_s": [round(one - usual_s, 2) for one in worst],
    }


def _is_step(line: Any) -> bool:
    return isinstance(line, list)


def _members(line: Any) -> int:
    return line[2] if isinstance(line[2], int) else len(line[2])


if __name__ == "__main__":
    main()
