"""The command calibrate: fit catalogue entries to the user's own measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import display, names_of, output_folder, say_unread_columns, searching
from scaleacross.cli.validate import Benchmark, Collectives, Network

Benches = Annotated[
    list[Path] | None,
    typer.Option(
        "--bench",
        metavar="FILE",
        dir_okay=False,
        help="Output of 'scaleacross bench --json'. Repeatable; needs --plan.",
    ),
]
BenchedPlan = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", dir_okay=False, help="The plan whose launch file was benched.")
]

TestbedJob = Annotated[
    str | None,
    typer.Option("--testbed", metavar="JOB", help="Measure this machine's emulated buildings for a job (as root)."),
]

Base = Annotated[
    list[str] | None,
    typer.Option(
        "--base", metavar="NAME", help="Entry or file that supplies what is not fitted. Repeatable, one of a kind."
    ),
]


def calibrate_command(
    gemm: Benchmark = None,
    attention: Benchmark = None,
    collectives: Collectives = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FILE", dir_okay=False, help="Measured training runs (CSV).")
    ] = None,
    bench: Benches = None,
    plan: BenchedPlan = None,
    testbed: TestbedJob = None,
    base: Base = None,
    network: Network = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="LABEL,...", help="Use only rows of these labels or entries.")
    ] = None,
    output: Annotated[Path | None, output_folder("Write accelerators/, networks/ and topologies/ to DIR.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Fit accelerators and links to your own measurements and write them as catalogue entries.

    Errors are shown in sample and on what was left out of the fit: shapes, sizes, whole models, whole sources, single runs.
    One run is enough for --runs: it moves the entry a little, three move it most of the way, and plans of that model and
    precision get an interval that two runs or more narrow (the column model is the workload's name). validate --left-out says by
    how much.

    \b
    Examples:
      scaleacross calibrate --gemm gemm.csv --attention attention.csv -o fleet/
      scaleacross calibrate --gemm my_gpu.csv --base h100-sxm -o fleet/
      scaleacross calibrate --collectives all_reduce.txt --collectives all_gather.txt --network nvlink4 -o fleet/
      scaleacross calibrate --collectives query_coll_tuning.json --network nvlink5 -o fleet/
      scaleacross calibrate --collectives four_nodes.txt -o fleet/   # a topology with fitted rack or zone level
      scaleacross calibrate --runs mine.csv -o fleet/              # one to three runs of your own
      scaleacross calibrate --gemm gemm.csv --runs runs.csv -o fleet/
      scaleacross calibrate --bench zone.json --bench trunk.json --plan build/small/plan.json -o fleet/
      SCALEACROSS_CONFIGS=fleet scaleacross plan job.yaml
      scaleacross calibrate --testbed examples/testbed/job.yaml -o fleet/
    """
    from scaleacross.api import calibrate
    from scaleacross.emitters import write_files
    from scaleacross.report.calibration import calibration_json, calibration_report

    measured = gemm or attention or collectives or runs or bench
    if testbed is not None:
        _calibrate_testbed(testbed, output, alone=not (measured or plan or base or network or only or as_json))
        return
    if not measured:
        raise typer.BadParameter("give --gemm, --attention, --collectives, --runs, --bench or --testbed")
    if bench and plan is None:
        raise typer.BadParameter("--bench needs --plan: the plan says which levels the groups cross")
    say_unread_columns(runs)
    with searching() as progress:
        found = calibrate(
            gemm=gemm,
            attention=attention,
            collectives=collectives or (),
            runs=runs,
            bench=bench or (),
            plan=plan,
            base=base or (),
            network=network,
            only=names_of(only) if only else (),
            progress=progress,
        )
    written = write_files(found.files, output) if output else []
    if as_json:
        typer.echo(calibration_json(found))
    else:
        display(calibration_report(found))
    _say_written(written, output)


def _calibrate_testbed(job: str, output: Path | None, *, alone: bool) -> None:
    """Write the measured topology of ``job``, or print it. ``alone``: no other option was given."""
    from scaleacross.cli.testbed_runs import calibrated_topology
    from scaleacross.emitters import write_files
    from scaleacross.testbed.session import DEFAULT_NAME

    if not alone:
        raise typer.BadParameter("--testbed measures a topology by itself: it goes with -o alone")
    found = calibrated_topology(job, DEFAULT_NAME)
    if output is None:
        typer.echo("\n".join(found.values()), nl=False)
    else:
        _say_written(write_files(found, output), output)


def _say_written(written: Sequence[Path], output: Path | None) -> None:
    if written:
        typer.echo(f"wrote {', '.join(map(str, written))}; use them with SCALEACROSS_CONFIGS={output}", err=True)
