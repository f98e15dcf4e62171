"""The verb codec: measure every encoder on batches of embedding vectors, on this machine."""

from __future__ import annotations

import lzma
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import InputError, VerificationError
from scaleacross.row_codec.message import RowCodec, read_rows
from scaleacross.row_codec.quantiser import absolute_bound, checked_rows, distinct_rows, quantise
from scaleacross.row_codec.stages import stages_here
from scaleacross.spec.csv_table import csv_text
from scaleacross.spec.exchange_codec import CodecFigures
from scaleacross.spec.progress import Progress, telling

Rows = NDArray[np.float32]
COLUMNS: Final = (
    "table",
    "encoder",
    "bound_fraction",
    "ratio",
    "encode_bytes_per_s",
    "decode_bytes_per_s",
    "merged_fraction",
)
_RUNS: Final = 3


def measure_codec(
    batches: Mapping[str, NDArray[Any]],
    bounds: Sequence[float],
    *,
    encoders: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> tuple[CodecFigures, ...]:
    """Measure ratio, rates and merged rows of every table, bound and encoder, and check every element's error.

    Args:
        batches: table -> fp32 array (vectors, width), as one rank sends them.
        bounds: error bounds as fractions of the range of a table's values in its batch, each in (0, 1].
        encoders: stages of ``row_codec``; empty: all that work here.
        progress: called before every table.

    Returns:
        Figures by table, bound and encoder. Rates are bytes of uncoded vectors per second: medians of three runs of
        numpy on one core.

    Raises:
        InputError: nothing to measure, a batch that is not fp32 (vectors, width) or not finite, or an unknown bound or
            encoder.
        VerificationError: a decoded element is off by more than its bound (a bug: please report it).
    """
    if not batches or not bounds:
        raise InputError("nothing to measure: give batches of vectors and bounds")
    if wrong := [bound for bound in bounds if not 0 < bound <= 1]:
        raise InputError(
            f"a bound of {wrong[0]:g}: bounds are shares of the range of a table's values, above 0 and at most 1"
        )
    out, tell = [], telling(progress)
    names = tuple(encoders) or stages_here()
    for number, (table, batch) in enumerate(batches.items()):
        tell("tables", number, len(batches))
        try:
            rows = checked_rows(batch)
        except InputError as error:
            raise InputError(f"table '{table}': {error}") from None
        if not rows.size:
            raise InputError(f"table '{table}': no vectors of {rows.shape[1]} columns to measure")
        distinct = len(distinct_rows(rows)[0])
        for fraction in bounds:
            bound = absolute_bound(rows, fraction)
            # fraction of distinct rows that quantisation makes equal to another row
            merged = 1 - len(quantise(rows, bound).codes) / distinct
            for name in names:
                out.append(_figures(table, rows, RowCodec(bound, name), fraction, max(0.0, merged)))
    return tuple(out)


def _figures(table: str, rows: Rows, codec: RowCodec, fraction: float, merged: float) -> CodecFigures:
    spent = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        data = codec.write(rows)
        between = time.perf_counter()
        back = read_rows(data)
        spent.append((between - start, time.perf_counter() - between))
    if not (np.abs(back.astype(np.float64) - rows) <= codec.bound).all():
        raise VerificationError(f"table '{table}': an element is off by more than {codec.bound:g} (please report it)")
    encode_s, decode_s = (median(one) for one in zip(*spent, strict=True))
    return CodecFigures(
        table=table,
        encoder=codec.stage,
        bound_fraction=fraction,
        ratio=rows.nbytes / len(data),
        encode_bytes_per_s=rows.nbytes / encode_s,
        decode_bytes_per_s=rows.nbytes / decode_s,
        merged_fraction=merged,
    )


def read_batches(paths: Sequence[Path], width: int | None = None) -> dict[str, NDArray[Any]]:
    """Read table -> vectors from .npz (one array per table), .npy, or raw little-endian fp32 (.f32, .f32.xz).

    Raw files need ``width``, the columns of a vector. The file name gives the table's name: ``user.npy`` is table user;
    an .npz names its tables itself.

    Raises:
        InputError: a file cannot be read or is of another kind, raw values come without a width, or a table is given
            twice.
    """
    out: dict[str, NDArray[Any]] = {}
    for path in paths:
        for name, rows in _read(path, width).items():
            if name in out:
                raise InputError(f"{path}: table '{name}' was given before")
            out[name] = rows
    return out


def _read(path: Path, width: int | None) -> dict[str, NDArray[Any]]:
    name = path.name.split(".")[0]
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        if path.suffix == ".npy":
            return {name: np.load(path, allow_pickle=False)}
        if path.name.endswith((".f32", ".f32.xz")):
            data = path.read_bytes()
            return {name: _raw(path, lzma.decompress(data) if path.suffix == ".xz" else data, width)}
    except (OSError, ValueError, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    raise InputError(f"{path}: batches are .npz, .npy, .f32 or .f32.xz (raw little-endian fp32, with --width)")


def _raw(path: Path, data: bytes, width: int | None) -> NDArray[Any]:
    if width is None:
        raise InputError(f"{path}: raw values do not say how many columns a vector has: give --width")
    if width < 1 or not data or len(data) % (4 * width):
        raise InputError(f"{path}: {len(data):,} bytes are no whole number of vectors of {width} fp32")
    return np.frombuffer(data, "<f4").reshape(-1, width)


def figures_csv(found: Sequence[CodecFigures]) -> str:
    """Return the figures as the CSV text that a job's ``compression: {measured: FILE}`` reads."""
    rows = ({name: getattr(one, name) for name in COLUMNS} for one in found)
    shown = [{name: f"{v:.9g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    return csv_text(shown, COLUMNS)
