"""``collective --synthesize`` and ``--graph``, through the API and the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from scaleacross import api
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.schedules.collective.check import check

NDV2 = ["collective", "--op", "all_gather", "--size", "1GB", "--graph", "ndv2_two_chassis", "--chunks", "1"]


def test_json_and_table_state_the_same() -> None:
    stated = json.loads(CliRunner().invoke(app, [*NDV2, "--json"]).stdout)
    shown = CliRunner().invoke(app, NDV2).stdout
    assert "43.8 ms" in shown and "optimal for whole chunks" in shown
    assert stated["time_s"] == pytest.approx(43.75e-3, rel=1e-4) and stated["gap"] == pytest.approx(0.0857, abs=1e-3)
    messages = stated["phases"][0]["messages"]
    assert len(messages) == 16 * 15 and max(one["end_s"] for one in messages) == pytest.approx(stated["time_s"])


def test_a_group_of_a_topology() -> None:
    """A group of three ranks in one building and one in the other.

    3/4 of 1 GB arrive over a share of 3.125 GB/s of the inter-building link.
    """
    found = api.synthesize("all_gather", 1e9, topology="two_buildings_unequal", num_ranks=4, stride=4096, num_chunks=1)
    check(found.schedule)
    assert found.study.time_s == pytest.approx(0.24, rel=1e-3)
    assert found.study.time_s == pytest.approx(found.study.bound_s, rel=1e-5)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="at most 24 can be routed"):
        api.synthesize("all_gather", 1e9, topology="two_buildings_unequal")
    with pytest.raises(InputError, match="one of the two"):
        api.synthesize("all_gather", 1e9)
    both = CliRunner().invoke(app, [*NDV2, "--topology", "one_building"])
    assert both.exit_code == 2 and "one of the two" in both.output
    ranks = CliRunner().invoke(app, [*NDV2, "--ranks", "4"])
    assert ranks.exit_code == 2 and "a graph is used whole" in ranks.output
    exchange = CliRunner().invoke(
        app, ["collective", "--op", "all_to_all", "--size", "1GB", "--graph", "ndv2_two_chassis"]
    )
    assert exchange.exit_code == 2
