"""Idle share of four processes in layers over histories: predicted, and measured on the same batches.

    .venv-runtime/bin/python benchmarks/idle_share.py [--steps 12] [--write docs/results]

Every process passes its samples through HSTU-like layers (one thread); its CPU seconds count, so that four processes on fewer
cores are measured as if each had its own. The idle share of a step is 1 − mean/max over processes. Predicted twice, from steps
apart in which all four processes do the same; nothing is fitted on the steps that are compared:

* law    a·L + b·L² by least squares, and no jitter
* curve  seconds measured at 49 lengths and interpolated, times what processes that do the same differ by from each other; for
         that, every other step is one in which all do the same, as many samples of other draws, so that both kinds last as long
         (longer steps differ by less) and meet the machine in the same state
"""

from __future__ import annotations

import argparse
import os
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
POINTS, REPEATS, ROUNDS, DRAWS = 49, 4, 3, 256
LAWS = {
    "lognormal": Lengths(kind="lognormal", longest=LONGEST, mean_log=5.0, deviation_log=1.3),
    "uniform": Lengths(kind="uniform", longest=LONGEST),
    "zipf_picks": Lengths(kind="zipf_picks", longest=LONGEST, exponent=1.2),
}


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


def made_weights() -> list[torch.Tensor]:
    """Of one layer."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5 for _ in range(5)]


def on_ranks(batches: list[list[list[int]]], port: int) -> np.ndarray:
    """CPU seconds of every process in every step, (steps, ranks); ``batches`` are lengths by step and rank."""
    out = f"/tmp/idle_share_{port}.npy"
    mp.spawn(rank_main, (port, batches, out), nprocs=RANKS)
    return np.load(out)


@dataclass(frozen=True)
class Machine:
    """What steps apart say: ``seconds`` of a sample of each of ``lengths``."""

    lengths: np.ndarray
    seconds: np.ndarray

    @classmethod
    def measured(cls, port: int) -> Machine:
        """On four processes at once, as the steps that are compared run."""
        lengths = np.linspace(1, LONGEST, POINTS).astype(int)
        alone = [[[length] * REPEATS] * RANKS for length in lengths.tolist()]
        seconds = np.median(on_ranks(alone * ROUNDS, port).reshape(ROUNDS, -1), axis=0).reshape(len(alone), RANKS)
        return cls(lengths, np.median(seconds, axis=1) / REPEATS)

    def law(self) -> tuple[float, float]:
        """a and b of a·L + b·L² by least squares, relative errors alike."""
        columns = np.stack([self.lengths, self.lengths**2.0], axis=1) / self.seconds[:, None]
        linear, quadratic = np.linalg.lstsq(columns, np.ones(POINTS), rcond=None)[0]
        return max(float(linear), 1e-12), max(float(quadratic), 1e-15)

    def law_errors(self) -> np.ndarray:
        """The law over the measured seconds, less 1, of lengths from 64 tokens on."""
        linear, quadratic = self.law()
        long = self.lengths >= 64
        return (sample_costs(self.lengths, linear, quadratic) / self.seconds - 1)[long]

    def costs(self, own: np.ndarray) -> np.ndarray:
        """Seconds of samples by the curve."""
        return np.interp(own, self.lengths, self.seconds)


def jittered(costs: np.ndarray, rank: np.ndarray, jitter: np.ndarray) -> float:
    """Expected idle share of a step whose processes take ``jitter`` times as long, each a draw of its own."""
    loads = np.bincount(rank, costs, RANKS)
    drawn = loads * np.random.default_rng(0).choice(jitter, (DRAWS, RANKS))
    return float(np.mean(1 - drawn.mean(axis=1) / drawn.max(axis=1)))


def rank_main(rank: int, port: int, batches: list[list[list[int]]], out: str) -> None:
    """Compute own samples of every step; rank 0 writes the seconds of all."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    weights, rows = made_weights(), []
    busy_s(LONGEST, weights)
    for batch in batches:
        own = torch.tensor([sum(busy_s(length, weights) for length in batch[rank])], dtype=torch.float64)
        every = [torch.zeros(1, dtype=torch.float64) for _ in range(RANKS)]
        dist.all_gather(every, own)
        rows.append([float(one) for one in every])
    if rank == 0:
        np.save(out, np.array(rows))
    dist.destroy_process_group()


def main() -> None:
    """Run all laws and both rules; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--port", type=int, default=29611)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    machine = Machine.measured(args.port)
    linear, quadratic = machine.law()
    lines, spreads = [], []
    for number, (name, law) in enumerate(LAWS.items()):
        generator, apart = np.random.default_rng(number), np.random.default_rng((number, 1))
        lengths = [np.maximum(1, drawn(law, generator, RANKS * BATCH)).astype(int) for _ in range(args.steps)]
        for rule in ("as they come", "balanced"):
            costs = [machine.costs(own) for own in lengths]
            as_come = np.repeat(np.arange(RANKS), BATCH)
            ranks = [as_come if rule == "as they come" else balanced(each, RANKS) for each in costs]
            others = [np.maximum(1, drawn(law, apart, RANKS * BATCH)).astype(int) for _ in range(args.steps)]
            alike = [[own[balanced(machine.costs(own), RANKS) == 0].tolist()] * RANKS for own in others]
            batches = [
                [own[rank == one].tolist() for one in range(RANKS)] for own, rank in zip(lengths, ranks, strict=True)
            ]
            took = on_ranks([step for pair in zip(alike, batches, strict=True) for step in pair], args.port)
            same, took = took[::2], took[1::2]
            jitter = (same / same.mean(axis=1, keepdims=True)).ravel()
            found = float(np.mean(1 - took.mean(axis=1) / took.max(axis=1)))
            by_law = [
                idle_share(sample_costs(own, linear, quadratic), rank, RANKS)
                for own, rank in zip(lengths, ranks, strict=True)
            ]
            by_curve = [jittered(each, rank, jitter) for each, rank in zip(costs, ranks, strict=True)]
            spreads.append(float(np.std(jitter)))
            told = [float(np.mean(each)) for each in (by_law, by_curve)]
            cells = " | ".join(f"{each:.1%} | {each / found - 1:+.1%}" for each in told)
            lines.append(f"| {name} | {rule} | {found:.1%} | {cells} |")
            print(lines[-1], flush=True)
    ratio = quadratic / linear
    how = f"torch {torch.__version__}; CPU seconds of one thread each"
    size = f"{BATCH} samples a process and step, up to {LONGEST:,} tokens, {HIDDEN} columns"
    worst = float(np.abs(machine.law_errors()).max())
    head = [
        "# Idle share of four processes, predicted and measured",
        "",
        f"`benchmarks/idle_share.py --steps {args.steps}` ({date.today()}; {how}; {os.cpu_count()} cores, shared).",
        f"{size}. Measured apart: b/a {ratio:.2e} per token, the law off by {worst:.0%} at worst of {POINTS} lengths from 64",
        f"tokens on, and processes that do the same off by {min(spreads):.1%} to {max(spreads):.1%} (standard deviation).",
        "",
        "Most of what balanced samples idle is by how much processes that do the same differ. Of the rest, what interpolated",
        "seconds miss of a history, and what other work takes from one core and not the other, is in no prediction.",
        "",
        "| lengths | samples | measured | by law | off | by curve and jitter | off |",
        "|---|---|--:|--:|--:|--:|--:|",
        *lines,
    ]
    if args.write:
        (args.write / "idle_share.md").write_text("\n".join(head) + "\n")


if __name__ == "__main__":
    main()
