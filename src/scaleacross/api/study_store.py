"""Results of a study on disk: one JSON line per point, appended whole or not at all, and the tidy tables made from
them.

An advisory lock lets only one sweep write a file at a time. An incomplete last line, left by a machine that died while
writing, is removed when the file is opened again. Every other line must be readable.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from scaleacross.api.engines.outcome import Record
from scaleacross.emitters import write_files
from scaleacross.errors import InputError
from scaleacross.spec.csv_table import csv_cell, csv_text

POINTS_FILE: Final = "points.jsonl"
TABLE_FILE: Final = "points.csv"
PARQUET_FILE: Final = "points.parquet"


class Store:
    """The records of a directory by key; a later line replaces an earlier one with the same key."""

    def __init__(self, directory: Path, file: str = POINTS_FILE) -> None:
        """Open, lock and read the file.

        Raises InputError when another sweep writes here, or the file is not a result of a sweep.
        """
        self.path = directory / file
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.records = self._read()
        except OSError:
            os.close(self._file)
            raise InputError(
                f"{self.path}: another sweep is writing it; wait for it, or name another directory"
            ) from None
        except InputError:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def append(self, record: Record) -> None:
        """Append one line in a single write, so that readers and a resumed sweep see all of it or nothing."""
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {error.strerror}") from None
        if written < len(line):
            os.ftruncate(self._file, size)
            raise InputError(f"cannot write to {self.path}: the disk is full; make room and run the same command again")
        self.records[record["key"]] = record

    def _read(self) -> dict[str, Record]:
        data = self.path.read_bytes()
        # bytes after the last line end belong to a write that the machine did not finish
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(self._file, len(whole))
        return _records(whole, self.path)


def kept_in(directory: Path, file: str = POINTS_FILE) -> dict[str, Record]:
    """Return the records of a directory by key, even while a study writes there. Raises InputError when there are none."""
    path = directory / file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; nothing was run there yet") from None
    return _records(data[: data.rfind(b"\n") + 1], path)


def _records(lines: bytes, path: Path) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for number, line in enumerate(lines.splitlines(), 1):
        try:
            record = json.loads(line)
            records[record["key"]] = record
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}:{number}: no result of a sweep; move the file away or name another directory"
            ) from None
    return records


def write_tables(rows: Sequence[Record], directory: Path) -> tuple[list[Path], str]:
    """Write tidy tables, one row per point: CSV always, Parquet where pyarrow is installed.

    Returns the files and a note on omissions.
    """
    written = write_files({TABLE_FILE: csv_text(rows)}, directory)
    if find_spec("pyarrow") is None:
        return written, f"{PARQUET_FILE} not written: pyarrow is not installed (pip install pyarrow)"
    return [*written, _write_parquet(rows, directory / PARQUET_FILE)], ""


def _write_parquet(rows: Sequence[Record], path: Path) -> Path:
    """Write a Parquet table. Columns with values of different types become text, or floats where all are numbers."""
    import pyarrow
    import pyarrow.parquet

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [csv_cell(row.get(name)) for row in rows] for name in names}
    for name, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1:
            number = kinds <= {int, float}
            columns[name] = [None if value is None else float(value) if number else str(value) for value in values]
    staged = path.with_name(f".{path.name}.part")
    pyarrow.parquet.write_table(pyarrow.table(columns), staged)
    return staged.replace(path)
