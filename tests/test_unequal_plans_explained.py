"""Plans with heterogeneous layers or batches get a better pipeline order and explanations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import scaleacross as sa
from cases import each
from instances import mixed_job
from scaleacross import api
from scaleacross.cost_models.pipeline.timeline import planned_pipeline
from scaleacross.solvers import runner_up
from scaleacross.solvers.order_pipeline import order_pipeline
from scaleacross.solvers.pipeline_order.of_plan import problem_of_plan
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import problem_of

SPLIT_TOO = ("1F1B", "ZBH1", "ZBVZeroBubble", "DualPipeV")


def plan_of(seed: int, schedules: Sequence[str] = SPLIT_TOO) -> Plan:
    """The best plan on a mixed pool.

    By default the backward pass may be split and stages may form a V.
    """
    data = mixed_job(seed).model_dump(mode="json", exclude_none=True)
    return sa.plan(Job.model_validate(data | {"schedules": [*schedules], "num_chunks": [1, 2]}), alternatives=False)


@each("seed", (), (9, 58), size=1, heavy=(11,))
def test_unequal_layers_get_a_better_order_and_still_verify(seed: int) -> None:
    plan = plan_of(seed)
    assert plan.decision.layers_per_stage is not None
    refined = api.refine_schedule(plan, 2.0)
    assert refined.estimated.step_s < plan.estimated.step_s
    assert refined.layers_per_stage == plan.layers_per_stage
    api.verify(refined)


@pytest.mark.heavy
def test_the_order_of_a_plan_stays_where_it_is_proved() -> None:
    """A proved order stays.

    With the step time's seconds no order of two stages is faster than 1F1B.
    """
    plan = plan_of(2, ["1F1B"])
    assert api.refine_schedule(plan, 2.0) == plan
    pipe = planned_pipeline(problem_of(plan.job), plan.decision)
    order = order_pipeline(problem_of_plan(pipe, plan.memory, split=False), 2.0)
    assert order.status == "optimal"
    assert order.objective_s == pytest.approx(pipe.actions.total_s, rel=1e-12)


@pytest.mark.heavy
def test_unequal_batches_have_no_single_order() -> None:
    plan = plan_of(37)
    assert plan.decision.batch_shares is not None
    with pytest.raises(sa.InputError, match="different numbers of micro-batches"):
        api.refine_schedule(plan, 2.0)


@pytest.mark.heavy
@each("seed", (9,), (37,))
def test_no_placement_of_the_same_shares_is_faster(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_up, "without", lambda *_: ())  # nothing is searched, so placements have the whole limit
    plan = plan_of(seed)
    explained = sa.explain(plan, time_limit_s=900)
    assert explained.step_s == pytest.approx(plan.estimated.step_s)
    placed = [one for one in explained.runner_ups if one.decision in ("axis order", "allocation")]
    assert any(one.step_s is not None for one in placed)
    for one in explained.runner_ups:
        if one.difference_s is not None:
            assert one.difference_s >= -1e-9 * plan.estimated.step_s
