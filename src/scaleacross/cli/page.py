"""Write report.html and single charts where the charting library is installed; otherwise print so on stderr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scaleacross.report.page.pages import Contents
    from scaleacross.spec.plan import Plan
    from scaleacross.spec.timeline import PipelineTimeline


Charts = Annotated[
    Path | None,
    typer.Option(
        "--charts", metavar="DIR", file_okay=False, help="Write every chart of report.html to DIR as SVG, PNG and CSV."
    ),
]


def page_files(contents: Callable[[], Contents], of: Plan | None = None) -> dict[str, str]:
    """Return report.html by its name, with the whole report ``of`` a plan.

    Empty, with a message, where the charting library is missing.
    """
    from importlib.metadata import version

    from scaleacross.report.page.html import MISSING, REPORT_FILE, can_draw, page
    from scaleacross.report.terminal import section_texts

    if not can_draw():
        typer.echo(f"no {REPORT_FILE}: {MISSING}", err=True)
        return {}
    sections = section_texts(of) if of else {}
    return {REPORT_FILE: page(*contents(), f"scaleacross {version('scaleacross')}", sections)}


def write_charts(contents: Callable[[], Contents], folder: Path | None) -> None:
    """Write every chart of a page as NAME.svg, NAME.png and NAME.csv in ``folder``; None writes nothing.

    Raises:
        InputError: the charting library is missing, or the folder cannot be written.
    """
    if folder is None:
        return
    from scaleacross.emitters import write_files
    from scaleacross.report.page.pictures import picture_files

    _, _, charts = contents()
    written = write_files(picture_files(charts), folder)
    typer.echo(f"wrote {len(written)} files to {folder}: {', '.join(chart.name for chart in charts)}", err=True)


def timeline_of(plan: Plan) -> PipelineTimeline | None:
    """Return the times of all computations of the pipeline; None for a plan without one."""
    from scaleacross.api import schedule_of_plan

    return schedule_of_plan(plan) if plan.degrees.pp > 1 else None
