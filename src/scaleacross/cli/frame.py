"""Shared parts of all commands: exit codes, error messages, and options with the same meaning everywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from scaleacross.cli.stopping import unwound_on_sigterm
from scaleacross.errors import ScaleAcrossError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scaleacross.report.progress import ProgressDisplay
    from scaleacross.spec.base import Spec

P = ParamSpec("P")
Found = TypeVar("Found", bound="Spec")
EXIT_UNEXPECTED, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 130, 141
EXIT_CODES = "Exit codes: 0 done, 1 unexpected error, 2 bad input, 3 no plan fits, 4 time limit, 5 verification failed."


def output_folder(text: str) -> Any:
    """Return the option -o for a folder; ``text`` is its help."""
    return typer.Option("-o", "--output", metavar="DIR", file_okay=False, help=text, callback=_writable)


def _exists(path: Path) -> bool:
    """Return whether the path is there, as far as this user may look."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _writable(folder: Path | None) -> Path | None:
    """Return the folder.

    Raises:
        BadParameter: it cannot be made or written; said here, because a search of an hour may come first.
    """
    if folder is None:
        return None
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if _exists(one))
    if not there.is_dir():
        raise typer.BadParameter(f"{there} is a file: a folder is needed there; remove it or choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"cannot write to {there}: permission denied; choose another place")
    return folder


Directory = Annotated[Path | None, output_folder("Write plan.json, launch files and report.html to DIR.")]
Json = Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a field of the job, e.g. sequence_length=4096. Repeatable."
    ),
]
Targets = Annotated[
    str | None,
    typer.Option(
        "--emit",
        metavar="TARGET,...",
        help="With -o: only these, and fail if one cannot be made. megatron or torchtitan is the target of a job without one.",
    ),
]


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap ``command`` so that every failure becomes one message on stderr and its exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            _mention_hidden()
            with unwound_on_sigterm():
                command(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.BadParameter):
            raise
        except ScaleAcrossError as error:
            fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            fail("interrupted", EXIT_INTERRUPTED)
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # so that the interpreter's last flush is silent
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except Exception as error:
            if os.environ.get("SCALEACROSS_DEBUG"):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            fail(f"unexpected {reason} (rerun with SCALEACROSS_DEBUG=1 for the traceback)", EXIT_UNEXPECTED)

    return run


def _mention_hidden() -> None:
    """Print which bundled entries the user's catalogue hides, because a forgotten file there changes every plan."""
    if os.environ.get("SCALEACROSS_CONFIGS"):
        from scaleacross.catalogue import hidden

        if names := hidden():
            typer.echo(f"note: SCALEACROSS_CONFIGS hides the bundled {', '.join(names)}", err=True)


def say_unread_columns(runs: Path | None) -> None:
    """Print on stderr which columns of a runs file are not read, because a misspelt one drops its figures."""
    if runs is not None:
        from scaleacross.api.accuracy import unread_columns

        if told := unread_columns(runs):
            typer.echo(f"note: {told}", err=True)


def names_of(targets: str) -> list[str]:
    names = [target.strip() for target in targets.split(",") if target.strip()]
    if not names:
        raise typer.BadParameter("name at least one target, e.g. launch")
    return names


def display(renderable: RenderableType) -> None:
    from scaleacross.report.console import PlainConsole

    PlainConsole().print(renderable)


def answer(found: Found, as_json: bool, report: Callable[[Found], RenderableType]) -> None:
    """Print ``found`` as JSON, or as its report."""
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        display(report(found))


def searching() -> ProgressDisplay:
    """Return a display of progress on stderr: enter it as a context manager and call it with each ``Progress``."""
    from scaleacross.report.console import PlainConsole
    from scaleacross.report.progress import ProgressDisplay

    return ProgressDisplay(PlainConsole(stderr=True))


def fail(message: str, exit_code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(exit_code)
