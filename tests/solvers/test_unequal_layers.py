"""Layers per stage on one accelerator type.

Embedding and head make equal stages differ in time, and the search accounts for it.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import plain_job, plain_trunk, random_job, unexpected_notes
from oracles.exhaustive import exhaustive
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.report.summary import proof_words
from scaleacross.solvers import joint
from scaleacross.solvers.bounds import search_bounds
from scaleacross.solvers.joint import search
from scaleacross.solvers.search_state import decision_of
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision
from scaleacross.verification import recompute
from scaleacross.workloads.problem import problem_of
from scaleacross.workloads.space import EQUAL_STAGES

PINNED = ("num_accelerators=32", "global_batch_sequences=32", "degrees.pp=4", "degrees.tp=1", "schedules=1F1B")


def heavy_head(seed: int) -> Job:
    """A job on one accelerator type whose head takes as long as some layers.

    It has a pipeline and few other choices.
    """
    job = random_job(seed)
    data = job.model_dump(mode="json", exclude_none=True)
    first = data["topology"]["regions"][0]["buildings"][0]["accelerator"] | {"memory_bytes": 2.0**31}
    for region in data["topology"]["regions"]:
        for building in region["buildings"]:
            building["accelerator"] = first
    data["workload"] |= {"vocabulary_size": 16_000, "num_layers": 7 + seed % 3}
    data |= {"schedules": ["1F1B", "Interleaved1F1B"], "num_chunks": [1, 2], "micro_batch_sequences": [1]}
    data |= {"recompute": ["none"], "shard": ["optimizer", "none"], "failure_domains": None, "num_accelerators": None}
    data["degrees"] = {"tp": 1, "cp": 1, "ep": 1, "pp": {"min": 2, "max": 3}, "dp_replicate": {"max": 2}}
    return Job.model_validate({key: value for key, value in data.items() if value is not None})


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("seed", "unequal"),
    [(0, True), pytest.param(3, False, marks=pytest.mark.slow), pytest.param(5, True, marks=pytest.mark.slow)],
)
def test_search_equals_brute_force_over_unequal_stages(seed: int, unequal: bool) -> None:
    problem = problem_of(heavy_head(seed))
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600)
    assert found.best is not None and oracle.decision is not None
    assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
    assert found.bound_s <= found.best.step_s
    assert found.bound_violation_s <= 1e-12
    assert (decision_of(found.best).layers_per_stage is not None) == unequal


@pytest.mark.heavy
@each("seed", (3,), (0, 5))
def test_no_number_of_layers_per_rank_is_below_any_layers(seed: int) -> None:
    """The search is no slower than any split of layers over the ranks.

    Every decision of brute force is timed with every split, at one chunk per rank.
    """
    data = heavy_head(seed).model_dump(mode="json", exclude_none=True) | {"schedules": ["1F1B"], "num_chunks": [1]}
    for region in data["topology"]["regions"]:
        for building in region["buildings"]:  # slow compute keeps the bound close: messages take most of a toy step
            building["accelerator"] = building["accelerator"] | {"peak_tflop_per_s": {"bf16": 0.2}}
    problem = problem_of(Job.model_validate(data))
    found, reached = search(problem, time_limit_s=600), dict[str, float]()

    def tried(decision: Decision, cost: PlanCost) -> float:
        pp, num_layers = decision.degrees.pp, problem.profile.num_layers
        for cuts in combinations(range(1, num_layers), pp - 1) if decision.pipeline.num_chunks == 1 else ():
            split = tuple((after - before,) for before, after in pairwise((0, *cuts, num_layers)))
            other = decision.model_copy(update={"layers_per_stage": split})
            if (key := other.model_dump_json()) not in reached:
                priced = recompute(problem, other)
                reached[key] = priced.cost.step_s if all(stage.fits for stage in priced.memory) else float("inf")
        return cost.cost.step_s

    exhaustive(problem, tried)
    (bound,) = (one for one in search_bounds(found, float("inf")) if one.name == "any_layers")
    assert len(reached) >= 20
    assert 0.8 * min(reached.values()) < bound.step_s <= min(reached.values()) * (1 + 1e-9)


@pytest.mark.heavy
def test_llama_on_32_gives_the_last_stage_fewer_layers() -> None:
    """The last stage gets fewer layers for Llama on 32 accelerators.

    The pipeline has four fixed stages. The head of 128,256 rows takes as long as two layers.
    """
    plan = sa.plan("llama3_8b_one_building", time_limit_s=120, overrides=PINNED, alternatives=False)
    equal = sa.plan("llama3_8b_one_building", time_limit_s=120, overrides=[*PINNED, "stages=equal"], alternatives=False)
    assert plan.decision.layers_per_stage == ((8,), (9,), (9,), (6,))
    assert equal.decision.layers_per_stage is None
    assert plan.cost.step_s < 0.95 * equal.cost.step_s
    assert plan.report.bound_s <= plan.estimated.step_s
    assert plan.report.status == "optimal"
    assert not unexpected_notes(plan)


@pytest.mark.heavy
def test_too_many_candidates_leave_the_most_promising_of_unequal_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many candidates the search tries only the most promising heterogeneous stages.

    The note says that the bound is for equal stages.
    """
    problem = problem_of(heavy_head(0))
    every, equal = (
        search(problem_of(heavy_head(0).model_copy(update={"stages": stages})), time_limit_s=600)
        for stages in ("any", "equal")
    )
    assert every.incumbent_s < 0.99 * equal.incumbent_s
    assert not every.left_out
    monkeypatch.setattr("scaleacross.solvers.joint.MOST_WITH_UNEQUAL", 1)
    found = search(problem, time_limit_s=600)
    assert found.left_out[0].startswith(EQUAL_STAGES)
    assert every.incumbent_s <= found.incumbent_s < 0.99 * equal.incumbent_s
    assert found.open_bound_s >= equal.incumbent_s  # the bound excludes what the search leaves out
    monkeypatch.setattr("scaleacross.solvers.joint.MOST_TRYING_UNEQUAL", 1)
    assert search(problem, time_limit_s=600).incumbent_s == equal.incumbent_s


