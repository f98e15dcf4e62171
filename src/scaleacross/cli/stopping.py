"""Signals: the first Ctrl-C of a search requests its best plan so far, the second aborts; SIGTERM ends any command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the process was interrupted; a second one raises KeyboardInterrupt.

    Only the main thread receives interrupts, so in any other thread the function always returns False.
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


@contextmanager
def unwound_on_sigterm() -> Iterator[None]:
    """Raise SystemExit(143) on SIGTERM, so that ranks, namespaces and partial files do not outlive the command.

    By default the process would end at once. An existing handler stays.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
