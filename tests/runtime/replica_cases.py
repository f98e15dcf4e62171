"""Replicas in processes of their own: what ``test_replicas.py`` and ``benchmarks/replica_kills.py`` start and kill."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

SAMPLES, WIDTH = (3, 5, 2, 4, 6, 1), 16
"""Samples per step by the number of the replica; all differ, so that a wrong divisor shows."""


def model_of(width: int = WIDTH) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, width))


def loss_of(model: Any, step: int, replica: str, width: int = WIDTH) -> tuple[Any, int]:
    """The mean loss over the samples of a replica at a step, and how many they are."""
    import torch

    number = int(replica)
    samples = SAMPLES[number % len(SAMPLES)]
    data = torch.randn(samples, width, generator=torch.Generator().manual_seed(1000 * step + number))
    return (model(data) - data.flip(1)).square().mean(), samples


def coordinate(port_file: str, log: str, expected: int, shards: int = 1, silent_s: float = 5.0) -> None:
    """The coordinator; writes its port into a file."""
    from scaleacross.runtime.replicas.coordinator import run
    from scaleacross.runtime.replicas.membership import Membership

    def ready(port: int) -> None:
        Path(f"{port_file}.new").write_text(str(port))
        Path(f"{port_file}.new").rename(port_file)

    run(Membership(expected, shards, silent_s), "127.0.0.1", 0, "", Path(log), ready)


def train(coordinator: str, replica: str, steps: int, log: str, pace_s: float = 0.0, hooked: bool = False) -> None:
    """Train until ``steps``; a line per committed step: step, epoch, members, samples, own loss, time."""
    import torch

    from scaleacross.runtime.replicas.member import Replicas
    from scaleacross.runtime.replicas.state import TrainingState

    torch.set_num_threads(1)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    replicas = Replicas(coordinator, replica, TrainingState(model, optimizer), silent_s=5.0)
    run: Any = model
    if hooked:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from scaleacross.runtime.replicas.ddp import replica_hook

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        run = DistributedDataParallel(model, bucket_cap_mb=0.001)
        run.register_comm_hook(replicas, replica_hook)
    with Path(log).open("a", encoding="utf-8", buffering=1) as out:
        replicas.join()
        while replicas.step < steps:
            loss, samples = loss_of(run, replicas.step, replica)
            replicas.expect(samples)
            loss.backward()
            time.sleep(pace_s)
            done = replicas.take_step(samples)
            out.write(json.dumps([*done, float(loss.detach()), time.time()]) + "\n")
        out.write(json.dumps({"weights": weights_of(model), "pid": os.getpid()}) + "\n")
    replicas.leave()


def weights_of(model: Any) -> str:
    """All bits of all parameters, as a digest."""
    import hashlib

    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
