"""``plan --emit``: a framework to be written becomes the target of a job without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scaleacross.api import planning
from scaleacross.api.problems import written_for
from scaleacross.catalogue import load_job
from scaleacross.cli import app

JOB = "llama3_8b_one_building"


@pytest.mark.parametrize(
    ("changes", "emitted", "said"),
    [
        (["optimizer.name=lamb"], "torchtitan", "has target torchtitan, which cannot run it:\n- optimizer 'lamb'"),
        (
            ["precision=fp16"],
            "nccl,megatron,torchtitan",
            "has target torchtitan, which cannot run it:\n- precision fp16",
        ),
        (["target=scaleacross", "optimizer.name=lamb"], "launch,megatron", "has target megatron, which cannot run it"),
    ],
)
def test_what_no_decision_mends_is_refused_before_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: list[str], emitted: str, said: str
) -> None:
    def searched(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(planning, "search", searched)
    words = [word for change in changes for word in ("--set", change)]
    result = CliRunner().invoke(app, ["plan", JOB, *words, "-o", str(tmp_path / "new"), "--emit", emitted])
    assert result.exit_code == 2 and said in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stated", "emitted", "target"),
    [
        ("any", "nccl,megatron", "megatron"),
        ("any", "megatron,torchtitan", "any"),
        ("any", "nccl", "any"),
        ("scaleacross", "megatron", "scaleacross"),
    ],
)
def test_one_framework_is_the_target_of_a_job_without_one(stated: str, emitted: str, target: str) -> None:
    asked, overrides = written_for(JOB, (f"target={stated}",), emitted.split(","))
    assert load_job(asked, overrides).target == target
