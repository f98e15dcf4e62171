"""The command simulate: one step event by event, with traces of it; or weeks of training under failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import answer, display, output_folder, searching
from scaleacross.cli.page import Charts, page_files, write_charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleacross.spec.plan import Plan
    from scaleacross.spec.simulation import SimulatedStep


Days = Annotated[
    float | None,
    typer.Option("--days", metavar="N", help="Simulate so many days under failures instead of one step."),
]
Draws = Annotated[
    int | None,
    typer.Option(
        "--draws",
        metavar="N",
        help="With --days: draws of the failures (100). Without: draws of the step under --what-if jitter, host-jitter.",
    ),
]
FailuresFrom = Annotated[
    str,
    typer.Option(
        "--failures",
        metavar="TRACE.csv|rates",
        help="rates: drawn by the plan's rates; or a CSV with time_hours, cause, host_swap, unit. With --days.",
    ),
]
Output = Annotated[Path | None, output_folder("Write simulation.json and report.html to DIR.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")]

WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CHANGE",
        help="jitter=0.02, host-jitter=0.03, seed=1, straggler=RANK:1.3, slow=LEVEL:0.5, slow=A/B:0.5 (an inter-building link), "
        "lost-plane=LEVEL, lost-rack=BUILDING:RACK, sync-every=STEPS[:BITS] (replicas meet rarely: DiLoCo). Repeatable.",
    ),
]


def simulate_command(
    source: Annotated[str, typer.Argument(metavar="PLAN", help="A plan.json.")],
    what_if: WhatIf = None,
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
        bool, typer.Option("--unfolded", help="Simulate every rank, not one of each class: for small plans.")
    ] = False,
    output: Output = None,
    charts: Charts = None,
    days: Days = None,
    draws: Draws = None,
    failures: FailuresFrom = "rates",
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the simulation as JSON and nothing else.")] = False,
) -> None:
    """Simulate one step of a plan on its topology, event by event, and state the difference to the estimated step time.

    The simulation does not see the cost model. Computation comes from the plan, links from the topology, and concurrent
    flows share links max-min fairly. Differences above 5 % of the step are flagged with their cause, where the simulation
    shows it.

    \b
    Examples:
      scaleacross simulate build/llama3_405b/plan.json
      scaleacross simulate plan.json --gantt --trace step.json
      scaleacross simulate plan.json -o build/simulated   # report.html: site, parts, timeline, links
      scaleacross simulate plan.json --chakra traces/ && ASTRA_SIM=path/to/binary traces/run.sh
      scaleacross simulate plan.json --what-if slow=building-a/building-b:0.5 --what-if jitter=0.02
      scaleacross simulate plan.json --json | jq .components_s
      scaleacross simulate plan.json --what-if host-jitter=0.03 --draws 50
      scaleacross simulate plan.json --days 54 --draws 100
      scaleacross simulate plan.json --days 54 --failures TRACE.csv
      scaleacross simulate build/dcnv2/plan.json --what-if straggler=3:1.3   # a recommendation plan
    """
    from scaleacross.catalogue import is_recommendation

    if is_recommendation(source):
        from scaleacross.cli.recommendation import simulate_recommendation_command

        of_models = {
            "days": days,
            "gantt": gantt,
            "trace": trace,
            "chakra": chakra,
            "unfolded": unfolded,
            "charts": charts,
        }
        given = [f"--{name}" for name, value in of_models.items() if value]
        simulate_recommendation_command(source, what_if or (), given, output, as_json)
        return
    if days is not None:
        _refuse("--days", gantt=gantt, trace=trace, chakra=chakra, unfolded=unfolded)
        _weeks(source, days, 100 if draws is None else draws, failures, seed, what_if or (), as_json, output, charts)
        return
    _refuse("no --days", failures=failures != "rates", seed=bool(seed) and draws is None)
    if draws is not None:
        _refuse("--draws", gantt=gantt, trace=trace, chakra=chakra, unfolded=unfolded, output=output, charts=charts)
        _step_draws(source, draws, seed, what_if or (), as_json)
        return
    _one_step(source, what_if or (), gantt, trace, chakra, unfolded, output, charts, as_json)


def _one_step(
    source: str,
    what_if: Sequence[str],
    gantt: bool,
    trace: Path | None,
    chakra: Path | None,
    unfolded: bool,
    output: Path | None,
    charts: Path | None,
    as_json: bool,
) -> None:
    """Simulate one step, write the files, then print the report."""
    from scaleacross.api import simulate, verified_plan
    from scaleacross.report.simulation import simulation_report

    plan = verified_plan(source)
    with searching() as show:
        kept = gantt or any(one is not None for one in (trace, output, charts))
        step = simulate(plan, what_if=what_if, fold=not unfolded, timeline=kept, progress=show)
    written = _write(step, trace)
    if output is not None:
        written += _write_page(plan, step, output)
    if charts is not None:
        from scaleacross.report.page.pages import simulation_page

        write_charts(lambda: simulation_page(plan, step), charts)
    notes = _write_chakra(plan, chakra, what_if, written) if chakra is not None else ""
    if as_json:
        typer.echo(step.without_timeline().model_dump_json(indent=2))
    else:
        display(simulation_report(step, gantt))
    if written:
        typer.echo(f"wrote {', '.join(written)}", err=True)
    if notes:
        typer.echo(f"no network.yml: {notes}", err=True)


def _refuse(among: str, **wrong: object) -> None:
    """Raise InputError for options that do not apply to what is asked."""
    from scaleacross.errors import InputError

    given = [f"--{name.replace('_', '-')}" for name, value in wrong.items() if value]
    if given and among.startswith("no "):
        raise InputError(
            f"{', '.join(given)} without {among[3:]}: one step has no failures; --what-if seed=N draws others"
        )
    if given:
        raise InputError(f"{', '.join(given)} and {among}: the former are of one step; leave one of them out")


def _step_draws(source: str, draws: int, seed: int, what_if: Sequence[str], as_json: bool) -> None:
    from scaleacross.api.simulating import step_draws
    from scaleacross.report.simulation import step_draws_report

    with searching() as show:
        found = step_draws(source, what_if=what_if, draws=draws, seed=seed, progress=show)
    answer(found, as_json, step_draws_report)


def _weeks(
    source: str,
    days: float,
    draws: int,
    failures: str,
    seed: int,
    what_if: Sequence[str],
    as_json: bool,
    output: Path | None,
    charts: Path | None,
) -> None:
    from scaleacross.api.weeks import simulate_weeks
    from scaleacross.emitters import write_files
    from scaleacross.report.long_run import long_run_report
    from scaleacross.report.page.pages import weeks_page

    with searching() as show:
        run = simulate_weeks(
            source, days=days, draws=draws, seed=seed, failures=failures, what_if=what_if, progress=show
        )
    if output is not None:
        page = page_files(lambda: weeks_page(Path(source).stem, run))
        files = write_files({"simulation.json": run.model_dump_json(indent=2) + "\n", **page}, output)
        typer.echo(f"wrote {', '.join(map(str, files))}", err=True)
    write_charts(lambda: weeks_page(Path(source).stem, run), charts)
    answer(run, as_json, long_run_report)


def _write_page(plan: Plan, step: SimulatedStep, folder: Path) -> list[str]:
    """Write simulation.json and report.html, all or none; return their paths."""
    from scaleacross.emitters import write_files
    from scaleacross.report.page.pages import simulation_page

    text = step.without_timeline().model_dump_json(indent=2) + "\n"
    page = page_files(lambda: simulation_page(plan, step))
    return [str(path) for path in write_files({"simulation.json": text, **page}, folder)]


def _write(step: SimulatedStep, trace: Path | None) -> list[str]:
    """Write the trace, if asked for; return what was written, for stderr."""
    from scaleacross.emitters import write_files

    written: list[str] = []
    if trace is not None:
        from scaleacross.emitters.step_trace import step_trace_json

        written += map(str, write_files({trace.name: step_trace_json(step)}, trace.parent))
    return written


def _write_chakra(plan: Plan, folder: Path, what_if: Sequence[str], written: list[str]) -> str:
    """Write all Chakra files or none; return the reason why there is no network file, '' where there is one."""
    from scaleacross.api import execution_trace
    from scaleacross.emitters import write_files
    from scaleacross.emitters.chakra import chakra_files
    from scaleacross.spec.progress import telling

    with searching() as show:
        told = partial(telling(show), "writing traces")
        files, reason = chakra_files(execution_trace(plan, what_if=what_if, progress=show), plan, told)
        paths = write_files(files, folder)
    written.append(f"{len(paths)} files to {folder}")
    return reason
