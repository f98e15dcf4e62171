"""simulate: a plan replayed event by event, beside its price; traces of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleacross.spec.plan import Plan
    from scaleacross.spec.simulation import SimulatedStep


def simulate_command(
    source: Annotated[str, typer.Argument(metavar="PLAN", help="A plan.json.")],
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="CHANGE",
            help="jitter=0.02, seed=1, straggler=POSITION:1.3, slow=LEVEL:0.5, slow=A/B:0.5 (a trunk), lost-plane=LEVEL, "
            "lost-rack=BUILDING:RACK. Repeatable.",
        ),
    ] = None,
    gantt: Annotated[
        bool, typer.Option("--gantt", help="Show a chart of the step, a line per class of ranks.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", dir_okay=False, help="Write a trace that Perfetto opens."),
    ] = None,
    chakra: Annotated[
        Path | None,
        typer.Option(
            "--chakra", metavar="DIR", file_okay=False, help="Write Chakra traces of all ranks, for ASTRA-sim."
        ),
    ] = None,
    unfolded: Annotated[
        bool, typer.Option("--unfolded", help="Play every rank, not one of each class: for small plans.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the replay as JSON and nothing else.")] = False,
) -> None:
    """Replay one step of a plan on its topology, event by event, and hold the cost model's price against it.

    The simulator does not see the cost model: computation comes from the plan, links from the topology, and flows that meet share
    links fairly. Differences above 5 % of the step are flagged with the cause that the replay can see.

    \b
    Examples:
      scaleacross simulate build/llama3_405b/plan.json
      scaleacross simulate plan.json --gantt --trace step.json
      scaleacross simulate plan.json --chakra traces/ && ASTRA_SIM=path/to/binary traces/run.sh
      scaleacross simulate plan.json --what-if slow=building-a/building-b:0.5 --what-if jitter=0.02
      scaleacross simulate plan.json --json | jq .components_s
    """
    from scaleacross.api import simulate
    from scaleacross.catalogue import load_plan
    from scaleacross.report.console import PlainConsole
    from scaleacross.report.progress import ProgressDisplay
    from scaleacross.report.simulation import simulation_report

    plan = load_plan(source)
    with ProgressDisplay(PlainConsole(stderr=True)) as show:
        step = simulate(
            plan, what_if=what_if or (), fold=not unfolded, timeline=gantt or trace is not None, progress=show
        )
    written = _write(step, trace)
    notes = _write_chakra(plan, chakra, what_if or (), written) if chakra is not None else ""
    if as_json:
        typer.echo(step.without_timeline().model_dump_json(indent=2))
    else:
        display(simulation_report(step, gantt))
    if written:
        typer.echo(f"wrote {', '.join(written)}", err=True)
    if notes:
        typer.echo(f"no network.yml: {notes}", err=True)


def _write(step: SimulatedStep, trace: Path | None) -> list[str]:
    """Files first, all or none of each kind; what was written, for stderr."""
    from scaleacross.emitters import write_files

    written: list[str] = []
    if trace is not None:
        from scaleacross.emitters.step_trace import step_trace_json

        written += map(str, write_files({trace.name: step_trace_json(step)}, trace.parent))
    return written


def _write_chakra(plan: Plan, folder: Path, what_if: Sequence[str], written: list[str]) -> str:
    """All files or none; why there is no network file, '' where there is one."""
    import time

    from scaleacross.api import execution_trace
    from scaleacross.emitters import write_files
    from scaleacross.emitters.chakra import chakra_files
    from scaleacross.report.console import PlainConsole
    from scaleacross.report.progress import ProgressDisplay
    from scaleacross.spec.progress import Progress

    began = time.monotonic()
    with ProgressDisplay(PlainConsole(stderr=True)) as show:
        programs = execution_trace(plan, what_if=what_if, progress=show)
        files, reason = chakra_files(
            programs,
            plan,
            lambda done, total: show(Progress("writing traces", done, total, None, None, time.monotonic() - began)),
        )
        paths = write_files(files, folder)
    written.append(f"{len(paths)} files to {folder}")
    return reason
