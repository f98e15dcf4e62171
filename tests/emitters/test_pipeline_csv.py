"""The emitted pipeline schedule: its text, and PyTorch executing it with the loss and gradients of one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from plans import make_plan

from interpreters import python_with
from scaleacross.emitters import emit
from scaleacross.emitters.pipeline_csv import render, schedule_files
from scaleacross.errors import EmitError
from scaleacross.schedules.pipeline import SCHEDULES, generate, is_legal
from scaleacross.schedules.pipeline.cells import from_rows
from scaleacross.schedules.pipeline.check import check
from scaleacross.spec.parallelism import Degrees

WORKER = Path(__file__).with_name("pipeline_worker.py")
RANKS, MICROBATCHES = 4, 16


def test_files_of_a_plan(tmp_path: Path) -> None:
    plan = make_plan(Degrees(tp=2, pp=2), schedule="ZBVZeroBubble", num_chunks=2, num_micro_batches=2)
    emit(plan, "pipeline_csv", tmp_path)
    rows = (tmp_path / "pipeline_csv" / "schedule.csv").read_text().splitlines()
    assert rows[1].startswith("1F0,2F0,1F1,2F1,2I0,2W0,1I0")  # rank 1 holds both stages of the turn
    facts = json.loads((tmp_path / "pipeline_csv" / "stages.json").read_text())
    assert facts["stage_to_rank"] == [0, 1, 1, 0]
    assert facts["num_microbatches"] == 2
    assert sum(facts["layers_per_stage"]) == 32


def test_rows_read_back() -> None:
    for name, family in SCHEDULES.items():
        for chunks in (1, 2, 3):
            if is_legal(name, RANKS, MICROBATCHES, chunks) and family.num_copies == 1:
                schedule = generate(name, RANKS, MICROBATCHES, chunks)
                rows = schedule_files(schedule)["schedule.csv"].splitlines()
                assert from_rows(name, rows, MICROBATCHES, chunks, family.placement) == schedule


def test_an_order_of_the_plans_own_is_emitted_as_it_stands() -> None:
    plan = make_plan(Degrees(pp=2), num_micro_batches=2)
    order = ("0F0,0F1,0B1,0B0", "1F0,1F1,1B1,1B0")
    pipeline = plan.decision.pipeline.model_copy(update={"order": order})
    plan = plan.model_copy(update={"decision": plan.decision.model_copy(update={"pipeline": pipeline})})
    assert render(plan)["pipeline_csv/schedule.csv"].splitlines() == list(order)
    check(from_rows("own", order, 2, 1))


@pytest.mark.parametrize(
    ("pp", "schedule", "chunks", "m", "words"),
    [
        (1, "1F1B", 1, 4, "pp 1: there is no pipeline"),
        (4, "DualPipe", 2, 8, "DualPipe runs 2 copies of the model.*use DualPipeV on half the ranks"),
        (4, "DualPipeV", 2, 4, "at least 8 micro-batches"),
    ],
)
def test_refusals(pp: int, schedule: str, chunks: int, m: int, words: str) -> None:
    plan = make_plan(Degrees(pp=pp), schedule=schedule, num_chunks=chunks, num_micro_batches=m)  # type: ignore[arg-type]
    with pytest.raises(EmitError, match=words):
        render(plan)


@pytest.mark.consumer
def test_pytorch_executes_every_schedule(tmp_path: Path) -> None:
    """4 gloo processes; double precision, so that a wrong order cannot pass for rounding."""
    schedules = {
        f"{name}-{chunks}": generate(name, RANKS, MICROBATCHES, chunks)
        for name, family in SCHEDULES.items()
        for chunks in (1, 2)
        if is_legal(name, RANKS, MICROBATCHES, chunks) and family.num_copies == 1
    }
    for label, schedule in schedules.items():
        (tmp_path / label).mkdir()
        for name, text in schedule_files(schedule).items():
            (tmp_path / label / name).write_text(text, encoding="utf-8")
    command = [python_with("torch"), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run([*command, str(WORKER), str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [outcome["schedule"] for outcome in outcomes] == [schedules[label].name for label in sorted(schedules)]
    for outcome in outcomes:
        print(outcome)
        assert outcome["same_parameters"]
        assert outcome["loss_error"] < 1e-12
        assert outcome["gradient_error"] < 1e-12 < outcome["largest_gradient"]
        assert outcome["same_order_as_torch"] is not False
    assert sum(outcome["same_order_as_torch"] is True for outcome in outcomes) == 5
