"""Exceptions of the package.

::

    ScaleAcrossError
    ├── InputError        the user's file, field or value is wrong           (CLI exit code 2)
    │   ├── TooFewError   measurements are fine, but too few for a fit
    │   └── PluginError   a package that adds something is broken
    ├── InfeasibleError   the input is fine, no plan satisfies it            (CLI exit code 3)
    ├── TimeLimitError    the time limit ended before any plan was found     (CLI exit code 4)
    ├── VerificationError a plan's stated figures do not recompute           (CLI exit code 5)
    ├── EmitError         the target cannot express the plan                 (CLI exit code 2)
    └── EmulationError    a tool or process of the testbed failed            (CLI exit code 1)

Every message says what is wrong, where, and the way out; callers print it as it stands.
"""

from __future__ import annotations

import re

# longer than any file name: the user pasted something by mistake, and its beginning identifies it
_TOO_LONG = re.compile(r"[^\s/]{256,}")


class ScaleAcrossError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code = 1


class InputError(ScaleAcrossError):
    """The user's file, field or value is wrong; the message names it and the nearest right one."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(_TOO_LONG.sub(lambda word: f"{word[0][:40]}... ({len(word[0]):,} characters)", message))


class TooFewError(InputError):
    """Measurements are too few for a fit; the message says how many it needs."""


class PluginError(InputError):
    """An object that a package adds cannot be loaded, or its code failed; the message names the package."""


class InfeasibleError(ScaleAcrossError):
    """No plan satisfies the job; the message says what is short by how much, and the ways out."""

    exit_code = 3


class TimeLimitError(ScaleAcrossError):
    """The time limit ended before any feasible plan was found (which is not a proof of infeasibility)."""

    exit_code = 4


class VerificationError(ScaleAcrossError):
    """A plan is illegal, does not fit, or its stated figures do not recompute."""

    exit_code = 5


class EmitError(ScaleAcrossError):
    """The target framework cannot express this plan; the message names the field that it lacks."""

    exit_code = 2


class EmulationError(ScaleAcrossError):
    """A tool of this machine or a process in an emulated host failed; the message quotes its output."""


def unreadable(error: Exception) -> str:
    """Reason why a file cannot be read, worded for its user: its encoding, or the operating system's message."""
    if not isinstance(error, UnicodeDecodeError):
        return str(getattr(error, "strerror", None) or error)
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "its text is UTF-16, not UTF-8: save it as UTF-8 (spreadsheets call it 'CSV UTF-8')"
    return (
        f"its text is not UTF-8 (byte 0x{error.object[error.start]:02X}; Latin-1 or Windows-1252, perhaps, or no text at all): "
        "save it as UTF-8 (spreadsheets call it 'CSV UTF-8')"
    )
