"""Replicas in processes of their own: what ``test_replicas.py`` and ``benchmarks/replica_kills.py`` start and kill."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any

LIMIT_S = 100.0
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


def coordinate(
    port_file: str, log: str, expected: int, shards: int = 1, silent_s: float = 5.0, host: str = "127.0.0.1"
) -> None:
    """The coordinator; writes its port into a file."""
    from scaleacross.runtime.replicas.coordinator import run
    from scaleacross.runtime.replicas.membership import Membership

    def ready(port: int) -> None:
        Path(f"{port_file}.new").write_text(str(port))
        Path(f"{port_file}.new").rename(port_file)

    run(Membership(expected, shards, silent_s), host, 0, "", Path(log), ready)


def train(coordinator: str, replica: str, stop: str, log: str, pace_s: float = 0.0, hooked: bool = False) -> None:
    """Train until the step that file ``stop`` comes to hold. Writes a line per step: what ``Committed`` holds, own loss, time."""
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
        while not Path(stop).exists() or replicas.step < int(Path(stop).read_text()):
            loss, samples = loss_of(run, replicas.step, replica)
            replicas.expect(samples)
            loss.backward()
            time.sleep(pace_s)
            done = replicas.take_step(samples)
            out.write(json.dumps([*done, float(loss.detach()), time.time()]) + "\n")
        out.write(json.dumps({"weights": weights_of(model), "pid": os.getpid()}) + "\n")
    replicas.leave()


def train_sharded(coordinator: str, replica: str, shard: int, port: int, stop: str, log: str, pace_s: float) -> None:
    """The same with the state of a replica over two ranks (``fully_shard``), which meet at ``port``."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from scaleacross.runtime.replicas.member import Replicas
    from scaleacross.runtime.replicas.state import TrainingState

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 2, shard == 0, timedelta(seconds=LIMIT_S))
    dist.init_process_group("gloo", store=store, rank=shard, world_size=2)
    model: Any = model_of()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    replicas = Replicas(coordinator, replica, TrainingState(model, optimizer), shard=shard, silent_s=5.0)
    with Path(log).open("a", encoding="utf-8", buffering=1) as out:
        replicas.join()
        while not Path(stop).exists() or replicas.step < int(Path(stop).read_text()):
            loss, samples = loss_of(model, 2 * replicas.step + shard, replica)
            loss.backward()
            time.sleep(pace_s)
            done = replicas.take_step(2 * samples)
            out.write(json.dumps([*done, float(loss.detach()), time.time()]) + "\n")
        parts = [parameter.to_local() for parameter in model.parameters()]
        out.write(json.dumps({"weights": digest_of(parts)}) + "\n")
    replicas.leave()


def weights_of(model: Any) -> str:
    """All bits of all parameters, as a digest."""
    return digest_of(list(model.parameters()))


def digest_of(tensors: list[Any]) -> str:
    """All bits, as a digest."""
    import hashlib

    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def whole_lines(path: Path) -> list[str]:
    """Without the one that is being written."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


class Job:
    """A coordinator and replicas, each a process, on loopback. ``launch`` starts them, at ``host``."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, expected: int, hooked: bool = False, pace_s: float = 0.1, shards: int = 1) -> None:
        self.folder, self.hooked, self.pace_s = folder, hooked, pace_s
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["torch", "torch.distributed", "scaleacross.runtime.replicas.member"])
        self.processes: dict[str, Any] = {}
        how = (str(folder / "port"), str(folder / "history.jsonl"), expected, shards, 5.0, self.host)
        self.coordinator = self.launch("coordinator", coordinate, how)
        self.until(lambda: (folder / "port").exists())
        self.address = f"{self.host}:{(folder / 'port').read_text()}"

    def launch(self, name: str, work: Any, how: tuple[Any, ...]) -> Any:
        """A process that runs ``work(*how)``."""
        process = self.context.Process(target=work, args=how, daemon=True)
        process.start()
        return process

    def start(self, replica: str) -> None:
        stop, log = (str(self.folder / name) for name in ("stop", f"{replica}.jsonl"))
        how = (self.address, replica, stop, log, self.pace_s, self.hooked)
        self.processes[replica] = self.launch(replica, train, how)

    def start_sharded(self, replica: str) -> None:
        """Two ranks, called ``1.0`` and ``1.1`` of replica ``1``."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for shard in range(2):
            name = f"{replica}.{shard}"
            how = (self.address, replica, shard, port, str(self.folder / "stop"), str(self.folder / f"{name}.jsonl"))
            self.processes[name] = self.launch(name, train_sharded, (*how, self.pace_s))

    def signal(self, replica: str, number: int) -> None:
        os.kill(self.processes[replica].pid, number)

    def lines(self, replica: str) -> list[Any]:
        return [json.loads(line) for line in whole_lines(self.folder / f"{replica}.jsonl") if line.endswith(("]", "}"))]

    def history(self, event: str) -> list[dict[str, Any]]:
        lines = whole_lines(self.folder / "history.jsonl")
        return [one for line in lines if (one := json.loads(line))["event"] == event]

    def until(self, reached: Any) -> None:
        end = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < end, "nothing goes on"
            time.sleep(0.02)

    def until_step(self, replica: str, step: int) -> None:
        self.until(lambda: any(line[0] >= step for line in self.lines(replica) if isinstance(line, list)))

    def close(self) -> None:
        for process in [*self.processes.values(), self.coordinator]:
            process.kill()
            process.join()

    def stop_at(self, step: int) -> None:
        """Let all end before that step, and wait for it."""
        (self.folder / "stop.new").write_text(str(step))
        (self.folder / "stop.new").rename(self.folder / "stop")
        for replica in self.processes:
            self.until(lambda replica=replica: isinstance((self.lines(replica) or [0])[-1], dict))  # type: ignore[misc]


def reference(steps: list[dict[str, Any]]) -> tuple[dict[tuple[int, str], float], str]:
    """(step, replica) -> loss, and the digest of the weights, of one process that never fails.

    It has one model and, for every step, a sum over as many groups as the step had members.
    """
    import group_functions as functions
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, groups = {}, dict[int, list[Any]]()
    for step in steps:
        sums, total = [], 0
        for replica in step["members"]:
            loss, samples = loss_of(model, step["step"], replica)
            loss.backward()
            losses[step["step"], replica] = float(loss.detach())
            sums.append(torch.cat([p.grad.view(-1) for p in model.parameters()]) * samples)
            optimizer.zero_grad()
            total += samples
        n = len(sums)
        if n > 1 and n not in groups:
            store = dist.HashStore()
            groups[n] = [functions.group(store, rank, n, {"all_reduce": "ring"}, name=f"of{n}") for rank in range(n)]
        works = [
            functions.all_reduce(group, one, async_op=True) for group, one in zip(groups.get(n, []), sums, strict=False)
        ]
        for work in works:
            work.wait()
        at = 0
        for parameter in model.parameters():
            parameter.grad = (sums[0][at : at + parameter.numel()] / total).view_as(parameter)
            at += parameter.numel()
        optimizer.step()
        optimizer.zero_grad()
    for made in groups.values():
        for group in made:
            group.shutdown()
    return losses, weights_of(model)
