"""Objectives other than step time: equal to brute force, with limits, and with their sensitivities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from cases import each
from instances import mixed_job, plain_job, random_job, unexpected_notes
from oracles.exhaustive import exhaustive
from planned import planned
from priced import MONEY, POWER, priced, spent, two
from scaleacross.cost_models.candidates import concatenate
from scaleacross.cost_models.egress import UnitPrices, axis_patterns, flow_price
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.traffic import flows
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.egress_pricing import SHAPES, sent_amounts
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.objectives import Goal, GoalBounder, GoalPlacer, Measure, goal_placer
from scaleacross.solvers.place_parallelism import Wanted
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job, ObjectiveName
from scaleacross.spec.parallelism import GRID_AXES
from scaleacross.spec.placement import communicator_axes
from scaleacross.spec.plan import Decision
from scaleacross.verification.spending import counted_patterns
from scaleacross.workloads.problem import Problem, problem_of

SEEDS = (4, 6, 10, 13, 41, 50, 54, 65)
MIXED_SEEDS = (1, 4, 10, 12, 17, 24, 15)


def instance(seed: int, objective: str) -> Problem:
    job = random_job(seed).model_dump(mode="json", exclude_none=True)
    return problem_of(priced(job, seed, objective))


@pytest.mark.parametrize("objective", [pytest.param(POWER, marks=pytest.mark.heavy), MONEY])
@each("seed", (10,), SEEDS, size=3)
def test_search_finds_the_best_of_brute_force(seed: int, objective: ObjectiveName) -> None:
    problem = instance(seed, objective)
    oracle = exhaustive(problem, lambda decision, cost: spent(problem, objective, decision, cost))
    plan = sa.plan(problem.job, time_limit_s=600, alternatives=False)  # verifies itself
    value = plan.report.objective
    assert value is not None
    assert plan.report.status == "optimal"
    assert value.spent_per_step == pytest.approx(oracle.step_s, rel=1e-9)
    assert value.spent_bound_per_step <= oracle.step_s * (1 + 1e-9)
    assert value.value == pytest.approx(
        problem.job.tokens_per_step * (1e6 if objective == POWER else 1) / oracle.step_s
    )
    assert not unexpected_notes(plan)


@pytest.mark.parametrize("objective", [pytest.param(POWER, marks=pytest.mark.heavy), MONEY])
@each("seed", (10,), (4, 41))
def test_a_first_incumbent_from_a_sample_prunes_by_score(
    seed: int, objective: ObjectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first incumbent from a sample prunes by score.

    The test lowers the threshold, because small spaces are not sampled by default.
    """
    monkeypatch.setattr("scaleacross.solvers.pool_blocks.PROBED", 4)
    problem = instance(seed, objective)
    oracle = exhaustive(problem, lambda decision, cost: spent(problem, objective, decision, cost))
    value = sa.plan(problem.job, alternatives=False).report.objective
    assert value is not None
    assert value.spent_per_step == pytest.approx(oracle.step_s, rel=1e-9)


@pytest.mark.parametrize("objective", [pytest.param(POWER, marks=pytest.mark.heavy), MONEY])
@each("seed", (10,), MIXED_SEEDS, size=3)
def test_mixed_fleets_equal_brute_force_over_every_balance(seed: int, objective: ObjectiveName) -> None:
    problem = problem_of(priced(mixed_job(seed).model_dump(mode="json", exclude_none=True), seed, objective))
    oracle = exhaustive(problem, lambda decision, cost: spent(problem, objective, decision, cost))
    if oracle.decision is None:
        with pytest.raises(sa.InfeasibleError):
            sa.plan(problem.job, alternatives=False)
        return
    plan = sa.plan(problem.job, alternatives=False)  # verifies itself
    value = plan.report.objective
    assert value is not None
    assert plan.report.status == "optimal"
    assert value.spent_per_step == pytest.approx(oracle.step_s, rel=1e-9)
    assert not unexpected_notes(plan)


