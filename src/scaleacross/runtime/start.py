"""Starts a job with a constant number of store operations per rank, however many ranks there are.

torch's own start makes every rank read every other rank's address, anew for each group. Here it takes three steps:

1. Rank 0 opens the store on the one address that the launch file names (``open_store``).
2. Each rank publishes one address and reads that of its successor. A token goes round this ring twice (``agree``). The
   first lap finds out whether all ranks are there and have the same launch file; the second tells them.
3. Groups follow from the launch file alone (``mesh.own_group``). Only their members take part, and connections are made
   when the first message needs them.
"""

from __future__ import annotations

import os
import queue
import socket
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from scaleacross.errors import InputError
from scaleacross.runtime.agreement import Look, Pass, Publish, Step, Token, expect_token, ring_agreement
from scaleacross.runtime.endpoint import Caller, Contact, Member, call, endpoint_of_process, listen_address
from scaleacross.runtime.faults import CollectiveTimeoutError, PeerLostError
from scaleacross.runtime.launch_file import LOOPBACK, launch_digest, require_world_size
from scaleacross.spec.launch import DEFAULT_PORT, LaunchConfig, Rendezvous

TIMEOUT_S: Final = 300.0
"""Time limit of the start and of every collective, if the caller states none."""
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
MAX_LINE_BYTES: Final = 1 << 10


