"""Read measured codecs of embedding vectors from a CSV: the user's own file, or one of the catalogue by name."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

from scaleacross.catalogue.find import config_folders
from scaleacross.catalogue.validation import nearest
from scaleacross.catalogue.yaml_source import lines_of
from scaleacross.errors import InputError

_NEEDED: Final = ("table", "encoder", "ratio")
_RATES: Final = ("encode_bytes_per_s", "encode_gbyte_per_s"), ("decode_bytes_per_s", "decode_gbyte_per_s")
_MORE: Final = ("bound_fraction", "merged_fraction")


def codec_rows(ref: str, folder: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a CSV of measured codecs, as ``spec.exchange_codec.CodecFigures`` takes them.

    Args:
        ref: a path (from ``folder`` or the working directory), or a name of the catalogue (``configs/codecs``).

    Raises:
        InputError: not found, unknown or missing columns, or a cell that is no number, with its line.
    """
    path = _found(ref, folder)
    lines = [(number, line) for number, line in enumerate(lines_of(path), 1) if line.strip() and line[0] != "#"]
    reader = csv.DictReader(line for _, line in lines)
    header = [name.strip() for name in reader.fieldnames or ()]
    known = (*_NEEDED, *_RATES[0], *_RATES[1], *_MORE)
    unknown = [name for name in header if name not in known]
    missing = [name for name in _NEEDED if name not in header]
    missing += [pair[0] for pair in _RATES if not any(name in header for name in pair)]
    if unknown or missing:
        said = (
            f"missing {', '.join(missing)}"
            if missing
            else f"unknown '{unknown[0]}', {nearest(unknown[0], known, 'column')}"
        )
        raise InputError(f"{path}: columns: {said}; scaleacross codec -o writes such a file")
    out = [_row(path, number, row) for (number, _), row in zip(lines[1:], reader, strict=False)]
    if not out:
        raise InputError(f"{path}: no row below the header")
    return out


def _row(path: Path, line: int, row: dict[str | Any, Any]) -> dict[str, Any]:
    cells = {str(key).strip(): str(value or "").strip() for key, value in row.items() if key is not None}
    out: dict[str, Any] = {}
    for name, text in cells.items():
        if name in ("table", "encoder"):
            out[name] = text
        elif text:
            try:
                out[name] = float(text)
            except ValueError:
                raise InputError(f"{path}:{line}: {name} {text!r} is no number") from None
    return out


def _found(ref: str, folder: Path | None) -> Path:
    for path in ((folder or Path()) / ref, Path(ref), *(home / "codecs" / f"{ref}.csv" for home in config_folders())):
        if path.is_file():
            return path
    names = sorted({path.stem for home in config_folders() for path in (home / "codecs").glob("*.csv")})
    raise InputError(f"no file '{ref}' of measured codecs, and no such name: {', '.join(names)}")
