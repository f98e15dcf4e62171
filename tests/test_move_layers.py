"""Moving layers between chunks makes a plan faster if nearly equal chunks are not the fastest."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import scaleacross as sa
from scaleacross.api.simulating import simulated_step_s
from scaleacross.catalogue import load_job
from scaleacross.catalogue.quick_start import quick_topology
from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.solvers.move_layers import Allowance, with_moved_layers
from scaleacross.solvers.moved_pipeline import MovedPipeline
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import problem_of

PUBLISHED = ((2,) * 5,) * 3 + ((2, 2, 2, 2, 3),) + ((2,) * 5,) * 3 + ((2, 2, 2, 2, 1),)
"""Layers of ``Et*2|(t*2|)*34,t*3|(t*2|)*3,tL``, NVIDIA's layout of Llama 3 70B on 64 H100."""


def job(**fields: object) -> Job:
    pinned = {
        "degrees": {"tp": 4, "pp": 8},
        "num_chunks": [5],
        "schedules": ["Interleaved1F1B"],
        "recompute": "selective",
    }
    standard = {
        "topology": quick_topology("h100:64", None, None),
        "global_batch_tokens": 2**20,
        "sequence_length": 8192,
    }
    return load_job({"name": "70b", "workload": "llama3.1-70b", **standard, **pinned, **fields})


@pytest.fixture(scope="module")
def moved() -> Plan:
    return sa.plan(job(), alternatives=False)


@pytest.mark.heavy
def test_a_plan_is_no_slower_than_the_published_layout(moved: Plan) -> None:
    published = moved.decision.model_copy(update={"layers_per_stage": PUBLISHED})
    assert moved.estimated.step_s <= sa.evaluate((moved.job, published)).estimated.step_s
    assert moved.decision.layers_per_stage not in (None, PUBLISHED)
    sa.verify(moved)


@pytest.mark.heavy
def test_the_note_says_what_the_proof_is_about(moved: Plan) -> None:
    equal = sa.plan(job(stages="equal"), alternatives=False)
    assert moved.estimated.step_s < equal.estimated.step_s
    assert equal.decision.layers_per_stage is None and not any("chunks" in note for note in equal.report.notes)
    note = next(note for note in moved.report.notes if "as equal as possible" in note)
    proved_s = float(note.split(", ")[1].split(" s;")[0])
    assert moved.estimated.step_s < proved_s <= equal.estimated.step_s * (1 + 1e-3)


def test_who_leaves_a_gap_keeps_the_chunks_of_the_search() -> None:
    found = sa.plan(job(), alternatives=False, gap_tolerance=0.001)
    assert found.report.bound_s <= found.estimated.step_s
    assert not any("moved" in note for note in found.report.notes)


@pytest.mark.heavy
def test_layers_move_for_useful_tokens_too(moved: Plan) -> None:
    """The share of failures does not depend on how layers are split."""
    topology = quick_topology("h100:64", None, None)
    failing = topology | {"reliability": {"failures_per_1000_node_days": 6.5, "repair_hours": 24}}
    plan = sa.plan(job(topology=failing, objective="useful_tokens_per_s", reliability={}), alternatives=False)
    assert plan.decision.layers_per_stage is not None and plan.report.objective is not None
    assert plan.estimated.step_s == pytest.approx(moved.estimated.step_s, rel=0.01)
    assert plan.report.objective.bound >= plan.report.objective.value


@pytest.mark.heavy
def test_heterogeneous_accelerators_hold_unequal_chunks() -> None:
    """Heterogeneous accelerators get heterogeneous chunks.

    There are 64 H100 and 32 B200, which are 2.3 times as fast. Nearly equal chunks leave the pipeline idle longer than
    light first chunks on the slow ranks.
    """
    degrees = {"tp": 2, "cp": 1, "pp": 6, "ep": 2, "dp_shard": 8}
    pinned = {"degrees": degrees, "schedules": ["Interleaved1F1B"], "num_chunks": [3], "micro_batch_sequences": [2]}
    standard = {"topology": quick_topology("h100:64,b200:32", "4x400G", 40), "global_batch_tokens": 2**20}
    data = {
        "name": "moe",
        "workload": "gpt-oss-120b",
        "sequence_length": 8192,
        "recompute": "none",
        "shard": "optimizer",
    }
    plan = sa.plan(load_job(data | standard | pinned), alternatives=False, simulated=False)
    problem, asked = problem_of(plan.job), count()
    split = ((2, 1, 1),) * 4 + ((4, 4, 3), (3, 3, 3))
    found = with_network(problem, plan.decision.model_copy(update={"layers_per_stage": split}))
    moved = with_moved_layers(problem, found, 0, Allowance(lambda: next(asked) > 900))
    assert moved is not None and moved.decision.layers_per_stage is not None
    assert sum(map(sum, moved.decision.layers_per_stage)) == 36
    assert min(map(min, moved.decision.layers_per_stage)) > 0
    assert moved.cost.cost.step_s < 0.92 * found.cost.cost.step_s
    assert simulated_step_s(sa.evaluate((plan.job, moved.decision))) == pytest.approx(moved.cost.cost.step_s, rel=0.05)


def test_a_pipeline_with_moved_layers_takes_what_its_actions_take() -> None:
    """All layers of Llama are equal, so the linear law is exact: that of one layout gives the seconds of another."""
    plan = sa.plan(job(), alternatives=False, simulated=False, gap_tolerance=0.001)
    problem = problem_of(plan.job)
    published = plan.decision.model_copy(update={"layers_per_stage": PUBLISHED})
    found, other = (with_network(problem, one, 0).cost for one in (plan.decision, published))
    moved = MovedPipeline.of(found)
    assert moved.seconds(found.layers_per_stage) == pytest.approx(found.pipeline.total_s, rel=1e-12)
    assert found.pipeline.total_s != pytest.approx(other.pipeline.total_s, rel=1e-6)
    assert moved.seconds(PUBLISHED) == pytest.approx(other.pipeline.total_s, rel=1e-9)
    assert moved.busiest(PUBLISHED) == other.pipeline.rank


def test_a_rank_without_layers_has_a_pipeline_too() -> None:
    """The first of two ranks of a V holds embedding and head alone."""
    seconds = np.array([1.0, 2.0, 2.0, 1.0])
    message = np.zeros(2)
    actions = Actions("ZBVZeroBubble", 2, 4, 2, None, *(seconds,) * 4, np.zeros((2, 4)), message, message)
    cost = SimpleNamespace(pipeline=SimpleNamespace(actions=actions), layers_per_stage=((0, 0), (2, 2)))
    moved = MovedPipeline.of(cast(PlanCost, cost))
    assert moved.seconds(((0, 0), (2, 2))) == pytest.approx(actions.total_s)
    assert moved.seconds(((0, 0), (3, 1))) >= actions.total_s
