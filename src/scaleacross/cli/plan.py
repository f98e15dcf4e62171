"""plan, evaluate, emit: the commands that end in a plan and its launch files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import Directory, Json, Overrides, Targets, display, names_of

if TYPE_CHECKING:
    from scaleacross.spec.plan import Plan


def plan_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job YAML, or the name of a job of the catalogue.")],
    output: Directory = None,
    as_json: Json = False,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="Seconds of search at most.")
    ] = 60.0,
    overrides: Overrides = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Seed of the solver; equal seeds give equal plans.")
    ] = 0,
    emit: Targets = None,
    gap: Annotated[
        float, typer.Option("--gap", metavar="FRACTION", min=0, max=1, help="Stop at this gap; 0 proves the optimum.")
    ] = 0.0,
    refine_s: Annotated[
        float,
        typer.Option("--refine", metavar="S", min=0, help="Seconds for orders of their own of the best pipelines."),
    ] = 0.0,
    referee: Annotated[
        int | None,
        typer.Option("--referee", metavar="N", min=1, help="Replay the N best by price; the fastest is the plan."),
    ] = None,
) -> None:
    """Find the fastest plan for a job, with proof, and write its launch files.

    \b
    Examples:
      scaleacross plan configs/jobs/llama3_405b_two_buildings.yaml -o build/llama3_405b
      scaleacross plan llama3_405b_two_buildings --set degrees.tp=8 --set global_batch_sequences=4096
      scaleacross plan job.yaml --json | jq .cost.step_s
      scaleacross plan job.yaml --refine 60   # then search a better order of the pipeline step of the finalists
      scaleacross plan job.yaml --referee 4   # let the simulator decide among the four best by price
    """
    from scaleacross.api import plan, refine_finalists
    from scaleacross.report.console import PlainConsole
    from scaleacross.report.progress import ProgressDisplay

    targets = targets_of(emit, output)
    if referee and refine_s:
        raise typer.BadParameter("--refine decides by price, --referee by replay: give one of them")
    with ProgressDisplay(PlainConsole(stderr=True)) as progress:
        found = plan(
            job,
            time_limit_s=time_limit_s,
            seed=seed,
            overrides=overrides or (),
            progress=progress,
            gap_tolerance=gap,
            referee=referee,
        )
        if refine_s:
            found = refine_finalists(found, refine_s, seed=seed, progress=progress)
    deliver(found, as_json, output, targets)


def evaluate_command(
    source: Annotated[
        str, typer.Argument(metavar="PLAN", help="A YAML with job and decision, a plan.json, or a catalogue name.")
    ],
    output: Directory = None,
    as_json: Json = False,
    overrides: Overrides = None,
    emit: Targets = None,
) -> None:
    """Price settings that you bring: the same breakdown, nothing searched.

    \b
    Examples:
      scaleacross evaluate llama3_table4_row1
      scaleacross evaluate my_settings.yaml
      scaleacross evaluate build/llama3_405b/plan.json --set global_batch_sequences=4096
    """
    from scaleacross.api import evaluate

    targets = targets_of(emit, output)
    deliver(evaluate(source, overrides=overrides or ()), as_json, output, targets)


def emit_command(
    source: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TARGET,...", help="launch, torchrun, torchtitan, megatron, nccl, ncclx, pipeline_csv."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", file_okay=False, help="Where to write.")
    ] = Path(),
) -> None:
    """Write launch files of a plan for one or more targets. The plan is verified first.

    \b
    Example:
      scaleacross emit build/llama3_405b/plan.json --to torchrun,nccl -o build/launch
    """
    from scaleacross.bundle import write_bundle
    from scaleacross.catalogue import load_plan

    for path in write_bundle(load_plan(source), output, names_of(to), with_plan=False).files:
        typer.echo(path)


def deliver(plan: Plan, as_json: bool, directory: Path | None, targets: list[str] | None) -> None:
    """Files first (a closed pipe must not cost them), then the plan on stdout, then what was written on stderr."""
    from scaleacross.bundle import write_bundle
    from scaleacross.report.terminal import plan_report

    bundle = write_bundle(plan, directory, targets) if directory else None
    if as_json:
        typer.echo(plan.model_dump_json(indent=2))
    else:
        display(plan_report(plan))
    if bundle and directory:
        for target, reason in bundle.refused.items():
            typer.echo(f"not written: {target}: {reason}", err=True)
        names = dict.fromkeys(path.relative_to(directory).parts[0] for path in bundle.files)
        typer.echo(f"wrote {len(bundle.files)} files to {directory}: {', '.join(names)}", err=True)


def targets_of(emit: str | None, directory: Path | None) -> list[str] | None:
    if emit and not directory:
        raise typer.BadParameter("--emit writes files: say where with -o DIR")
    return names_of(emit) if emit else None
