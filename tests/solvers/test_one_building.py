"""The search also plans for one building alone and takes the result as an incumbent."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology, plain_trunk
from priced import MONEY
from scaleacross.solvers.joint import search
from scaleacross.solvers.one_building import InOneBuilding
from scaleacross.solvers.search_state import Search
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.workloads.problem import problem_of

TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial" / "two_buildings.yaml"


def over_a_thin_link(**changes: Any) -> dict[str, Any]:
    """Two buildings with a link so slow that any use takes longer than a step in one building."""
    topology = plain_topology(4, 2) | {"trunks": [plain_trunk("b0", "b1", gbyte_per_s=0.001, latency_us=50_000.0)]}
    return {"topology": topology, "schedules": ["1F1B"], "recompute": ["none"]} | changes


@pytest.mark.heavy
def test_a_search_that_is_cut_short_is_no_slower_than_one_building() -> None:
    """A search that stops early is no slower than one building alone.

    Two buildings are 80 km apart with 100 Gbit/s. Few placements over both are timed within the limit.
    """
    cut_short = sa.plan(str(TUTORIAL), work_limit=3, alternatives=False, simulated=False)
    alone = sa.plan(
        str(TUTORIAL), alternatives=False, simulated=False, overrides=["num_accelerators=64"], gap_tolerance=0.02
    )
    assert cut_short.report.status == "time_limit"
    assert cut_short.cost.step_s <= alone.cost.step_s * 1.02


@pytest.mark.heavy
def test_of_a_short_limit_it_gets_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search in one building gets at least a second of a short limit.

    A fifth of two seconds would be too short for a useful plan.
    """
    given: list[float] = []

    def recorded(*args: Any, time_limit_s: float, **options: Any) -> Search:
        given.append(time_limit_s)
        return search(*args, time_limit_s=time_limit_s, **options)

    monkeypatch.setattr("scaleacross.solvers.one_building.search", recorded)
    for limit_s in (0.5, 2.0, 40.0):
        search(
            problem_of(plain_job(**over_a_thin_link())),
            time_limit_s=limit_s,
            clock=lambda: 0.0,
            probed=(InOneBuilding().probe,),
        )
    assert given == [0.5, 1.0, 8.0]


@pytest.mark.heavy
def test_it_changes_neither_the_optimum_nor_the_bound() -> None:
    problem = problem_of(plain_job(**over_a_thin_link()))
    with_it, without = (
        search(problem, time_limit_s=600, probed=(InOneBuilding().probe,)),
        search(problem, time_limit_s=600),
    )
    assert with_it.incumbent_s == pytest.approx(without.incumbent_s)
    assert with_it.bound_s == pytest.approx(without.bound_s)


def test_where_all_buildings_are_faster_nothing_is_remembered() -> None:
    problem = problem_of(plain_job(2, 2, schedules=["1F1B"], recompute=["none"], degrees={"tp": 1, "cp": 1}))
    best = search(problem, time_limit_s=600)
    one, before = InOneBuilding(), len(best.remembered)
    one.probe(best)
    assert len(best.remembered) == before
    alone = one.of(best)
    assert alone is not None and alone.found.best is not None
    assert alone.found.best.step_s > best.incumbent_s


@pytest.mark.heavy
def test_hourly_prices_of_buildings_count_in_bounds() -> None:
    """Bounds include the hourly cost of buildings.

    A building costs as much as 20 accelerators, so few accelerators are not the cheapest choice.
    """
    plan = sa.plan(str(TUTORIAL), work_limit=20, alternatives=False, simulated=False, overrides=[f"objective={MONEY}"])
    assert plan.report.status == "optimal"
    assert plan.degrees.world_size == 64


def test_a_search_below_a_step_ends_without_a_plan_at_its_limit() -> None:
    """A search for a step time below the optimum ends at its limit without a plan.

    It constructs no first plan instead and does no work beyond the limit.
    """
    problem = problem_of(plain_job(2, 2, schedules=["1F1B"], recompute=["none"]))
    best, work = search(problem, time_limit_s=600), WorkClock()
    below_s = best.incumbent_s * (1 - 1e-6)
    ended = search(problem, time_limit_s=2, clock=work, below_s=below_s)
    assert ended.best is None
    assert work() <= 3
    late = search(problem, time_limit_s=1e-9, below_s=below_s)
    assert late.best is None


def heterogeneous_buildings() -> dict[str, Any]:
    """Two buildings: one of two slow hosts, and one of a single host that is twice as fast as both."""
    topology = over_a_thin_link()["topology"] | {"regions": plain_topology(2, 1)["regions"]}
    slow, fast = (building["accelerator"] for building in topology["regions"][0]["buildings"])
    slow |= {"name": "slow", "peak_tflop_per_s": {"bf16": 10.0}}
    fast |= {"name": "fast", "peak_tflop_per_s": {"bf16": 40.0}}
    return over_a_thin_link(topology=topology)


@pytest.mark.heavy
def test_of_heterogeneous_buildings_it_is_the_one_that_computes_fastest() -> None:
    """The search in one building takes the building that computes fastest.

    The result is no slower than what the whole search found there, even if little time remains.
    """
    problem = problem_of(
        plain_job(**heterogeneous_buildings(), degrees={"tp": 1, "cp": 1, "pp": 1, "ep": 1}, shard="optimizer")
    )
    found = search(problem, time_limit_s=1e9, clock=partial(next, count()))
    known_s = min(one.step_s for one in found.remembered if {name for name, _ in one.placement.fill} == {"b1"})
    found.time_limit_s = found.elapsed_s + 20  # reads of the clock
    alone = InOneBuilding().of(found)
    assert alone is not None and alone.name == "b1"
    assert alone.found.best is not None and alone.found.best.step_s <= known_s
