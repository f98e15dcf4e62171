"""What the ranks run in ``test_faults.py`` and ``test_training.py``."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from rank_pool import make_group

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.policy import fixed
from scaleacross.schedules.collective import Operation

ALGORITHMS = {
    Operation.ALL_REDUCE: "ring",
    Operation.ALL_GATHER: "ring",
    Operation.REDUCE_SCATTER: "direct",
    Operation.ALL_TO_ALL: "pairwise",
}


def group_of(size: int, timeout_s: float, shared: bool = True) -> object:
    """A group under test beside the default one."""
    settings = LinkSettings(1 << 18, 1 << 15, shared)
    return make_group(range(size), fixed(ALGORITHMS, tuple(range(size)), settings), timeout_s)


def outcome(run: object) -> tuple[str, str, float]:
    """(type of the error, its text, seconds until it came)."""
    start = time.monotonic()
    try:
        run()  # type: ignore[operator]
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "", "", time.monotonic() - start


def sizes_differ(rank: int, size: int) -> tuple[str, str, float]:
    """Rank 1 brings another number of elements."""
    group = group_of(size, 30.0)
    return outcome(lambda: dist.all_reduce(torch.ones(1000 + (rank == 1)), group=group))


def kinds_differ(rank: int, size: int) -> tuple[str, str, float]:
    """Rank 1 runs another collective."""
    group = group_of(size, 30.0)
    if rank == 1:
        return outcome(lambda: dist.reduce_scatter_single(torch.ones(10), torch.ones(10 * size), group=group))
    return outcome(lambda: dist.all_reduce(torch.ones(10 * size), group=group))


def splits_differ(rank: int, size: int) -> tuple[str, str, float]:
    """Rank 1 sends more than the others expect."""
    group = group_of(size, 30.0)
    sends = [5 + (rank == 1)] * size
    return outcome(
        lambda: dist.all_to_all_single(torch.empty(5 * size), torch.ones(sum(sends)), [5] * size, sends, group=group)
    )


def one_never_comes(rank: int, size: int) -> tuple[str, str, float]:
    """The last rank does not join the collective."""
    group = group_of(size, 2.0)
    if rank == size - 1:
        time.sleep(6.0)
        return "", "", 0.0
    return outcome(lambda: dist.all_reduce(torch.ones(1000), group=group))


def broken_stays_broken(rank: int, size: int) -> list[tuple[str, str, float]]:
    """After a failure the group refuses at once."""
    group = group_of(size, 30.0)
    first = outcome(lambda: dist.all_reduce(torch.ones(10 + (rank == 0)), group=group))
    return [first, outcome(lambda: dist.all_reduce(torch.ones(10), group=group))]


def strangers(rank: int, size: int) -> str:
    """Connections that do not know the token change nothing."""
    import socket

    from scaleacross.runtime.endpoint import endpoint_of_process, listen_address

    group = group_of(size, 30.0)
    contact = endpoint_of_process(listen_address(), os.getpid()).contact
    for message in (
        b"",
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x20\x00\x00\x00" + b'{"token": "wrong", "group": "x"} ',
    ):
        with socket.create_connection((contact.address, contact.port)) as stranger:
            stranger.sendall(message)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    assert (tensor == size).all()
    return contact.address


def die_in_the_middle(rank: int, size: int) -> tuple[str, str, float]:
    """The last rank kills itself between two collectives that the others have queued."""
    group = group_of(size, 20.0)
    dist.all_reduce(torch.ones(10), group=group)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(lambda: dist.all_reduce(torch.ones(1 << 20), group=group))


def example() -> ModuleType:
    """The training example."""
    path = Path(__file__).parents[2] / "examples" / "train.py"
    spec = importlib.util.spec_from_file_location("train_example", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(rank: int, backend: str, launch: str, steps: int, port: int) -> tuple[list[float], tuple[int, int]]:
    """Losses of the example, and the bytes that planned collectives of this rank exchanged."""
    torch.set_num_threads(1)
    os.environ[LAUNCH_VARIABLE] = launch
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    losses = example().train(read_launch(launch), steps)
    groups = [group for group in dist.distributed_c10d._world.pg_map if hasattr(group, "exchanged_bytes")]
    totals = [group.exchanged_bytes() for group in groups]
    dist.destroy_process_group()
    return losses, (sum(sent for sent, _ in totals), sum(received for _, received in totals))
