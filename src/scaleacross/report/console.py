"""The console that reports are printed on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

MIN_WIDTH, PIPED_WIDTH = 80, 120


class PlainConsole(Console):
    """A console that prints text unchanged: no markup, emoji or number colouring. The caller handles a closed pipe.

    A pipe gets a readable width whatever COLUMNS says. rich itself honours NO_COLOR and sends no codes to pipes.
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
    """Return columns of output to a file or a pipe: COLUMNS, but never too narrow for the tables."""
    columns = os.environ.get("COLUMNS", "")
    return max(MIN_WIDTH, int(columns)) if columns.isdecimal() else PIPED_WIDTH
