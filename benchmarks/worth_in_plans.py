"""What corrections of the estimate are worth in plans: jobs drawn as users state them, searched with and without them.

    python benchmarks/worth_in_plans.py [--seed 31] [--number 14] [--job N] [--without NAME,...]

``ablation.py`` says how far estimates move. Here a search goes without the correction, its finalists are simulated as always, and
the simulated step of the plan is held against that of the search with everything on: what a user loses. Without ``--without`` all
corrections go at once but for what the simulation itself reads. Some 20 s of CPU a job and search.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Final

from ablation import MECHANISMS, switched_off
from drawn_jobs import drawn

import scaleacross as sa
from scaleacross.api.simulating import simulated_step_s
from scaleacross.catalogue import load_job, quick_job
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.spec.job import Job

WORK: Final = 150
SIMULATED_TOO: Final = "multiprocessors held by collectives"
ALL: Final = tuple(
    name for name, changes in MECHANISMS.items() if name != SIMULATED_TOO and all(new is not None for _, new in changes)
)


def simulated_s(job: Job, off: Sequence[str]) -> float:
    """Simulated step of the plan that a search without the corrections ``off`` finds, s."""
    with switched_off(*off):
        plan = sa.plan(job, work_limit=WORK, alternatives=False)
    return simulated_step_s(plan)


def main() -> None:
    """Print a line per job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--number", type=int, default=14)
    parser.add_argument("--job", type=int, help="this one of the drawn jobs alone")
    parser.add_argument("--without", default="", help=f"each of these alone: {', '.join(ALL)}")
    options = parser.parse_args()
    each = [(name,) for name in options.without.split(",") if name] or [ALL]
    rng = random.Random(options.seed)
    for number in range(1, options.number + 1):
        start = drawn(rng)
        if options.job not in (None, number):
            continue
        job = load_job(quick_job(start))
        try:
            full_s = simulated_s(job, ())
        except (InputError, InfeasibleError) as error:
            print(f"{number:3d} left out: {str(error).splitlines()[0]}", flush=True)
            continue
        found = [
            f"{simulated_s(job, off) / full_s - 1:+.2%} without {off[0] if len(off) == 1 else 'all'}" for off in each
        ]
        where = f"{start.model} on {start.gpus}, {start.trunk} over {start.km:g} km"
        print(f"{number:3d} {full_s:9.3f} s  {'; '.join(found)}  {where}", flush=True)


if __name__ == "__main__":
    main()
