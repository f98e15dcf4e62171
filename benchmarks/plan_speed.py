"""Time `scaleacross --help` and planning in fresh processes: seconds, peak memory, candidates per second, gap."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PLAN = """
import json, resource, sys
import scaleacross as sa
plan = sa.plan(sys.argv[1], overrides=sys.argv[2:])
report = plan.report
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"solver_s": report.seconds, "peak_gib": peak, "candidates": report.num_candidates, "placed": report.num_placed,
                  "step_s": plan.cost.step_s, "status": report.status, "gap": report.gap, "versions": report.versions}))
"""


def timed(command: Sequence[str]) -> tuple[float, str]:
    """Wall seconds of a process and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def spread(seconds: Sequence[float]) -> str:
    """minimum / median / maximum."""
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f} s"


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", nargs="?", default="llama3_405b_two_buildings")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--against", help="a second job, timed in turn with the first")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {options.runs} runs, one warm-up")
    program = str(Path(sys.executable).with_name("scaleacross"))
    help_s = [timed([program, "--help"])[0] for _ in range(options.runs + 1)][1:]
    print(f"scaleacross --help: {spread(help_s)}")
    jobs = [[options.job, *options.overrides], *([[options.against]] if options.against else [])]
    rows: list[list[dict[str, float]]] = [[] for _ in jobs]
    for _ in range(options.runs + 1):
        for row, job in zip(rows, jobs, strict=True):
            wall_s, printed = timed([sys.executable, "-c", PLAN, *job])
            row.append({"wall_s": wall_s, **json.loads(printed)})
    for job, row in zip(jobs, rows, strict=True):
        kept, last = row[1:], row[-1]
        print(f"\n{' '.join(job)}")
        print(f"  solver {spread([r['solver_s'] for r in kept])}, process {spread([r['wall_s'] for r in kept])}")
        rate = last["candidates"] / statistics.median([r["solver_s"] for r in kept])
        print(
            f"  {last['candidates']:,} candidates ({rate:,.0f}/s), {last['placed']} placed exactly; {last['peak_gib']:.2f} GiB"
        )
        print(f"  step {last['step_s']:.4f} s, {last['status']}, gap {last['gap']:.2e}; {last['versions']}")
    if len(rows) == 2:
        ratios = [a["wall_s"] / b["wall_s"] for a, b in zip(rows[0][1:], rows[1][1:], strict=True)]
        print(f"\nfirst / second, process, pair by pair: {spread(ratios)[:-2]}")


if __name__ == "__main__":
    main()
