"""``emit --hosts`` names the hosts of a plan and leaves everything else of it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology
from scaleacross.catalogue.jobs import with_hosts
from scaleacross.spec.topology import Topology


def test_real_host_names_change_nothing_else(tmp_path: Path) -> None:
    topology = plain_topology(2, 2) | {
        "routed_message_bytes": 4096.0,
        "currency": "EUR",
        "reliability": {"published": "llama3-405b"},
    }
    plan = sa.plan(plain_job(topology=topology), work_limit=5, simulated=False)
    names = tmp_path / "hosts.yaml"
    names.write_text("b0: east[1-2]\nb1: west[1-2]\n")
    before, after = (Topology.model_validate(one.job.topology) for one in (plan, with_hosts(plan, names)))
    assert [building.host_names for building in after.buildings] == [("east1", "east2"), ("west1", "west2")]
    for field in Topology.model_fields.keys() - {"regions"}:
        assert getattr(after, field) == getattr(before, field), field
    assert before.reliability is not None and before.routed_message_bytes == pytest.approx(4096)
