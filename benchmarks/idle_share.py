"""Idle share of four processes in layers over histories: predicted from other runs, then measured.

    .venv-runtime/bin/python benchmarks/idle_share.py [--runs 12] [--write docs/results]

Every process passes its samples through HSTU-like layers (one thread); its CPU seconds count, so that four processes on fewer
cores are measured as if each had its own. Freed memory stays with the process, as accelerators' allocators keep it: given back to
the kernel, it is mapped and cleared anew for every layer, at a cost that jumps with the length and differs by process. The idle
share of a step is 1 − mean/max over processes. Runs that measure and runs that are scored take turns, in processes of their own:

* law    a·L + b·L² by least squares, and no jitter
* curve  mean seconds at many lengths, in any order (a short history after a long one finds caches cold), and interpolated; times
         what processes that do the same differ by, in steps of any lengths that last about as long (short steps differ by more)

The error of a mean over runs is stated beside it: jitter has a long tail, so means of few steps are off by more than predictions.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from scaleacross.cost_models.embedding.sample_balance import drawn
from scaleacross.samples.balance import balanced, idle_share, sample_costs
from scaleacross.workloads.sequences import Lengths

RANKS, BATCH, HIDDEN, LONGEST = 4, 16, 128, 1024
POINTS, FITTED_FROM, PASSES, ALIKE, NEAREST, DRAWS = 25, 64, 6, 24, 60, 256
LAWS = {
    "lognormal": Lengths(kind="lognormal", longest=LONGEST, mean_log=5.0, deviation_log=1.3),
    "uniform": Lengths(kind="uniform", longest=LONGEST),
    "zipf_picks": Lengths(kind="zipf_picks", longest=LONGEST, exponent=1.2),
}
RULES = {"as they come": 4, "balanced": 12}
"""Steps of a run by rule; what is balanced differs by jitter alone, which takes more steps to tell."""
MALLOPT = {-3: 1 << 30, -1: 2**31 - 1, -2: 1 << 26}
"""glibc: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, so that memory is never given back."""

Step = list[list[int]]
"""Lengths of the samples of every process."""


def layer(tokens: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Four projections, causal attention without softmax, a projection out: 10·h² and 2·h·L² FLOP, both halves computed."""
    query, key, value, gate = (torch.nn.functional.silu(tokens @ weight) for weight in weights[:4])
    scores = torch.nn.functional.silu(query @ key.T).tril()
    return ((scores @ value) * gate) @ weights[4]


def busy_s(length: int, weights: list[torch.Tensor]) -> float:
    """CPU seconds of a history."""
    tokens = torch.ones(length, HIDDEN)
    began = time.thread_time()
    layer(tokens, weights)
    return time.thread_time() - began


