"""Jobs of four processes in which one has a fault, and the dumps that they leave.

Every rank runs three good all-reduces on backend ``scaleacross`` and then the fault's own program. Each rank dumps when
an operation is late and tells the others through the store. A rank that is stuck in its own program has no late
operation.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

WORLD, ELEMENTS = 4, 1 << 10
LATE_S, GROUP_TIMEOUT_S, LIMIT_S = 1.5, 20.0, 90.0
STEPS, PREDICTED_S, GOOD = 6, 0.02, 3


def run_fault(fault: str, culprit: int, directory: Path) -> None:
    """Run the job; every rank that lives dumps into ``directory``. A rank that does not end in time is killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "scaleacross.runtime"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        context.Process(target=_rank, args=(rank, port, fault, culprit, str(directory)), daemon=True)
        for rank in range(WORLD)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + LIMIT_S
    for process in processes:
        process.join(max(end - time.monotonic(), 0.1))
        if process.is_alive():
            process.kill()
            process.join()


class Job:
    """One rank of the job, and what a fault may use."""

    def __init__(self, rank: int, port: int, culprit: int) -> None:
        import torch
        import torch.distributed as dist

        from scaleacross.runtime.communicator import LinkSettings
        from scaleacross.runtime.policy import fixed
        from scaleacross.runtime.process_group import Options
        from scaleacross.runtime.trace import FlightRecorder
        from scaleacross.schedules.collective import Operation

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD))
        torch.set_num_threads(1)
        self.dist, self.torch, self.rank, self.wrong = dist, torch, rank, rank == culprit
        self.recorder = FlightRecorder(rank, WORLD)
        rings = {Operation.ALL_REDUCE: "ring", Operation.BROADCAST: "chain"}
        settings = LinkSettings(segment_bytes=1 << 10, share_memory=False)

        def options(size: int) -> Options:
            policy = fixed(rings, tuple(range(size)), settings, 2)
            predicted = lambda op, num_bytes: replace(policy.choose(op, num_bytes), predicted_s=PREDICTED_S)  # noqa: E731
            return Options(replace(policy, choose=predicted), self.recorder)

        self._options = options
        self._timeout = timedelta(seconds=GROUP_TIMEOUT_S)
        self.store = dist.TCPStore("127.0.0.1", port, WORLD, rank == 0, timedelta(seconds=60))
        dist.init_process_group("gloo", store=self.store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
        self.watch_store = dist.TCPStore("127.0.0.1", port, WORLD, False, timedelta(seconds=60))
        self.group = self.make_group(list(range(WORLD)))

    def make_group(self, ranks: list[int]) -> Any:
        return self.dist.new_group(
            ranks, timeout=self._timeout, backend="cpu:scaleacross", pg_options=self._options(len(ranks))
        )

    def all_reduce(self, elements: int = ELEMENTS, dtype: str = "float32", group: Any = None) -> None:
        tensor = self.torch.ones(elements, dtype=getattr(self.torch, dtype))
        work = self.dist.all_reduce(tensor, group=group or self.group, async_op=True)
        self.watch_store.add("called", 1)  # from here on it stands in the trace
        work.wait()

    def until_all_have_called(self, num_calls: int) -> None:
        """Wait until all ranks have called.

        A slow machine may delay a rank. Its trace would then lack the operation, and it would not count as a victim.
        """
        end = time.monotonic() + LIMIT_S / 3
        while self.watch_store.add("called", 0) < num_calls and time.monotonic() < end:
            time.sleep(0.05)

    def culprit_comes_last(self) -> None:
        """The culprit calls last, so all others wait already.

        All of them are victims, whatever the machine's speed.
        """
        if self.wrong:
            self.until_all_have_called(GOOD * WORLD + WORLD - 1)

    def until_dumped(self) -> None:
        """The program is busy with something else."""
        while not self.watch_store.check(["dump"]):
            time.sleep(0.05)


def _rank(rank: int, port: int, fault: str, culprit: int, directory: str) -> None:
    job = Job(rank, port, culprit)
    two = [job.make_group([1, 2]), job.make_group([1, 2])] if fault == "deadlock" else []
    for _ in range(GOOD):
        job.all_reduce()
    store = job.watch_store
    program = threading.Thread(target=_quiet, args=(FAULTS[fault], job, *two), daemon=True)
    late_s = LIMIT_S if fault.startswith("slow") else LATE_S
    program.start()
    job.until_all_have_called(GOOD * WORLD + WORLD - (fault in ("outside", "dead", "type")))
    end, dumped = time.monotonic() + LIMIT_S / 2, False
    while not dumped and time.monotonic() < end:
        time.sleep(0.05)
        if _is_late(job.recorder, late_s):
            store.set("dump", "now")
        if store.check(["dump"]) or (fault.startswith("slow") and not program.is_alive()):
            job.recorder.dump(directory)
            dumped = True
    store.add("done", 1)
    while time.monotonic() < end and store.add("done", 0) < WORLD - (fault == "dead"):
        time.sleep(0.05)  # a connection that closes early would be a fault of its own
    time.sleep(0.5 if rank == 0 else 0.0)  # rank 0 holds the store
    os._exit(0)  # whatever still hangs in the background


def _is_late(recorder: Any, limit_s: float) -> bool:
    before = time.perf_counter_ns() - int(limit_s * 1e9)
    return any(one.completed_ns is None and one.created_ns < before for one in recorder.records())


def _quiet(program: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):
        program(*args)


def _outside(job: Job) -> None:
    job.until_dumped() if job.wrong else job.all_reduce()


def _size(job: Job) -> None:
    job.culprit_comes_last()
    job.all_reduce(ELEMENTS + 1 if job.wrong else ELEMENTS)


def _dtype(job: Job) -> None:
    job.culprit_comes_last()
    job.all_reduce(dtype="float64" if job.wrong else "float32")


def _type(job: Job) -> None:
    job.culprit_comes_last()
    if job.wrong:
        job.dist.broadcast(job.torch.ones(ELEMENTS), 0, group=job.group)
    else:
        job.all_reduce()


def _dead(job: Job) -> None:
    job.culprit_comes_last()
    if job.wrong:
        os._exit(1)
    job.all_reduce()


def _not_started(job: Job) -> None:
    """The thread that runs the collective is delayed before it."""
    if job.wrong:
        job.group._communicator.submit(lambda: time.sleep(LIMIT_S))
    job.all_reduce()


def _deadlock(job: Job, first: Any, second: Any) -> None:
    """Ranks 1 and 2 take two groups in opposite order; the others wait for both."""
    if job.rank in (1, 2):
        for group in (first, second) if job.rank == 1 else (second, first):
            job.all_reduce(group=group)
    job.all_reduce()


def _stuck_link(job: Job) -> None:
    """The culprit stops receiving from the rank before it."""
    from scaleacross.runtime.incoming import Incoming

    if job.wrong:
        read, before = Incoming.read, (job.rank - 1) % WORLD
        deaf = lambda link, *how: time.sleep(0.01) if link.peer == before else read(link, *how)  # noqa: E731
        Incoming.read = deaf  # type: ignore[method-assign, assignment]
    job.all_reduce()


def _slow_rank(job: Job) -> None:
    for _ in range(STEPS):
        time.sleep(0.4 if job.wrong else 0.02)
        job.all_reduce()


def _slow_link(job: Job) -> None:
    """The culprit's messages leave slowly."""
    from scaleacross.runtime.outgoing import Outgoing

    if job.wrong:
        pump = Outgoing.pump

        def late(link: Outgoing) -> bool:
            if not link.idle:
                time.sleep(0.05)
            return pump(link)

        Outgoing.pump = late  # type: ignore[method-assign]
    for _ in range(STEPS):
        job.all_reduce(1 << 16)


FAULTS: dict[str, Callable[..., None]] = {
    "outside": _outside,
    "size": _size,
    "dtype": _dtype,
    "type": _type,
    "dead": _dead,
    "not_started": _not_started,
    "deadlock": _deadlock,
    "stuck_link": _stuck_link,
    "slow_rank": _slow_rank,
    "slow_link": _slow_link,
}
