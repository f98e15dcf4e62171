"""Four replicas, one of which is killed every so often and started again: what a death costs, and whether every bit is right.

``python benchmarks/replica_kills.py --minutes 3 --every 20`` prints committed steps, the longest stall after a death and after a
join, in seconds and median steps, and the goodput; it fails where a step is lost or taken twice, or a loss or a weight differs in
a bit from a run in one process that had the same members at every step. ``--testbed examples/testbed/three_buildings.yaml`` runs
them on emulated hosts in buildings (needs root); ``--ends`` then cuts cables, kills two at once, and the coordinator.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runtime"))

import emulated_replicas
import replica_cases as cases

from scaleacross.api import measured_goodput
from scaleacross.catalogue import load_topology
from scaleacross.testbed.session import standing


def main() -> int:
    """Run, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between kills")
    parser.add_argument("--back", type=float, default=5.0, help="seconds until a killed replica is started again")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of a step beside its sum")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--testbed", metavar="TOPOLOGY", help="on emulated hosts instead of loopback")
    parser.add_argument(
        "--ends", action="store_true", help="with --testbed: cut cables, kill two at once, the coordinator"
    )
    parser.add_argument("--keep", type=Path, help="copy logs into that folder")
    arguments = parser.parse_args()
    if arguments.ends and not arguments.testbed:
        parser.error("--ends cuts cables: it needs --testbed")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.testbed:
            testbed = stack.enter_context(standing(load_topology(arguments.testbed), f"kills{os.getpid()}"))
            job: cases.Job = emulated_replicas.Job(folder, arguments.replicas, testbed, arguments.pace)
        else:
            job = cases.Job(folder, arguments.replicas, pace_s=arguments.pace)
        if arguments.keep:
            stack.callback(shutil.copytree, folder, arguments.keep, dirs_exist_ok=True)
        stack.callback(job.close)
        kills, ends = killed(job, arguments), {}
        if isinstance(job, emulated_replicas.Job) and arguments.ends:
            ends = emulated_replicas.endings(job)
        else:
            job.stop_at(job.history("commit")[-1]["step"] + 30)
        return report(job, kills, ends)


def killed(job: cases.Job, arguments: argparse.Namespace) -> int:
    """Start all, kill one every so often and start it again; how many died."""
    seeded, names = random.Random(arguments.seed), [str(number) for number in range(arguments.replicas)]
    for name in names:
        job.start(name)
    job.until(lambda: job.history("commit"))
    start, kills = time.monotonic(), 0
    while (due := (kills + 1) * arguments.every) <= 60 * arguments.minutes:
        time.sleep(max(start + due - time.monotonic(), 0.0))
        name = seeded.choice(names)
        job.signal(name, signal.SIGKILL)
        job.processes[name].join()
        kills += 1
        time.sleep(arguments.back)
        job.start(name)
        job.until(lambda: len(job.history("commit")[-1]["samples"]) == arguments.replicas)
    return kills


def report(job: cases.Job, kills: int, ends: dict[str, object]) -> int:
    """Print; 1 where something is not as it must be."""
    commits, members = job.history("commit"), {e["epoch"]: e["members"] for e in job.history("epoch")}
    steps = [{"step": one["step"], "members": members[one["epoch"]]} for one in commits]
    losses, weights = cases.reference(steps)
    wrong = [] if [one["step"] for one in steps] == list(range(len(steps))) else ["a step is lost or committed twice"]
    for name in job.processes:
        lines = [line for line in job.lines(name) if isinstance(line, list)]
        differing = sum(losses.get((line[0], name)) != line[4] for line in lines)
        wrong += [f"replica {name}: {differing} losses differ"] if differing else []
        wrong += [f"replica {name}: weights differ"] if not ends and job.lines(name)[-1]["weights"] != weights else []
        wrong += [f"replica {name}: steps taken twice"] if len({line[0] for line in lines}) != len(lines) else []
    run = measured_goodput(job.folder / "history.jsonl")
    deaths = [stall.seconds for stall in run.stalls if "dead" in stall.why]
    joins = [stall.seconds for stall in run.stalls if "donor" in stall.why or "of 4" in stall.why]
    facts = {
        "kills": kills,
        "steps": run.steps,
        "seconds": round(run.seconds, 1),
        "median_step_s": round(run.median_step_s, 4),
        "longest_stall_of_a_death_s": round(max(deaths, default=0.0), 3),
        "longest_stall_of_a_join_s": round(max(joins, default=0.0), 3),
        "joined": run.joined,
        "useful_fraction": round(run.useful_fraction, 4),
        "simulated_fraction": round(run.simulated_fraction, 4),
        "stall_fraction": round(run.stall_fraction, 4),
        "missing_fraction": round(run.missing_fraction, 4),
        "ends": ends,
        "wrong": wrong,
    }
    print(json.dumps(facts, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
