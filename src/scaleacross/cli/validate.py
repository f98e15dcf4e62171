"""The command validate: compare predictions with measurements."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import display, names_of, output_folder, say_unread_columns, searching

Benchmark = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Measured kernel times (CSV, plain or gzip).")
]
Collectives = Annotated[
    list[str] | None,
    typer.Option(
        "--collectives",
        metavar="[OP[@RANKS]=]FILE",
        help="Collectives in a node or over several: a CSV, an output of nccl-tests, or a JSON export of ncclQueryCollTuning. "
        "Repeatable.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network", metavar="NAME", help="Link of all --collectives, where neither a column nor '# Rank' lines say it."
    ),
]
LeftOut = Annotated[
    bool,
    typer.Option(
        "--left-out",
        help="Error, interval and worth of own runs with every source left out whole (a minute per 400 rows).",
    ),
]
Judges = Annotated[
    Path | None,
    typer.Option(
        "--judges",
        metavar="RUNS.csv",
        dir_okay=False,
        help="With --left-out: measured runs that nothing is fitted to. Errors and intervals count them, too.",
    ),
]
Table = Annotated[
    Path | None,
    typer.Option(
        "--table", metavar="FILE", dir_okay=False, help="With --left-out: write the constants of intervals (YAML)."
    ),
]


def validate_command(
    runs: Annotated[
        Path | None, typer.Argument(metavar="[RUNS.csv]", help="Measured training runs, one per row.")
    ] = None,
    gemm: Benchmark = None,
    attention: Benchmark = None,
    collectives: Collectives = None,
    network: Network = None,
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP,...", help="Error tables per source, gpu, model, arch.")
    ] = "source,gpu",
    output: Annotated[Path | None, output_folder("Write rows.csv, scatter.svg, accuracy.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    left_out: LeftOut = False,
    judges: Judges = None,
    table: Table = None,
) -> None:
    """Predict measured runs or kernels without looking at what was measured, then compare.

    \b
    Examples:
      scaleacross validate runs.csv --by source,model
      scaleacross validate runs.csv --json | jq .median_abs_error
      scaleacross validate runs.csv --left-out     # what to expect of accelerators that nobody has measured
      scaleacross validate runs.csv --left-out --judges outside.csv
      scaleacross validate runs.csv -o build/accuracy
      scaleacross validate --gemm gemm.csv.gz --attention attention.csv
      scaleacross validate --collectives all_reduce.txt --network nvlink4
    """
    from scaleacross.api import leave_sources_out, score_files, validate
    from scaleacross.api.accuracy import apart_of, step_errors_text
    from scaleacross.emitters import write_files
    from scaleacross.report.accuracy import accuracy_report, grouped_by
    from scaleacross.report.accuracy_files import accuracy_files
    from scaleacross.report.accuracy_files import as_json as to_json
    from scaleacross.report.benchmark_scores import score_data, score_report
    from scaleacross.report.left_out import left_out_data, left_out_report

    measured = gemm is not None or attention is not None or bool(collectives)
    if runs is None and not measured:
        raise typer.BadParameter("give RUNS.csv, --gemm, --attention or --collectives")
    if runs is None and (output or left_out):
        raise typer.BadParameter("-o and --left-out are about training runs: give RUNS.csv")
    if table is not None and not left_out:
        raise typer.BadParameter("--table holds what --left-out finds: give both")
    if judges is not None and not left_out:
        raise typer.BadParameter("--judges are judged by --left-out: give both")
    groupings = grouped_by(names_of(by))
    scores = (
        score_files(gemm=gemm, attention=attention, collectives=collectives or (), network=network) if measured else ()
    )
    say_unread_columns(runs)
    say_unread_columns(judges)
    validation = validate(runs) if runs else None
    rows = None
    if validation and left_out:
        with searching() as show:
            rows = apart_of(validation, validate(judges) if judges else None, show)
    found = leave_sources_out(rows) if rows else None
    files = [file for file in (runs, judges) if file is not None]
    text = step_errors_text(rows, files, date.today()) if table and rows else None
    written = write_files(accuracy_files(validation, groupings), output) if validation and output else []
    if table and text:
        written += write_files({table.name: text}, table.parent)
    if as_json:
        extra = {**score_data(scores), **({"left_out": left_out_data(found)} if found else {})}
        typer.echo(to_json(validation, groupings, extra))
    else:
        if validation:
            display(accuracy_report(validation, groupings))
        if found:
            display(left_out_report(found))
        if scores:
            display(score_report(scores))
    if written:
        typer.echo(f"wrote {', '.join(map(str, written))}", err=True)
