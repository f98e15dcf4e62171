"""What the ranks run in ``test_embedding_tables.py``: a small model by a plan's shards, and the same model whole."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import train_dlrm  # type: ignore[import-not-found]

from scaleacross.errors import InputError
from scaleacross.runtime.embedding_tables import EmbeddingTables
from scaleacross.runtime.row_exchange import exchange_rows
from scaleacross.spec.launch import LaunchConfig

RATE, READS = 0.01, 3


def ids_of(launch: LaunchConfig, step: int) -> list[torch.Tensor]:
    """Row numbers of all ranks, some of them missing, many of them twice."""
    random = torch.Generator().manual_seed(step)
    features = [table for table in launch.embedding.tables for _ in range(table.num_features)]
    shape = (launch.global_batch_sequences, READS)
    return [torch.randint(-1, min(table.rows, 40), shape, generator=random) for table in features]


def loss_of(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Mean over samples of a function that depends on every element of every vector."""
    whole = torch.cat(vectors, 1).float()
    return torch.tanh(whole @ torch.linspace(-1, 1, whole.shape[1])).square().mean()


def sharded(rank: int, text: str, steps: int) -> tuple[list[float], dict[tuple[str, int, int], torch.Tensor]]:
    """Losses of a plan's tables, and the shards of this rank after training."""
    launch = LaunchConfig.model_validate_json(text)
    groups = {axis: [dist.new_group(one) for one in launch.groups(axis)] for axis in ("dp_shard", "dp_replicate")}
    at = {axis: next(i for i, one in enumerate(launch.groups(axis)) if rank in one) for axis in groups}
    replicas = groups["dp_replicate"][at["dp_replicate"]] if launch.degrees.dp_replicate > 1 else None
    tables = EmbeddingTables(launch.embedding, groups["dp_shard"][at["dp_shard"]], train_dlrm.initial, RATE, replicas)
    each, losses = launch.embedding.samples_per_rank, []
    for step in range(steps):
        ids = [one[rank * each : (rank + 1) * each] for one in ids_of(launch, step)]
        loss = loss_of(tables(tables.ask(ids) if step % 2 else tuple(ids)))
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / launch.world_size)
    return losses, {place: shard.clone() for place, shard in tables.shards().items()}


def misdirected(rank: int, text: str, sender: int, field: str, value: int) -> tuple[str, list[str]]:
    """What a rank says to requests of ``sender`` for a shard or row that is nowhere, and the tables that it holds."""
    launch = LaunchConfig.model_validate_json(text)
    group = dist.new_group()
    tables = EmbeddingTables(launch.embedding, group, train_dlrm.initial, RATE)
    width = next(iter(tables._held))
    held = [launch.embedding.tables[table].name for table, _ in tables._held[width].first]
    number, row = (value, 0) if field == "number" else (1, value)
    request = torch.tensor([[number, -1, row] if rank == sender else [1, -1, 0]]).repeat(launch.world_size, 1)
    received = exchange_rows(group, request, torch.arange(launch.world_size), 1)
    try:
        tables._places(width, received)
    except InputError as error:
        return str(error), held
    return "", held


def whole(text: str, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of one process with whole tables, and the tables after training.

    It uses torch's own backward pass and a plain update.
    """
    launch = LaunchConfig.model_validate_json(text)
    model, losses = train_dlrm.WholeTables(launch), []
    weights = list(model.parameters())
    states = [torch.zeros(len(weight)) for weight in weights]
    for step in range(steps):
        vectors = [
            (model.weights[table][one.clamp(min=0)] * (one >= 0)[..., None]).sum(1)
            for table, one in zip(model.table_of, ids_of(launch, step), strict=True)
        ]
        loss = loss_of(vectors)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient, state in zip(weights, gradients, states, strict=True):
                if launch.embedding.optimizer == "rowwise_adagrad":
                    state += gradient.square().mean(1)
                    gradient = gradient / (state.sqrt() + 1e-8)[:, None]
                weight -= RATE * gradient
        losses.append(float(loss.detach()))
    return losses, {t.name: w.detach() for t, w in zip(launch.embedding.tables, weights, strict=True)}
