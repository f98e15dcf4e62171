"""What the ranks run in ``test_liveness.py``."""

from __future__ import annotations

import socket
import time
from typing import Any

import torch
import torch.distributed as dist
from fault_cases import group_of, outcome

from scaleacross.runtime import liveness


def ready_to_hang(rank: int, size: int, wrong: int, folder: str, limit_s: float) -> tuple[str, str]:
    """One good all-reduce. Then all ranks but ``wrong`` continue.

    ``wrong`` is stopped from outside, or sleeps until "go on" is stored.
    """
    group: Any = group_of(size, limit_s)
    store = dist.FileStore(f"{folder}/hang-{wrong}", size)
    dist.all_reduce(torch.ones(10), group=group)
    store.set(f"ready-{rank}", "1")
    if rank == wrong:
        while not store.check(["go on"]):
            time.sleep(0.05)
        return "", ""
    kind, text, _ = outcome(lambda: dist.all_reduce(torch.ones(1000), group=group))
    store.set(f"done-{rank}", "1")
    return kind, text


def cut_off(rank: int, size: int, wrong: int, folder: str, limit_s: float) -> tuple[str, str]:
    """The same with a rank whose host does not respond to anyone."""
    connect = socket.create_connection
    group: Any = group_of(size, limit_s)
    port = group._communicator._contact(wrong)
    while port is None:
        time.sleep(0.05)
        port = group._communicator._contact(wrong)

    def cut(address: tuple[str, int], *args: Any, **named: Any) -> socket.socket:
        if address[1] == port.port:
            raise TimeoutError("timed out")
        return connect(address, *args, **named)

    store = dist.FileStore(f"{folder}/cut-{wrong}", size)
    dist.all_reduce(torch.ones(10), group=group)
    liveness.socket.create_connection = cut  # type: ignore[attr-defined, assignment]
    try:
        if rank == wrong:
            while not all(store.check([f"done-{other}"]) for other in range(size) if other != wrong):
                time.sleep(0.05)
            return "", ""
        kind, text, _ = outcome(lambda: dist.all_reduce(torch.ones(1000), group=group))
        store.set(f"done-{rank}", "1")
    finally:
        liveness.socket.create_connection = connect  # type: ignore[attr-defined]
    return kind, text
