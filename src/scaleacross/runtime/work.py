"""A collective in the queue, as torch sees it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.trace import Record


class QueuedWork(dist.Work):
    """Done when the thread of the group says so.

    Args:
        what: for messages.
        result: tensors that the future holds.
    """

    def __init__(self, what: str, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._what, self._result = what, result
        self._done = threading.Event()
        self.record: Record | None = None
        self.device_done: Any = None
        """an event on the group's stream; None on a CPU"""
        self._error: BaseException | None = None
        self._promise: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def complete(self, error: BaseException | None = None) -> None:
        """Called once, by the thread of the group."""
        self._error = error
        self._done.set()
        self._promise.set_result(self._result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it is done; raises what went wrong. A ``timeout`` of zero leaves it to the group's own."""
        seconds = timeout.total_seconds()
        if self.record is not None and not self._done.is_set():
            self.record.await_result()
        if not self._done.wait(seconds if seconds > 0 else None):
            raise CollectiveTimeoutError(f"{self._what} is not done after {seconds:.1f} s")
        if self._error is not None:
            raise self._error
        if self.device_done is not None:
            torch.cuda.current_stream().wait_event(self.device_done)
        return True

    def synchronize(self) -> None:
        """The same without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done or has failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it is done and has not failed."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that holds the tensors, or fails, in C++ too, where DDP waits for it: what ``set_exception`` stores is an
        error in Python only, and a result of the wrong type elsewhere."""
        if self._future is None:
            self._future = self._promise.then(self._outcome)
            if self.record is not None:
                self.record.hand_out_future()
        return self._future

    def _outcome(self, _: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result
