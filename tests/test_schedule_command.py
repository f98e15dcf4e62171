"""``scaleacross schedule``: the chart, its totals, the files, and messages for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import scaleacross as sa
from scaleacross import api
from scaleacross.cli import app
from scaleacross.emitters.trace import trace_json
from scaleacross.errors import InputError
from scaleacross.report.schedule import bars
from scaleacross.spec.timeline import TimelineRow

SHAPE = ("--stages", "4", "--microbatches", "8")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["schedule", *arguments], env={"COLUMNS": "120"})


def test_chart_and_totals() -> None:
    result = run("--name", "1F1B", *SHAPE, "--message-mib", "2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1F1B: 4 ranks, m = 8 micro-batches, 1 chunk per rank")
    ranks = [line for line in lines if line.startswith("rank ")]
    assert len(ranks) == 4 and all(len(line) <= 120 for line in ranks)
    assert ranks[3].split()[2].startswith("·········")  # the last rank waits for three forwards
    # m(F+B) + (p−1)(F+B) = 33 ms, of which 9 are idle on every rank
    assert any(line.split() == ["step", "33", "ms"] for line in lines)
    assert "bubble          27.3 % of all ranks' time" in lines
    assert "peak in flight  4 chunk activations (4 3 2 1)" in lines
    assert "messages        48 per step, 8 over the busiest cut per direction (16.0 MiB of 2.0 MiB each)" in lines
    assert any("forward 1 ms, input gradient 1 ms, weight gradient 1 ms" in line for line in lines)


def test_json_is_the_timeline() -> None:
    found = json.loads(run("--name", "ZBVZeroBubble", *SHAPE, "--latency-ms", "1", "--boundary", "1", "--json").stdout)
    assert found["placement"] == "v" and found["num_chunks"] == 2
    assert found["messages_per_cut"] == [16, 16, 16]
    assert found["rows"][0]["actions"][0] == "0F0"
    across = [m for m in found["messages"] if {m["source"], m["target"]} == {1, 2}]
    assert across and all(m["arrival_s"] - m["sent_s"] == pytest.approx(1e-3) for m in across)
    others = [m for m in found["messages"] if {m["source"], m["target"]} != {1, 2}]
    assert all(m["arrival_s"] == m["sent_s"] for m in others)


def test_files(tmp_path: Path) -> None:
    result = run("--name", "1F1B", *SHAPE, "-o", str(tmp_path))
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["schedule.csv", "stages.json", "trace.json"]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    computed = [event for event in events if event["ph"] == "X"]
    assert len(computed) == 4 * 8 * 2
    assert {event["tid"] for event in computed} == set(range(4))
    assert max(event["ts"] + event["dur"] for event in computed) == 33_000
    starts, ends = ([e["id"] for e in events if e["ph"] == kind] for kind in "sf")
    assert starts == ends == list(range(48))
    assert (tmp_path / "schedule.csv").read_text().splitlines()[3].startswith("3F0,3B0,3F1,3B1")


def test_two_copies_have_a_trace_but_no_csv(tmp_path: Path) -> None:
    result = run("--name", "DualPipe", *SHAPE, "-o", str(tmp_path))
    assert result.exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    assert "not written: schedule.csv: schedule DualPipe runs 2 copies" in result.stderr


def test_trace_places_the_arrow_inside_the_sending_cell() -> None:
    events = json.loads(trace_json(api.schedule("1F1B", 2, 2, latency_s=0.5)))["traceEvents"]
    cell = next(event for event in events if event["name"] == "0F0")
    leaves = next(event for event in events if event["ph"] == "s")
    assert cell["ts"] < leaves["ts"] < cell["ts"] + cell["dur"]
    lasts = {event["ph"]: event["ts"] for event in events if event.get("id") == 0 and event["ph"] in "be"}
    assert lasts["e"] - lasts["b"] == 500_000


def test_cells_too_narrow_are_left_out_and_the_line_keeps_its_width() -> None:
    timeline = api.schedule("1F1B", 4, 64)
    for width in (20, 77, 400):
        assert all(len(bars(row, timeline, width).plain) == width for row in timeline.rows)
    starts, ends = (0.0, 0.9 * timeline.step_s), (1e-9, timeline.step_s)
    narrow = TimelineRow(actions=("0F0", "0B0"), start_s=starts, end_s=ends, peak_in_flight=1)
    assert bars(narrow, timeline, 10).plain == "·········B"


def test_times_of_a_rank_are_split_over_its_chunks_and_copies() -> None:
    # without bubble every schedule computes m·(F+I+W) on each rank, also where two copies share the micro-batches
    for name in ("1F1B", "Interleaved1F1B", "VHalf", "DualPipe", "DualPipeV"):
        timeline = api.schedule(name, 4, 16, forward_s=1.0, input_gradient_s=2.0, weight_gradient_s=0.5)  # type: ignore[arg-type]
        assert [row.busy_s for row in timeline.rows] == pytest.approx([16 * 3.5] * 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--microbatches", "2"), "at least as many micro-batches as ranks, got 2 on 4 ranks"),
        (("--microbatches", "0"), "at least 1 rank, micro-batch and chunk"),
        (("--memory", "0"), "does not fit in memory: 1F1B: action 0 of rank 0, 0F0, is activation 1 of 0"),
        (("--memory", "3"), "activation 4 of 3 that fit at once"),
        (("--forward-ms", "-1"), "forward_s must be finite and not negative, got -0.001"),
        (("--weight-grad-ms", "-1"), "weight_s must be finite and not negative"),
        (("--input-grad-ms", "-1"), "times must not be negative"),
        (("--forward-ms", "0", "--input-grad-ms", "0", "--weight-grad-ms", "0"), "nor all zero"),
        (("--latency-ms", "inf"), "latency_s must be finite and not negative, got inf"),
        (("--latency-ms", "nan"), "latency_s must be finite and not negative, got nan"),
        (("--message-ms", "inf", "--boundary", "1"), "occupancy_s must be finite and not negative, got inf"),
        (("--boundary", "3"), "there is no boundary 3: between 4 ranks they are numbered 0 to 2"),
        (("--chunks", "2"), "1 model chunk per rank, got 2"),
        (("--name", "1F2B"), "no pipeline schedule '1F2B'.*did you mean '1F1B'"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str) -> None:
    result = run("--name", "1F1B", *SHAPE, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(result.stderr)


def test_needs_a_plan_or_a_shape() -> None:
    assert run().exit_code == run("--name", "1F1B").exit_code == run("plan.json", *SHAPE).exit_code == 2
    assert "cannot" in run("missing.json").stderr or "no " in run("missing.json").stderr


JOB = {
    "name": "small", "workload": "llama3.1-8b", "topology": "one_building", "sequence_length": 8192,
    "global_batch_sequences": 64, "num_accelerators": 16, "degrees": {"pp": 4}, "num_chunks": 2,
}  # fmt: skip


@pytest.mark.heavy
def test_schedule_of_a_plan(tmp_path: Path) -> None:
    plan = sa.plan(sa.load_job(JOB | {"schedules": "ZBVZeroBubble"}), alternatives=False)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    assert plan.decision.pipeline.schedule == "ZBVZeroBubble"
    result = run(str(tmp_path / "plan.json"))
    assert result.exit_code == 0, result.output
    assert "the step of the plan adds what data parallelism leaves exposed" in " ".join(result.stdout.split())
    assert result.stdout.startswith(f"ZBVZeroBubble: 4 ranks, m = {plan.num_micro_batches} micro-batches, 2 chunks")
    timeline = api.schedule_of_plan(plan)
    waited = {name: plan.estimated.exposed_s[name] for name in ("tp", "cp", "ep")}
    busy_s = plan.estimated.compute_s + sum(waited.values())
    assert timeline.step_s == pytest.approx(
        busy_s + plan.estimated.bubble_s + plan.estimated.exposed_s["pp"], rel=1e-12
    )
    assert max(row.busy_s for row in timeline.rows) == pytest.approx(busy_s, rel=1e-12)
    # the head sits with the last virtual stage, on rank 0
    assert plan.memory[0].parameters_bytes > max(stage.parameters_bytes for stage in plan.memory[1:])


def test_plan_without_pipeline_has_no_schedule() -> None:
    with pytest.raises(InputError, match="pp 1 has no pipeline"):
        api.schedule_of_plan(sa.plan(sa.load_job(JOB | {"degrees": {"pp": 1}, "num_chunks": 1}), alternatives=False))