@each("seed", (10,), (41,))
def test_a_limit_takes_away_what_exceeds_it_and_nothing_else(seed: int) -> None:
    problem = instance(seed, "step_time")
    tried: list[tuple[float, float]] = []

    def noted(decision: Decision, cost: PlanCost) -> float:
        tried.append((spent(problem, MONEY, decision, cost), cost.cost.step_s))
        return tried[-1][0]

    least = exhaustive(problem, noted).step_s
    tokens = problem.job.tokens_per_step
    most = least * 1.1
    plan = sa.plan(problem, limits={MONEY: tokens / most}, simulated=False)
    assert plan.estimated.step_s == pytest.approx(min(s for money, s in tried if money <= most), rel=1e-9)
    assert plan.report.limits == {MONEY: tokens / most}
    assert plan.report.status == "optimal"
    with pytest.raises(sa.InfeasibleError, match="keeps to tokens_per_s_per_currency_unit") as refused:
        sa.plan(problem, limits={MONEY: tokens / (least * 0.9)}, simulated=False)
    assert f"The largest {MONEY} found is" in str(refused.value)
    assert _stated(refused.value, "found is") == pytest.approx(tokens / least, rel=1e-3)


def _stated(error: sa.InfeasibleError, after: str) -> float:
    return float(str(error).split(f"{after} ")[1].split()[0].strip(":).,"))


@each("seed", (10,), (41,))
def test_limits_that_no_plan_keeps_say_how_far_to_loosen_them(seed: int) -> None:
    problem = instance(seed, MONEY)
    with pytest.raises(sa.InfeasibleError) as refused:
        sa.plan(problem, limits={"step_time": 1e-6}, simulated=False)
    said = str(refused.value)
    assert "The least step_time found is" in said and said.endswith("loosen it to that.")
    found, bound = _stated(refused.value, "found is"), _stated(refused.value, "has less than")
    assert found == pytest.approx(bound, rel=2e-3)
    assert sa.plan(problem, limits={"step_time": found}, simulated=False).estimated.step_s <= found
    with pytest.raises(sa.InfeasibleError):
        sa.plan(problem, limits={"step_time": 0.99 * bound}, simulated=False)


def test_two_limits_that_no_plan_keeps_together_name_what_each_alone_allows() -> None:
    problem = instance(10, "step_time")
    with pytest.raises(sa.InfeasibleError) as refused:
        sa.plan(problem, limits={"step_time": 1e-6, MONEY: 1e30}, simulated=False)
    said = str(refused.value)
    assert "Without the other limits, the least step_time found is" in said and f"the largest {MONEY} found" in said
    with pytest.raises(sa.InfeasibleError, match="the other limits as they are: loosen it to that"):
        sa.plan(problem, limits={"step_time": 1e-6, MONEY: 1e-30}, simulated=False)


@pytest.mark.parametrize("objective", [POWER, MONEY])
@each("seed", (100,), (105, 110))
def test_no_bound_on_spending_exceeds_a_placement(seed: int, objective: ObjectiveName) -> None:
    problem = instance(seed, objective)
    goal = Goal(Measure.of(problem.topology, objective))
    for pool in pools(problem.topology):
        bounder = GoalBounder.towards(goal, pool, problem)
        placer = GoalPlacer(pool, bounder)
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
        for partials in space.partials(Refusals()):
            partial_bounds = bounder.partial_bound_s(partials)
            assert (bounder.partial_free_s(partials) <= partial_bounds * (1 + 1e-12)).all()
            for row in range(0, len(partials), 3):
                coarse = bounder.coarse(space.expand(partials.take(np.array([row])), Refusals()))
                assert (partial_bounds[row] <= coarse.bound_s * (1 + 1e-12)).all()
                tight = bounder.tight(coarse)
                for index in range(0, len(coarse.bound_s), 5):
                    one = tight.take(np.array([index]))
                    placed = placer.place(one.candidates, one.work)
                    if placed is not None:
                        assert one.bound_s[0] <= (one.free_s[0] + placed.communication_s) * (1 + 1e-12)
                        reached = placed.communication_s
                        assert placer.place(one.candidates, one.work, Wanted(cutoff_s=reached - 1e-9)) is None
                        assert placer.place(one.candidates, one.work, Wanted(cutoff_s=reached + 1e-9)) == placed


