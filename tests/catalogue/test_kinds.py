"""A file of the wrong kind for a command: the message says what it is and which commands read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaleacross.catalogue.kinds import kind_of
from scaleacross.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = {
    "inference plan": {"schema_version": "inference-1", "job": {}, "decision": {}},
    "recommendation plan": {"schema_version": "recommendation-1", "job": {}, "decision": {}},
    "training plan": {"schema_version": 1, "job": {}, "decision": {}, "layers_per_stage": []},
    "decision": {"job": "x", "decision": {}},
    "study": {"base": ["x"], "grid": {}},
    "training job": {"workload": "x", "topology": "y", "sequence_length": 8},
    "topology": {"name": "x", "regions": [], "trunks": []},
    "launch": {"schema_version": 1, "plan_name": "x", "plan_sha256": "0", "world_size": 8},
    "comparison": {"schema_version": 1, "plan": {}, "rivals": []},
    "simulation": {"plan_name": "x", "step_s": 1.0, "what_if": []},
}
INFERENCE = "a plan of inference cards, which no command reads; 'scaleacross plan JOB -o DIR' shows and writes it anew"
CARDS = "an inference job (cards); plan takes it, and no other command (in Python: plan_inference)"
TABLES = "a recommendation job; plan, compare and explain take it, and sweep as the base of a study (in Python: plan_"
JOB = "a training job; 'scaleacross plan JOB -o DIR' makes a plan of it"
PLACED = "a plan of a recommendation model; verify, simulate, explain and emit take it"


@pytest.mark.parametrize("kind", PLANS)
def test_kinds_are_told_by_keys(kind: str) -> None:
    assert kind_of(PLANS[kind]) == kind


def test_kinds_of_the_examples() -> None:
    found = {path.name: kind_of(json_of(path)) for path in sorted((EXAMPLES / "recommendation").glob("*.yaml"))}
    assert found.pop("six_cards.yaml") == "inference job"
    assert "recommendation job" in set(found.values()) <= {"recommendation job", "study"}
    assert kind_of([1]) is kind_of({}) is None


def json_of(path: Path) -> object:
    from scaleacross.catalogue.yaml_source import read_file

    return read_file(path).data


@pytest.mark.parametrize(
    ("command", "what", "said"),
    [
        *((command, "inference plan", INFERENCE) for command in ("evaluate", "verify", "simulate", "explain", "emit")),
        *((command, "inference plan", INFERENCE) for command in ("schedule", "plan", "compare", "pareto", "sweep")),
        *((command, "six_cards", CARDS) for command in ("evaluate", "verify", "simulate", "explain", "compare", "pareto")),
        ("sweep", "six_cards", CARDS),
        *((command, "four_ranks", TABLES) for command in ("evaluate", "verify", "simulate", "schedule", "pareto", "sweep")),
        *((command, "recommendation plan", PLACED) for command in ("evaluate", "schedule", "plan", "compare", "pareto")),
        ("verify", "training job", "a training job; 'scaleacross plan JOB -o DIR' makes a plan of it"),
        ("sweep", "training plan", "a plan, not a job"),
        ("sweep", "training job", f"{JOB}, and sweep takes it as the base of a study"),
        *((command, "topology", "a topology, which a job names (topology: FILE)") for command in ("plan", "evaluate", "sweep")),
        *((command, "launch", "what a plan launches, which run and bench take") for command in ("verify", "explain", "emit")),
        *((command, "comparison", "a comparison; our plan is plan.json beside it") for command in ("verify", "evaluate")),
        ("verify", "simulation", "a simulated step of a plan; give the plan.json that was simulated"),
        ("compare", "decision", "settings (a job and a decision), which evaluate and explain take"),
    ],
)  # fmt: skip
def test_what_a_command_does_not_take_is_called_what_it_is(tmp_path: Path, command: str, what: str, said: str) -> None:
    path = EXAMPLES / "recommendation" / f"{what}.yaml"
    if what in PLANS:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(PLANS[what]))
    more = ["--to", "scaleacross", "-o", str(tmp_path)] if command == "emit" else []
    done = CliRunner().invoke(app, [command, str(path), *more], env={"COLUMNS": "300", "TERM": "dumb"})
    assert done.exit_code == 2, done.output
    told = " ".join(done.stderr.split())
    assert f"this is {said}" in told
    assert "unknown key" not in told


def test_arguments_of_a_framework_that_are_taken_for_a_plan_name_the_option_that_reads_them(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --bf16\n")
    done = CliRunner().invoke(app, ["evaluate", str(script)], env={"COLUMNS": "300", "TERM": "dumb"})
    assert done.exit_code == 2, done.output
    assert "settings of a framework are read with --from megatron or torchtitan, and --job" in " ".join(
        done.stderr.split()
    )
