"""The command explain: why a plan was chosen, and what would change it."""

from __future__ import annotations

from typing import Annotated

import typer

from scaleacross.cli.frame import searching
from scaleacross.cli.limits import CpuLimit, WorkLimit, limits
from scaleacross.cli.view import EXPLANATION_SECTIONS, ExplanationSections, Full, Quiet, view_of


def explain_command(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="PLAN", help="A plan.json, a YAML with job and decision, or a catalogue name.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON and nothing else.")] = False,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="Seconds for all runner-ups together.")
    ] = 60.0,
    cpu_limit_s: CpuLimit = None,
    work_limit: WorkLimit = None,
    full: Full = False,
    sections: ExplanationSections = None,
    quiet: Quiet = False,
) -> None:
    """Say why a plan is as it is: the runner-up of every decision, what binds every phase, and the sensitivity of the step time.

    The most important lines are printed; --full prints all, --section a part.

    \b
    Examples:
      scaleacross explain build/llama3_405b/plan.json
      scaleacross explain llama3_table4_row1 --time-limit 20
      scaleacross explain plan.json --work-limit 200   # the same runner-ups on a loaded and an idle machine
      scaleacross explain plan.json --full
      scaleacross explain plan.json --json | jq '.sensitivities[] | {figure, elasticity}'
    """
    from scaleacross.api import explain
    from scaleacross.catalogue import is_recommendation
    from scaleacross.cli.recommendation import explain_recommendation_command
    from scaleacross.report.explanation import (
        explanation_line,
        explanation_report,
        explanation_sections,
        explanation_summary,
    )

    view = view_of(full, sections, quiet, EXPLANATION_SECTIONS)
    if is_recommendation(source):
        explain_recommendation_command(context, source, as_json, time_limit_s)
        return
    with searching() as progress:
        explanation = explain(source, progress=progress, **limits(time_limit_s, cpu_limit_s, work_limit))
    view.show(
        explanation,
        as_json,
        first=explanation_summary,
        whole=explanation_report,
        parts=explanation_sections,
        line=explanation_line,
    )