def open_store(config: LaunchConfig, rank: int, timeout_s: float = TIMEOUT_S) -> dist.TCPStore:
    """Return the store of the job. Rank 0 serves it, on the address of ``config.rendezvous`` and no other.

    If torchrun has started all ranks on this machine, the store listens on the loopback. Without a rendezvous, ranks of
    several hosts use the store of the torchrun that started them.

    Raises:
        InputError: there are several hosts and no rendezvous, or rank 0's host has no such address.
        CollectiveTimeoutError: nobody listens there.
    """
    where, timeout = config.rendezvous, timedelta(seconds=timeout_s)
    shared = os.environ.get(AGENT_STORE) == "True"
    here = not shared and os.environ.get("LOCAL_WORLD_SIZE") == str(config.world_size)
    if here:
        where = Rendezvous(address=LOOPBACK, port=int(os.environ["MASTER_PORT"]))
    if where is None and shared:
        return dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), config.world_size, False, timeout
        )
    if where is None and len(config.hosts) > 1:
        raise InputError(
            f"launch file of {config.plan_name}: {len(config.hosts)} hosts and no rendezvous. Name where rank 0 listens: "
            f'"rendezvous": {{"address": "<address of {config.hosts[0].name}>", "port": {DEFAULT_PORT}}}'
        )
    address = where.address if where else LOOPBACK
    port = where.port if where else int(os.environ.get("MASTER_PORT", DEFAULT_PORT))
    if rank != 0:
        try:
            return dist.TCPStore(address, port, config.world_size, False, timeout)
        except RuntimeError as error:
            raise CollectiveTimeoutError(
                f"rank {rank} does not reach the rendezvous on {address}:{port} within {timeout_s:.0f} s: is rank 0 running on "
                f"{config.hosts[0].name}? ({str(error).splitlines()[0][:120]})"
            ) from None
    try:
        listener = socket.create_server((address, port), backlog=4096)
    except OSError as error:
        raise InputError(
            f"the rendezvous of {config.plan_name} listens on {address}:{port} and nowhere else, and this host "
            f"({socket.gethostname()}, rank 0, {config.hosts[0].name} in the plan) cannot: {error.strerror or error}"
        ) from None
    return dist.TCPStore(
        address, port, config.world_size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def agree(config: LaunchConfig, rank: int, store: dist.Store, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until all ranks are there and known to have started with the same launch file.

    Raises:
        InputError: a rank has a launch file of another plan, or an edited one; every rank names the same one.
        CollectiveTimeoutError: a rank is not there in time; the message names the rank that this one waited for.
        PeerLostError: a neighbour went away.
    """
    ring = _Ring(config, rank, store, timeout_s)
    try:
        verdict = ring.run()
    finally:
        ring.close()
    if verdict.stranger is not None:
        raise InputError(
            f"rank {verdict.stranger} ({config.host(verdict.stranger).name}) has another launch file than rank 0 "
            f"({config.host(0).name}): another plan's, or an edited one. Copy one launch.json to all hosts"
        )


def rank_of_process() -> int:
    """Return the rank that the launcher gave this process. Raises InputError if it gave none."""
    rank = os.environ.get("RANK", "")
    if not rank.isdecimal():
        raise InputError("no RANK in the environment: start with `scaleacross run LAUNCH.json -- PROGRAM` or torchrun")
    return int(rank)


def start(
    config: LaunchConfig,
    rank: int,
    store: dist.Store | None = None,
    timeout_s: float = TIMEOUT_S,
    backend: str = "cpu:scaleacross",
) -> None:
    """Open the store, agree, and initialise the default group.

    Args:
        rank: global rank of this process; ``rank_of_process()`` under ``scaleacross run`` and torchrun.
        store: an existing store; None opens that of the launch file.

    Raises:
        InputError: ``WORLD_SIZE`` is not that of the launch file.
        InputError, CollectiveTimeoutError, PeerLostError: as ``open_store`` and ``agree`` raise them.
    """
    require_world_size(config)
    joined = open_store(config, rank, timeout_s) if store is None else store
    agree(config, rank, joined, timeout_s)
    dist.init_process_group(
        backend,
        store=joined,
        rank=rank,
        world_size=config.world_size,
        timeout=timedelta(seconds=timeout_s),
    )


class _Ring:
    """Runs ``ring_agreement`` over the store and two sockets."""

    def __init__(self, config: LaunchConfig, rank: int, store: dist.Store, timeout_s: float) -> None:
        self._config, self._rank, self._store, self._timeout_s = config, rank, store, timeout_s
        self._endpoint = endpoint_of_process(listen_address(), os.getpid())
        self._callers: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        self._successor: socket.socket | None = None
        self._predecessor: _Lines | None = None
        self._contact: Contact | None = None
        self._own = self._endpoint.register(Member(self._callers.put))

    def run(self) -> Token:
        contact = self._own.to_json()
        protocol = ring_agreement(self._rank, self._config.world_size, launch_digest(self._config), contact)
        answer: str | Token | None = None
        while True:
            try:
                step = protocol.send(answer)
            except StopIteration as end:
                return expect_token(end.value)
            answer = self._do(step)

    def close(self) -> None:
        self._endpoint.unregister(self._own)
        if self._successor is not None:
            self._successor.close()
        if self._predecessor is not None:
            self._predecessor.connection.close()

    def _do(self, step: Step) -> str | Token | None:
        if isinstance(step, Publish):
            self._store.set(step.key, step.value)
            return None
        if isinstance(step, Look):
            self._contact = Contact.from_json(self._look(step.key))
            return None
        if isinstance(step, Pass):
            if self._successor is None and self._contact is not None:
                self._successor = call(self._contact, self._rank, 0, self._timeout_s).connection
            if self._successor is not None:
                self._successor.sendall(step.token.to_bytes())
            return None
        return self._take()

    def _look(self, key: str) -> bytes:
        try:
            self._store.wait([key], timedelta(seconds=self._timeout_s))
            return bytes(self._store.get(key))
        except RuntimeError as error:
            successor = (self._rank + 1) % self._config.world_size
            raise CollectiveTimeoutError(
                f"rank {self._rank} waited {self._timeout_s:.0f} s for {self._called(successor)} to publish its address: "
                f"it has not started, or does not reach the store ({str(error).splitlines()[0][:120]})"
            ) from None

    def _take(self) -> Token:
        before = (self._rank - 1) % self._config.world_size
        try:
            if self._predecessor is None:
                self._predecessor = _Lines(self._callers.get(timeout=self._timeout_s).connection)
                self._predecessor.connection.settimeout(self._timeout_s)
            return Token.from_bytes(self._predecessor.next())
        except (queue.Empty, TimeoutError):
            raise CollectiveTimeoutError(
                f"rank {self._rank} heard nothing from {self._called(before)} within {self._timeout_s:.0f} s: "
                "that rank, or one before it in the ring, has not started"
            ) from None
        except (OSError, ValueError) as error:
            raise PeerLostError(f"{self._called(before)} went away during the start: {error}") from None

    def _called(self, rank: int) -> str:
        return f"rank {rank} ({self._config.host(rank).name})"


class _Lines:
    """Reads the lines of a stream in blocks, not byte by byte."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._data = connection, b""

    def next(self) -> bytes:
        """Return the next line with its end. Raises ConnectionError if the stream ends before it or it is too long."""
        while b"\n" not in self._data:
            more = self.connection.recv(MAX_LINE_BYTES)
            if not more or len(self._data) > MAX_LINE_BYTES:
                raise ConnectionError("the connection ended")
            self._data += more
        line, end, self._data = self._data.partition(b"\n")
        return line + end
