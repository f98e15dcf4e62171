"""Replicas under torchft's Manager, in processes: what ``test_torchft.py`` and ``benchmarks/torchft_kills.py`` run."""

from __future__ import annotations

import json
import multiprocessing
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import replica_cases as cases

LIMIT_S = 60.0


def lighthouse(file: str) -> None:
    """torchft's coordinator; writes its address into a file."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, heartbeat_timeout_ms=1000)
    Path(f"{file}.new").write_text(server.address())
    Path(f"{file}.new").rename(file)
    while True:
        time.sleep(60)


def train(address: str, replica: str, stop: str, log: str, pace_s: float, own: bool) -> None:
    """Train until ``stop`` exists; a line per step: number, whether it was committed, replicas, own loss, time.

    Args:
        own: our process group instead of torchft's over gloo.
    """
    import torch
    import torch.distributed as dist
    from torchft import Manager
    from torchft.process_group import ProcessGroupGloo

    from scaleacross.runtime.replicas.torchft import process_group

    torch.set_num_threads(1)
    model = cases.model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=process_group(timeout_s=5.0) if own else ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=20),
        quorum_timeout=timedelta(seconds=20),
        connect_timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"replica_{replica}_",
        hostname="127.0.0.1",
    )
    with Path(log).open("a", encoding="utf-8", buffering=1) as out:
        while not Path(stop).exists():
            optimizer.zero_grad()
            manager.start_quorum()
            step = manager.current_step()
            loss, _ = cases.loss_of(model, step, replica)
            loss.backward()
            time.sleep(pace_s)
            flat = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])
            manager.allreduce(flat).wait()
            at = 0
            for parameter in model.parameters():
                parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
            committed = manager.should_commit()
            if committed:
                optimizer.step()
            line = [step, committed, manager.num_participants(), float(loss.detach()), time.time()]
            out.write(json.dumps(line) + "\n")
        out.write(json.dumps({"weights": cases.weights_of(model)}) + "\n")
    manager.shutdown(wait=False)


class Job:
    """A lighthouse and replicas, each a process."""

    def __init__(self, folder: Path, own: bool, pace_s: float) -> None:
        self.folder, self.own, self.pace_s = folder, own, pace_s
        self.context = multiprocessing.get_context("spawn")
        self.processes: dict[str, Any] = {}
        self.lighthouse = self.context.Process(target=lighthouse, args=(str(folder / "address"),), daemon=True)
        self.lighthouse.start()
        self.until(lambda: (folder / "address").exists())
        self.address = (folder / "address").read_text()

    def start(self, replica: str) -> None:
        log = self.folder / f"{replica}.jsonl"
        how = (self.address, replica, str(self.folder / "stop"), str(log), self.pace_s, self.own)
        self.processes[replica] = self.context.Process(target=train, args=how, daemon=True)
        self.processes[replica].start()

    def lines(self, replica: str) -> list[Any]:
        return [json.loads(line) for line in cases.whole_lines(self.folder / f"{replica}.jsonl")]

    def until(self, reached: Any) -> None:
        end = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < end, "nothing goes on"
            time.sleep(0.05)

    def close(self) -> None:
        for process in [*self.processes.values(), self.lighthouse]:
            process.kill()
            process.join()
