"""Pipeline schedules: actions per second of generating, checking, compiling and timing them, one process.

    python benchmarks/schedule_timing.py [--repeat 5]

Every figure is the best of ``--repeat`` runs in process CPU time. The bar is a million timed actions per second once compiled.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from scaleacross.cost_models.pipeline.compiled import compile_schedule
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import generate
from scaleacross.schedules.pipeline.check import check
from scaleacross.spec.parallelism import ScheduleName

SHAPES: tuple[tuple[ScheduleName, int, int, int], ...] = (
    ("1F1B", 16, 1024, 1),
    ("Interleaved1F1B", 16, 512, 4),
    ("ZBH1", 16, 1024, 1),
    ("ZBVZeroBubble", 16, 512, 2),
    ("VHalf", 16, 128, 2),
    ("DualPipeV", 16, 512, 2),
)


def best_s(run: Callable[[], object], repeat: int) -> float:
    """CPU seconds of the quickest of ``repeat`` runs."""
    seconds = []
    for _ in range(repeat):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(f"{'schedule':<18}{'p':>4}{'m':>6}{'v':>3}{'actions':>10}   M actions/s: generate   check  compile   time")
    for name, p, m, v in SHAPES:
        schedule = generate(name, p, m, v)
        compiled = compile_schedule(schedule)
        rates = [
            schedule.num_actions / best_s(run, repeat) / 1e6
            for run in (
                lambda shape=(name, p, m, v): generate(*shape),
                lambda made=schedule: check(made),
                lambda made=schedule: compile_schedule(made),
                lambda made=compiled: time_schedule(made, 1.0, 2.0, 0.5, 0.1, weight_s=1.0),
            )
        ]
        figures = "".join(f"{rate:>9.2f}" for rate in rates)
        print(f"{name:<18}{p:>4}{m:>6}{v:>3}{schedule.num_actions:>10,}              {figures}")


if __name__ == "__main__":
    main()
