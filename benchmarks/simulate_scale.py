"""What a replay costs as accelerators grow: CPU seconds, classes of ranks and tasks of Llama 3.1 405B on region_131072.

    python benchmarks/simulate_scale.py

One decision (tp 8, pp 16, seven chunks, 16 micro-batches of one sequence per replica) on 1,024 to 131,072 accelerators:
a table, and the CPU time per task, which is what should stay constant. Ratios within one run are what counts.
"""

from __future__ import annotations

import time

import scaleacross as sa
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.plan import Decision

SIZES = (1024, 4096, 16384, 65536, 131072)
TP, PP, MICRO_BATCHES = 8, 16, 16


def main() -> None:
    """Print the table."""
    print("accelerators  classes   tasks  folding  CPU s  µs/task  price/replay")
    for size in SIZES:
        replicas = size // (TP * PP)
        job = sa.load_job("llama3_405b_region", [f"global_batch_sequences={replicas * MICRO_BATCHES}"])
        decision = Decision(
            degrees=Degrees(tp=TP, pp=PP, dp_shard=replicas),
            pipeline=PipelineChoice(schedule="Interleaved1F1B", num_chunks=7, micro_batch_sequences=1),
            recompute="none",
            shard="optimizer",
        )
        plan = sa.evaluate((job, decision))
        began = time.process_time()
        step = sa.simulate(plan)
        spent = time.process_time() - began
        facts = f"{size:12,} {step.num_classes:8,} {step.num_tasks:7,} {step.folding:>8}"
        print(f"{facts} {spent:6.2f} {spent / step.num_tasks * 1e6:8.1f} {1 + step.difference:13.3f}", flush=True)


if __name__ == "__main__":
    main()