def rank_main(rank: int, folder: str, steps: list[Step]) -> None:
    """Compute own samples of every step; write the seconds of each."""
    libc = ctypes.CDLL("libc.so.6")
    if not all(libc.mallopt(name, value) for name, value in MALLOPT.items()):
        raise SystemExit("this allocator gives memory back: glibc is needed")
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    weights, rows = [torch.randn(HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5 for _ in range(5)], []
    for _ in range(3):
        busy_s(LONGEST, weights)
    for step in steps:
        rows.append([busy_s(length, weights) for length in step[rank]])
        dist.barrier()
    Path(f"{folder}/{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def run(steps: list[Step]) -> list[list[list[float]]]:
    """CPU seconds of the samples of every process in every step, by rank, step and sample, of four new processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank_main, (folder, steps), nprocs=RANKS, start_method="fork")
        return [json.loads(Path(f"{folder}/{rank}.json").read_text()) for rank in range(RANKS)]


def sums(took: list[list[list[float]]]) -> np.ndarray:
    """CPU seconds of every process in every step, (steps, ranks)."""
    return np.array([[sum(step) for step in own] for own in took]).T


@dataclass(frozen=True)
class Machine:
    """What runs that measure say.

    Attributes:
        lengths, seconds: of one sample.
        alike: steps in which all processes do the same: predicted seconds of a process, (steps,), and what each took over the
            mean, (steps, ranks).
    """

    lengths: np.ndarray
    seconds: np.ndarray
    alike: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, curves: list[np.ndarray], steps: list[list[int]], factors: np.ndarray) -> Machine:
        """From seconds at ``points()`` by run, and steps in which processes do the same."""
        lengths, seconds = points(), np.mean(curves, axis=0)
        costs = np.array([np.interp(step, lengths, seconds).sum() for step in steps])
        return cls(lengths, seconds, (costs, factors))

    def law(self) -> tuple[float, float]:
        """a and b of a·L + b·L² by least squares, relative errors alike; short samples cost what a call costs."""
        long = self.lengths >= FITTED_FROM
        columns = np.stack([self.lengths, self.lengths**2.0], axis=1)[long] / self.seconds[long, None]
        linear, quadratic = np.linalg.lstsq(columns, np.ones(long.sum()), rcond=None)[0]
        return max(float(linear), 1e-12), max(float(quadratic), 1e-15)

    def law_errors(self) -> np.ndarray:
        """The law over the measured seconds, less 1, where it was fitted."""
        linear, quadratic = self.law()
        long = self.lengths >= FITTED_FROM
        return (sample_costs(self.lengths, linear, quadratic) / self.seconds - 1)[long]

    def idle(self, step: Step, generator: np.random.Generator) -> float:
        """Expected idle share of a step: each process takes its seconds by the curve times a jitter of its own."""
        loads = np.array([np.interp(own, self.lengths, self.seconds).sum() for own in step])
        costs, factors = self.alike
        near = factors[np.argsort(np.abs(np.log(costs / loads.mean())))[:NEAREST]]
        took = loads * near[generator.integers(len(near), size=DRAWS)]
        return float(np.mean(1 - took.mean(axis=1) / took.max(axis=1)))


def points() -> np.ndarray:
    """Lengths at which seconds are measured: closer where they are short, and where samples are long as well."""
    even = np.linspace(1, LONGEST, POINTS // 3)
    return np.unique(np.concatenate([np.geomspace(1, LONGEST, POINTS - len(even)), even]).round().astype(int))


def measuring(generator: np.random.Generator) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    """A run: seconds at ``points()``; steps in which all do the same, of any lengths and numbers; what processes took there."""
    orders = [generator.permutation(len(points())) for _ in range(PASSES)]
    own = [generator.integers(1, LONGEST + 1, count).tolist() for count in generator.integers(4, 2 * BATCH, ALIKE)]
    took = run([[points()[order].tolist()] * RANKS for order in orders] + [[step] * RANKS for step in own])
    curve = np.mean(
        [[of[at][order.argsort()] for at, order in enumerate(orders)] for of in map(_arrays, took)], axis=(0, 1)
    )
    same = sums(took)[PASSES:]
    return curve, own, same / same.mean(axis=1, keepdims=True)


def _arrays(steps: list[list[float]]) -> list[np.ndarray]:
    return [np.array(step) for step in steps]


def scored(machine: Machine, generator: np.random.Generator) -> list[tuple[str, str, Step]]:
    """Steps of a run, and their law and rule."""
    out = []
    for name, law in LAWS.items():
        for rule, count in RULES.items():
            for _ in range(count):
                own = np.maximum(1, drawn(law, generator, RANKS * BATCH)).astype(int)
                rank = np.repeat(np.arange(RANKS), BATCH)
                if rule == "balanced":
                    rank = balanced(np.interp(own, machine.lengths, machine.seconds), RANKS)
                out.append((name, rule, [own[rank == one].tolist() for one in range(RANKS)]))
    return [out[place] for place in generator.permutation(len(out))]


def by_law(step: Step, factors: tuple[float, float]) -> float:
    """Idle share by a·L + b·L²."""
    rank = np.repeat(np.arange(RANKS), [len(own) for own in step])
    return idle_share(sample_costs(np.concatenate(step), *factors), rank, RANKS)


def main() -> None:
    """Take turns between runs that measure and runs that are scored; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12, help="that measure, and as many that are scored")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    curves, steps, factors, found = [], [], [], []
    for number in range(args.runs):
        curve, own, same = measuring(np.random.default_rng((number, 1)))
        curves, steps, factors = [*curves, curve], [*steps, *own], [*factors, same]
        one = scored(Machine.of(curves, steps, np.concatenate(factors)), np.random.default_rng((number, 2)))
        took = sums(run([step for _, _, step in one]))
        found.append([(*told, 1 - row.mean() / row.max()) for told, row in zip(one, took, strict=True)])
        print(f"run {number + 1} of {args.runs}", flush=True)
    machine, generator = Machine.of(curves, steps, np.concatenate(factors)), np.random.default_rng(0)
    law, lines = machine.law(), []
    for name in LAWS:
        for rule in RULES:
            of_runs = [[(step, idle) for n, r, step, idle in one if (n, r) == (name, rule)] for one in found]
            own = [pair for one in of_runs for pair in one]
            means = [np.mean([idle for _, idle in one]) for one in of_runs]
            measured, error = np.mean(means), np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
            told = (
                np.mean([by_law(step, law) for step, _ in own]),
                np.mean([machine.idle(step, generator) for step, _ in own]),
            )
            cells = " | ".join(f"{each:.1%} | {each / measured - 1:+.1%}" for each in told)
            lines.append(f"| {name} | {rule} | {len(own)} | {measured:.1%} | {error / measured:.0%} | {cells} |")
    spread = machine.alike[1].std()
    machine_text = f"torch {torch.__version__}; {os.cpu_count()} cores, shared; load {os.getloadavg()[2]:.0f}"
    size = f"{BATCH} samples a process and step, up to {LONGEST:,} tokens, {HIDDEN} columns"
    page = [
        "# Idle share of four processes, predicted and measured",
        "",
        f"`benchmarks/idle_share.py --runs {args.runs}` ({date.today()}; {machine_text}).",
        f"CPU seconds of one thread each; {size}.",
        f"Measured in other processes: b/a {law[1] / law[0]:.2e} per token, the law off by",
        f"{np.abs(machine.law_errors()).max():.0%} at worst from {FITTED_FROM} tokens on, and processes that do the same off by",
        f"{spread:.1%} (standard deviation over {len(machine.alike[1])} steps). Error: of the measured mean, from how much runs",
        "differ.",
        "",
        "| lengths | samples | steps | measured | error | by law | off | by curve and jitter | off |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        *lines,
    ]
    print("\n".join(page))
    if args.write:
        (args.write / "idle_share.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
