"""The command sweep: run every point of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import EXIT_UNEXPECTED, Json, display, output_folder
from scaleacross.cli.page import Charts, page_files, write_charts

if TYPE_CHECKING:
    from scaleacross.report.sweep import SweepBar

Processes = Annotated[
    int | None,
    typer.Option("-j", "--jobs", metavar="N", min=1, help="Points at the same time here; default: one per core."),
]
EngineName = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="Where points run: local, or the workers of a dask or ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="ADDR", help="Of the cluster: tcp://HOST:8786 (dask), HOST:6379 or auto (ray)."),
]


def sweep_command(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study YAML, or the name of a study of the catalogue.")
    ],
    processes: Processes = None,
    output: Annotated[Path | None, output_folder("Where results are kept; default: ./NAME.")] = None,
    as_json: Json = False,
    engine: EngineName = "local",
    address: Address = None,
    charts: Charts = None,
) -> None:
    """Run every point of a study: what-if over any fields of a job.

    Each finished point is a line of DIR/points.jsonl. The same command continues an interrupted study and runs only what is
    new; DIR/points.csv (and points.parquet, where pyarrow is installed) hold one row per point; DIR/report.html shows them.

    A point that a neighbour's plan runs faster takes that plan (found_by: neighbour); its bound stays that of its own search.

    step_s and all rates of a row are simulated where step_of says simulation, else estimated (recommendation models, and
    plans that the simulator refuses). bound_s and gap refer to estimate_s.

    A running Dask or Ray cluster takes over with --engine and --address (pip install 'scaleacross[dask]' or
    'scaleacross[ray]', here and on its workers); results are kept in DIR on this machine all the same.

    \b
    Examples:
      scaleacross sweep two_buildings_trunk -j 2 -o build/trunk
      scaleacross sweep my_study.yaml --json | jq .best
      scaleacross sweep my_study.yaml --engine dask --address tcp://head:8786
    """
    from scaleacross.api import sweep
    from scaleacross.catalogue import load_study
    from scaleacross.emitters import write_files
    from scaleacross.report.page.pages import sweep_page
    from scaleacross.report.sweep import sweep_json, sweep_report

    directory = output or Path(load_study(study)[0].name)
    with points_told(directory) as progress:
        result = sweep(
            study,
            directory=directory,
            processes=processes or cores(),
            engine=engine,
            address=address,
            progress=progress,
        )
    files = [*result.files, *write_files(page_files(lambda: sweep_page(result)), directory)]
    write_charts(lambda: sweep_page(result), charts)
    if as_json:
        typer.echo(sweep_json(result, result.files))
    else:
        display(sweep_report(result))
    typer.echo(f"wrote {', '.join(map(str, files))}", err=True)
    if result.note:
        typer.echo(result.note, err=True)
    exit_if_failed(result.statuses)


@contextmanager
def points_told(directory: Path) -> Iterator[SweepBar]:
    """Yield the progress bar of a run over many points; an interruption prints where finished points are kept."""
    from scaleacross.report.console import PlainConsole
    from scaleacross.report.sweep import SweepBar

    with kept_in(directory), SweepBar(PlainConsole(stderr=True)) as progress:
        yield progress


@contextmanager
def kept_in(directory: Path | None) -> Iterator[None]:
    """On an interruption print where finished points are kept; None: nowhere."""
    try:
        yield
    except KeyboardInterrupt:
        if directory is not None:
            typer.echo(f"finished points are kept in {directory}; the same command continues", err=True)
        raise


def exit_if_failed(statuses: Mapping[str, int]) -> None:
    """Exit with an error where points met an unexpected error."""
    if failed := statuses.get("failed"):
        typer.echo(f"error: {failed} points met an unexpected error; the same command tries them again", err=True)
        raise typer.Exit(EXIT_UNEXPECTED)


def cores() -> int:
    """Return the number of cores that this process may use."""
    import os

    return len(os.sched_getaffinity(0))
