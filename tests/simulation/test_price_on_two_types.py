"""Step time and simulation of the same plan agree on two accelerator types, each with links of its own."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from instances import link, moe, plain_job, plain_topology


def quick_and_slow(*types: tuple[float, float, float]) -> dict[str, Any]:
    """Two buildings whose types have a peak in TFLOP/s and GB/s inside a host and beyond it."""
    topology = plain_topology(2, 2)
    for name, building, (peak, inside, beyond) in zip(
        ("quick", "slow"), topology["regions"][0]["buildings"], types, strict=True
    ):
        building["accelerator"] |= {"name": name, "peak_tflop_per_s": {"bf16": peak}}
        building["links"] |= {"scale_up": link(inside, 1.0), "rack": link(beyond, 2.0)}
    return topology


@pytest.mark.parametrize(
    ("component", "degrees", "apart"),
    [
        ("tp", {"tp": 4, "cp": 1, "pp": 2, "dp_shard": 1, "dp_replicate": 2, "ep": 1}, 0.01),
        pytest.param(
            "ep", {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 4, "dp_replicate": 2, "ep": 4}, 0.01, marks=pytest.mark.heavy
        ),
        ("ep", {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 8, "dp_replicate": 1, "ep": 8}, 0.03),
    ],
    ids=["tp", "ep", "ep_beyond_hosts"],
)
def test_stages_wait_for_the_links_of_their_own_building(component: str, degrees: dict[str, int], apart: float) -> None:
    """Each stage waits for the links of its own building.

    A slow type has fast links, and a fast type has links a third as fast. The step was up to 30 % too long when all
    stages used the slower links.
    """
    topology = quick_and_slow((200.0, 15.0, 5.0), (30.0, 45.0, 15.0))
    experts = {"workload": moe()} if component == "ep" else {}
    job = plain_job(
        topology=topology, degrees=degrees, schedules="1F1B", shard="optimizer" if experts else "none", **experts
    )
    plan = sa.plan(job, overrides=["recompute=none", "overlap.tp_reduce=false"], alternatives=False)
    assert len(plan.placement.fill) == 2
    step = sa.simulate(plan)
    assert plan.estimated.step_s == pytest.approx(step.step_s, rel=apart)
    assert plan.estimated.component(component) == pytest.approx(step.component(component), rel=0.1)
    assert plan.report.status == "optimal"


def test_connections_fill_the_widest_port_that_their_groups_run_on() -> None:
    """Connections saturate the widest port among the members' types.

    Two channels saturate one type's port, and seven that of the other. Two for both would cost 6 % of the step.
    """
    heads = {"num_heads": 8, "num_kv_heads": 8, "head_dim": 32}
    job = plain_job(
        topology=quick_and_slow((2000.0, 200.0, 50.0), (300.0, 800.0, 200.0)),
        degrees={"tp": 8, "cp": 1, "pp": 2, "dp_shard": 1, "dp_replicate": 1, "ep": 1},
        workload=plain_job().model_dump(mode="json", exclude_unset=True)["workload"] | heads,
        schedules="1F1B",
        shard="none",
    )
    plan = sa.plan(job, overrides=["recompute=none"], alternatives=False)
    assert {one.num_channels for one in plan.decision.network or () if one.communicator == "tp"} == {7}
    assert plan.report.status == "optimal"
    assert plan.estimated.step_s == pytest.approx(sa.simulate(plan).step_s, rel=0.01)