def test_unequal_stages_that_take_the_rest_of_the_limit_end_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heterogeneous stages may use the rest of the limit without changing the status.

    The search of equal stages has ended by then, and its proof remains.
    """
    now, made = [0.0], joint.unequal_placers

    def late(*args: Any) -> Any:
        now[0] = 700.0
        return made(*args)

    monkeypatch.setattr(joint, "MOST_WITH_UNEQUAL", 1)
    monkeypatch.setattr(joint, "unequal_placers", late)
    found = search(problem_of(heavy_head(0)), time_limit_s=600, clock=lambda: now[0])
    assert now == [700.0] and found.best is not None
    assert not found.out_of_time


@pytest.mark.heavy
def test_unequal_stages_come_before_pools_of_several_types_that_take_all_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heterogeneous stages of one type come before mixed pools, which may use all the remaining time.

    The limit passes when the first mixed pool is placed. The plan of one type is known by then.
    """
    data = heavy_head(0).model_dump(mode="json", exclude_none=True)
    own = data["topology"]["regions"][0]["buildings"][0]
    alone = Job.model_validate(data)
    another = own["accelerator"] | {"name": "another"}
    data["topology"]["regions"][0]["buildings"].append(own | {"name": "other", "accelerator": another})
    data["topology"].setdefault("trunks", []).append(plain_trunk(own["name"], "other"))
    now, placed_first = [0.0], joint.place_first

    def late(*args: Any) -> None:
        now[0] = 700.0
        placed_first(*args)

    monkeypatch.setattr(joint, "place_first", late)
    monkeypatch.setattr(joint, "MOST_WITH_UNEQUAL", 1)
    found = search(problem_of(Job.model_validate(data)), time_limit_s=600, clock=lambda: now[0])
    assert found.out_of_time
    equal = search(problem_of(alone.model_copy(update={"stages": "equal"})), time_limit_s=600)
    assert found.incumbent_s < 0.99 * equal.incumbent_s


@pytest.mark.parametrize(
    ("changes", "only"),
    [
        pytest.param({"schedules": ["1F1B"]}, (), marks=pytest.mark.heavy),
        ({"schedules": ["1F1B", "Interleaved1F1B"]}, ("equal chunks",)),
        ({"schedules": ["1F1B", "Interleaved1F1B"], "stages": "equal"}, ()),
        pytest.param({"schedules": ["1F1B"], "space": "quick"}, ("--space quick",), marks=pytest.mark.heavy),
        ({"schedules": ["1F1B"], "objective": "useful_tokens_per_s", "reliability": {}}, ("equal stages",)),
        ({"schedules": ["1F1B"], "objective": "useful_tokens_per_s", "reliability": {}, "stages": "equal"}, ()),
    ],
)
def test_the_report_says_what_alone_its_status_is_about(changes: dict[str, Any], only: tuple[str, ...]) -> None:
    """The report names the part of the space that its status refers to, in JSON and in the proof line."""
    own: dict[str, Any] = {"space": "full", "degrees": {"tp": 1, "cp": 1, "pp": [1, 2]}, "num_chunks": [1, 2]}
    plan = sa.plan(plain_job(2, 2, **own | changes), alternatives=False)
    assert plan.report.within == only
    assert sa.Plan.model_validate_json(plan.model_dump_json()).report.within == only
    assert (f"({', '.join(only)})" in proof_words(plan.report)) == bool(only)
