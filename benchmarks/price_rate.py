"""Candidates priced per CPU-second on one core, and a space as large as Calculon's for GPT-3 175B on 1,024 GPUs exhausted.

A candidate counts as *priced* when its memory on the fullest pipeline rank was computed and its whole step time on a fixed
placement (axes in the order tp, cp, dp_shard, dp_replicate, pp over one building) too: every component, all collectives,
the exposed part of every overlap window. A candidate that does not fit is *rejected* on its memory alone. Nothing is bounded
or pruned. Every framework overlap setting (twelve shares of overlapped tp collectives among them, so that the space is no
smaller than Calculon's) is a candidate of its own; memory, kernel times and single collectives, which it does not change, are
computed once for all of them. The rate without that sharing (one overlap setting alone) is printed beside. Seconds are process
CPU time.
"""

from __future__ import annotations

import argparse
import time
from itertools import product

import numpy as np
from arranged import arranged

from scaleacross import catalogue
from scaleacross.cost_models.candidates import concatenate
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace, divisors
from scaleacross.spec.framework import Overlap

ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
SHARES = tuple(step / 11 for step in range(12))
CALCULON = 11_698_528
"""Candidates of Calculon's space (arXiv 2210.15893) for this model and size; 33 valid ones priced per CPU-second."""


def main() -> None:
    """Price the space block by block, overlap setting by overlap setting, until it is exhausted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerators", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=3072, help="sequences of 2,048 tokens")
    parser.add_argument("--block", type=int, default=131_072, help="candidates per array")
    options = parser.parse_args()
    changes = [f"num_accelerators={options.accelerators}", f"global_batch_sequences={options.batch}"]
    changes += ["workload=gpt3-175b", "sequence_length=2048"]
    changes += [f"micro_batch_sequences={[b for b in divisors(options.batch) if b <= 96]}"]
    changes += [f"num_chunks={list(divisors(96))}"]
    problem = catalogue.resolve(catalogue.load_job("llama3_8b_one_building", changes))
    [pool] = pools(problem.topology)
    allocation = pool.allocations(options.accelerators, [8])[0]
    began = time.process_time()
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    rows = concatenate(list(space.batches(Refusals())))
    enumerated_s = time.process_time() - began
    overlaps = [
        Overlap(gradient_reduce=reduce, parameter_gather=gather, pipeline_messages=messages, tp_fraction=share)
        for reduce, gather, messages, share in product((True, False), (True, False), (True, False), SHARES)
    ]
    jobs = [problem.job.model_copy(update={"overlap": overlap}) for overlap in overlaps]
    bounder = FixedPlacement.of(pool, allocation, problem.job, problem.profile)
    rejected = priced = 0
    memory_s = arrange_s = price_s = 0.0
    best = (np.inf, 0, 0)
    for start in range(0, len(rows), options.block):
        began = time.process_time()
        block = rows.take(np.arange(start, min(start + options.block, len(rows))))
        fits = bounder.needed_bytes(block) <= bounder.capacity_bytes
        fitting = block.take(fits)
        memory_s += time.process_time() - began
        rejected += (len(block) - len(fitting)) * len(overlaps)
        if not len(fitting):
            continue
        began = time.process_time()
        placed = arranged(bounder, fitting, ORDER)
        first_s = placed.step_s(jobs[0])
        arrange_s += time.process_time() - began
        best = min(best, (float(first_s.min()), start + int(np.flatnonzero(fits)[first_s.argmin()]), 0))
        priced += len(fitting)
        began = time.process_time()
        for index, job in enumerate(jobs[1:], start=1):
            step = placed.step_s(job)
            priced += len(fitting)
            best = min(best, (float(step.min()), start + int(np.flatnonzero(fits)[step.argmin()]), index))
        price_s += time.process_time() - began
    total_s = enumerated_s + memory_s + arrange_s + price_s
    alone_s = enumerated_s + memory_s + arrange_s
    print(
        f"{problem.workload.name} on {options.accelerators}: {len(rows):,} settings x {len(overlaps)} overlap settings"
    )
    print(f"  {rejected + priced:,} candidates: {rejected:,} rejected by memory, {priced:,} priced in full")
    print(
        f"  {total_s:.2f} s CPU: enumeration {enumerated_s:.2f}, memory {memory_s:.2f}, all collectives and the first overlap "
        f"setting {arrange_s:.2f}, the other settings {price_s:.2f}"
    )
    per_s = (rejected + priced) / total_s
    print(f"  {per_s:,.0f} candidates/s; {priced / total_s:,.0f} priced in full/s")
    alone_per_s = priced / len(jobs) / alone_s
    print(f"  one overlap setting alone: {len(rows) / alone_s:,.0f}/s; {alone_per_s:,.0f} priced in full/s")
    print(
        f"  one prediction: {1e3 * total_s / priced:.5f} ms, with one overlap setting alone {1e3 / alone_per_s:.4f} ms"
    )
    print(f"  a space of {CALCULON:,} at this rate: {CALCULON / per_s:.1f} s CPU")
    print(f"  best {best[0]:.4f} s: {rows.decision(best[1])}, {overlaps[best[2]]}")


if __name__ == "__main__":
    main()
