"""Threads for callbacks of futures: one that waits for a collective must not block the thread that runs it.

A callback may wait for another future, whose callback waits for a third. So every job that finds no idle thread gets a
new one. A thread that has been idle for ``IDLE_S`` ends.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Final

logger = logging.getLogger("scaleacross.runtime")

IDLE_S: Final = 5.0


class Callbacks:
    """Runs each job at once, in daemon threads that are used again."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def run(self, job: Callable[[], object]) -> None:
        """Run ``job`` in a thread that does nothing else; what it raises is logged."""
        with self._lock:
            needed = self._idle == 0
            if not needed:
                self._idle -= 1  # one idle thread is promised to this job
        if needed:
            threading.Thread(target=self._work, args=(job,), name="scaleacross-callbacks", daemon=True).start()
        else:
            self._jobs.put(job)

    def _work(self, first: Callable[[], object]) -> None:
        job: Callable[[], object] | None = first
        while job is not None:
            try:
                job()
            except Exception:
                logger.exception("a callback of a future failed")
            job = None  # it holds tensors, which may be dropped while this thread waits
            with self._lock:
                self._idle += 1
            job = self._next()

    def _next(self) -> Callable[[], object] | None:
        """Return the next job of an idle thread; None if the thread may end."""
        try:
            return self._jobs.get(timeout=IDLE_S)
        except queue.Empty:
            with self._lock:
                if self._idle > 0:
                    self._idle -= 1
                    return None
            return self._jobs.get()  # promised while the wait ended


@lru_cache(maxsize=1)
def _of_process(process_id: int) -> Callbacks:
    del process_id
    return Callbacks()


def run_apart(job: Callable[[], object]) -> None:
    """Run ``job`` in a thread of this process that no collective needs; a forked process gets threads of its own."""
    _of_process(os.getpid()).run(job)
