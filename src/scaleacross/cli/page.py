"""report.html: made where the charting library is installed, else said on stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from scaleacross.report.page.pages import Contents
    from scaleacross.spec.plan import Plan
    from scaleacross.spec.timeline import PipelineTimeline


def page_files(contents: Callable[[], Contents]) -> dict[str, str]:
    """report.html by its name; empty where the charting library is missing, which is said."""
    from importlib.metadata import version

    from scaleacross.report.page.html import MISSING, REPORT_FILE, can_draw, page

    if not can_draw():
        typer.echo(f"no {REPORT_FILE}: {MISSING}", err=True)
        return {}
    return {REPORT_FILE: page(*contents(), f"scaleacross {version('scaleacross')}")}


def timeline_of(plan: Plan) -> PipelineTimeline | None:
    """When every computation of the pipeline happens; None for a plan without one."""
    from scaleacross.api import schedule_of_plan

    return schedule_of_plan(plan) if plan.degrees.pp > 1 else None
