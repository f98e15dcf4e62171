"""Rows as CSV: how every table of the package is written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


def csv_text(rows: Sequence[Mapping[str, object]], heads: Sequence[str] = ()) -> str:
    """Rows as CSV, a cell blank where a row has no such column; without ``heads`` all columns in the order of first sight."""
    out = io.StringIO()
    names = heads or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def csv_cell(value: Any) -> Any:
    """A value as a cell holds it: lists, mappings and truth values as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple | bool) else value
