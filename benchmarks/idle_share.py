"""Idle share of four processes in layers over histories: predicted from lengths, and measured on the same batches.

    .venv-runtime/bin/python benchmarks/idle_share.py [--steps 12] [--write docs/results]

Every process passes its samples through HSTU-like layers (one thread); its CPU seconds count, so that four processes on fewer
cores are measured as if each had its own. The idle share of a step is 1 − mean/max over processes. What attention takes over
products is measured before, in one process on other lengths; nothing is fitted on the steps that are compared.
"""

from __future__ import annotations

import argparse
import time
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


def measured_costs() -> tuple[float, float]:
    """a and b of a·L + b·L² by least squares over lengths of its own, relative errors alike."""
    weights = made_weights()
    lengths = np.array([48, 96, 160, 256, 400, 640, 900], dtype=float)
    seconds = np.array([np.median([busy_s(int(one), weights) for _ in range(31)]) for one in lengths])
    columns = np.stack([lengths, lengths**2], axis=1) / seconds[:, None]
    linear, quadratic = np.linalg.lstsq(columns, np.ones(len(lengths)), rcond=None)[0]
    return max(float(linear), 1e-12), max(float(quadratic), 1e-15)


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
    linear, quadratic = measured_costs()
    lines = []
    for number, (name, law) in enumerate(LAWS.items()):
        generator = np.random.default_rng(number)
        lengths = [np.maximum(1, drawn(law, generator, RANKS * BATCH)).astype(int) for _ in range(args.steps)]
        for rule in ("as they come", "balanced"):
            predicted, batches = [], []
            for own in lengths:
                costs = sample_costs(own, linear, quadratic)
                rank = np.repeat(np.arange(RANKS), BATCH) if rule == "as they come" else balanced(costs, RANKS)
                predicted.append(idle_share(costs, rank, RANKS))
                batches.append([own[rank == one].tolist() for one in range(RANKS)])
            out = f"/tmp/idle_share_{args.port}.npy"
            mp.spawn(rank_main, (args.port, batches, out), nprocs=RANKS)
            seconds = np.load(out)
            found = float(np.mean(1 - seconds.mean(axis=1) / seconds.max(axis=1)))
            told = float(np.mean(predicted))
            lines.append(f"| {name} | {rule} | {told:.1%} | {found:.1%} | {told / found - 1:+.1%} |")
            print(lines[-1], flush=True)
    ratio = quadratic / linear
    how = f"torch {torch.__version__}; CPU seconds of one thread each"
    size = f"{BATCH} samples a process and step, up to {LONGEST:,} tokens, {HIDDEN} columns"
    head = [
        "# Idle share of four processes, predicted and measured",
        "",
        f"`benchmarks/idle_share.py --steps {args.steps}` ({date.today()}; {how}). {size}; b/a {ratio:.2e} per token,",
        "measured apart.",
        "",
        "| lengths | samples | predicted | measured | off |",
        "|---|---|--:|--:|--:|",
        *lines,
    ]
    if args.write:
        (args.write / "idle_share.md").write_text("\n".join(head) + "\n")


if __name__ == "__main__":
    main()
