"""Run points in parallel processes of this machine. A worker that dies fails its point, not the study.

Processes are spawned, not forked: a fork of a process with running threads (a progress display, a solver) may deadlock.
A script that calls ``sweep`` with more than one process therefore needs the usual ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from scaleacross.api.engines.outcome import OnDone, Record, Task, failed

JOIN_S: Final = 5.0
"""Seconds that a worker gets to end by itself once its pipe is closed."""


def run_points(task: Task, points: Sequence[Any], processes: int, on_done: OnDone) -> None:
    """Run every point; ``on_done(index, record)`` is called in this process as they end, in any order."""
    if min(processes, len(points)) <= 1:
        for index, point in enumerate(points):
            on_done(index, task(point))
        return
    workers: list[_Worker] = []
    try:
        # reversed, so that pop() hands out points in order
        waiting = list(enumerate(points))[::-1]
        workers += [_Worker(task) for _ in range(min(processes, len(points)))]
        for worker in workers:
            worker.start(*waiting.pop())
        while busy := [worker for worker in workers if worker.index is not None]:
            ready = connection.wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                index, record = worker.finish()
                on_done(index, record)
                if waiting:
                    worker.start(*waiting.pop())
    finally:
        for worker in workers:
            worker.stop()


@dataclass
class _Worker:
    """One process and the point that it runs."""

    task: Task
    index: int | None = None

    def __post_init__(self) -> None:
        self._launch()

    def _launch(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(self.task, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, index: int, point: Any) -> None:
        self.index = index
        self.pipe.send(point)

    def finish(self) -> tuple[int, Record]:
        """Return the finished point and its record. A dead worker is replaced and its point fails."""
        index, self.index = self.index, None
        if index is None:
            raise ValueError("this worker has no point")
        try:
            record: Record = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(JOIN_S)
            reason = (
                f"its process died (exit code {self.process.exitcode}; -9 is what running out of memory looks like)"
            )
            record = failed(reason)
            self.stop()
            self._launch()
        return index, record

    def stop(self) -> None:
        """End the process: at once while it runs a point, gently while it waits."""
        self.pipe.close()
        if self.index is not None:
            self.process.terminate()
        self.process.join(JOIN_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(task: Task, pipe: Connection) -> None:
    """Run a worker: receive points and send records until the pipe is closed. Ctrl-C is handled by the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            point = pipe.recv()
            pipe.send(task(point))
        except (EOFError, BrokenPipeError):  # the parent is gone
            return
