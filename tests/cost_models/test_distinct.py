"""Kinds of rows: rows have equal codes exactly if they are equal, and every kind names one of its rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.cost_models.distinct import distinct

VALUES = st.one_of(st.integers(0, 3), st.sampled_from([0, 7, 2**19, 2**40]))


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=60))
def test_codes_tell_rows_apart(rows: list[tuple[int, int, int]]) -> None:
    first, code = distinct(*np.array(rows, dtype=np.int64).T)
    assert len(first) == len(set(rows))
    for row, kind in zip(rows, code, strict=True):
        assert rows[first[kind]] == row


def test_no_rows_and_no_columns() -> None:
    empty = distinct(np.zeros(0, dtype=np.int64))
    assert not len(empty.first) and not len(empty.code)
