"""At 80 columns no report breaks a word or shortens a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import RenderableType
from rich.text import Text

import scaleacross as sa
from instances import plain_job
from priced import MONEY, two
from scaleacross.api import explain_recommendation, plan_recommendation
from scaleacross.catalogue import load_recommendation_job
from scaleacross.report.accelerator import accelerator_report
from scaleacross.report.catalogue import catalogue_report
from scaleacross.report.comparison import comparison_report
from scaleacross.report.explanation import explanation_report
from scaleacross.report.folding import folded_at_words
from scaleacross.report.format import add, columns
from scaleacross.report.network import network_report
from scaleacross.report.pareto import pareto_report
from scaleacross.report.recommendation import recommendation_explanation, recommendation_report, recommendation_summary
from scaleacross.report.simulation import simulation_report
from scaleacross.report.summary import plan_summary
from scaleacross.report.sweep import sweep_report
from scaleacross.report.terminal import plan_report
from scaleacross.report.topology import topology_report
from scaleacross.report.verification import verification_report
from scaleacross.report.workload import workload_report

Render = Callable[..., str]
SMALL = {"degrees": {"tp": 1, "cp": 1}, "schedules": ["1F1B"], "recompute": ["none"]}
NARROW, WIDE = 80, 2000


def words(text: str) -> set[str]:
    """Words between spaces, without frames and bars."""
    return {word for word in re.sub(r"[─█▏▎▍▌▋▊▉]+", " ", text).split() if word != "·"}


def assert_nothing_is_broken(render: Render, report: RenderableType) -> None:
    narrow, wide = render(report, width=NARROW), render(report, width=WIDE)
    broken = words(narrow) - words(wide)
    assert not broken, f"broken or cut: {sorted(broken)} in\n{narrow}"
    assert max(map(len, narrow.splitlines())) <= NARROW


@pytest.fixture(scope="module")
def reports() -> Mapping[str, Callable[[], RenderableType]]:
    """Every report that has figures of its own, for small problems."""
    job = plain_job(2, 2)
    plan = sa.plan(job, time_limit_s=5)
    return {
        "explain": lambda: explanation_report(sa.explain(plan, time_limit_s=0)),
        "first lines": lambda: plan_summary(plan, sa.summarise(plan)),
        "plan": lambda: plan_report(plan),
        "simulate": lambda: simulation_report(sa.simulate(plan)),
        "verify": lambda: verification_report(sa.verify(plan)),
        "compare": lambda: comparison_report(sa.compare(job, time_limit_s=0.5)),
    }


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["explain", "first lines", "plan", "simulate", "verify", "compare"])
def test_reports_of_plans_fold_between_words(
    reports: Mapping[str, Callable[[], RenderableType]], render: Render, name: str
) -> None:
    assert_nothing_is_broken(render, reports[name]())


@pytest.mark.parametrize("name", ["two_buildings_unequal", "region_five_buildings", "two_regions_priced"])
def test_topologies_fold_between_words(render: Render, name: str) -> None:
    assert_nothing_is_broken(render, topology_report(sa.load_topology(name)))


def test_entries_of_the_catalogue_fold_between_words(render: Render) -> None:
    assert_nothing_is_broken(render, accelerator_report(sa.load_accelerator("gb200-nvl72")))
    assert_nothing_is_broken(render, network_report(sa.load_network("roce-400g")))
    assert_nothing_is_broken(render, workload_report(sa.load_workload("deepseek-v3"), 8192))
    assert_nothing_is_broken(render, catalogue_report([("job", "a_name_of_some_length", "what it is " * 20)]))


@pytest.mark.slow
def test_sweeps_and_fronts_fold_between_words(render: Render) -> None:
    job = plain_job(2, **SMALL).model_dump(mode="json", exclude_none=True)
    study = {"name": "small", "base": [job], "grid": {"global_batch_sequences": [8, 16], "sequence_length": [2048]}}
    assert_nothing_is_broken(render, sweep_report(sa.sweep(study)))
    front = sa.pareto(two("step_time", **SMALL), ("step_time", MONEY), points=3)
    assert_nothing_is_broken(render, pareto_report(front))


def test_recommendation_plans_fold_between_words(render: Render) -> None:
    job = {
        "workload": "synthetic-tiny",
        "topology": "zionex_128",
        "num_accelerators": 16,
        "global_batch_samples": 16384,
    }
    plan = plan_recommendation(
        load_recommendation_job({"name": "small", **job}, ())[0], time_limit_s=1, gap_tolerance=0.3
    )
    assert_nothing_is_broken(render, recommendation_report(plan))
    assert_nothing_is_broken(render, recommendation_summary(plan))
    assert_nothing_is_broken(render, recommendation_explanation(explain_recommendation(plan, time_limit_s=1)))


def test_a_row_that_does_not_fit_becomes_lines_of_pairs(render: Render) -> None:
    table = columns(("name", "first", "second", ""), right=("first", "second"))
    add(table, "a" * 30, "1" * 12, "2" * 12, "█████")
    assert render(table, width=80).splitlines()[0].split() == ["name", "first", "second"]
    assert "█" in render(table, width=80)
    assert "█" not in render(table, width=60) and "second" in render(table, width=60).splitlines()[0]
    assert render(table, width=50).splitlines() == ["a" * 30, "  first 111111111111 · second 222222222222 · █████"]


@given(st.lists(st.text("abc", min_size=1, max_size=12), min_size=1, max_size=30), st.integers(1, 20))
def test_folding_keeps_all_words_and_the_width(written: list[str], room: int) -> None:
    lines = [line.plain for line in folded_at_words(Text(" ".join(written)), room)]
    assert " ".join(lines).split() == written
    assert all(len(line) <= room or " " not in line for line in lines)
