"""The command codec: compression of embedding vectors within error bounds, measured on the user's own batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import display, searching
from scaleacross.errors import InputError


def codec_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Batches of vectors: .npz (an array per table), .npy, .f32, .f32.xz."),
    ],
    bounds: Annotated[
        str,
        typer.Option("--bounds", metavar="B,...", help="Largest errors, each over the range of a table's values."),
    ] = "0.01,0.03,0.05",
    encoders: Annotated[
        str | None,
        typer.Option("--encoders", metavar="NAME,...", help="packed, rans, deflate, zstd. Default: all there are."),
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", metavar="N", help="Columns of a vector in .f32 files.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", dir_okay=False, help="Write the CSV that a job reads."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and nothing else.")] = False,
) -> None:
    """Measure how short embedding vectors get when no element may be off by more than a bound.

    Vectors are quantised with steps of twice the bound, equal ones are kept once, and an encoder packs the rest. Give one batch
    of vectors per table as one accelerator sends them in a step: repeats within the batch decide.

    \b
    Examples:
      scaleacross codec batch.npz --bounds 0.01,0.02,0.05 -o codecs.csv
      scaleacross codec table1.f32.xz --width 64 --encoders rans,packed --json
    """
    from scaleacross.api.row_coding import figures_csv, measure_codec, read_batches
    from scaleacross.emitters import write_files
    from scaleacross.report.row_coding import codec_report

    batches = read_batches(files, width)
    with searching() as progress:
        found = measure_codec(batches, _numbers(bounds), encoders=_names(encoders), progress=progress)
    if output:
        write_files({output.name: figures_csv(found)}, output.parent)
    if as_json:
        typer.echo("[" + ",\n ".join(one.model_dump_json() for one in found) + "]")
    else:
        display(codec_report(found, {name: rows.nbytes for name, rows in batches.items()}))
    if output:
        typer.echo(f"wrote {output}", err=True)


def _names(text: str | None) -> list[str]:
    """Return the names without blanks and repeats."""
    return list(dict.fromkeys(one.strip() for one in (text or "").split(",") if one.strip()))


def _numbers(text: str) -> list[float]:
    try:
        return list(dict.fromkeys(float(one) for one in text.split(",")))
    except ValueError:
        raise InputError(
            f"--bounds {text}: shares with commas between them are needed, e.g. 0.01,0.03 (0.01 is 1 %)"
        ) from None
