"""Writes the trace of a process when it ends, whether the program returns, raises or is told to stop (SIGTERM).

``SCALEACROSS_DUMPS`` names the folder; ``scaleacross run --dumps`` sets it. A rank that is killed leaves no file, which
tells ``scaleacross diagnose`` that it was killed. torchrun tells the other ranks to stop, so they leave theirs.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from scaleacross.runtime.launch_file import DUMPS_VARIABLE

if TYPE_CHECKING:
    from scaleacross.runtime.trace import FlightRecorder

logger = logging.getLogger("scaleacross.runtime")


def dump_at_end(recorder: FlightRecorder) -> None:
    """Dump ``recorder`` when this process ends, if the environment names a folder."""
    folder = os.environ.get(DUMPS_VARIABLE)
    if folder:
        _LastWords(recorder, Path(folder)).prepare()


class _LastWords:
    """Dumps the trace once, at the end. A SIGTERM during the dump waits for it."""

    def __init__(self, recorder: FlightRecorder, folder: Path) -> None:
        self._recorder, self._folder = recorder, folder
        self._process_id = os.getpid()
        self._before = signal.getsignal(signal.SIGTERM)
        self._writing = False

    def prepare(self) -> None:
        atexit.register(self._write)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminated)
        else:
            logger.warning("the first group was made outside of the main thread: on SIGTERM no trace is dumped")

    def _write(self) -> None:
        if self._writing or os.getpid() != self._process_id:  # a forked worker is no rank
            return
        self._writing = True
        try:
            self._recorder.dump(self._folder)
        except OSError as error:
            logger.warning("no trace in %s: %s", self._folder, error.strerror or error)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if self._writing:
            return  # the process is on its way out
        self._write()
        signal.signal(number, self._before if self._before is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)
