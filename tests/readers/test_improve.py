"""``improve``: settings that a user runs, and the gain of each change to them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import scaleacross as sa
from scaleacross.api.reading import evaluate_settings
from scaleacross.cli import app
from scaleacross.report.improvement import improvement_report
from scaleacross.spec.improvement import Improvement

JOB, WORLD = "llama3_8b_one_building", 64
RECOMPUTE = " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
OVERLAP = " --overlap-grad-reduce"
ARGS = (
    "torchrun pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --bf16 "
    "--sequence-parallel --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"
)


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "args.sh"
    path.write_text(ARGS + RECOMPUTE)
    return path


@pytest.fixture(scope="module")
def found(args: Path) -> Improvement:
    return sa.improve_settings(
        "megatron", args, JOB, world=WORLD, time_limit_s=20, gap_tolerance=0.1, alternatives=False
    )


def step_of(text: str, folder: Path) -> float:
    (folder / "changed.sh").write_text(text)
    return evaluate_settings("megatron", folder / "changed.sh", JOB, world=WORLD).cost.step_s


@pytest.mark.heavy
def test_each_change_alone_is_what_the_changed_arguments_cost(found: Improvement, tmp_path: Path) -> None:
    alone = {change.what: change.step_s for change in found.changes}
    assert found.present.cost.step_s == pytest.approx(step_of(ARGS + RECOMPUTE, tmp_path))
    assert alone["recompute"] == pytest.approx(step_of(ARGS, tmp_path))
    assert alone["overlap.gradient_reduce"] == pytest.approx(step_of(ARGS + RECOMPUTE + OVERLAP, tmp_path))
    both = next(step for what, step in alone.items() if what.startswith("overlap.parameter_gather"))
    assert both == pytest.approx(step_of(ARGS + RECOMPUTE + OVERLAP + " --overlap-param-gather", tmp_path))


def test_changes_are_sorted_and_the_plan_trains_the_same(found: Improvement) -> None:
    saved = [change.saved_s for change in found.changes if change.saved_s is not None]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > 0
    tail = found.changes[len(saved) :]
    assert all(change.step_s is None and change.reason for change in tail)
    assert found.saved_s > saved[0]
    assert found.planned.cost.step_s < found.present.cost.step_s
    now, then = found.present.job, found.planned.job
    assert (now.sequence_length, now.global_batch_sequences) == (4096, 64)
    assert (then.sequence_length, then.global_batch_sequences, then.precision) == (4096, 64, now.precision)
    assert found.planned.degrees.world_size == WORLD
    assert not {fit.target: fit.refused for fit in found.planned.targets}["megatron"]


@pytest.mark.heavy
def test_the_plan_of_good_settings_is_never_slower(found: Improvement, tmp_path: Path) -> None:
    """A plan of good settings is never slower.

    The input is the plan's own arguments. Only communicators can change, and nothing gets worse.
    """
    sa.emit(found.planned, "megatron", tmp_path)
    again = sa.improve_settings(
        "megatron",
        tmp_path / "megatron/megatron_args.sh",
        JOB,
        hosts=tmp_path / "megatron/slurm_hostfile",
        time_limit_s=1,
        alternatives=False,
    )
    assert again.planned.cost.step_s <= again.present.cost.step_s * (1 + 1e-9)
    assert again.present.cost.step_s == pytest.approx(found.planned.cost.step_s, rel=5e-3)


def test_the_report_names_every_change(found: Improvement) -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(improvement_report(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("present", "all together", *(change.what.split()[0] for change in found.changes)):
        assert words in text


@pytest.mark.heavy
def test_json_and_files_come_from_the_command_line(args: Path, tmp_path: Path) -> None:
    words = ["plan", JOB, "--improve", str(args), "--from", "megatron", "--world", "16", "--gap", "0.3", "--json"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path), "--emit", "megatron"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {change["what"] for change in told["changes"]} >= {"recompute"}
    assert (tmp_path / "megatron/megatron_args.sh").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--improve", "args.sh"], "say with --from megatron"),
        (["--from", "megatron"], "belong to --improve FILE"),
        (["--improve", "args.sh", "--from", "megatron", "--refine", "5"], "--refine searches orders of one plan"),
    ],
)
def test_half_a_question_is_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["plan", JOB, *words], env={"COLUMNS": "300", "TERM": "dumb"})
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_hosts_are_read_with_slots_and_a_list_of_hosts_is_no_list_of_ranks(args: Path, tmp_path: Path) -> None:
    building = sa.load_topology("one_building").buildings[0]
    hosts = [building.host_name(index) for index in range(8)]
    (tmp_path / "hosts.txt").write_text("".join(f"{host} slots=8  # of MPI\n" for host in hosts))
    found = evaluate_settings("megatron", args, JOB, hosts=tmp_path / "hosts.txt")
    (tmp_path / "hosts.txt").write_text("".join(f"{host} 8\n" for host in hosts))
    assert found.decision == evaluate_settings("megatron", args, JOB, hosts=tmp_path / "hosts.txt").decision
    (tmp_path / "hosts.txt").write_text("\n".join(hosts))
    with pytest.raises(sa.InputError, match=f"8 hosts, each on one line, .* as '{hosts[0]} 8'"):
        evaluate_settings("megatron", args, JOB, hosts=tmp_path / "hosts.txt")
