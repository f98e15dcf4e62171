"""Amount of a report that is printed: first lines, sections, all of it, one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from instances import plain_job
from scaleacross import api
from scaleacross.cli import app
from scaleacross.report.page import html
from scaleacross.spec.plan import Plan


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return api.plan(plain_job(2, 2, schedules="1F1B", recompute="none", micro_batch_sequences=1))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> Iterator[Plan]:
    """``plan`` with an immediate result."""
    monkeypatch.setattr(api, "plan", lambda *_, **__: plan)
    yield plan


@pytest.mark.heavy
def test_plan_prints_first_lines_sections_or_one_line(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "can_draw", lambda: False)
    first = run("plan", "job.yaml").stdout.splitlines()
    assert len(first) <= 15
    assert any(line.startswith("bottleneck") for line in first)
    written = run("plan", "job.yaml", "-o", str(tmp_path / "out")).stdout.splitlines()
    assert len(written) <= 15
    assert written[-1].startswith(f"cd {tmp_path / 'out' / 'torchrun'} && ./submit.sh")
    assert run("plan", "job.yaml", "--quiet").stdout.count("\n") == 1
    parts = run("plan", "job.yaml", "--section", "proof", "--section", "memory").stdout
    assert parts.index("Proof") < parts.index("Memory per accelerator")
    assert "Step time" not in parts
    assert "Memory per accelerator" in run("plan", "job.yaml", "--full").stdout
    assert "nothing to say here" in run("plan", "job.yaml", "--section", "referee").stdout


def test_evaluate_prints_the_same_views(planned: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(planned.model_dump_json())
    assert len(run("evaluate", str(path)).stdout.splitlines()) <= 15
    assert "Step time" in run("evaluate", str(path), "--section", "step").stdout


def test_an_unknown_section_lists_those_that_there_are() -> None:
    result = run("plan", "job.yaml", "--section", "memry")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "memry" in said and all(name in said.replace("│ ", "") for name in ("memory", "proof", "alternatives"))
    assert run("plan", "job.yaml", "--full", "--quiet").exit_code == 2


def test_help_names_the_sections_that_reports_have() -> None:
    from scaleacross.cli import view
    from scaleacross.report import explanation, recommendation, terminal

    assert tuple(terminal.SECTIONS) == view.PLAN_SECTIONS
    assert tuple(explanation.SECTIONS) == view.EXPLANATION_SECTIONS
    assert tuple(recommendation.SECTIONS) == view.RECOMMENDATION_SECTIONS


def test_a_report_of_one_part_says_so() -> None:
    cards = Path(__file__).parents[2] / "examples" / "recommendation" / "six_cards.yaml"
    result = run("plan", str(cards), "--section", "decision")
    assert result.exit_code == 2
    assert "this report has one part: --full" in " ".join(result.stderr.replace("│", " ").split())
