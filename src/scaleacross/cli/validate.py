"""validate: predictions held against what others measured."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import display, names_of


def validate_command(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Measured training runs, one per row.")],
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP,...", help="Error tables per source, gpu, model, arch.")
    ] = "source,gpu",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", file_okay=False, help="Write rows.csv, scatter.svg, accuracy.json."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    docs: Annotated[
        Path | None, typer.Option("--docs", metavar="FILE", dir_okay=False, help="Write the accuracy page (Markdown).")
    ] = None,
) -> None:
    """Predict every run of a CSV without looking at what was measured, then compare.

    \b
    Examples:
      scaleacross validate runs.csv --by source,model
      scaleacross validate runs.csv --json | jq .median_abs_error
      scaleacross validate runs.csv -o build/accuracy
    """
    from scaleacross.api import cross_check, validate
    from scaleacross.report.accuracy import accuracy_report, grouped_by
    from scaleacross.report.accuracy_files import as_json as to_json
    from scaleacross.report.accuracy_files import write_accuracy
    from scaleacross.report.accuracy_page import accuracy_page

    groupings = grouped_by(names_of(by))
    validation = validate(runs)
    page = (docs, accuracy_page(validation, cross_check(validation), date.today())) if docs else None
    written = write_accuracy(validation, groupings, output, page)
    if as_json:
        typer.echo(to_json(validation, groupings))
    else:
        display(accuracy_report(validation, groupings))
    if written:
        typer.echo(f"wrote {', '.join(map(str, written))}", err=True)
