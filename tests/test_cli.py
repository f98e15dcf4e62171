"""The command line as a user sees it: exit codes, streams, files, and lazy imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from published import CONFIGS
from scaleacross import api, errors
from scaleacross.catalogue import SCHEMA_KINDS
from scaleacross.cli import app
from scaleacross.emitters import EMITTERS
from scaleacross.report.page import html
from scaleacross.spec.plan import Plan

# fmt: off
COMMANDS = (
    "plan", "evaluate", "compare", "emit", "schedule", "calibrate", "validate", "collective", "show", "catalogue",
    "schema", "sweep", "explain", "pareto",
    *(f"testbed {name}" for name in ("up", "down", "status", "exec", "trunk", "run", "collectives", "halve", "report")),
)
# fmt: on
JOB = """
name: small
workload: llama3.1-8b
topology: one_building
sequence_length: 8192
global_batch_sequences: 64
num_accelerators: 16
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def process(
    *arguments: str, code: str = "from scaleacross.cli import main; main()", **options: Any
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **options)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("job") / "small.yaml"
    path.write_text(JOB)
    return str(path)


@pytest.fixture(scope="module")
def plan(job: str) -> Plan:
    return api.plan(job, alternatives=False, gap_tolerance=0.2)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> Iterator[Plan]:
    """``plan`` with an immediate answer, for tests of the code around it."""
    monkeypatch.setattr(api, "plan", lambda *_, **__: plan)
    monkeypatch.setattr(html, "can_draw", lambda: False)
    yield plan


def raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


# --- help -----------------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom scaleacross.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'numba', 'networkx', 'ortools', 'pydantic', 'yaml', 'pandas') if m in sys.modules])"
    )
    out, err = process("--help", code=code).communicate()
    assert "Commands:" in out
    assert out.splitlines()[-1] == "[]", err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"scaleacross {command}" in result.output.split("Example", 1)[1]


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"scaleacross {metadata.version('scaleacross')}\n")


# --- exit codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("a.yaml:3: no key 'tq'; nearest: 'tp'"), 2),
        (errors.EmitError("torchtitan cannot express cp"), 2),
        (errors.InfeasibleError("no plan fits: 9 GiB short"), 3),
        (errors.TimeLimitError("no plan within 1 s"), 4),
        (errors.VerificationError("step_s differs"), 5),
    ],
)
def test_errors_are_one_message_and_a_code(monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    monkeypatch.setattr(api, "plan", raising(error))
    result = run("plan", "job.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"error: {error}\n")


def test_unexpected_error_is_one_line_with_the_way_to_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "plan", raising(ZeroDivisionError("division\nby zero")))
    result = run("plan", "job.yaml")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: unexpected ZeroDivisionError: division by zero (rerun with SCALEACROSS_DEBUG=1 for the traceback)\n"
    )


def test_debug_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "plan", raising(ZeroDivisionError("x")))
    monkeypatch.setenv("SCALEACROSS_DEBUG", "1")
    assert isinstance(run("plan", "job.yaml").exception, ZeroDivisionError)


