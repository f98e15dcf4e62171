"""The console that the report is made for."""

from __future__ import annotations

import os
import sys

from rich.console import Console

MIN_WIDTH, PIPED_WIDTH = 80, 120


class PlainConsole(Console):
    """Text stays as it is (no markup, emoji or number colouring), and a closed pipe is the caller's to handle.

    A pipe gets a readable width whatever COLUMNS says. NO_COLOR is honoured, and pipes get no codes, by rich itself.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(
            stderr=stderr, width=None if stream.isatty() else piped_width(), markup=False, emoji=False, highlight=False
        )

    def on_broken_pipe(self) -> None:
        """Leave the BrokenPipeError to the caller."""
        raise BrokenPipeError


def piped_width() -> int:
    """Columns of output that goes to a file or a pipe: COLUMNS, but never too narrow for the tables."""
    columns = os.environ.get("COLUMNS", "")
    return max(MIN_WIDTH, int(columns)) if columns.isdecimal() else PIPED_WIDTH
