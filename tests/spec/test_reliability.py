"""Reliability fields of a topology and a job."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology
from scaleacross.catalogue import load_job
from scaleacross.errors import InputError
from scaleacross.spec.reliability import DEFAULTS, PUBLISHED_RATES, Failures, Recovery, default


def test_a_rate_comes_from_what_is_stated() -> None:
    assert Failures().node_rate == 3.79
    assert Failures(published="rsc-1").node_rate == 6.5
    assert Failures(failures_per_1000_node_days=0).node_rate == 0
    assert Failures(zone_mtbf_hours=1000).node_rate == 0, "only the stated classes count"
    assert Failures(zone_mtbf_hours=1000).mtbf_s("zone") == 3_600_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"published": "rsc-1", "failures_per_1000_node_days": 1}, "not both"),
        ({"published": "rsc-9"}, "rsc-1"),
        ({"host_mtbf_hours": -1}, "greater than 0"),
        ({"host_mtbf_days": 1}, "Extra inputs"),
        ({"host_swap_fraction": 1.2}, "less than or equal to 1"),
    ],
)
def test_wrong_failures_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Failures.model_validate(data)


def test_a_stall_that_outlasts_the_recovery_is_refused_or_said() -> None:
    with pytest.raises(ValueError, match=r"stall_s 900 is longer than recover_s 600: .* state at least stall_s"):
        Recovery.model_validate({"recover_s": 600, "stall_s": 900})
    assert Recovery(recover_s=600, stall_s=600).stall_s == 600
    told = {}
    for stall_s in (100, 5000):
        job = plain_job(2, degrees={"tp": 1, "cp": 1, "pp": 1, "dp_replicate": 2}, reliability={"stall_s": stall_s})
        found = sa.plan(job, alternatives=False, work_limit=10, simulated=False).goodput
        assert found is not None and found.model.stall_s <= found.model.recover_s
        told[stall_s] = found.assumed.get("stall_s", "")
    assert told[100] == ""
    assert "of the 5000 stated" in told[5000]


def test_units_of_times_are_converted() -> None:
    assert Recovery.model_validate({"detect_ms": 500}).detect_s == 0.5
    assert Recovery.model_validate({"load_gbyte_per_s": 2}).figure("load_bytes_per_s") == 2e9
    assert Recovery().figure("detect_s") == default("detect_s")


def test_every_constant_says_where_it_is_from() -> None:
    for figure in (*DEFAULTS.values(), *PUBLISHED_RATES.values()):
        assert len(figure.source) > 20
        assert figure.status in ("paper", "assumed")


def test_a_job_and_its_topology_carry_them() -> None:
    topology = plain_topology(2, 2) | {"reliability": {"host_mtbf_hours": 3000}}
    job = plain_job(topology=topology, reliability={"spares": 4})
    assert job.reliability is not None
    assert job.reliability.spares == 4


def test_more_spare_hosts_than_hosts_are_refused() -> None:
    job = plain_job(2, 2, reliability={"spares": 5})
    with pytest.raises(InputError, match=r"5 spare hosts, and topology 'plain' has 4 hosts"):
        load_job(job.model_dump(mode="json", exclude_none=True))
