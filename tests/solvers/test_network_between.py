"""Step times change gradually with network budgets.

Windows, queue pairs and channels have values between full rate and the defaults.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from instances import plain_job, plain_topology, plain_trunk
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import problem_of

GIB = 2.0**30
FAR_US = 100_000.0
ROUNDING = 1e-9
FINEST = 0.025
"""Largest relative loss of a window that shares a budget (``network_between.SHARES``)."""
MODEL_FALLS = 0.015
"""A hierarchical all-reduce in chunks is 1.4 % slower with the widest long-haul window than with an eighth of it."""


def far(degrees: dict[str, int], latency_us: float = FAR_US, **network: float) -> Networked:
    """A plan's network on two buildings of 16 accelerators with a wide, long link between them.

    The outermost axis of ``degrees`` crosses this link.
    """
    topology = plain_topology(4, 4)
    topology["trunks"][0] = plain_trunk("b0", "b1", 400.0, latency_us)
    wide = {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "intermediate_size": 4096}
    workload = plain_job().model_dump()["workload"] | wide
    problem = problem_of(plain_job(topology=topology, workload=workload, sequence_length=8192, network=network))
    allocation = [{"building": name, "num_accelerators": 16} for name in ("b0", "b1")]
    order = ("tp", "cp", "dp_shard", *(("dp_replicate", "pp") if degrees["pp"] > 1 else ("pp", "dp_replicate")))
    decision = Decision(
        degrees=Degrees(**degrees),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="none",
        placement=Placement.model_validate({"axis_order": order, "fill": allocation}),
    )
    return with_network(problem, decision)


PIPELINE = {"tp": 4, "pp": 2, "dp_replicate": 4}
REPLICAS = {"tp": 4, "pp": 1, "dp_replicate": 8}


@pytest.mark.heavy
@pytest.mark.parametrize("degrees", [PIPELINE, REPLICAS], ids=["pipeline", "replicas"])
def test_buffers_bend_the_step(degrees: dict[str, int]) -> None:
    """Half the buffer gives at most twice the step time, and a larger budget is never slower."""
    budgets = [GIB * 2**-half for half in range(1, 6)]
    steps = [far(degrees, max_buffer_bytes=budget).cost.cost.step_s for budget in budgets]
    for more, less in pairwise(steps):
        assert more <= less * (1 + (ROUNDING if degrees is PIPELINE else MODEL_FALLS))
        assert less <= 2 * more * (1 + FINEST)
    assert steps[-1] > 1.2 * steps[0], "the smallest budget limits the step"


@pytest.mark.parametrize("name", [pytest.param("max_queue_pairs", marks=pytest.mark.heavy), "max_channels"])
def test_pairs_and_channels_bend_the_step(name: str) -> None:
    """Fewer queue pairs or channels slow the step gradually, before the library's window of 8 MiB."""
    budgets = [64, 32, 16, 8] if name == "max_queue_pairs" else [8, 4, 3, 2]
    steps = [far(PIPELINE, 20_000.0, **{name: budget}).cost.cost.step_s for budget in budgets]
    assert all(more <= less * (1 + ROUNDING) for more, less in pairwise(steps))
    assert all(less <= 2 * more * (1 + FINEST) for more, less in pairwise(steps))


@pytest.mark.heavy
def test_distance_has_no_cliff() -> None:
    """Twice the distance gives at most twice the step time.

    A fixed budget covers the full rate at the start of the range, but not at its end.
    """
    steps = [far(PIPELINE, FAR_US * 2.0**log, max_buffer_bytes=GIB).cost.cost.step_s for log in range(-4, 3)]
    assert all(near <= there <= 2 * near for near, there in pairwise(steps))


def test_a_window_takes_what_the_budget_leaves() -> None:
    """A window takes what the budget leaves.

    One connection of the pipeline holds 80 % or more of the budget, and the step is less than half of the library's.
    """
    found = far(PIPELINE, max_buffer_bytes=GIB / 4)
    sends = [choice for choice in found.decision.network or () if choice.communicator == "pp"]
    held = max(one.window_bytes for choice in sends for one in choice.connections)
    assert 0.8 * GIB / 4 < 2 * held <= GIB / 4
    assert found.cost.cost.step_s < found.library_step_s / 2
