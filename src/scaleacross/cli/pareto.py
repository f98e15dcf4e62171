"""The command pareto: plans on the Pareto front of two objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import Json, Overrides, display, names_of, output_folder, searching
from scaleacross.cli.limits import CpuLimit, WorkLimit, limits
from scaleacross.cli.page import Charts, page_files, write_charts
from scaleacross.cli.sweep import kept_in


def pareto_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job YAML, or the name of a job of the catalogue.")],
    objectives: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Two of step_time, tokens_per_s_per_megawatt, tokens_per_s_per_currency_unit, useful_tokens_per_s, "
            "useful_tokens_per_s_per_megawatt, useful_tokens_per_s_per_currency_unit.",
        ),
    ] = "step_time,tokens_per_s_per_currency_unit",
    points: Annotated[int, typer.Option(min=2, help="Points at most, both ends included.")] = 8,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="Seconds of every search; points + 2 at most.")
    ] = 60.0,
    cpu_limit_s: CpuLimit = None,
    work_limit: WorkLimit = None,
    gap_tolerance: Annotated[
        float, typer.Option("--gap", metavar="G", min=0, max=1, help="Relative gap at which a search stops.")
    ] = 0.0,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the solver.")] = 0,
    output: Annotated[
        Path | None, output_folder("Write pareto.csv, pareto.json, report.html, point-N/plan.json.")
    ] = None,
    as_json: Json = False,
    charts: Charts = None,
) -> None:
    """Find plans on the Pareto front of two objectives, each with its proof.

    With -o every finished search is kept: after an interruption the same command runs only what is missing.

    \b
    Examples:
      scaleacross pareto llama3_70b_two_regions_priced --points 5 --gap 0.01
      scaleacross pareto job.yaml --objectives step_time,tokens_per_s_per_megawatt -o build/front
    """
    from scaleacross.api import pareto
    from scaleacross.emitters import write_files
    from scaleacross.report.page.pages import front_page
    from scaleacross.report.pareto import pareto_csv, pareto_json, pareto_report

    with searching() as progress, kept_in(output):
        front = pareto(
            job,
            names_of(objectives),
            points=points,
            **limits(time_limit_s, cpu_limit_s, work_limit),
            gap_tolerance=gap_tolerance,
            seed=seed,
            overrides=overrides or (),
            directory=output,
            progress=progress,
        )
    if output is not None:
        files = {"pareto.csv": pareto_csv(front), "pareto.json": pareto_json(front) + "\n"}
        for index, point in enumerate(front.points):
            files[f"point-{index}/plan.json"] = point.plan.model_dump_json(indent=2) + "\n"
        files |= page_files(lambda: front_page(front))
        written = write_files(files, output)
        typer.echo(f"wrote {len(written)} files to {output}", err=True)
    write_charts(lambda: front_page(front), charts)
    if as_json:
        typer.echo(pareto_json(front))
    else:
        display(pareto_report(front))