def test_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "plan", raising(KeyboardInterrupt()))
    result = run("plan", "job.yaml", "-o", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plan", "job.yaml", "--time-limit", "-1"),
        ("plan", "job.yaml", "--seed", "-1"),
        ("plan", "job.yaml", "--emit", "launch"),
        ("plan", "no-such-job"),
        ("evaluate", "no-such-plan.json"),
        ("emit", "no-such-plan.json", "--to", "launch"),
        ("emit", "plan.json", "--to", ","),
        ("show", "planet", "earth"),
        ("show", "topology", "no-such-topology"),
        ("show", "workload", "llama3.1-8b", "--sequence-length", "0"),
        ("collective", "--op", "all_reduce", "--size", "4Q", "--topology", "one_building"),
        ("collective", "--op", "all_reduce", "--size", "0", "--topology", "one_building"),
        ("collective", "--op", "all_reduce", "--size", "1GB", "--topology", "one_building", "--ranks", "100000"),
        ("collective", "--op", "all_reduce", "--size", "1GB", "--topology", "no-such-topology"),
        ("schema", "no-such-kind"),
        ("no-such-command",),
    ],
)
def test_bad_input_is_code_2_with_a_message(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip()
    assert "unexpected" not in result.stderr


@pytest.mark.heavy
def test_the_second_interrupt_aborts() -> None:
    """The second interrupt aborts.

    The first one asks for the best plan so far. In this test nothing handles that request.
    """
    code = (
        "import time\nfrom scaleacross import api, cli\n"
        "def plan(*_, **__):\n    print('searching', flush=True)\n    time.sleep(600)\n"
        "api.plan = plan\ncli.main()"
    )
    running = process("plan", "job.yaml", code=code)
    assert running.stdout and running.stdout.readline() == "searching\n"
    running.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (130, "", "error: interrupted\n")


def test_closed_pipe_is_silent() -> None:
    running = process("schema", "job")
    assert running.stdout and running.stderr
    running.stdout.close()
    err = running.stderr.read()
    assert (running.wait(), err) == (141, "")


# --- streams --------------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_json_is_the_plan_and_nothing_else(planned: Plan, tmp_path: Path) -> None:
    result = run("plan", "job.yaml", "--json", "-o", str(tmp_path))
    assert result.exit_code == 0
    assert Plan.model_validate_json(result.stdout) == planned
    assert json.loads(result.stdout) == json.loads((tmp_path / "plan.json").read_text())


def test_report_has_no_escape_codes_in_a_pipe() -> None:
    out, err = process("show", "topology", "one_building", env={**os.environ, "COLUMNS": "20"}).communicate()
    assert "\x1b" not in out + err
    assert max(map(len, out.splitlines())) > 60


def test_output_is_utf8_in_any_locale() -> None:
    out, err = process(
        "show", "topology", "one_building", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    ).communicate()
    assert "─" in out, err


def test_options_reach_the_api(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    seen: dict[str, Any] = {}

    def fake(job: str, **options: Any) -> Plan:
        seen.update(options, job=job)
        return plan

    monkeypatch.setattr(api, "plan", fake)
    limits = ("--time-limit", "7", "--seed", "3", "--gap", "0.03")
    result = run("plan", "job.yaml", *limits, "--referee", "4", "--set", "degrees.tp=8", "--set", "name=x")
    assert result.exit_code == 0, result.output
    del seen["progress"], seen["stopped"], seen["clock"]
    overrides = ["degrees.tp=8", "name=x"]
    limited = {"time_limit_s": 7.0, "seed": 3, "gap_tolerance": 0.03, "referee": 4, "simulated": True}
    assert seen == {"job": "job.yaml", "overrides": overrides, "work_limit": None, **limited}
    assert run("plan", "job.yaml", "--work-limit", "40").exit_code == 0
    assert seen["work_limit"] == 40
    refused = run("plan", "job.yaml", "--work-limit", "40", "--cpu-limit", "3")
    assert refused.exit_code == 2 and "--work-limit counts step times" in refused.output


# --- files ----------------------------------------------------------------------------------------------------------------


def test_plan_writes_every_target_or_says_why_not(planned: Plan, tmp_path: Path) -> None:
    result = run("plan", "job.yaml", "-o", str(tmp_path / "a" / "b"))
    assert result.exit_code == 0, result.output
    written = len([path for path in tmp_path.rglob("*") if path.is_file()])
    assert f"wrote {written} files to {tmp_path / 'a' / 'b'}: plan.json, launch.json" in result.stderr
    refused = [line.split(": ")[1] for line in result.stderr.splitlines() if line.startswith("not written")]
    assert set(refused) < set(EMITTERS)
    assert not list(tmp_path.rglob(".*"))


def test_refusal_is_reported_and_the_rest_is_written(
    monkeypatch: pytest.MonkeyPatch, planned: Plan, tmp_path: Path
) -> None:
    monkeypatch.setitem(EMITTERS._bundled, "megatron", raising(errors.EmitError("megatron has no word for this")))
    (tmp_path / "megatron").mkdir()
    result = run("plan", "job.yaml", "-o", str(tmp_path))
    assert result.exit_code == 0
    folder = tmp_path / "megatron"
    assert f"not written: megatron: megatron has no word for this ({folder} is of an earlier plan)" in result.stderr
    assert (tmp_path / "launch.json").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [(errors.EmitError("no word"), 2), (KeyboardInterrupt(), 130), (ZeroDivisionError("bug"), 1)],
)
def test_failing_target_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, planned: Plan, tmp_path: Path, error: BaseException, code: int
) -> None:
    monkeypatch.setitem(EMITTERS._bundled, "nccl", raising(error))
    assert run("plan", "job.yaml", "-o", str(tmp_path / "new"), "--emit", "launch,nccl").exit_code == code
    assert not list(tmp_path.iterdir())


