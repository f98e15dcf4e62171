"""The command compare: our plan and the baselines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import Overrides, display, output_folder, searching
from scaleacross.cli.limits import CpuLimit, Space, WorkLimit, limits, wide
from scaleacross.cli.page import Charts, page_files, timeline_of, write_charts
from scaleacross.cli.view import Quiet

if TYPE_CHECKING:
    from scaleacross.spec.comparison import Comparison


def compare_command(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job YAML, or the name of a job of the catalogue.")],
    output: Annotated[
        Path | None,
        output_folder(
            "Write comparison.json, plan.json, report.html, rivals/NAME.json (settings for 'scaleacross evaluate')."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON and nothing else.")] = False,
    time_limit_s: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="S",
            min=0,
            help="Seconds for our search, and for each baseline (twice that if it has no plan).",
        ),
    ] = 60.0,
    cpu_limit_s: CpuLimit = None,
    work_limit: WorkLimit = None,
    space: Space = "quick",
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the solver.")] = 0,
    tie: Annotated[
        float, typer.Option("--tie", metavar="FRACTION", min=0, help="Step times this close count as a tie.")
    ] = 0.005,
    quiet: Quiet = False,
    charts: Charts = None,
) -> None:
    """Compare our plan with six baselines under one cost model: speed-ups, ties, and baselines without a plan.

    \b
    Baselines: production, megatron_order, sailor, atlas, arnold, crosspipe.
    Examples:
      scaleacross compare llama3_405b_two_buildings
      scaleacross compare job.yaml --set topology=three_regions --time-limit 20
      scaleacross compare job.yaml --json | jq '.rivals[] | {name, step_s, speed_up}'
    """
    from scaleacross.api import compare, summarise
    from scaleacross.catalogue import is_recommendation
    from scaleacross.cli.recommendation import compare_recommendation_command
    from scaleacross.emitters import write_files
    from scaleacross.report.comparison import comparison_line, comparison_report
    from scaleacross.report.page.pages import comparison_page

    if is_recommendation(job):
        compare_recommendation_command(context, job, output, as_json, time_limit_s, overrides or (), seed)
        return
    with searching() as progress:
        found = compare(
            job,
            **limits(time_limit_s, cpu_limit_s, work_limit),
            seed=seed,
            tie_tolerance=tie,
            overrides=[*wide(space), *(overrides or ())],
            progress=progress,
        )
    contents = cache(lambda: comparison_page(found, summarise(found.plan), timeline_of(found.plan)))
    written = write_files({**_files(found), **page_files(contents, found.plan)}, output) if output else []
    write_charts(contents, charts)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    elif quiet:
        typer.echo(comparison_line(found))
    else:
        display(comparison_report(found))
    if written:
        typer.echo(f"wrote {len(written)} files to {output}", err=True)


def _files(found: Comparison) -> dict[str, str]:
    """Return the comparison, our plan, and every baseline's settings in the form that ``scaleacross evaluate`` reads."""
    import json

    job = found.plan.job.model_dump(mode="json")
    decisions = {one.name: one.decision.model_dump(mode="json") for one in found.rivals if one.decision}
    return {
        "comparison.json": found.model_dump_json(indent=2) + "\n",
        "plan.json": found.plan.model_dump_json(indent=2) + "\n",
    } | {
        f"rivals/{name}.json": json.dumps({"job": job, "decision": own}, indent=2) + "\n"
        for name, own in decisions.items()
    }
