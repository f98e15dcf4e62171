"""CSV text of rows; all tables of the package are written with it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


def csv_text(rows: Sequence[Mapping[str, object]], heads: Sequence[str] = ()) -> str:
    """Return rows as CSV text; a cell is blank where a row lacks the column.

    Without ``heads`` the columns are all keys, in the order of first appearance.
    """
    out = io.StringIO()
    names = heads or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def csv_cell(value: Any) -> Any:
    """Return a value as a CSV cell holds it: lists, mappings and truth values as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple | bool) else value
