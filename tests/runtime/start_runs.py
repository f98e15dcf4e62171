"""Ranks that start as separate processes, and their results."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

from launch_configs import crossed

from scaleacross.spec.framework import Optimizer
from scaleacross.spec.launch import LaunchConfig, LaunchHost, ProcessGroups, Rendezvous, rank_groups
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import Degrees, PipelineChoice

LIMIT_S = 90.0


def launch(shard: int, tensor: int, num_hosts: int = 1, **changes: Any) -> LaunchConfig:
    """``shard`` × ``tensor`` ranks on equal hosts of one building."""
    degrees = Degrees(tp=tensor, cp=1, pp=1, dp_replicate=1, dp_shard=shard)
    world, per_host = shard * tensor, shard * tensor // num_hosts
    rows = tuple((r // per_host, r % per_host, 0, 0, r // tensor, 0, r % tensor, 0) for r in range(world))
    axes = [axis for axis in ("dp_shard", "tp") if degrees.of(axis) > 1]  # type: ignore[arg-type]
    fields: dict[str, Any] = {
        "plan_name": "small",
        "plan_sha256": "0" * 64,
        "world_size": world,
        "degrees": degrees,
        "axis_order": ("tp", "cp", "dp_shard", "dp_replicate", "pp"),
        "sequence_length": 32,
        "global_batch_sequences": shard,
        "num_micro_batches": 1,
        "pipeline": PipelineChoice(schedule="1F1B", micro_batch_sequences=1),
        "layers_per_stage": ((2,),),
        "recompute": "none",
        "shard": "optimizer",
        "precision": "bf16",
        "optimizer": Optimizer(),
        "predicted_step_s": 1.0,
        "hosts": tuple(
            LaunchHost(name=f"host-{h}", region="r", building="b", zone=0, rack=0, num_ranks=per_host)
            for h in range(num_hosts)
        ),
        "ranks": rows,
        "process_groups": tuple(
            ProcessGroups(
                axis=axis,
                degree=degrees.of(axis),
                level=max(crossed(rows, rank_groups(rows, axis, degrees), "rack"), key=LINK_LEVELS.index),
                ranks=rank_groups(rows, axis, degrees),
                levels=crossed(rows, rank_groups(rows, axis, degrees), "rack"),
                collectives=(),
            )
            for axis in axes
        ),
    }
    return LaunchConfig(**{**fields, **changes})


def on_this_host(config: LaunchConfig) -> LaunchConfig:
    """With a rendezvous on a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        rendezvous = Rendezvous(address="127.0.0.1", port=probe.getsockname()[1])
    return config.model_copy(update={"rendezvous": rendezvous})


def run_ranks(config: LaunchConfig, case: str, absent: int | None = None) -> dict[int, tuple[str, Any]]:
    """rank -> ("ok", its result) or (name of the error, its message)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "scaleacross.runtime"])
    answers: Any = context.Queue()
    done = context.Event()
    ranks = [rank for rank in range(config.world_size) if rank != absent]
    text = config.model_dump_json()
    processes = [context.Process(target=_rank, args=(rank, text, case, answers, done), daemon=True) for rank in ranks]
    for process in processes:
        process.start()
    try:
        return dict(answers.get(timeout=LIMIT_S) for _ in ranks)
    finally:
        done.set()
        for process in processes:
            process.join(5)
            process.kill()


def _rank(rank: int, text: str, case: str, answers: Any, done: Any) -> None:
    """One rank's result.

    Rank 0 holds the store, which others still need after its result. So nobody leaves before ``done``.
    """
    from scaleacross.errors import ScaleAcrossError

    os.environ.update(MASTER_ADDR="127.0.0.1", WORLD_SIZE="4")
    try:
        answers.put((rank, ("ok", _CASES[case](rank, LaunchConfig.model_validate_json(text)))))
    except ScaleAcrossError as error:
        answers.put((rank, (type(error).__name__, str(error))))
    done.wait(LIMIT_S)


def _sums(rank: int, config: LaunchConfig) -> Any:
    """Sums over both groups of the rank, and where the process listens."""
    import torch
    import torch.distributed as dist

    from scaleacross.runtime.mesh import own_group
    from scaleacross.runtime.start import start

    start(config, rank, timeout_s=60)
    sums = []
    for axis in ("dp_shard", "tp"):
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor, group=own_group(config, axis, rank))  # type: ignore[arg-type]
        sums.append(tensor.item())
    listening = listening_addresses()
    dist.barrier()
    return sums, listening


def _stranger(rank: int, config: LaunchConfig) -> None:
    from scaleacross.runtime.start import agree, open_store

    store = open_store(config, rank, 60)
    agree(config.model_copy(update={"num_micro_batches": 7}) if rank == 2 else config, rank, store, 60)


def _impatient(rank: int, config: LaunchConfig) -> None:
    from scaleacross.runtime.start import agree, open_store

    agree(config, rank, open_store(config, rank, 60), 3)


_CASES = {"sums": _sums, "stranger": _stranger, "impatient": _impatient}


def listening_addresses() -> set[str]:
    """Addresses of this process's listening TCP sockets, from /proc."""
    own = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                raw = bytes.fromhex(fields[1].partition(":")[0])
                words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
                found.add(socket.inet_ntop(family, words).removeprefix("::ffff:"))
    return found
