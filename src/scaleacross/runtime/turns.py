"""Runs jobs one after the other, in a thread of their own or in that of a caller who would only wait for the result."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

Job = Callable[[], None]


class Turns:
    """A queue of jobs, and the thread that runs them.

    Args:
        name: name of the thread.
        at_end: called after the last job.
    """

    def __init__(self, name: str, at_end: Job) -> None:
        self._at_end = at_end
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._num_queued = 0
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def submit(self, job: Job, *, here: bool = False) -> Job | None:
        """Queue ``job``, which must not raise an Exception.

        Args:
            here: the caller does nothing until the job is done, so it may run the job itself if nothing else is queued.

        Returns:
            a job that the caller must run now in place of the thread, else None. Two changes of threads cost more than
            a small collective.
        """
        with self._counting:
            self._num_queued += 1
            if not here or self._num_queued > 1:
                self._jobs.put(job)
                return None
            self._turn.acquire()
        return partial(self._run, job)

    def end(self) -> None:
        """End the thread once everything queued is done. Takes no lock and never waits."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._turn.acquire()
            self._run(job)
            del job  # it holds its group, which may be dropped while this thread waits for the next
        with self._counting:
            self._num_queued += 1  # from now on no caller runs anything
        with self._turn:
            self._at_end()

    def _run(self, job: Job) -> None:
        """Run ``job``; the caller holds ``_turn``."""
        try:
            job()
        finally:
            self._turn.release()
            with self._counting:
                self._num_queued -= 1
