"""Slow steps in long runs, and step times over draws of host speeds."""

from __future__ import annotations

import numpy as np
import pytest

import scaleacross as sa
from instances import plain_job, plain_topology
from scaleacross.api.published_goodput import ft_hsdp
from scaleacross.api.simulating import step_draws
from scaleacross.api.weeks import simulate_weeks, slow_spells
from scaleacross.cost_models.goodput.share import mean_speed, useful_share
from scaleacross.errors import InputError
from scaleacross.simulation.long_run import long_run
from scaleacross.simulation.slow_spells import Speeds
from scaleacross.simulation.step_run import HOSTS, Disturbance, simulate_step
from scaleacross.spec.goodput import SlowSpell
from scaleacross.spec.placement import devices
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import problem_of

HOURS = 3600.0
SLOWDOWNS = [
    {"of": "host", "mtbf_hours": 40, "lasts_minutes": 90, "times": 1.5},
    {"of": "inter_building_link", "mtbf_hours": 10, "lasts_minutes": 5, "times": 20},
]


@pytest.fixture(scope="module")
def plan() -> Plan:
    topology = plain_topology(2, 2) | {"reliability": {"host_mtbf_hours": 50, "slowdowns": SLOWDOWNS}}
    degrees = {"pp": 2, "dp_replicate": 4, "tp": 2, "cp": 1, "dp_shard": 1}
    return sa.plan(plain_job(topology=topology, degrees=degrees, shard=["none"]), time_limit_s=10)


def test_seconds_at_full_speed_by_hand() -> None:
    """Seconds at full speed by hand, within 100 s.

    In the first draw the speed is half from 10 to 20 s. In the second it is 0.8 all the time.
    """
    speeds = Speeds(np.array([0.0, 10, 20, 100, 200, 300]), np.array([0.0, 10, 15, 95, 0, 80]), 200.0)
    begins, to_s = np.array([[5.0, 15.0], [5.0, 15.0]]), np.array([40.0, 25.0])
    assert speeds.between(begins, to_s) == pytest.approx(np.array([[7.5, 22.5], [8.0, 8.0]]))


@pytest.mark.parametrize("units", [1, 16])
def test_slow_spells_cost_what_the_closed_form_says(units: int) -> None:
    """Slow spells cost what the closed form says.

    Two classes overlap often, and the slowest active spell sets the speed.
    """
    spells = (
        SlowSpell(cause="a", rate_per_s=1 / (5 * HOURS), lasts_s=2 * HOURS, speed=0.8),
        SlowSpell(cause="b", rate_per_s=1 / (9 * HOURS), lasts_s=3 * HOURS, speed=0.5),
    )
    model = ft_hsdp(units).model_copy(update={"slow_spells": spells})
    idle = np.exp(-1 / 3)
    assert mean_speed(spells) == pytest.approx(0.5 * (1 - idle) + idle * (0.8 * (1 - np.exp(-0.4)) + np.exp(-0.4)))
    run = long_run(model, days=54, draws=60)
    assert run.goodput_fraction["mean"] == pytest.approx(useful_share(model)[0], abs=0.01)
    steady = model.model_copy(update={"strikes": ()})
    assert long_run(steady, days=400, draws=40).goodput_fraction["mean"] == pytest.approx(mean_speed(spells), abs=0.003)


def test_a_host_slows_all_its_ranks_alike(plan: Plan) -> None:
    """A slow host slows all its ranks equally.

    The comparison draws one pace per host in allocation order and sets it for every global rank.
    """
    problem, sigma = problem_of(plan.job), 0.1
    allocation = [share.building for share in plan.placement.fill]
    hosts = [(allocation.index(one.building), one.host) for one in devices(problem.topology, plan.placement)]
    drawn = np.random.default_rng([3, HOSTS]).normal(0.0, sigma, (len(allocation), max(host for _, host in hosts) + 1))
    paces = {position: float(np.exp(drawn[where])) for position, where in enumerate(hosts)}
    by_hand = simulate_step(plan, problem, Disturbance(stragglers=paces), fold=False).step_s
    wanted = Disturbance(seed=3, host_jitter_fraction=sigma)
    assert simulate_step(plan, problem, wanted, fold=False).step_s == pytest.approx(by_hand)
    folded = simulate_step(plan, problem, wanted).step_s
    assert by_hand <= folded * (1 + 1e-12)
    assert folded == pytest.approx(by_hand, rel=0.05)


def test_more_hosts_wait_for_a_slower_one(plan: Plan) -> None:
    found = step_draws(plan, what_if=["host-jitter=0.05"], draws=12)
    assert found.step_s["p5"] < found.step_s["p50"] < found.step_s["p95"]
    assert found.step_s["mean"] > found.steady_s
    assert found == step_draws(plan, what_if=["host-jitter=0.05"], draws=12)


def test_weeks_count_slowdowns_and_lasting_paces(plan: Plan) -> None:
    problem = problem_of(plan.job)
    spells = {one.cause: one for one in slow_spells(plan, problem)}
    assert spells["straggler=0:1.5"].rate_per_s == pytest.approx(4 / 2 / (40 * HOURS)), "4 hosts, two ranks tried"
    assert all(1 / 1.5 <= one.speed < 1 for name, one in spells.items() if name.startswith("straggler"))
    assert "slow=b0/b1:0.05" in spells
    usual = simulate_weeks(plan, days=30, draws=30)
    assert usual.lost["slow_steps"] > 0.005
    assert usual.goodput_fraction["mean"] == pytest.approx(usual.closed_form_fraction, abs=0.01)
    jittered = simulate_weeks(plan, days=30, draws=30, what_if=["host-jitter=0.05"])
    assert jittered.goodput_fraction["mean"] < usual.goodput_fraction["mean"]
    assert jittered.goodput_fraction["mean"] == pytest.approx(jittered.closed_form_fraction, abs=0.015)
    spread = [run.goodput_fraction["p95"] - run.goodput_fraction["p5"] for run in (usual, jittered)]
    assert spread[1] > spread[0], "slow hosts stay slow"


@pytest.mark.parametrize(
    ("what_if", "draws", "message"),
    [
        ((), 5, "all draws of the step are alike: say how much it varies, e.g. --what-if host-jitter=0.02"),
        (("jitter=0.1",), 0, "0 draws simulate nothing"),
        (("jitter=0.1", "seed=4"), 5, "--seed says where the draws begin"),
        (("host-jitter=-1",), 5, "a number from 0 to 1 is expected"),
    ],
)
def test_bad_draws_are_refused(plan: Plan, what_if: tuple[str, ...], draws: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        step_draws(plan, what_if=what_if, draws=draws)


def test_unknown_slowdowns_are_refused() -> None:
    topology = plain_topology(2, 2) | {"reliability": {"slowdowns": [SLOWDOWNS[0] | {"times": 0.5}]}}
    with pytest.raises(InputError, match=r"slowdowns\.0\.times.: Input should be greater than 1, got 0.5"):
        sa.plan(plain_job(topology=topology))
