"""Exchange of a recommendation step over a thin link, vectors as they are and within a bound: predicted, then measured.

    .venv-runtime/bin/python benchmarks/bounded_exchange.py [--mbit 20] [--steps 7] [--write docs/results]

Four processes on emulated hosts in two buildings (root, or ``unshare``; see ``scaleacross testbed --help``), gloo over a trunk
that ``tc tbf`` shapes. Every process holds tables, reads the vectors of all samples and sends each process those of its samples
(``runtime.bounded_rows.exchange_vectors``); gradients come back as they are. Vectors are coded across buildings and left alone
inside. What codecs reach, and how short they make vectors, is measured before, on a batch of its own, by all four processes at
once; then the step is predicted, and only then exchanged:

    forward  = 2·α + V/(r·B) + V/T_c + V/T_d, or 2·α + V/B        backward = α + V/B

for V bytes to the other building at B bytes/s of the trunk per rank, and α its latency, once for sizes and once for data.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from scaleacross.catalogue.load import load_topology
from scaleacross.cost_models.embedding.coded_exchange import message_speed_up
from scaleacross.row_codec.message import RowCodec, read_rows
from scaleacross.row_codec.quantiser import absolute_bound
from scaleacross.runtime.bounded_rows import OwnTable, exchange_vectors
from scaleacross.testbed.cpus import take_share
from scaleacross.testbed.ranks import run_ranks
from scaleacross.testbed.session import standing

ROOT = Path(__file__).parents[1]
TOPOLOGY = ROOT / "examples" / "testbed" / "two_buildings.yaml"
RANKS, TABLES, ROWS, WIDTH, BOUND = 4, 4, 20_000, 64, 0.03
HOSTS = ("east-h00000", "east-h00001", "west-h00000", "west-h00001")


def batch(rank: int, step: int, samples: int) -> np.ndarray:
    """Vectors of all samples from the tables of a rank: row numbers by a power law, as clicks have them."""
    tables = np.random.default_rng(rank).normal(0, 0.1, (TABLES, ROWS, WIDTH)).astype(np.float32)
    drawn = (np.random.default_rng((rank, step)).random((TABLES, samples)) ** 3 * ROWS).astype(int)
    return np.concatenate([table[rows] for table, rows in zip(tables, drawn, strict=True)], axis=1)


def codec_of(rows: np.ndarray) -> RowCodec:
    """Within a share of the range, bits packed."""
    return RowCodec(absolute_bound(rows, BOUND), "packed")


def codec_rates(rank: int, samples: int) -> dict[str, float]:
    """Ratio, and bytes/s of vectors coded and decoded, of one destination's samples, while all ranks do the same."""
    whole, found = batch(rank, 10_000, samples), []
    codec = codec_of(whole)
    for _ in range(5):
        dist.barrier()
        for first in range(0, samples, samples // RANKS):
            part = whole[first : first + samples // RANKS, :WIDTH].copy()
            begin = time.perf_counter()
            data = codec.write(part)
            coded = time.perf_counter()
            read_rows(data)
            found.append((part.nbytes / len(data), coded - begin, time.perf_counter() - coded, part.nbytes))
    ratio, encode, decode, size = (float(np.mean(column)) for column in zip(*found, strict=True))
    return {"ratio": ratio, "encode": size / encode, "decode": size / decode}


def exchange_seconds(rank: int, samples: int, steps: int, coded: bool) -> list[tuple[float, float]]:
    """Seconds of the way there and of the way back, of the rank that takes longest, step by step."""
    far, out = {0: (2, 3), 1: (2, 3), 2: (0, 1), 3: (0, 1)}[rank], []
    for step in range(steps + 1):
        rows = batch(rank, step, samples)
        codecs = [codec_of(rows) if coded and other in far else None for other in range(RANKS)]
        vectors = torch.from_numpy(rows).requires_grad_()
        tables = [OwnTable(WIDTH, codecs)] * TABLES
        dist.barrier()
        begin = time.perf_counter()
        came = exchange_vectors(dist.group.WORLD, vectors, tables)
        forward = time.perf_counter() - begin
        gradient = torch.zeros_like(came)
        dist.barrier()
        begin = time.perf_counter()
        came.backward(gradient)
        both = torch.tensor([forward, time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(both, dist.ReduceOp.MAX)
        out.append((float(both[0]), float(both[1])))
    return out[1:]


def rank_main(what: str, samples: int, steps: int, out: Path) -> None:
    """One process in the testbed."""
    dist.init_process_group("gloo")
    take_share()
    torch.set_num_threads(1)
    rank = dist.get_rank()
    if what == "rates":
        own = codec_rates(rank, samples)
        every: list[dict[str, float]] = [{}] * RANKS
        dist.all_gather_object(every, own)
        found: object = every
    else:
        found = {kind: exchange_seconds(rank, samples, steps, kind == "coded") for kind in ("plain", "coded")}
    if rank == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


class Step(NamedTuple):
    """Seconds of the exchange of a step."""

    plain_forward: float
    coded_forward: float
    backward: float

    @property
    def forward_speed_up(self) -> float:
        return self.plain_forward / self.coded_forward

    @property
    def speed_up(self) -> float:
        return (self.plain_forward + self.backward) / (self.coded_forward + self.backward)


def predicted(rates: list[dict[str, float]], samples: int, trunk_bytes_per_s: float, latency_s: float) -> Step:
    """From codec rates and what the trunk gives each of two ranks; the slowest rank makes the step."""
    size = 2 * (samples // RANKS) * TABLES * WIDTH * 4.0  # to the two ranks of the other building
    link = trunk_bytes_per_s / 2
    speed = min(float(message_speed_up(one["ratio"], link, one["encode"], one["decode"])) for one in rates)
    return Step(2 * latency_s + size / link, 2 * latency_s + size / link / speed, latency_s + size / link)


def main() -> None:
    """Predict, measure, print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=20.0, help="rate of the trunk, Mbit/s")
    parser.add_argument("--samples", type=int, default=4096, help="of all ranks in a step")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--write", type=Path, help="write bounded_exchange.md there")
    parser.add_argument("--as-rank", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        rank_main(args.as_rank[0], args.samples, args.steps, Path(args.as_rank[1]))
        return
    stated = load_topology(TOPOLOGY)
    trunk = stated.trunks[0].model_copy(update={"bandwidth_bytes_per_s": args.mbit * 1e6 / 8})
    topology = stated.model_copy(update={"trunks": (trunk,)})
    rate = trunk.bandwidth_bytes_per_s * trunk.efficiency_fraction
    size = f"{args.samples:,} samples, {RANKS * TABLES} tables of {WIDTH} columns, bound {BOUND:.0%} of the range"
    with tempfile.TemporaryDirectory() as folder, standing(topology, "exchange") as testbed:
        out = Path(folder) / "out.json"

        def run(what: str) -> object:
            own = (__file__, "--samples", str(args.samples), "--steps", str(args.steps), "--as-rank", what, str(out))
            run_ranks(testbed, HOSTS, own, Path(folder) / what)
            return json.loads(out.read_text())

        rates = run("rates")
        told = predicted(rates, args.samples, rate, trunk.one_way_latency_s)
        print(f"predicted {told.forward_speed_up:.2f}x forward, {told.speed_up:.2f}x with gradients", flush=True)
        found = run("exchange")
    plain, coded = found["plain"], found["coded"]
    forward = [median(one[0] for one in kind) for kind in (plain, coded)]
    took = Step(*forward, median(one[1] for one in [*plain, *coded]))
    lines = [
        f"| {name} | {a:.3g} | {b:.3g} | {a / b - 1:+.1%} |"
        for name, a, b in (
            ("vectors as they are, s", told.plain_forward, took.plain_forward),
            ("vectors within the bound, s", told.coded_forward, took.coded_forward),
            ("gradients, s", told.backward, took.backward),
            ("speed-up of the way there", told.forward_speed_up, took.forward_speed_up),
            ("speed-up of the exchange of a step", told.speed_up, took.speed_up),
        )
    ]
    mean = {name: np.mean([one[name] for one in rates]) for name in ("ratio", "encode", "decode")}
    page = [
        "# Exchange of a recommendation step over a thin link",
        "",
        f"`python benchmarks/bounded_exchange.py --mbit {args.mbit:g} --steps {args.steps}` ({date.today()}): four processes in",
        f"emulated buildings, link of {args.mbit:g} Mbit/s and {trunk.one_way_latency_s * 1e3:g} ms; {size}.",
        f"Measured before, on another batch: ratio {mean['ratio']:.1f}, {mean['encode'] / 1e6:.0f} MB/s coded and",
        f"{mean['decode'] / 1e6:.0f} MB/s decoded by each of four processes on {os.cpu_count()} cores that other work shares.",
        f"Median of {args.steps} steps; the slowest rank counts. Vectors and gradients are synthetic.",
        "",
        "| | predicted | measured | off |",
        "|---|--:|--:|--:|",
        *lines,
    ]
    print("\n".join(page))
    if args.write:
        (args.write / "bounded_exchange.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    sys.exit(main())