def test_plan_that_does_not_verify_is_not_written(
    monkeypatch: pytest.MonkeyPatch, planned: Plan, tmp_path: Path
) -> None:
    monkeypatch.setattr(api, "verify", raising(errors.VerificationError("step_s differs")))
    assert run("plan", "job.yaml", "-o", str(tmp_path / "new")).exit_code == 5
    assert not list(tmp_path.iterdir())


def test_directory_that_is_a_file_is_bad_input(planned: Plan, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert run("plan", "job.yaml", "-o", str(tmp_path / "out")).exit_code == 2
    assert run("plan", "job.yaml", "-o", str(tmp_path / "out" / "below")).exit_code == 2
    assert (tmp_path / "out").read_text() == "mine"


def test_emit_writes_the_named_targets_only(planned: Plan, tmp_path: Path) -> None:
    run("plan", "job.yaml", "-o", str(tmp_path / "plan"))
    result = run("emit", str(tmp_path / "plan" / "plan.json"), "--to", "nccl", "-o", str(tmp_path / "nccl"))
    assert result.exit_code == 0, result.output
    assert {Path(line) for line in result.stdout.splitlines()} == set((tmp_path / "nccl").iterdir())
    assert not (tmp_path / "nccl" / "launch.json").exists()
    assert run("emit", str(tmp_path / "plan" / "plan.json"), "--to", "slurp").exit_code == 2


def test_emit_names_what_another_plan_left_in_the_folder(plan: Plan, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.json", tmp_path / "out"
    file.write_text(plan.model_dump_json())
    for targets in ("torchrun,nccl", "launch", "torchrun,nccl,launch"):
        result = run("emit", str(file), "--to", targets, "-o", str(out))
        assert result.exit_code == 0 and not result.stderr, result.output
    (out / "torchrun" / "run_node.sh").write_text("of another plan")
    (out / "nccl.env").unlink()
    said = f"{out} also holds torchrun, nccl of another plan or other options: emit them too, or remove them\n"
    assert run("emit", str(file), "--to", "launch", "-o", str(out)).stderr == said
    assert not run("emit", str(file), "--to", "torchrun,nccl", "-o", str(out)).stderr


# --- end to end -----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_plan_then_evaluate_agree(job: str, tmp_path: Path) -> None:
    made = run("plan", job, "--json", "-o", str(tmp_path))
    assert made.exit_code == 0, made.output
    estimated = run("evaluate", str(tmp_path / "plan.json"), "--json")
    assert estimated.exit_code == 0, estimated.output
    first, second = json.loads(made.stdout), json.loads(estimated.stdout)
    assert second["cost"] == first["cost"]
    assert second["report"]["status"] == "evaluated"


@pytest.mark.heavy
def test_report_of_a_real_plan(job: str) -> None:
    result = run("plan", job, "--full")
    assert result.exit_code == 0, result.output
    for title in (
        "degrees",
        "Placement",
        "Step time",
        "Memory per accelerator",
        "Traffic",
        "Collectives",
        "Proof",
        "Best alternatives",
    ):
        assert title in result.stdout


def test_catalogue_lists_what_show_can_show() -> None:
    listed = run("catalogue").stdout
    for kind, name in (
        ("topology", "one_building"),
        ("workload", "llama3.1-8b"),
        ("accelerator", "h100-sxm"),
        ("network", "nvlink4"),
    ):
        assert name in listed
        shown = run("show", kind, name)
        assert shown.exit_code == 0, shown.output
        assert name in shown.stdout


def test_schema_is_json() -> None:
    assert json.loads(run("schema", "job").stdout)["type"] == "object"


def test_help_names_every_kind_that_has_a_schema() -> None:
    said = " ".join(run("schema", "--help").stdout.split())
    assert [kind for kind in SCHEMA_KINDS if f" {kind}," not in said and f" {kind}." not in said] == []


def test_show_reads_a_config_of_unknown_type_as_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS["Llama-3.1-8B"], "model_type": "lumen", "flux_gate_rank": 7}))
    refused = run("show", "workload", str(path))
    assert refused.exit_code != 0
    assert "leave out: flux_gate_rank" in refused.output
    assert "8,030,261,248" in run("show", "workload", str(path), "--as", "llama").output
    assert "not a topology" in run("show", "topology", "one_building", "--as", "llama").output


def test_show_says_what_is_not_planned_and_groups_alternating_layers(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["gpt-oss-120b"]))
    shown = run("show", "workload", str(path)).output
    assert "mxfp4; training starts from 16-bit weights" in shown
    assert "18 of 36" in shown
    assert "trained where a job says prediction_layers: 1" in run("show", "workload", "deepseek-v3").output
