"""Rows that agree on some columns: their common results are computed once and handed to all of them.

A million candidates have few different groups, messages and layer shapes. So a quantity that depends on some columns
only is computed on the distinct rows of these columns (``Distinct.first``) and spread again (``Distinct.code``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Ints

MAX_TABLE: Final = 1 << 20
"""Largest lookup table; values beyond are sorted instead."""
TABLE_RATIO: Final = 4
"""A table may be this many times longer than the column before sorting is quicker."""


class Distinct(NamedTuple):
    """``first[k]`` is a row of kind k, (kinds,); ``code[i]`` is the kind of row i, (n,)."""

    first: Ints
    code: Ints


def distinct(*columns: Ints) -> Distinct:
    """Kinds of rows over columns of non-negative integers, (n,) each. Without columns all rows are of one kind."""
    rows = len(columns[0]) if columns else 0
    if rows == 1:
        return Distinct(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    code, kinds = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        inner, count = _dense(column)
        if count > 1:
            # renumber before codes grow beyond the table, so that products of kinds stay small
            if kinds * count > _table_length(rows):
                code, kinds = _dense(code)
            code, kinds = (code * count + inner, kinds * count) if kinds > 1 else (inner, count)
    code, kinds = _dense(code)
    first = np.empty(kinds, dtype=np.int64)
    # any row of a kind serves as its example; the last one wins
    first[code] = np.arange(rows)
    return Distinct(first, code)


def _dense(column: Ints) -> tuple[Ints, int]:
    """The column with its values numbered 0, 1, … in ascending order, and the number of values."""
    if not len(column):
        return column, 0
    top = int(column.max())
    if top >= _table_length(len(column)):
        values, code = np.unique(column, return_inverse=True)
        return code, len(values)
    present = np.zeros(top + 1, dtype=bool)
    present[column] = True
    number = np.cumsum(present) - 1
    return number[column], int(number[-1]) + 1


def _table_length(rows: int) -> int:
    """Values up to here are looked up in a table, beyond they are sorted."""
    return min(MAX_TABLE, TABLE_RATIO * (rows + 64))
