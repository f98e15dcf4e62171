"""``torch.distributed`` works of queued collectives."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from scaleacross.runtime.callbacks import run_apart
from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.trace import Record

OVERTIME_S: Final = 10.0
"""A collective whose time is over ends by itself and names the ranks that it waits for. Whoever waits for it gives up
this much later, because then the thread of the group itself is held up."""


class QueuedWork(dist.Work):
    """The work of a queued collective, which the thread of the group completes.

    Callbacks of its future run in threads of their own (``callbacks``). They may communicate, and wait for what they
    began.

    Args:
        what: name of the collective in messages.
        result: tensors that the future holds.
        timeout_s: time limit from now. Time in the queue counts too.
    """

    def __init__(self, what: str, result: list[torch.Tensor], timeout_s: float) -> None:
        super().__init__()
        self._what, self._result, self._timeout_s = what, result, timeout_s
        self.deadline = time.monotonic() + timeout_s
        self._is_done = False
        self._pending, self._lock = threading.Lock(), threading.Lock()
        self._pending.acquire()  # until it is done: a lock costs a tenth of an Event
        self.record: Record | None = None
        self.device_done: Any = None
        """Event on the group's stream at the end of the collective; None on a CPU."""
        self._error: BaseException | None = None
        self._promise: torch.futures.Future[list[torch.Tensor]] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def complete(self, error: BaseException | None = None) -> None:
        """End the work, with ``error`` if it failed. Called once, by the thread of the group."""
        with self._lock:
            self._error, self._is_done = error, True
            self._pending.release()
            wanted = self._future is not None
        if wanted:
            run_apart(self._keep_promise)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it is done; raise its error if it failed. A ``timeout`` of zero means the group's own limit."""
        seconds = timeout.total_seconds()
        if self.record is not None and not self._is_done:
            self.record.await_result()
        left = max(self.deadline + OVERTIME_S - time.monotonic(), 0.0)
        if not self._ends_within(min(seconds, left) if seconds > 0 else left):
            if 0 < seconds < left:
                raise CollectiveTimeoutError(f"{self._what} is not done after {seconds:.1f} s")
            raise CollectiveTimeoutError(
                f"{self._what} is not done {OVERTIME_S:.0f} s after its time limit of {self._timeout_s:.1f} s: the thread of the "
                "group is held up"
            )
        if self._error is not None:
            raise self._error
        if self.device_done is not None:
            torch.cuda.current_stream().wait_event(self.device_done)
        return True

    def _ends_within(self, seconds: float) -> bool:
        if not self._is_done:
            if not self._pending.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                return False
            self._pending.release()
        return True

    def synchronize(self) -> None:
        """Wait until it is done, without a timeout of its own."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is done or has failed."""
        return self._is_done

    def is_success(self) -> bool:
        """Return whether it is done and has not failed."""
        return self._is_done and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error, if it failed."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future that holds the tensors, or fails.

        It fails in C++ too, where DDP waits for it. What ``set_exception`` stores is an error in Python only, and a
        result of the wrong type elsewhere.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            self._promise = torch.futures.Future(devices=list({one.device for one in self._result if one.is_cuda}))
            self._future = self._promise.then(self._outcome)
            done = self._is_done
        if self.record is not None:
            self.record.hand_out_future()
        if done:
            self._keep_promise()
        return self._future

    def _keep_promise(self) -> None:
        """Complete the future; its callbacks run in this thread.

        On a GPU the result is queued only. The future takes the stream on which it is completed for the one that
        computes the result, so this stream first waits for the group's.
        """
        if self._promise is not None:
            if self.device_done is not None:
                device = next(one.device for one in self._result if one.is_cuda)
                torch.cuda.current_stream(device).wait_event(self.device_done)
            self._promise.set_result(self._result)

    def _outcome(self, _: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result


class JoinedWork(dist.Work):
    """Several works of one group as one. It waits for none of them until it is asked to."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until all are done; raise the first error. ``timeout`` is for all together; zero: the group's own."""
        seconds, start = timeout.total_seconds(), time.monotonic()
        for work in self._works:
            left = max(seconds - (time.monotonic() - start), 0.001)
            work.wait(timedelta(seconds=left)) if seconds > 0 else work.wait()
        return True

    def synchronize(self) -> None:
        """Wait until all are done, without a timeout of its own."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all are done or have failed."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all are done and none has failed."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Return the first error; None if there is none."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors of all works."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future that holds the tensors of all works."""
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(
            lambda done: [tensor for future in done.value() for tensor in future.value()]
        )


def joined(works: Sequence[Any]) -> Any:
    """Return one work for several."""
    return works[0] if len(works) == 1 else JoinedWork(works)
