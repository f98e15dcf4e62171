"""How far estimates of plans agree with the simulation on jobs drawn as a user states them, and which mechanism that hangs on.

    python benchmarks/drawn_jobs.py [--seed 1] [--number 24] [--work 150] [--without NAME,...] [--worst 12]

A job is what ``scaleacross plan --model --gpus --trunk --km --tokens --seq`` takes: two to five buildings of one or two types of
accelerators, trunks from thin to thick, 1 to 3,000 km. Each is searched for ``--work`` step times, and all its finalists count:
decisions that the planner itself would run, of which the table of ``agreement.py`` has few kinds. ``--without``: mechanisms of
``ablation.py``, each switched off in the estimates of the same finalists. Some 20 s of CPU a job; what cannot be planned is drawn
again.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from typing import Final

from ablation import without
from agreement import Row, farthest, summary

import scaleacross as sa
from scaleacross.api.evaluation import cost_of
from scaleacross.api.problems import problem_of
from scaleacross.catalogue import Start, load_job, quick_job
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.spec.job import Job

SIZES: Final = {  # models, and accelerators of the largest building
    "small": (("llama3.2-1b", "llama3.1-8b", "phi-4", "gpt-oss-20b", "qwen3-30b-a3b"), (16, 32, 64, 128)),
    "middle": (("llama3.1-70b", "qwen2.5-72b", "mixtral-8x7b", "gpt-oss-120b", "glm-4.5-air"), (128, 256, 512)),
    "large": (("llama3.1-405b", "deepseek-v3", "kimi-k2", "nemotron-4-340b"), (1024, 2048)),
}
TYPES: Final = (*[("h100",)] * 4, ("h200",), ("b200",), ("h100", "b200"))
PARTS: Final = (1.0, 1.0, 0.75, 0.5, 0.25)
STEP: Final = 1 << 18


def drawn(rng: random.Random) -> Start:
    """A job as a line of arguments."""
    models, sizes = SIZES[rng.choice(("small", "small", "middle", "middle", "middle", "large"))]
    types, largest = rng.choice(TYPES), rng.choice(sizes)
    parts = [1.0 if number == 0 else rng.choice(PARTS) for number in range(rng.choice((2, 2, 2, 3, 4, 5)))]
    counts = [max(8, int(largest * part) // 8 * 8) for part in parts]
    gpus = ",".join(f"{types[number % len(types)]}:{count}" for number, count in enumerate(counts))
    ports = max(1, round(largest / rng.choice((2, 8, 16, 32, 64))))
    sequence = rng.choice((2048, 4096, 8192, 8192, 32768, 131072))
    whole = max(sequence * 8, sum(counts) * rng.choice((2048, 4096, 8192, 16384, 65536)))
    tokens = max(1, whole // STEP) * STEP
    km = float(rng.choice((1, 10, 50, 200, 1000, 3000)))
    return Start(rng.choice(models), gpus, str(tokens), str(sequence), trunk=f"{ports}x400G", km=km)


def finalists(seed: int, number: int, work: int) -> Iterator[tuple[Row, Job]]:
    """All finalists of so many jobs, by estimate and by simulation."""
    rng, planned = random.Random(seed), 0
    while planned < number:
        start = drawn(rng)
        job = load_job(quick_job(start))
        try:
            plan = sa.plan(job, work_limit=work, alternatives=False)
        except (InputError, InfeasibleError) as error:
            print(f"  left out: {start.model} on {start.gpus}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        planned += 1
        point = {"model": start.model, "gpus": str(start.gpus), "trunk": f"{start.trunk} over {start.km:g} km"}
        for one in plan.report.finalists:
            if one.replayed_s is not None:
                cost = cost_of(problem_of(job, ()), one.decision).cost
                row = Row(planned, "finalist", point, one.decision, cost.step_s, cost.compute_s, one.replayed_s, 0, 0)
                print(f"{planned:4d} {row.off:+8.1%}  {', '.join(point.values())}", file=sys.stderr, flush=True)
                yield row, job


def main() -> None:
    """Print the summaries and the finalists that are farthest off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=24)
    parser.add_argument("--work", type=int, default=150)
    parser.add_argument("--without", default="")
    parser.add_argument("--worst", type=int, default=12)
    options = parser.parse_args()
    full = list(finalists(options.seed, options.number, options.work))
    print(f"everything on: {summary([row for row, _ in full])}", flush=True)
    for name in filter(None, options.without.split(",")):
        print(f"without {name}: {summary(without(name, full))}", flush=True)
    print("\n".join(["", *farthest([row for row, _ in full], options.worst)]))


if __name__ == "__main__":
    main()
