"""Processes that act as the ranks of a job.

They start once and run many cases, because importing torch takes longer than most cases.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

CASE_LIMIT_S = 150.0


class RankPool:
    """``size`` processes; ``run`` calls one function on all of them at once."""

    def __init__(self, size: int, environment: dict[str, str] | None = None) -> None:
        self.size = size
        context = multiprocessing.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, theirs, environment or {}), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, limit_s: float = CASE_LIMIT_S) -> list[Any]:
        """``function(rank, *args)`` on every rank; results by rank. Fails with the first traceback, or when the time is over."""
        for pipe in self._pipes:
            pipe.send((function, args))
        results: dict[int, Any] = {}
        while len(results) < self.size:
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            ready = wait(left, limit_s)
            if not ready:
                self.close()
                raise AssertionError(f"ranks {sorted(set(range(self.size)) - set(results))} did not end in {limit_s} s")
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    failed, value = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    failed, value = True, "the process died"
                if failed:
                    self.close()
                    raise AssertionError(f"rank {rank}: {value}")
                results[rank] = value
        return [results[rank] for rank in range(self.size)]

    def post(self, rank: int, function: Callable[..., Any], *args: Any) -> None:
        """Start ``function`` on one rank; ``take`` its result."""
        self._pipes[rank].send((function, args))

    def take(self, rank: int, limit_s: float = CASE_LIMIT_S) -> Any:
        """The result of what was posted."""
        assert self._pipes[rank].poll(limit_s), f"rank {rank} did not end in {limit_s} s"
        failed, value = self._pipes[rank].recv()
        assert not failed, f"rank {rank}: {value}"
        return value

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _serve(rank: int, size: int, port: int, pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    os.environ["OMP_NUM_THREADS"] = "1"
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((False, function(rank, *args)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))


def join_job(rank: int, timeout_s: float = 60.0) -> None:
    """Join the default group on gloo. The groups under test are created in addition."""
    import torch
    import torch.distributed as dist

    import scaleacross.runtime  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))


def make_group(
    ranks: Sequence[int],
    policy: Any,
    timeout_s: float = 60.0,
    point_to_point: bool = False,
    backend: str = "cpu:scaleacross",
) -> Any:
    """A group of backend ``scaleacross``; every rank of the job calls this."""
    import torch.distributed as dist

    from scaleacross.runtime.process_group import Options

    options = Options(policy, point_to_point=point_to_point)
    return dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), backend=backend, pg_options=options)
