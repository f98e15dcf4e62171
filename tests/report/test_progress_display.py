from __future__ import annotations

import io
import time

from rich.console import Console

from scaleacross.report.progress import ProgressDisplay, progress_line
from scaleacross.spec.progress import Progress

EARLY = Progress("enumerating", 10, None, None, None, 0.5)
LATE = Progress("placing", 1200, 40000, 5.0, 4.5, 3.0)


def shown(*, terminal: bool, delay_s: float, patience_s: float = 0.0) -> str:
    """Output during a search that ends at the first output, or after ``patience_s``."""
    out = io.StringIO()
    with ProgressDisplay(Console(file=out, force_terminal=terminal, width=100), delay_s=delay_s) as progress:
        progress(LATE)
        end = time.monotonic() + patience_s
        while not out.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    return out.getvalue()


def test_line_says_what_is_known() -> None:
    assert progress_line(EARLY) == "enumerating 10 · 500 ms"
    assert progress_line(LATE) == "placing 1,200 of 40,000 · best 5.00 s · bound 4.50 s (gap 10.0 %) · 3.00 s"


def test_nothing_is_shown_before_the_delay() -> None:
    assert shown(terminal=True, delay_s=60.0) == ""


def test_nothing_is_shown_off_a_terminal() -> None:
    assert shown(terminal=False, delay_s=0.0, patience_s=0.1) == ""


def test_line_is_shown_after_the_delay() -> None:
    assert "placing 1,200 of 40,000" in shown(terminal=True, delay_s=0.0, patience_s=30.0)
