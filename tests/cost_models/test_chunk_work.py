"""The computation that a plan states for the simulation adds up to the computation of its step time."""

from __future__ import annotations

import numpy as np
import pytest

import scaleacross as sa
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import problem_of


@pytest.fixture(scope="module")
def plan() -> Plan:
    return sa.evaluate("llama3_table4_row1")


def test_chunks_add_up_to_the_busiest_rank(plan: Plan) -> None:
    assert plan.work is not None
    (work,) = plan.work.values()
    problem = problem_of(plan.job)
    estimated = plan_cost(problem.job, problem.profile, problem.topology, plan.decision).volumes.work
    chunks = [[work.chunk(rank, index) for index in range(8)] for rank in range(16)]
    passes = [sum(c.forward_s + c.input_gradient_s + c.weight_gradient_s for c in row) for row in chunks]
    busiest = chunks[int(np.argmax(passes))]
    assert sum(c.forward_s for c in busiest) == pytest.approx(estimated.forward_s[0])
    assert max(passes) == pytest.approx(estimated.forward_s[0] + estimated.backward_s[0])
    assert sum(c.weight_gradient_s for c in busiest) == pytest.approx(estimated.weight_s[0])
    assert sum(2 * (c.tp_forward + c.tp_backward) for c in busiest) == estimated.tp_gathers[0]
    assert max(sum(c.dense_parameters for c in row) for row in chunks) == pytest.approx(estimated.dense_parameters[0])
    assert sum(c.num_layers for row in chunks for c in row) == problem.profile.num_layers
    assert max(work.optimizer_s) == pytest.approx(estimated.optimizer_s[0])


def test_collectives_say_where_in_the_step_they_are_issued(plan: Plan) -> None:
    for collective in plan.collectives:
        assert sum(collective.phases.values()) == pytest.approx(collective.per_step), collective.name
    assert {phase for collective in plan.collectives for phase in collective.phases} == {
        "forward", "backward", "message", "gradients", "parameters",
    }  # fmt: skip