def test_an_impossible_candidate_stays_impossible_where_buildings_have_no_price() -> None:
    problem = problem_of(two(MONEY))
    pool, step_s = pools(problem.topology)[0], np.array([2.0, np.inf])
    measure = Measure.of(problem.topology, MONEY)
    bound = measure.bound(pool, np.array([8.0, 8.0]), step_s, np.array([1.0, 1.0]), 0.0, 1.0)
    assert 0 < bound[0] < np.inf
    assert bound[1] == np.inf


@pytest.mark.heavy
@each("seed", (4, 54), (6, 13, 41, 50))
def test_groups_across_buildings_are_those_counted_rank_by_rank(seed: int) -> None:
    placed = sa.plan(instance(seed, "step_time").job, gap_tolerance=0.5, alternatives=False, simulated=False)
    decision = placed.decision
    counted = {name: dict(found) for name, found in counted_patterns(decision).items()}
    assert axis_patterns(decision.degrees, placed.placement.axis_order, placed.placement.fill) == counted


# --- sensitivities -------------------------------------------------------------------------------------------------


NARROW: dict[str, Any] = {"schedules": ["1F1B"], "recompute": ["none"]}


@pytest.mark.parametrize("objective", [pytest.param(POWER, marks=pytest.mark.heavy), MONEY])
def test_the_cheap_building_is_used_and_step_time_pays(objective: str) -> None:
    cheap, fast = planned(two(objective, **NARROW)), planned(two("step_time", **NARROW))
    assert [share.building for share in cheap.placement.fill] == ["b0"]
    assert {share.building for share in fast.placement.fill} == {"b0", "b1"}
    assert cheap.cost.step_s > fast.cost.step_s
    priced_fast = sa.evaluate((two(objective, **NARROW), fast.decision))
    assert priced_fast.report.objective is not None and cheap.report.objective is not None
    assert priced_fast.report.objective.value < cheap.report.objective.value
    assert priced_fast.report.objective.bound >= cheap.report.objective.value


def test_a_least_number_of_accelerators_is_kept() -> None:
    plan = planned(two(MONEY, num_accelerators={"min": 12}, **NARROW))
    assert plan.degrees.world_size >= 12
    assert planned(two(MONEY, num_accelerators={"min": 2, "max": 4}, **NARROW)).degrees.world_size <= 4
    with pytest.raises(ValueError, match="an empty range says nothing"):
        two(MONEY, num_accelerators={})


def test_egress_is_part_of_the_price() -> None:
    plan = planned(two(MONEY, num_accelerators=16, **NARROW))
    value = plan.report.objective
    assert value is not None
    assert set(value.parts) == {"accelerators", "egress"}
    assert value.parts["accelerators"] == pytest.approx(8 * (1 + 3) / 3600 * plan.estimated.step_s)
    assert value.parts["egress"] > 0
    energy = planned(two(POWER, num_accelerators=16, **NARROW)).report.objective
    assert energy is not None and energy.unit == "J"


def test_egress_of_gradients_by_hand() -> None:
    """Egress of gradients by hand.

    16 replicas in two buildings shard the whole model. Each building sends half of it twice, as gradients and as
    parameters.
    """
    job = two(MONEY, num_accelerators=16, shard=["optimizer"])
    pins = {"degrees": {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 1}}
    plan = sa.plan(Job.model_validate(job.model_dump(mode="json", exclude_none=True) | pins), alternatives=False)
    parameters = problem_of(plan.job).profile.total_parameters
    value = plan.report.objective
    assert value is not None
    assert value.parts["egress"] == pytest.approx(2 * parameters / 2 * (4 + 2) * 0.01e-9, rel=1e-6)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (POWER, ["buildings.0.power_usage_effectiveness_ratio (building 'b0')", "accelerator.idle_power_watt"]),
        (
            MONEY,
            ["buildings.1.accelerator_price_per_hour (or accelerator.price_per_hour)", "topology.currency", "b0 – b1"],
        ),
    ],
)
def test_missing_figures_are_named_with_their_place(objective: str, words: list[str]) -> None:
    with pytest.raises(sa.InputError) as error:
        sa.plan(plain_job(1, 1, objective=objective), alternatives=False)
    for word in words:
        assert word in str(error.value)


