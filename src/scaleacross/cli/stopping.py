"""Ctrl-C while a search runs: the first one asks for what was found so far, the second one aborts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Whether somebody has interrupted the process inside; a second time raises KeyboardInterrupt.

    Only the main thread hears of interrupts: in any other one the answer is always no.
    """
    heard = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield heard.is_set
        return

    def hear(_number: int, _frame: FrameType | None) -> None:
        if heard.is_set():
            raise KeyboardInterrupt
        heard.set()

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield heard.is_set
    finally:
        signal.signal(signal.SIGINT, before)
