"""Budgets of the network bend a step, they do not break it: windows, queue pairs and channels between full rate and defaults."""

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
"""By how much a window that shares a budget may miss its best (``network_between.SHARES``)."""
MODEL_FALLS = 0.015
"""The price of a hierarchical all-reduce in chunks is 1.4 % higher with the widest far window than with an eighth of it."""


def far(degrees: dict[str, int], latency_us: float = FAR_US, **network: float) -> Networked:
    """Two buildings of 16 accelerators, a wide trunk far apart; the slowest axis of ``degrees`` crosses it."""
    topology = plain_topology(4, 4)
    topology["trunks"][0] = plain_trunk("b0", "b1", 400.0, latency_us)
    wide = {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "intermediate_size": 4096}
    workload = plain_job().model_dump()["workload"] | wide
    problem = problem_of(plain_job(topology=topology, workload=workload, sequence_length=8192, network=network))
    fill = [{"building": name, "num_accelerators": 16} for name in ("b0", "b1")]
    order = ("tp", "cp", "dp_shard", *(("dp_replicate", "pp") if degrees["pp"] > 1 else ("pp", "dp_replicate")))
    decision = Decision(
        degrees=Degrees(**degrees),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="none",
        placement=Placement.model_validate({"axis_order": order, "fill": fill}),
    )
    return with_network(problem, decision)


PIPELINE = {"tp": 4, "pp": 2, "dp_replicate": 4}
REPLICAS = {"tp": 4, "pp": 1, "dp_replicate": 8}


@pytest.mark.heavy
@pytest.mark.parametrize("degrees", [PIPELINE, REPLICAS], ids=["pipeline", "replicas"])
def test_buffers_bend_the_step(degrees: dict[str, int]) -> None:
    """Half the bytes in flight cost at most twice the step, and no budget is slower than a smaller one."""
    budgets = [GIB * 2**-half for half in range(1, 6)]
    steps = [far(degrees, max_buffer_bytes=budget).cost.cost.step_s for budget in budgets]
    for more, less in pairwise(steps):
        assert more <= less * (1 + (ROUNDING if degrees is PIPELINE else MODEL_FALLS))
        assert less <= 2 * more * (1 + FINEST)
    assert steps[-1] > 1.2 * steps[0], "the smallest budget binds"


@pytest.mark.parametrize("name", [pytest.param("max_queue_pairs", marks=pytest.mark.heavy), "max_channels"])
def test_pairs_and_channels_bend_the_step(name: str) -> None:
    """A connection over fewer queue pairs, or driven by fewer channels, before the library's window of 8 MiB."""
    budgets = [64, 32, 16, 8] if name == "max_queue_pairs" else [8, 4, 3, 2]
    steps = [far(PIPELINE, 20_000.0, **{name: budget}).cost.cost.step_s for budget in budgets]
    assert all(more <= less * (1 + ROUNDING) for more, less in pairwise(steps))
    assert all(less <= 2 * more * (1 + FINEST) for more, less in pairwise(steps))


@pytest.mark.heavy
def test_distance_has_no_cliff() -> None:
    """Twice as far: at most twice the step, where a fixed budget first holds full rate and then does not."""
    steps = [far(PIPELINE, FAR_US * 2.0**log, max_buffer_bytes=GIB).cost.cost.step_s for log in range(-4, 3)]
    assert all(near <= there <= 2 * near for near, there in pairwise(steps))


def test_a_window_takes_what_the_budget_leaves() -> None:
    """By hand: one connection of the pipeline with most of the budget in flight is what the plan finds, or better."""
    found = far(PIPELINE, max_buffer_bytes=GIB / 4)
    sends = [choice for choice in found.decision.network or () if choice.communicator == "pp"]
    held = max(one.window_bytes for choice in sends for one in choice.connections)
    assert 0.8 * GIB / 4 < 2 * held <= GIB / 4
    assert found.cost.cost.step_s < found.library_step_s / 2
