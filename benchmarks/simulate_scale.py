"""CPU time of a simulation: by accelerators, and by the classes of ranks that it distinguishes.

    python benchmarks/simulate_scale.py [--write docs/results]

Llama 3.1 405B on region_131072, tp 8, one sequence per micro-batch. First one decision (pp 16, seven chunks, 16 micro-batches) on
1,024 to 131,072 accelerators, whose classes stay the same; then 16,384 accelerators as 2 to 32 pipeline ranks (three chunks, 32
micro-batches; whether they fit in memory or not), where pipelines that lie differently over zones are more classes.
CPU seconds depend on the machine; the ratio of rows of one run is what counts.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from math import log10
from pathlib import Path
from typing import Any

import scaleacross as sa
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.plan import Decision, Plan

SIZES = (1024, 4096, 16384, 65536, 131072)
PIPELINES = (2, 4, 8, 16, 32)
SPLIT = 16384
TP = 8
GROWN, SPLIT_UP = "accelerators", "pipeline ranks"


def plan_of(size: int, pp: int = 16, chunks: int = 7, micro_batches: int = 16) -> Plan:
    """The decision on so many accelerators."""
    replicas = size // (TP * pp)
    job = sa.load_job("llama3_405b_region", [f"global_batch_sequences={replicas * micro_batches}"])
    decision = Decision(
        degrees=Degrees(tp=TP, pp=pp, dp_shard=replicas),
        pipeline=PipelineChoice(schedule="Interleaved1F1B", num_chunks=chunks, micro_batch_sequences=1),
        recompute="none",
        shard="optimizer",
    )
    return sa.evaluate((job, decision))


def row(plan: Plan, varied: str) -> dict[str, Any]:
    """One replay, timed."""
    began = time.process_time()
    step = sa.simulate(plan)
    spent = time.process_time() - began
    found = {
        "varied": varied,
        "accelerators": plan.degrees.world_size,
        "pipeline_ranks": plan.degrees.pp,
        "classes": step.num_classes,
        "tasks": step.num_tasks,
        "folding": step.folding,
        "cpu_s": round(spent, 2),
        "us_per_task": round(spent / step.num_tasks * 1e6, 1),
        "price_over_replay": round(1 + step.difference, 3),
    }
    print(found, file=sys.stderr, flush=True)
    return found


def svg(table: list[dict[str, Any]]) -> str:
    """CPU seconds over classes of ranks, both axes logarithmic; what was varied by colour."""
    width, height, left, bottom = 640, 380, 60, 50
    classes, seconds = ([max(one[key], 1e-2) for one in table] for key in ("classes", "cpu_s"))
    low, high = log10(min(classes)) - 0.1, log10(max(classes)) + 0.1
    least, most = log10(min(seconds)) - 0.2, log10(max(seconds)) + 0.2

    def at(one: dict[str, Any]) -> tuple[float, float]:
        x = left + (width - left - 130) * (log10(one["classes"]) - low) / (high - low)
        up = (log10(max(one["cpu_s"], 1e-2)) - least) / (most - least)
        return x, height - bottom - (height - bottom - 20) * up

    parts = []
    for power in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if least <= log10(power) <= most:
            y = height - bottom - (height - bottom - 20) * (log10(power) - least) / (most - least)
            parts.append(f'<line x1="{left}" x2="{width - 130}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{power:g} s</text>')
    for varied, colour in ((GROWN, "#205090"), (SPLIT_UP, "#b03030")):
        mine = [one for one in table if one["varied"] == varied]
        for one in mine:
            x, y = at(one)
            words = f"{one['accelerators']:,}" if varied == GROWN else f"pp {one['pipeline_ranks']}"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            parts.append(f'<text x="{x + 7:.1f}" y="{y + 4:.1f}" fill="{colour}">{words}</text>')
    for count in sorted({one["classes"] for one in table}):
        x = left + (width - left - 130) * (log10(count) - low) / (high - low)
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{count}</text>')
    parts.append(f'<text x="{left}" y="{height - 10}">classes of ranks; upward: CPU seconds of a simulation</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def main() -> None:
    """Print the table, or write it with its plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="write simulate_scale.csv and simulate_scale.svg there"
    )
    options = parser.parse_args()
    plans = {size: plan_of(size) for size in SIZES}
    table = [row(plan, GROWN) for plan in plans.values()]
    table += [row(plan_of(SPLIT, pp, chunks=3, micro_batches=32), SPLIT_UP) for pp in PIPELINES]
    target = (options.write / "simulate_scale.csv").open("w", newline="") if options.write else sys.stdout
    with target:
        writer = csv.DictWriter(target, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    if options.write:
        (options.write / "simulate_scale.svg").write_text(svg(table), encoding="utf-8")


if __name__ == "__main__":
    main()
