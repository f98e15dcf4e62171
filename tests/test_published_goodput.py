"""Published shares of useful time: every row is within 2 points, or the differing definition is named."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from scaleacross.api import published_goodput as module
from scaleacross.api.published_goodput import PublishedRow, ft_hsdp, published_goodput
from scaleacross.cli import app
from scaleacross.cost_models.goodput.share import useful_share
from scaleacross.errors import InputError
from scaleacross.simulation.long_run import long_run


@pytest.fixture(scope="module")
def rows() -> dict[str, PublishedRow]:
    return {row.setting: row for row in published_goodput(draws=40)}


@pytest.mark.heavy
def test_ft_hsdp_evenly_spaced(rows: dict[str, PublishedRow]) -> None:
    """arXiv 2602.00277: 44 % and 80 %; (18 - 10)/18, and ((18 - 10) + 7·11/12)/18."""
    for setting, share in (("restart all", 8 / 18), ("12 fault units", (8 + 7 * 11 / 12) / 18)):
        row = rows[f"{setting}, failures evenly spaced"]
        assert row.closed_form == pytest.approx(share)
        assert row.simulated == pytest.approx(share, rel=1e-9), "windows of failures do not overlap"


def test_ft_hsdp_poisson(rows: dict[str, PublishedRow]) -> None:
    for setting, share in (("restart all", 0.57), ("12 fault units", 0.82)):
        row = rows[f"{setting}, failures Poisson"]
        assert row.closed_form == pytest.approx(share, abs=0.005)
        assert row.simulated == pytest.approx(row.closed_form, abs=0.01)


def test_every_row_is_near_or_says_why(rows: dict[str, PublishedRow]) -> None:
    assert len(rows) == 16
    far = {setting for setting, row in rows.items() if abs(row.difference) > 0.02}
    assert far == {
        "1,024 accelerators, no spares",
        "16,384 accelerators, 466 interruptions in 54 days",
    }
    assert all(rows[setting].note for setting in far)


def test_without_spares_the_published_window_is_simulated(rows: dict[str, PublishedRow]) -> None:
    """Without spares the published window is simulated: 28 days that begin with every host sound.

    The 20 published draws have a standard error of 1.8 points.
    """
    row = rows["1,024 accelerators, no spares"]
    assert row.simulated == pytest.approx(row.published, abs=0.04)


def test_llama_is_above_ninety(rows: dict[str, PublishedRow]) -> None:
    row = rows["16,384 accelerators, 466 interruptions in 54 days"]
    assert row.simulated is not None
    assert row.simulated > 0.9


def test_llama_is_between_the_fifth_and_the_ninety_fifth_percentile(rows: dict[str, PublishedRow]) -> None:
    """466 interruptions leave more than 90 % of the time effective; with 10 min each they leave 94 %."""
    model = ft_hsdp(1, 54 * 24 * 3600 / 466)
    run = long_run(model, days=54, draws=100)
    assert run.interruptions_range["p5"] < 466 < run.interruptions_range["p95"]
    assert 0.9 < run.goodput_fraction["p5"] < useful_share(model)[0] < run.goodput_fraction["p95"]
    note = rows["16,384 accelerators, 466 interruptions in 54 days"].note
    assert "466 interruptions; p5 to p95 93" in note


def test_more_fault_units_than_published() -> None:
    assert useful_share(ft_hsdp(24))[0] > useful_share(ft_hsdp(12))[0]


def test_the_command_prints_them(rows: dict[str, PublishedRow], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "published_goodput", lambda: tuple(rows.values()))
    found = CliRunner().invoke(app, ["reproduce", "ft_hsdp", "--json"])
    assert found.exit_code == 0
    shares = {row["setting"]: row["closed_form"] for row in json.loads(found.stdout)}
    assert round(shares["12 fault units, failures evenly spaced"], 3) == 0.801
    text = CliRunner().invoke(app, ["reproduce", "ft_hsdp"]).stdout
    assert "80.1 %" in text
    assert "arXiv 2602.00277" in text


def test_no_draws_are_refused() -> None:
    with pytest.raises(InputError, match="give 1 or more"):
        published_goodput(draws=0)
