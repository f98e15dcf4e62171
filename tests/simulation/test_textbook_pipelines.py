"""Textbook pipelines through a whole plan agree with their closed forms.

Equal stages over two buildings are simulated.
"""

from __future__ import annotations

import pytest

import scaleacross as sa
from instances import plain_job
from scaleacross.cost_models.pipeline.closed_form import lower_bound_s
from scaleacross.cost_models.pipeline.delay import BoundaryDelays
from scaleacross.cost_models.pipeline.timeline import planned_pipeline
from scaleacross.spec.parallelism import Degrees, PipelineChoice, ScheduleName
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import problem_of

P, M, F, B = 4, 16, 0.5, 1.0


def equal_stages(schedule: ScheduleName, num_chunks: int) -> tuple[Plan, BoundaryDelays]:
    """A plan of two ranks in each of two buildings. Every chunk computes F/v and B/v, and nothing else takes time."""
    job = plain_job(1, 1, schedules=[schedule])
    pipeline = PipelineChoice(schedule=schedule, num_chunks=num_chunks)
    fill = tuple(BuildingShare(building=f"b{index}", num_accelerators=4) for index in range(2))
    order = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
    placement = Placement(axis_order=order, fill=fill)
    decision = Decision(
        degrees=Degrees(tp=2, pp=P), pipeline=pipeline, recompute="none", shard="none", placement=placement
    )
    plan = sa.evaluate((job, decision))
    assert plan.work is not None
    only = {
        "forward_s": F / num_chunks, "input_gradient_s": B / num_chunks, "weight_gradient_s": 0.0,
        "tp_forward": 0, "tp_backward": 0, "num_layers": 1,
    }  # fmt: skip
    work = {
        name: one.model_copy(
            update={
                "kinds": tuple(kind.model_copy(update=only) for kind in one.kinds),
                "optimizer_s": (0.0,) * P,
            }
        )
        for name, one in plan.work.items()
    }
    pipe = planned_pipeline(problem_of(plan.job), plan.decision)
    latency_s, occupancy_s = pipe.actions.between_stages()
    delay = latency_s + occupancy_s
    near, far = float(delay[0]), float(delay[1])
    assert far > 2 * near > 0
    return plan.model_copy(update={"work": work}), BoundaryDelays(
        inner_s=near, slow_s=far, loop_s=far, occupancy_s=float(occupancy_s.max()), num_slow=1, slow_tail=2
    )


@pytest.mark.parametrize(("schedule", "num_chunks"), [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2)])
def test_a_simulation_takes_what_the_closed_form_says(schedule: ScheduleName, num_chunks: int) -> None:
    plan, delays = equal_stages(schedule, num_chunks)
    law = float(lower_bound_s(schedule, P, M, num_chunks, F, B, delays))
    alone = (M + (P - 1) / num_chunks) * (F + B)
    assert law > alone
    step_s = sa.simulate(plan).step_s
    assert step_s == pytest.approx(law, rel=1e-9)
    assert step_s - alone == pytest.approx(
        law - alone, rel=1e-3
    )  # the delays themselves, not only their sum with the rest


def test_gpipe_is_bound_by_its_throughput() -> None:
    """GPipe is limited by its throughput: each further micro-batch takes one rank's time, whatever the delays."""
    plan, delays = equal_stages("GPipe", 1)
    fill = (P - 1) * (F + B) + 2 * float(delays.total_s(P))
    assert (sa.simulate(plan).step_s - fill) / M == pytest.approx(F + B, rel=1e-9)
