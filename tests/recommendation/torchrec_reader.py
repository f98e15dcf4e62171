"""Run by an interpreter with torchrec: it reads a plan's files, plans by our constraints, and trains by the plan on gloo.

python torchrec_reader.py FOLDER_WITH_TORCHREC_FILES plan|train
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

BATCH, STEPS, RATE, RANKS = 8, 4, 0.5, 4


def emitted(folder: str) -> ModuleType:
    """sharding_plan.py as a user imports it."""
    spec = importlib.util.spec_from_file_location("sharding_plan", Path(folder) / "sharding_plan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def collection(plan: dict, device: str) -> EmbeddingBagCollection:
    """The plan's tables with one feature each.

    All elements of a table have one initial value, so each shard starts like the whole table.
    """
    tables = []
    for number, (name, table) in enumerate(plan["tables"].items()):
        rows, columns = table["size"]
        tables.append(
            EmbeddingBagConfig(
                name=name,
                num_embeddings=rows,
                embedding_dim=columns,
                feature_names=[name],
                init_fn=lambda weight, value=0.1 * (number + 1): torch.nn.init.constant_(weight, value),
            )
        )
    return EmbeddingBagCollection(tables=tables, device=torch.device(device))


class Model(torch.nn.Module):
    """A collection and one fixed projection of its vectors."""

    def __init__(self, plan: dict, device: str) -> None:
        super().__init__()
        self.ebc = collection(plan, device)
        width = sum(table["size"][1] for table in plan["tables"].values())
        self.weight = torch.linspace(-0.1, 0.2, width)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return torch.tanh(self.ebc(features).values() @ self.weight)


def batch(plan: dict, step: int, first: int, count: int) -> tuple[KeyedJaggedTensor, torch.Tensor]:
    """Samples first to first + count of a step: three rows of every table each."""
    generator = torch.Generator().manual_seed(step)
    ids = [torch.randint(0, t["size"][0], (RANKS * BATCH, 3), generator=generator) for t in plan["tables"].values()]
    labels = torch.rand(RANKS * BATCH, generator=generator)
    values = torch.cat([own[first : first + count].reshape(-1) for own in ids])
    lengths = torch.full((len(ids) * count,), 3, dtype=torch.int32)
    return KeyedJaggedTensor(list(plan["tables"]), values, lengths=lengths), labels[first : first + count]


def trained(model: torch.nn.Module, plan: dict, first: int, count: int, left: list) -> list[float]:
    """Loss of every step; ``left``: parameters that no fused optimizer takes."""
    losses = []
    for step in range(STEPS):
        features, labels = batch(plan, step, first, count)
        loss = (model(features) - labels).square().mean()
        for parameter in left:
            parameter.grad = None
        loss.backward()
        with torch.no_grad():
            for parameter in left:
                parameter -= RATE * parameter.grad
        losses.append(float(loss.detach()))
    return losses


def rank_of(rank: int, port: int, folder: str, plan: dict, out: str) -> None:
    """One process of DistributedModelParallel."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = Model(plan, "meta")
    apply_optimizer_in_backward(torch.optim.SGD, model.ebc.parameters(), {"lr": RATE})
    model = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=emitted(folder).sharding_plan("ebc", device="cpu"),
        sharders=[EmbeddingBagCollectionSharder()],
    )
    losses = torch.tensor(trained(model, plan, rank * BATCH, BATCH, []))
    dist.all_reduce(losses)
    if rank == 0:
        Path(out).write_text(json.dumps((losses / RANKS).tolist()))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    folder, what = sys.argv[1:3]
    plan = emitted(folder).PLAN
    if what == "plan":
        model = torch.nn.ModuleDict({"ebc": collection(plan, "meta")})
        topology = Topology(plan["world_size"], "cuda", local_world_size=int(sys.argv[3]), hbm_cap=80 * 2**30)
        planner = EmbeddingShardingPlanner(topology, constraints=emitted(folder).constraints(), debug=False)
        found = planner.plan(model, [EmbeddingBagCollectionSharder()]).plan["ebc"]
        ours = emitted(folder).sharding_plan("ebc").plan["ebc"]
        for name, own in ours.items():
            theirs = found[name]
            assert (theirs.sharding_type, theirs.compute_kernel) == (own.sharding_type, own.compute_kernel), name
            if own.sharding_spec is not None:
                sizes = [[shard.shard_sizes for shard in one.sharding_spec.shards] for one in (own, theirs)]
                assert sizes[0] == sizes[1], (name, sizes)
        print(json.dumps({"tables": len(ours)}))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = str(Path(folder) / "losses.json")
    mp.spawn(rank_of, (port, folder, plan, out), nprocs=RANKS)
    whole = Model(plan, "cpu")
    alone = trained(whole, plan, 0, RANKS * BATCH, list(whole.ebc.parameters()))
    print(json.dumps({"sharded": json.loads(Path(out).read_text()), "alone": alone}))


if __name__ == "__main__":
    main()
