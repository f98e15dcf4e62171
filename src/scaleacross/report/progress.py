"""Progress of a running search: one live line, shown only when the search takes longer."""

from __future__ import annotations

from threading import Timer
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from scaleacross.report.format import count, percent
from scaleacross.spec.progress import Progress
from scaleacross.units import human_seconds

DELAY_S = 2.0
"""Seconds before anything is shown."""


class ProgressDisplay:
    """A context manager that is also the ``progress`` callback of ``plan``.

    It shows one line on ``console`` once ``delay_s`` has passed (rich shows it on terminals only). The line disappears
    afterwards.
    """

    def __init__(self, console: Console, delay_s: float = DELAY_S) -> None:
        self._status = Status("starting", console=console)
        self._timer = Timer(delay_s, self._status.start)
        self._timer.daemon = True

    def __call__(self, progress: Progress) -> None:
        """Show ``progress``."""
        self._status.update(progress_line(progress))

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        self._status.stop()


def progress_line(progress: Progress) -> str:
    """Return a line such as ``bounding 1,200 of 40,000 · best 5.86 s · bound 5.10 s (gap 13.0 %) · 3.00 s``."""
    done = f"{progress.stage} {count(progress.done)}" + (
        f" of {count(progress.total)}" if progress.total is not None else ""
    )
    facts = [done]
    if progress.incumbent_s is not None:
        facts.append(f"best {human_seconds(progress.incumbent_s)}")
    if progress.bound_s is not None:
        bound = f"bound {human_seconds(progress.bound_s)}"
        if progress.incumbent_s:
            bound += f" (gap {percent(1 - progress.bound_s / progress.incumbent_s)})"
        facts.append(bound)
    return " · ".join([*facts, human_seconds(progress.elapsed_s)])