def test_free_accelerators_are_refused_with_a_way_out() -> None:
    """Accelerators that are owned were stated as free, and the search divided by what a step costs."""
    job = two(MONEY, **NARROW).model_dump(mode="json", exclude_none=True)
    own = job["topology"]["regions"][0]["buildings"][0]
    own["accelerator_price_per_hour"] = 0.0
    with pytest.raises(sa.InputError, match="of 'b0' is free: state accelerator_price_per_hour above 0"):
        sa.plan(Job.model_validate(job), alternatives=False)
    timed = planned(Job.model_validate(job | {"objective": "step_time"}))
    assert sa.summarise(timed).money is not None  # what it costs is stated all the same
    with pytest.raises(sa.InputError, match="of 'b0' is free"):
        sa.evaluate((Job.model_validate(job), timed.decision))
    own["accelerator_price_per_hour"] = 0.01
    value = planned(Job.model_validate(job)).report.objective
    assert value is not None and value.spent_per_step > 0


def test_tampered_values_do_not_verify() -> None:
    plan = planned(two(MONEY, num_accelerators=16, **NARROW))
    value = plan.report.objective
    assert value is not None
    for change in (
        {"value": value.value * 1.01},
        {"spent_per_step": value.spent_per_step * 0.99},
        {"parts": {"egress": 0}},
    ):
        report = plan.report.model_copy(update={"objective": value.model_copy(update=change)})
        with pytest.raises(sa.VerificationError, match="V7"):
            sa.verify(plan.model_copy(update={"report": report}))
    limited = plan.report.model_copy(update={"limits": {"step_time": plan.estimated.step_s * 0.9}})
    with pytest.raises(sa.VerificationError, match="V7: step_time is"):
        sa.verify(plan.model_copy(update={"report": limited}))
    without = plan.report.model_copy(update={"objective": None})
    with pytest.raises(sa.VerificationError, match="the job asks for tokens_per_s_per_currency_unit"):
        sa.verify(plan.model_copy(update={"report": without}))


@each("seed", (4, 41, 306), (0, 13, 34))
def test_bytes_in_arrays_are_those_of_the_flows(seed: int) -> None:
    """The amounts in the egress bound equal the bytes of the flows, candidate by candidate.

    Groups of one rank send nothing and cost nothing.
    """
    problem = problem_of(random_job(seed))
    pool = pools(problem.topology)[0]
    bounder = Bounder.on(pool, problem.job, problem.profile)
    kinds = [UnitPrices(*row) for row in np.eye(len(UnitPrices._fields)).tolist()]
    for rows in SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit).batches(Refusals()):
        work = bounder.work(rows)
        amounts = sent_amounts(bounder.volumes(rows, work))
        for row in range(0, len(rows), 11):
            one, degrees = np.array([row]), rows.decision(row).degrees
            expected = np.zeros((len(SHAPES), len(kinds)))
            for flow in flows(bounder.volumes(rows.take(one), work.take(one))):
                chunks = int(rows.num_chunks[row])
                expected[SHAPES.index(flow.shape)] += [flow_price(flow, kind, chunks) for kind in kinds]
            ranks = communicator_axes(degrees, GRID_AXES)
            several = [ranks[shape][0] > 1 for shape in SHAPES]
            np.testing.assert_allclose(amounts[row][several], expected[several], rtol=1e-12)


def test_estimates_of_scores_are_those_of_step_times() -> None:
    """Scores are tried in the order of estimated step times, not of their bounds.

    On two accelerator types the two orders differ much.
    """
    problem = problem_of(priced(mixed_job(1).model_dump(mode="json", exclude_none=True), 1, MONEY))
    bounder = goal_placer(Goal(Measure.of(problem.topology, MONEY)), problem, pools(problem.topology)[0]).bounder
    space = SearchSpace(problem.job, problem.profile, bounder.pool.num_accelerators, bounder.pool.unit)
    candidates = space.expand(concatenate(list(space.partials(Refusals()))), Refusals())
    times, scores = (
        bounder_on(bounder.pool, problem.job, problem.profile).coarse(candidates),
        bounder.coarse(candidates),
    )
    later = np.isfinite(times.bound_s) & (times.estimate_s > 1.01 * times.bound_s)
    assert later.any()
    assert (scores.estimate_s[later] > scores.bound_s[later]).all()
