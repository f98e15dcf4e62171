"""What the ranks run in ``test_faults.py`` and ``test_training.py``."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import group_functions as functions
import torch
import torch.distributed as dist
from rank_pool import make_group

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.start import start
from scaleacross.schedules.collective import Operation

ALGORITHMS = {
    Operation.ALL_REDUCE: "ring",
    Operation.ALL_GATHER: "ring",
    Operation.REDUCE_SCATTER: "direct",
    Operation.ALL_TO_ALL: "pairwise",
}


def group_of(size: int, timeout_s: float, shared: bool = True) -> object:
    """A group under test, in addition to the default one."""
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


def sizes_differ(rank: int, size: int, wrong: int = 1) -> tuple[str, str, float]:
    """Rank ``wrong`` passes another number of elements."""
    group = group_of(size, 30.0)
    return outcome(lambda: dist.all_reduce(torch.ones(1000 + (rank == wrong)), group=group))


def kinds_differ(rank: int, size: int, wrong: int = 1) -> tuple[str, str, float]:
    """Rank ``wrong`` runs another collective."""
    group = group_of(size, 30.0)
    if rank == wrong:
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


def buckets_that_never_come(rank: int, size: int) -> tuple[str, str, float]:
    """DDP waits in C++ for the gradients of a rank that has stopped."""
    group = group_of(size, 12.0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40), process_group=group)
    if rank == size - 1:
        time.sleep(18.0)
        return "", "", 0.0
    loss = model(torch.ones(1, 40)).sum()
    return outcome(loss.backward)


def message_that_never_comes(rank: int, size: int) -> tuple[str, str, float]:
    """Rank 0 waits for a message of rank 1, which gloo runs."""
    group = group_of(size, 2.0)
    if rank:
        time.sleep(4.0)
        return "", "", 0.0
    return outcome(lambda: dist.recv(torch.ones(10), 1, group=group))


def peer_that_is_late(rank: int, size: int) -> tuple[str, str, float]:
    """Rank 0 looks for a rank that is not in the group yet."""
    if rank == 1:
        time.sleep(4.0)
    return message_that_never_comes(rank, size)


def broken_stays_broken(rank: int, size: int) -> list[tuple[str, str, float]]:
    """After a failure the group refuses at once."""
    group = group_of(size, 30.0)
    first = outcome(lambda: dist.all_reduce(torch.ones(10 + (rank == 0)), group=group))
    return [first, outcome(lambda: dist.all_reduce(torch.ones(10), group=group))]


def strangers(rank: int, size: int) -> str:
    """Connections that do not know the token change nothing."""
    import socket

    group = group_of(size, 30.0)
    contact = group._communicator.contact  # type: ignore[attr-defined]
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


def train(rank: int, backend: str, launch: str, steps: int) -> tuple[list[float], tuple[int, int]]:
    """Losses of the example, and the bytes that planned collectives of this rank exchanged."""
    torch.set_num_threads(1)
    os.environ[LAUNCH_VARIABLE] = launch
    config = read_launch(launch)
    start(config, rank, timeout_s=60, backend=backend)
    losses = example().train(config, steps, backend)
    groups = [group for group in dist.distributed_c10d._world.pg_map if hasattr(group, "exchanged_bytes")]
    totals = [group.exchanged_bytes() for group in groups]
    dist.destroy_process_group()
    return losses, (sum(sent for sent, _ in totals), sum(received for _, received in totals))


def tensor_parallel(rank: int, launch: str, port: int) -> tuple[float, tuple[int, int]]:
    """A two-layer net split by columns and rows: largest difference of output and gradient to the whole one."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    os.environ[LAUNCH_VARIABLE] = launch
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("cpu:scaleacross", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    split = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    split.load_state_dict(whole.state_dict())
    split = parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = [torch.randn(8, 32, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)]
    outputs = [whole(inputs[0]), split(inputs[1])]
    for output in outputs:
        output.square().sum().backward()
    worst = max(float((a - b).abs().max()) for a, b in (outputs, [one.grad for one in inputs]))
    moved = mesh.get_group().exchanged_bytes()
    dist.destroy_process_group()
    return worst, moved


def works_go_on_alone(rank: int, port: int, folder: str) -> list[bool]:
    """An asynchronous collective returns while rank 0 has not joined, and ends without this rank waiting for it."""
    store = dist.FileStore(f"{folder}/store-{port}", 4)
    group = functions.group(store, rank, 4, {"all_reduce": "ring"}, timeout_s=30)
    tensor = torch.ones(1 << 18)
    if rank == 0:
        for peer in range(1, 4):
            store.get(f"issued-{peer}")  # all others have issued theirs and are free
    work = functions.all_reduce(group, tensor, async_op=True)
    before = work.is_completed()
    store.set(f"issued-{rank}", "1")
    deadline = time.monotonic() + 20
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.01)  # the caller computes; nobody waits
    assert (tensor == 4).all()
    group.shutdown()
    return [before, work.is_completed(), work.is_success()]


def uncovered(rank: int, port: int, folder: str) -> list[tuple[str, str, str]]:
    """What the trace holds of operations that no schedule covers, and of one that it does."""
    store = dist.FileStore(f"{folder}/store-{port}", 4)
    group = functions.group(store, rank, 4, {"all_reduce": "direct"}, timeout_s=30, name="traced")
    tensor = torch.ones(100)
    functions.all_reduce(group, tensor)
    functions.broadcast(group, tensor)
    if rank < 2:
        work = group.send([tensor], 1, 0) if rank == 0 else group.recv([tensor], 0, 0)
        work.wait()
    records = [record for record in group._recorder.records() if record.group is group._recorded]
    group.shutdown()
    return [(record.op, record.algorithm, record.state) for record in records]


def threads_of_a_dropped_group(rank: int, port: int, folder: str) -> list[str]:
    """Threads of a group that torch has dropped."""
    import gc
    import threading

    store = dist.FileStore(f"{folder}/store-{port}", 4)
    for number in range(3):
        group = functions.group(store, rank, 4, {"all_reduce": "ring"}, name=f"dropped{number}")
        functions.all_reduce(group, torch.ones(10))
        del group
        gc.collect()
    deadline = time.monotonic() + 10  # the last one may be on its way out
    while (
        names := [one.name for one in threading.enumerate() if "dropped" in one.name]
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    return names
