"""The command reproduce: a published design space, point by point, or published figures next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import EXIT_UNEXPECTED, Json, answer, display, output_folder
from scaleacross.cli.page import Charts, page_files, write_charts
from scaleacross.cli.sweep import Address, EngineName, Processes, cores, exit_if_failed, points_told
from scaleacross.errors import InputError

if TYPE_CHECKING:
    from scaleacross.api import Reproduction

Points = Annotated[
    int | None,
    typer.Option("--points", metavar="N", min=1, help="So many points; default: as the space says. Fewer come first."),
]
Output = Annotated[Path | None, output_folder("Where results are kept; default: ./NAME.")]
Docs = Annotated[
    Path | None,
    typer.Option("--docs", metavar="DIR", file_okay=False, help="Write NAME.md, NAME.csv and NAME.svg to DIR."),
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Run nothing: report what DIR holds.")]
Replay = Annotated[bool, typer.Option("--replay", help="Then simulate the plan of every baseline and ours.")]
Agree = Annotated[
    float | None,
    typer.Option(
        "--agree",
        metavar="SHARE",
        min=0,
        max=1,
        help="Fail if estimate and simulation are within 5 % on a smaller share of plans.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the space, e.g. time_limit_s=10. Repeatable."),
]

_STUDIES = {
    "dual_level": "published_codecs",
    "freescale": "published_balance",
    "neo": "published_neo",
    "inference_cards": "published_cards",
}
"""Published studies: name -> module of ``api`` with a function of that name."""


def reproduce_command(
    space: Annotated[
        str,
        typer.Argument(
            metavar="SPACE",
            help="A design space YAML, its name in the catalogue, ft_hsdp, dual_level, freescale, neo or inference_cards.",
        ),
    ],
    points: Points = None,
    processes: Processes = None,
    output: Output = None,
    docs: Docs = None,
    no_run: NoRun = False,
    replay: Replay = False,
    agree: Agree = None,
    overrides: Changes = None,
    as_json: Json = False,
    engine: EngineName = "local",
    address: Address = None,
    charts: Charts = None,
) -> None:
    """Compare our plan with production, one dimension at a time, and with every baseline over a design space.

    Each finished point is a line of DIR/points.jsonl. The same command continues an interrupted run; points.csv holds one row
    per point with the step time of every plan; report.html shows them. ``ft_hsdp`` prints published shares of useful time under
    failures and ours, ``dual_level`` published compression of embedding vectors, ``freescale`` published balancing of samples,
    ``neo`` Neo on 128 A100, ``inference_cards`` Glow's rule for cards.

    \b
    Examples:
      scaleacross reproduce scale_across -j 2 -o build/scale_across --docs docs/results
      scaleacross reproduce scale_across --points 24 --set 'accelerators=[1024,2048]' -o build/slice
      scaleacross reproduce scale_across --points 24 --set work_limit=40 -o build/slice
      scaleacross reproduce scale_across --points 24 --set time_limit_s=1 --replay --agree 0.5
      scaleacross reproduce scale_across --no-run -o build/scale_across --json | jq .speed_up_over
      scaleacross reproduce ft_hsdp
      scaleacross reproduce dual_level
      scaleacross reproduce freescale
      scaleacross reproduce neo
      scaleacross reproduce inference_cards
    """
    if space == "ft_hsdp":
        _published_goodput(as_json)
        return
    if space in _STUDIES:
        _published_study(space, as_json)
        return
    from scaleacross.api import reproduce
    from scaleacross.catalogue import load_design_space
    from scaleacross.report.design_space import lost

    try:
        name = load_design_space(space)[0].name
    except InputError as error:
        more = "" if Path(space).exists() else f"; published figures: ft_hsdp, {', '.join(_STUDIES)}"
        raise InputError(f"{error}{more}") from None
    directory = output or Path(name)
    with points_told(directory) as progress:
        found = reproduce(
            space,
            directory=directory,
            points=points,
            run=not no_run,
            replay=replay,
            overrides=overrides or (),
            processes=processes or cores(),
            engine=engine,
            address=address,
            progress=progress,
        )
    _deliver(found, space, points, overrides or (), (directory, docs, charts), as_json)
    exit_if_failed(found.statuses)
    if slower := lost(found):
        typer.echo(f"error: a baseline has a lower estimate on {len(slower)}, which is a bug: {slower[0]}", err=True)
        raise typer.Exit(EXIT_UNEXPECTED)
    if agree is not None:
        _require_agreement(found, agree)


def _deliver(
    found: Reproduction,
    space: str,
    points: int | None,
    overrides: Sequence[str],
    folders: tuple[Path, Path | None, Path | None],
    as_json: bool,
) -> None:
    """Write report.html, page and charts into ``folders`` (results, page, charts), then print the table or JSON."""
    from scaleacross.emitters import write_files
    from scaleacross.report.design_space import design_json, design_report, replayed_off
    from scaleacross.report.page.design_space import space_page

    directory, docs, charts = folders
    changes = "".join(f" --set '{one}'" for one in overrides)
    asked = (f" --points {points}" if points else "") + changes + (" --replay" if replayed_off(found) else "")
    page = write_files(page_files(lambda: space_page(found)), directory)
    written = [
        *found.files,
        *page,
        *(_write_docs(found, docs, f"scaleacross reproduce {space}{asked}") if docs else ()),
    ]
    write_charts(lambda: space_page(found), charts)
    typer.echo(design_json(found, written)) if as_json else display(design_report(found))
    if written:
        typer.echo(f"wrote {', '.join(map(str, written))}", err=True)
    if found.note:
        typer.echo(found.note, err=True)


def _published_goodput(as_json: bool) -> None:
    from scaleacross.api.published_goodput import published_goodput
    from scaleacross.report.published import published_goodput_json, published_goodput_report

    rows = published_goodput()
    typer.echo(published_goodput_json(rows)) if as_json else display(published_goodput_report(rows))


def _published_study(name: str, as_json: bool) -> None:
    from importlib import import_module

    from scaleacross.report.published import published_report

    study = getattr(import_module(f"scaleacross.api.{_STUDIES[name]}"), name)()
    answer(study, as_json, published_report)


def _require_agreement(found: Reproduction, least: float) -> None:
    from scaleacross.report.design_space import AGREES, distinct, num_agreeing, replayed_off

    off = distinct(replayed_off(found))
    near = num_agreeing(off)
    if not off or near < least * len(off):
        wanted = f"{AGREES:.0%} of their estimate, {least:.0%} are wanted"
        typer.echo(f"error: {near} of {len(off)} simulated plans are within {wanted}", err=True)
        raise typer.Exit(EXIT_UNEXPECTED)


def _write_docs(found: Reproduction, folder: Path, command: str) -> list[Path]:
    """Write the page, its table and its plot."""
    from datetime import date

    from scaleacross.emitters import write_files
    from scaleacross.report.design_space_page import design_page, design_svg
    from scaleacross.spec.csv_table import csv_text

    name, page = found.space.name, design_page(found, command, date.today())
    files = {f"{name}.md": page, f"{name}.svg": design_svg(found), f"{name}.csv": csv_text(found.rows)}
    return write_files(files, folder)
