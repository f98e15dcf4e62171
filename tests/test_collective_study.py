"""One collective on a topology of the catalogue, through the API and the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from scaleacross import api
from scaleacross.cli import app
from scaleacross.spec.network import CurveOp
from scaleacross.units import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 2**29), ("4 GB", 4e9), ("65536", 65536), ("1.5kib", 1536), ("2TB", 2e12), ("7B", 7)]
)
def test_sizes_as_people_write_them(text: str, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "4Q", "1e", "4 MiBs", "--"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


def test_unequal_buildings_leave_a_rest_out() -> None:
    """16,384 accelerators hold 163 groups of 100, and 84 take no part."""
    study = api.collective("all_gather", 1e9, "two_buildings_unequal", num_ranks=100)
    assert (study.num_ranks, study.num_groups) == (100, 163)
    whole = api.collective("all_gather", 1e9, "two_buildings_unequal")
    assert (whole.num_ranks, whole.num_groups) == (16384, 1)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_no_option_beats_the_bound_where_tiles_are_cut_inside_hosts(op: CurveOp) -> None:
    """Six groups share a host, where those that cross buildings have two ranks each: 1.44 ms against a bound of 1.65."""
    study = api.collective(op, 1e8, "two_buildings_unequal", num_ranks=127, stride=3)
    times = [one.time_s for one in study.options]
    assert times == sorted(times) and times[0] >= study.bound_s
    assert all(one.algorithm_bytes_per_s == pytest.approx(1e8 / one.time_s) for one in study.options)


def test_json_and_table_state_the_same() -> None:
    arguments = ["collective", "--op", "all_reduce", "--size", "4GiB", "--topology", "two_buildings_unequal"]
    arguments += ["--ranks", "4", "--stride", "4096"]
    shown = CliRunner().invoke(app, arguments)
    stated = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert stated["options"][0]["algorithm"] == "hierarchical(ring, ring)"
    factor = stated["options"][0]["bus_bytes_per_s"] / stated["options"][0]["algorithm_bytes_per_s"]
    assert factor == pytest.approx(2 * 3 / 4)
    assert f"{stated['bound_s']:.2f} s" in shown.stdout and f"{stated['options'][0]['time_s']:.2f} s" in shown.stdout


@pytest.mark.parametrize("size", ["1MiB", "64MiB", "1GiB"])
@pytest.mark.parametrize("num_ranks", [8, 16])
def test_no_option_is_below_the_bound(size: str, num_ranks: int) -> None:
    """No option is below the bound, also with measured curves of a domain whose switches reduce.

    64 MiB over 8 ranks take 327 µs, not 351 µs or more.
    """
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        study = api.collective(op, parse_bytes(size), "one_building", num_ranks=num_ranks)
        assert study.options and all(one.time_s >= study.bound_s > 0 for one in study.options)
