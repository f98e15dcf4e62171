"""Inference jobs from end to end: the figures of a plan, its verification, refusals, the command line."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scaleacross.api import plan_inference
from scaleacross.catalogue import is_inference, is_recommendation, load_inference_job
from scaleacross.cli import app
from scaleacross.cost_models.embedding.card_problem import card_problem
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError, VerificationError
from scaleacross.solvers.partition_inference import partition_inference
from scaleacross.spec.inference import InferencePlan
from scaleacross.spec.progress import STOPPED_BY_HAND
from scaleacross.verification.inference import verify_inference

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommendation" / "six_cards.yaml"


@pytest.fixture(scope="module")
def plan() -> InferencePlan:
    return plan_inference(EXAMPLE, time_limit_s=3, overrides=["transfers=peer", "dense_layouts=replicated"])


def test_bytes_and_seconds_of_a_table() -> None:
    job, model = load_inference_job(str(EXAMPLE))
    tables, host = card_problem(job, model, "int8", "host", "split")
    # 20,000,000 rows of 128 bytes and 8 of scale and bias; 64 samples read 30 rows each with 12 cores at 50 GB/s
    assert tables[0].memory_bytes == 20_000_000 * 136
    assert tables[0].lookup_core_s == pytest.approx(64 * 30 * 136 * 12 / 50e9)
    assert tables[0].output_bytes == 64 * 128 * 2
    assert host.uplink_bytes_per_s == 12e9 and host.split and host.activation_bytes == 64 * 1024 * 2
    assert card_problem(job, model, "int8", "peer", "replicated")[1].uplink_bytes_per_s is None


def test_plan_is_as_fast_as_glow_keeps_its_bound_and_survives_its_file(plan: InferencePlan) -> None:
    assert plan.latency_s <= (plan.job.latency_bound_s or inf)
    for one in plan.variants:
        assert one.queries_per_s is not None and one.queries_per_s >= (one.glow_queries_per_s or 0) * (1 - 1e-9)
    assert plan.bound_queries_per_s >= plan.queries_per_s == max(one.queries_per_s or 0 for one in plan.variants)
    assert InferencePlan.model_validate_json(plan.model_dump_json()) == plan
    assert is_inference(str(EXAMPLE)) and not is_recommendation(str(EXAMPLE))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latency_s": 1e-6}, "latency_s"),
        ({"queries_per_s": 1e9}, "queries_per_s"),
        ({"bound_queries_per_s": 1.0}, "bound"),
    ],
)
def test_verification_sees_wrong_figures(plan: InferencePlan, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_inference(plan.model_copy(update=fields))


def test_verification_recounts_memory_and_tables(plan: InferencePlan) -> None:
    def changed(**fields: Any) -> InferencePlan:
        return plan.model_copy(update={"decision": plan.decision.model_copy(update=fields)})

    with pytest.raises(VerificationError, match="card 0 holds"):
        verify_inference(changed(cards=dict.fromkeys(plan.decision.cards, 0), table_precision="fp16"))
    with pytest.raises(VerificationError, match="not those of the model"):
        verify_inference(changed(cards={"nobody": 0}))
    with pytest.raises(VerificationError, match="does not allow"):
        verify_inference(changed(transfers="host"))


@pytest.mark.heavy
def test_what_cannot_be() -> None:
    with pytest.raises(InfeasibleError, match=r"fp16 / peer / replicated: no plan answers a request within 0\.1 ms"):
        plan_inference(EXAMPLE, time_limit_s=1, overrides=["latency_bound_ms=0.1"])
    job = load_inference_job(str(EXAMPLE))[0]
    cards = job.cards.model_copy(update={"uplink_bandwidth_bytes_per_s": None})
    with pytest.raises(InputError, match="uplink_bandwidth_gbyte_per_s is missing"):
        plan_inference(job.model_copy(update={"cards": cards}), time_limit_s=1)


def test_command_line(tmp_path: Path) -> None:
    fast = ["--set", "transfers=peer", "--set", "dense_layouts=replicated", "--time-limit", "2"]
    run = CliRunner().invoke(app, ["plan", str(EXAMPLE), *fast, "-o", str(tmp_path), "--full"])
    assert run.exit_code == 0, run.output
    assert "112 tables on 6 cards" in run.output and "Combinations" in run.output
    verify_inference(InferencePlan.model_validate_json((tmp_path / "plan.json").read_text()))
    wrong = CliRunner().invoke(app, ["plan", str(EXAMPLE), "--set", "cards.num_card=2"])
    assert wrong.exit_code == 2 and "num_cards" in wrong.output


def planned(*overrides: str, time_limit_s: float = 3.0, **limits: Any) -> InferencePlan:
    fixed = ["transfers=peer", "dense_layouts=replicated", "table_precisions=int8"]
    return plan_inference(EXAMPLE, time_limit_s=time_limit_s, overrides=[*fixed, *overrides], **limits)


def test_notes_say_what_idles_and_what_is_assumed() -> None:
    few = "workload.tables=[{name: one, rows: 1000, dimension: 64}, {name: two, rows: 1000, dimension: 64}]"
    plan = planned(few, "cards.num_cards=3", "latency_bound_s=null", "cards.hop_s=0", "dense_precision_bytes=2")
    (idle,) = (load.card for load in plan.loads if not load.num_tables)
    assert plan.notes == (
        f"no table is on card {idle}: it computes dense work only",
        "assumed: a transfer takes no time beyond its bytes (cards.hop_us is 0)",
        "counted: a weight of the dense network as 2 B (dense_precision_bytes), an element of a vector that travels as 2 B",
        "no latency bound is stated (latency_bound_ms): the plan has the most queries/s, however long one takes",
    )


def test_notes_say_what_ended_the_search() -> None:
    cut, stopped = planned(time_limit_s=0.0), planned(stopped=lambda: True)
    assert cut.gap > 0 and cut.notes[-1] == "the limit of 0 s ended the search: a longer one may find more"
    assert stopped.notes[-1] == STOPPED_BY_HAND
    counted = planned(work_limit=1)
    assert counted.notes[-1] == "the work limit of 1 ended the search: a longer one may find more"
    loose = planned(time_limit_s=0.0, gap_tolerance=0.99)
    assert not any("ended" in note for note in loose.notes)


def test_notes_are_in_the_report_and_in_json() -> None:
    fast = ["--set", "transfers=peer", "--set", "dense_layouts=replicated", "--time-limit", "0"]
    full = CliRunner().invoke(app, ["plan", str(EXAMPLE), *fast, "--full"])
    assert "ended the search" in full.stdout and "dense_precision_bytes" in full.stdout
    told = json.loads(CliRunner().invoke(app, ["plan", str(EXAMPLE), *fast, "--json"]).stdout)["notes"]
    assert any("ended the search" in note for note in told)


def test_the_bound_covers_combinations_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 is twice as fast as fp16; where time ends before a plan of int8 is found, one may still exist."""

    def without_int8(tables: Any, host: Any, **limits: Any) -> Any:
        if tables[0].memory_bytes == 20_000_000 * 136:
            raise TimeLimitError("no plan was found")
        return partition_inference(tables, host, **limits)

    found = planned("table_precisions=[fp16, int8]").queries_per_s
    monkeypatch.setattr("scaleacross.api.inference.partition_inference", without_int8)
    left = planned("table_precisions=[fp16, int8]")
    assert left.decision.table_precision == "fp16" and left.queries_per_s < found <= left.bound_queries_per_s
    with pytest.raises(TimeLimitError, match="int8 / peer / replicated: no plan was found"):
        planned()
