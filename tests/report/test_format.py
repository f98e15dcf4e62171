from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from scaleacross.report.format import bar, cell, interval, large, percent, plural, rate, run_lengths


@given(st.floats(min_value=-1, max_value=2), st.integers(min_value=1, max_value=80))
def test_bar_is_as_long_as_its_fraction(fraction: float, width: int) -> None:
    cells = cell_len(bar(fraction, width))
    clipped = min(max(fraction, 0), 1)
    assert clipped * width - 1 / 16 <= cells <= clipped * width + 1 + 1 / 16


def test_bar_draws_eighths() -> None:
    assert [bar(x / 16, 2) for x in (0, 1, 4, 8, 9, 16)] == ["", "▏", "▌", "█", "█▏", "██"]


@given(st.lists(st.integers(min_value=0, max_value=3)))
def test_run_lengths_lose_nothing(values: list[int]) -> None:
    back: list[int] = []
    for run in filter(None, run_lengths(values).split(", ")):
        value, _, length = run.partition(" × ")
        back += [int(value)] * int(length or 1)
    assert back == values


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (run_lengths([7, *[8] * 14, 7]), "7, 8 × 14, 7"),
        (interval(1, 14), "1–14"),
        (interval(3, 3), "3"),
        (percent(0.0), "0.0 %"),
        (percent(0.0001), "< 0.1 %"),
        (percent(0.4345), "43.5 %"),
        (rate(50e9), "50 GB/s"),
        (rate(161_500), "161.5 kB/s"),
        (rate(1.25e12), "1.25 TB/s"),
        (large(430e12), "430 T"),
        (large(12), "12"),
        (plural(1, "building"), "1 building"),
        (plural(16384, "accelerator"), "16,384 accelerators"),
    ],
)
def test_figures_read_as_expected(shown: str, expected: str) -> None:
    assert shown == expected


def test_cell_neither_reads_markup_nor_passes_escape_codes() -> None:
    assert cell("[red]x[/red]\x1b[31m").plain == "[red]x[/red]�[31m"
