"""The command schedule: one pipeline step as a chart, with totals and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import answer, output_folder, searching
from scaleacross.cli.stopping import first_interrupt

if TYPE_CHECKING:
    from scaleacross.spec.plan import Plan
    from scaleacross.spec.timeline import PipelineTimeline


def schedule_command(
    source: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="A plan.json; or give --name, --stages and --microbatches.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="1F1B, ZBVZeroBubble, ...")] = None,
    stages: Annotated[int | None, typer.Option("--stages", metavar="P", help="Pipeline ranks.")] = None,
    microbatches: Annotated[int | None, typer.Option("--microbatches", metavar="M", help="Micro-batches.")] = None,
    chunks: Annotated[
        int | None, typer.Option("--chunks", metavar="V", help="Model chunks per rank; default: 1, or 2 where needed.")
    ] = None,
    forward_ms: Annotated[float, typer.Option(metavar="MS", help="Forward of one micro-batch on one rank.")] = 1.0,
    input_grad_ms: Annotated[float, typer.Option(metavar="MS", help="Its input gradient.")] = 1.0,
    weight_grad_ms: Annotated[float, typer.Option(metavar="MS", help="Its weight gradient.")] = 1.0,
    latency_ms: Annotated[float, typer.Option(metavar="MS", help="How long a message travels.")] = 0.0,
    message_ms: Annotated[float, typer.Option(metavar="MS", help="How long a message occupies its link.")] = 0.0,
    boundary: Annotated[
        list[int] | None,
        typer.Option("--boundary", metavar="K", help="Delay only between ranks K and K+1 (from 0). Repeatable."),
    ] = None,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="N", help="Chunk activations that fit in a rank.")
    ] = None,
    message_mib: Annotated[
        float | None, typer.Option(metavar="MIB", min=0, help="Size of a message, for the totals.")
    ] = None,
    optimal: Annotated[bool, typer.Option("--optimal", help="Search the best order of a plan's step.")] = False,
    time_limit: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds for --optimal.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the timeline as JSON and nothing else.")] = False,
    output: Annotated[Path | None, output_folder("Write schedule.csv, stages.json, trace.json.")] = None,
) -> None:
    """Show one pipeline step: who computes what when, the bubble, the memory and the messages.

    \b
    Examples:
      scaleacross schedule build/llama3_405b/plan.json
      scaleacross schedule build/llama3_405b/plan.json --optimal --time-limit 30 -o build/schedule
      scaleacross schedule --name ZBVZeroBubble --stages 8 --microbatches 16 --latency-ms 5 --boundary 3
      scaleacross schedule --name 1F1B --stages 4 --microbatches 8 --weight-grad-ms 1.5 -o build/schedule
    """
    from scaleacross.api import schedule, schedule_of_plan

    if source is not None and (name or stages or microbatches):
        raise typer.BadParameter("give either a plan.json, or --name, --stages and --microbatches")
    if optimal and source is None:
        raise typer.BadParameter("--optimal takes a plan.json: times, links and memory come from it")
    if source is not None:
        return deliver(schedule_of_plan(_refined(source, time_limit) if optimal else source), as_json, output)
    if name is None or stages is None or microbatches is None:
        raise typer.BadParameter("give a plan.json, or --name, --stages and --microbatches")
    found = schedule(
        name,  # type: ignore[arg-type]  # an unknown name is refused with the names that there are
        stages,
        microbatches,
        chunks,
        forward_s=forward_ms * 1e-3,
        input_gradient_s=input_grad_ms * 1e-3,
        weight_gradient_s=weight_grad_ms * 1e-3,
        latency_s=latency_ms * 1e-3,
        message_s=message_ms * 1e-3,
        boundaries=boundary,
        max_in_flight=memory,
        message_bytes=None if message_mib is None else message_mib * 2**20,
    )
    return deliver(found, as_json, output)


def _refined(source: str, time_limit_s: float) -> Plan:
    """Return the plan with the best order found; print its bound, or that nothing better was found, on stderr."""
    from scaleacross.api import refine_schedule, verified_plan

    given = verified_plan(source)
    with searching() as show, first_interrupt() as stopped:
        plan = refine_schedule(given, time_limit_s, progress=show, stopped=stopped)
        none = "no better order was found" + (" before the search was stopped" if stopped() else "")
    typer.echo(none if plan is given else plan.report.notes[-1], err=True)
    return plan


def deliver(timeline: PipelineTimeline, as_json: bool, directory: Path | None) -> None:
    """Write files, print the timeline on stdout, then name the files on stderr."""
    from scaleacross.emitters import write_files
    from scaleacross.emitters.pipeline_csv import timeline_files
    from scaleacross.report.schedule import schedule_report

    files, refused = timeline_files(timeline)
    written = write_files(files, directory) if directory else []
    answer(timeline, as_json, schedule_report)
    if written:
        if refused:
            typer.echo(f"not written: schedule.csv: {refused}", err=True)
        typer.echo(f"wrote {', '.join(map(str, written))}", err=True)
