"""Optimal orders of pipeline steps over two sites, beside every generator that fits and CrossPipe's published solver.

Setting of arXiv 2507.00217 (M70, p equal stages, one slow boundary in the middle): F, I and W are fitted on the zero-delay row of
its two-site table alone; an activation is held until its W, though there I frees 57,344 of its 331,776 bytes (Llama 2 70B, by the
counts of the same paper). Delays are in units of F. Seconds depend on the machine and on what else it runs: processor seconds
stand beside them.

    python benchmarks/order_pipeline.py [--quick] [--time-limit 60] [--chunks 2]
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np

from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.solvers.order_pipeline import PipelineOrder, order_pipeline
from scaleacross.solvers.pipeline_order.known import fitting_schedules
from scaleacross.solvers.pipeline_order.problem import OrderProblem, order_problem, step_s
from scaleacross.solvers.pipeline_order.streams import make_streams

F_S, I_S, W_S = 0.038, 0.0465, 0.0205
DELAYS = ((0, 0), (0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))
PAPER_UD_S = dict(zip(DELAYS, (0.137, 0.142, 0.177, 0.153, 0.196), strict=True))  # p 8, m 16, 1x memory


class Instance(NamedTuple):
    """Ranks, micro-batches, memory in activations per rank over p, latency and occupancy over F."""

    p: int
    m: int
    memory: float
    latency: float
    occupancy: float


def problem_of(instance: Instance, num_chunks: int, *, split: bool = True) -> OrderProblem:
    """Equal stages in one chunk, or in a V of two, on two sites with half of the ranks each."""
    p, m, memory, latency, occupancy = instance
    rank = np.array([locate("v", p, x)[0] for x in range(p * num_chunks)])
    crosses = (rank[:-1] < p // 2) != (rank[1:] < p // 2)
    return order_problem(
        p,
        m,
        F_S / num_chunks,
        (I_S + W_S) / num_chunks,
        weight_s=W_S / num_chunks if split else None,
        num_chunks=num_chunks,
        placement="v" if num_chunks > 1 else "loop",
        latency_s=latency * F_S * crosses,
        occupancy_s=occupancy * F_S * crosses,
        most_held=memory * p * num_chunks,
    )


def best_generator(instance: Instance, num_chunks: int) -> tuple[str, float]:
    """(name, seconds of the step) of the fastest generated schedule that fits, with the backward in one piece or split."""
    found = [
        (step_s(problem, schedule), schedule.name)
        for split in (True, False)
        for problem in [problem_of(instance, num_chunks, split=split)]
        for schedule in fitting_schedules(make_streams(problem))
    ]
    seconds, name = min(found, default=(float("inf"), "none"))
    return name, seconds


def solve(problem: OrderProblem, time_limit_s: float, methods: tuple[str, ...]) -> tuple[PipelineOrder, str]:
    """The order, and the seconds that it took: wall, processor."""
    began, cpu_began = time.perf_counter(), time.process_time()
    order = order_pipeline(problem, time_limit_s, methods=methods)  # type: ignore[arg-type]
    return order, f"{time.perf_counter() - began:6.2f} {time.process_time() - cpu_began:5.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 8 ranks only")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per instance")
    parser.add_argument("--chunks", type=int, default=1, help="chunks per rank, in a V")
    arguments = parser.parse_args()
    shapes = [(4, 8, 1), (8, 16, 1), (8, 32, 2)]
    if not arguments.quick:
        shapes += [(16, 32, 1), (16, 64, 1)]
    instances = [Instance(p, m, memory, *delay) for p, m, memory in shapes for delay in DELAYS]
    if not arguments.quick:
        instances += [Instance(16, 64, 1, 4, 0.25), Instance(16, 64, 1, 0.5, 2)]
    print(
        "per micro-batch, seconds     status      objective   bound    gap   wall  cpu  greedy+LNS wall cpu  best generator"
    )
    for instance in instances:
        problem = problem_of(instance, arguments.chunks)
        order, took = solve(problem, arguments.time_limit, ("greedy", "whole", "neighbourhoods"))
        quick, quick_took = solve(problem, 2.0, ("greedy", "neighbourhoods"))
        name, seconds = best_generator(instance, arguments.chunks)
        m = instance.m
        above = quick.objective_s / order.objective_s - 1
        paper = ""
        if arguments.chunks == 1 and instance[:3] == (8, 16, 1):
            paper = f"  CrossPipe UD {PAPER_UD_S[instance.latency, instance.occupancy]:.3f}"
        print(
            f"p{instance.p:<2} m{m:<2} {instance.memory}x ({instance.latency}, {instance.occupancy})".ljust(28),
            f"{order.status:<10} {order.objective_s / m:9.5f} {order.bound_s / m:9.5f} {order.gap:6.2%}",
            f"{took}   {above:+6.2%} {quick_took}",
            f"{name} {seconds / m:.5f} ({1 - order.objective_s / seconds:.1%} better){paper}",
            flush=True,
        )


if __name__ == "__main__":
    main()
