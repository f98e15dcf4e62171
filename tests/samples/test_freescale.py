"""Published balancing beside ours: one floor, fitted once, gives the band of the other batch sizes."""

from __future__ import annotations

import pytest

from scaleacross.api.published_balance import freescale


def test_published_figures() -> None:
    # arXiv 2604.24073 (as read by a third party): 9x at batch 128, 4 to 9x over batch sizes, idle above 20 % at 8 K
    study = freescale()
    by_name = {one.what: one.computed for one in study.figures}
    assert by_name["straggler time, batch 128"] == pytest.approx(9)
    assert 4 <= by_name["least cut over batch sizes"] < 9
    assert by_name["idle at histories of up to 8 K"] > 0.2
    assert [row[1:] for row in study.tables[2].rows] == [
        ("24 of 132", "22.2%"),
        ("1 of 132", "0.8%"),
        ("0 of 132", "0.0%"),
    ]
    cuts = [float(row[-1][:-1]) for row in study.tables[0].rows]
    assert cuts == sorted(cuts, reverse=True)
