"""Trains a small recommendation model as a plan says: its tables are on the ranks and in the shards that the plan chose.

    scaleacross plan examples/recommendation/four_ranks.yaml -o build/four_ranks
    scaleacross run build/four_ranks/launch.json --local -- examples/train_dlrm.py --steps 20 --check

``--check`` trains the same model on rank 0 with whole tables and the whole batch, and prints both losses. Row numbers of a step
are sent while the step before it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import scaleacross.runtime  # noqa: F401  registers the backend
from scaleacross.runtime.embedding_tables import EmbeddingTables
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.mesh import own_group
from scaleacross.runtime.start import rank_of_process, start
from scaleacross.spec.embedding_launch import TableLaunch, TableShard
from scaleacross.spec.launch import LaunchConfig

READS, RATE = 2, 0.05


def initial(table: TableLaunch, shard: TableShard) -> Tensor:
    """A block of the table, whose every element follows from its place, so that all shardings start from one table."""
    rows = torch.arange(shard.first_row, shard.first_row + shard.rows)[:, None]
    columns = torch.arange(shard.first_column, shard.first_column + shard.columns)[None, :]
    return torch.sin(rows * 0.7 + columns * 1.3 + len(table.name)) * 0.1


class Top(nn.Module):
    """Two layers over the vectors of all features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, vectors: list[Tensor]) -> Tensor:
        return self.layers(torch.cat(vectors, 1).float())[:, 0]


class WholeTables(nn.Module):
    """The same tables on one process, for --check."""

    def __init__(self, launch: LaunchConfig) -> None:
        super().__init__()
        tables = launch.embedding.tables
        whole = [TableShard(rank=0, first_row=0, rows=t.rows, first_column=0, columns=t.dimension) for t in tables]
        self.weights = nn.ParameterList(
            [nn.Parameter(initial(table, shard)) for table, shard in zip(tables, whole, strict=True)]
        )
        self.table_of = [number for number, table in enumerate(tables) for _ in range(table.num_features)]

    def forward(self, ids: list[Tensor]) -> list[Tensor]:
        return [self.weights[t][one].sum(1) for t, one in zip(self.table_of, ids, strict=True)]


def batch_of(launch: LaunchConfig, step: int) -> tuple[list[Tensor], Tensor]:
    """Row numbers by feature and labels of all ranks: a label is whether its sample's row numbers are mostly even."""
    random = torch.Generator().manual_seed(step)
    features = [table for table in launch.embedding.tables for _ in range(table.num_features)]
    samples = launch.global_batch_sequences
    ids = [torch.randint(table.rows, (samples, READS), generator=random) for table in features]
    return ids, (torch.cat(ids, 1) % 2).float().mean(1).lt(0.5).float()


def mine(rank: int, launch: LaunchConfig, whole: tuple[list[Tensor], Tensor]) -> tuple[list[Tensor], Tensor]:
    """This rank's samples of a batch."""
    each = launch.embedding.samples_per_rank
    own = slice(rank * each, (rank + 1) * each)
    return [one[own] for one in whole[0]], whole[1][own]


def train(launch: LaunchConfig, steps: int, backend: str) -> tuple[list[float], list[float]]:
    """Mean losses and seconds of the steps."""
    rank = dist.get_rank()
    group = own_group(launch, "dp_shard", rank, backend)
    replicas = own_group(launch, "dp_replicate", rank, backend) if launch.degrees.dp_replicate > 1 else None
    tables = EmbeddingTables(launch.embedding, group, initial, RATE, replicas)
    top = Top(sum(table.dimension * table.num_features for table in launch.embedding.tables))
    optimizer = torch.optim.SGD(top.parameters(), lr=RATE)
    losses, seconds = [], []
    ids, labels = mine(rank, launch, batch_of(launch, 0))
    asked = tables.ask(ids)
    for step in range(steps):
        begin = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(top(tables(asked)), labels)
        loss.backward()
        for parameter in top.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= launch.world_size
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
        ids, labels = mine(rank, launch, batch_of(launch, step + 1))
        asked = tables.ask(ids)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / launch.world_size)
    return losses, seconds


def train_whole(launch: LaunchConfig, steps: int) -> list[float]:
    """Losses of one process with whole tables, whole batches and plain SGD."""
    tables = WholeTables(launch)
    top = Top(sum(table.dimension * table.num_features for table in launch.embedding.tables))
    optimizer = torch.optim.SGD([*tables.parameters(), *top.parameters()], lr=RATE)
    losses = []
    for step in range(steps):
        ids, labels = batch_of(launch, step)
        loss = nn.functional.binary_cross_entropy_with_logits(top(tables(ids)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    """Read the launch file, join the job, train, say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backend", default="cpu:scaleacross", help="cpu:scaleacross (default) or gloo")
    parser.add_argument("--check", action="store_true", help="train unsharded too (plans with optimizer: sgd, fp32)")
    parser.add_argument("--out", type=Path, help="write losses and seconds of the steps of rank 0 as JSON")
    arguments = parser.parse_args()
    if LAUNCH_VARIABLE not in os.environ:
        raise SystemExit("start it with: scaleacross run LAUNCH.json -- examples/train_dlrm.py")
    launch = read_launch(os.environ[LAUNCH_VARIABLE])
    if launch.embedding is None:
        raise SystemExit(f"{launch.plan_name} is no plan of a recommendation model: examples/train.py trains it")
    if arguments.check and (launch.embedding.optimizer != "sgd" or launch.embedding.precision != "fp32"):
        raise SystemExit("--check compares with plain SGD in fp32: plan with optimizer: sgd and table_precision: fp32")
    torch.set_num_threads(1)
    start(launch, rank_of_process(), backend=arguments.backend)
    losses, seconds = train(launch, arguments.steps, arguments.backend)
    if dist.get_rank() == 0:
        whole = train_whole(launch, arguments.steps) if arguments.check else None
        for step in sorted({*range(0, len(losses), 5), len(losses) - 1}):
            beside = f"  unsharded {whole[step]:.6f}" if whole else ""
            print(f"step {step:3d}  loss {losses[step]:.6f}{beside}  {seconds[step] * 1e3:.1f} ms", flush=True)
        print(f"median step {statistics.median(seconds[1:] or seconds) * 1e3:.1f} ms")
        if arguments.out:
            arguments.out.write_text(json.dumps({"losses": losses, "whole": whole, "seconds": seconds}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
