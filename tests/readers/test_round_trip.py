"""Plan -> files -> settings -> step time: settings that are read back have the planned step time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import scaleacross as sa
from decisions import CASES as ROUND_TRIPS
from decisions import Case, decision_of, job_of
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of
from scaleacross.api.reading import evaluate_settings
from scaleacross.emitters import emit
from scaleacross.readers import READERS
from scaleacross.readers.megatron_arguments import arguments
from scaleacross.readers.megatron_stages import expand
from scaleacross.spec.improvement import OF_SETTINGS
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan

JOB = "llama3_8b_one_building"
FILES = {"megatron": "megatron_args.sh", "torchtitan": "scaleacross_plan.py"}
EXPERTS = (
    "--bf16 --num-layers 32 --micro-batch-size 1 --seq-length 128 --global-batch-size 32 --expert-model-parallel-size 2"
)
INSTANCES = "--use-distributed-optimizer --num-distributed-optimizer-instances 32"
SEARCHED = [
    ("megatron", {"tp": 2, "cp": 1, "pp": 4, "dp_shard": 4, "dp_replicate": 2}, ("num_chunks=2",)),
    ("torchtitan", {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 4, "dp_replicate": 2}, ("network.settings=library",)),
]


def planned(target: str, degrees: dict[str, int], overrides: tuple[str, ...], folder: Path) -> Plan:
    pinned = [f"degrees.{axis}={degree}" for axis, degree in degrees.items()]
    free = ("global_batch_sequences=64", "num_accelerators={min: 1}", f"target={target}")
    found = sa.plan(JOB, time_limit_s=10, gap_tolerance=0.2, alternatives=False, overrides=(*free, *pinned, *overrides))
    emit(found, target, folder)
    return found


UNSAID = ("optimizer.state_bytes", "overlap.tp_fraction", "experts.overlap_fraction")
"""Fields of a job that no framework file states: shares and bytes, which the job must state."""
OTHERWISE = re.compile(r"instead|differs|otherwise|\bNOT\b")


@pytest.mark.parametrize(
    ("target", "case"),
    [pytest.param(*one, marks=pytest.mark.heavy if at % 5 else ()) for at, one in enumerate(ROUND_TRIPS)],
    ids=str,
)
def test_files_alone_say_what_was_planned(target: str, case: Case, tmp_path: Path) -> None:
    """Files alone are enough to read the plan back.

    The job that reads them states model and topology, and other figures than the plan's.
    """
    job = Job.model_validate(job_of(case))
    problem = problem_of(job, ("network.settings=library", f"target={target}", *case.overrides))
    planned = evaluated(problem, decision_of(case), degraded=False)
    emit(planned, target, tmp_path)
    other = {**job_of(case), "sequence_length": 2048, "global_batch_sequences": 96}
    other |= {"schedules": ["GPipe"], "recompute": ["selective"]}
    (tmp_path / "job.yaml").write_text(json.dumps(other))
    hosts = tmp_path / target / "slurm_hostfile"
    kept = [one for one in case.overrides if one.startswith(UNSAID)]
    for settings in [tmp_path / target / FILES[target], *(tmp_path / target).glob("*.toml")]:
        back = evaluate_settings(
            target, settings, tmp_path / "job.yaml", hosts=hosts, overrides=["network.settings=library", *kept]
        )
        assert back.estimated.step_s == pytest.approx(planned.cost.step_s, rel=5e-3)
        assert back.decision.placement == planned.decision.placement
        assert back.layers_per_stage == planned.layers_per_stage
        remarks = [line for line in settings.read_text().splitlines() if line.lstrip().startswith("#")]
        assert not [line for line in remarks if OTHERWISE.search(line)]
        assert not [note for note in back.report.notes if note.startswith(OF_SETTINGS)]


def test_both_targets_have_twenty_round_trips() -> None:
    for target in FILES:
        assert sum(name == target for name, _ in ROUND_TRIPS) >= 20


def test_a_switch_without_its_share_is_refused(tmp_path: Path) -> None:
    text = (
        "--bf16 --num-layers 32 --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --seq-length 4096 "
        "--global-batch-size 32"
    )
    (tmp_path / "args.sh").write_text(f"{text} --tp-comm-overlap")
    with pytest.raises(sa.InputError, match=r"--tp-comm-overlap overlaps a share .* overlap.tp_fraction 0"):
        evaluate_settings("megatron", tmp_path / "args.sh", JOB, world=16)


@pytest.mark.parametrize(("target", "degrees", "overrides"), SEARCHED)
def test_what_is_read_back_costs_what_was_planned(
    target: str, degrees: dict[str, int], overrides: tuple[str, ...], tmp_path: Path
) -> None:
    found, folder = planned(target, degrees, overrides, tmp_path), tmp_path / target
    kept = [one for one in overrides if one.startswith("network")]
    job = tmp_path / "job.yaml"
    job.write_text(f"{found.job.model_dump_json()}\n")
    back = evaluate_settings(target, folder / FILES[target], job, hosts=folder / "slurm_hostfile", overrides=kept)
    assert back.decision.degrees == found.decision.degrees
    assert back.decision.pipeline == found.decision.pipeline
    assert (back.decision.recompute, back.decision.shard) == (found.decision.recompute, found.decision.shard)
    assert back.layers_per_stage == found.layers_per_stage
    assert back.cost.step_s == pytest.approx(found.cost.step_s, rel=5e-3)


def test_layouts_expand_as_megatron_core_reads_them() -> None:
    assert expand("Et*3|(tt|)*2,m|L") == "Ettt|tt|tt|m|L"


def test_a_command_line_is_read_like_an_array() -> None:
    text = "torchrun pretrain_gpt.py --num-layers 4 --seq-length=128 \\\n  --bf16  # half\n"
    assert arguments(text, "x").found == {"--num-layers": ["4"], "--seq-length": ["128"], "--bf16": []}


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("megatron", "echo hello", "no Megatron-LM arguments"),
        ("megatron", "--num-layers 4 --seq-length $SEQ", "--seq-length .SEQ needs a shell"),
        (
            "megatron",
            "--num-layers 32 --micro-batch-size 1 --recompute-granularity selective --recompute-modules moe moe_act",
            "--recompute-modules moe moe_act: moe computes moe_act again already",
        ),
        (
            "megatron",
            "--num-layers 32 --micro-batch-size 1 --recompute-activations --recompute-modules gdn_norm_out",
            "'gdn_norm_out' is no recompute policy",
        ),
        (
            "megatron",
            "--num-layers 32 --micro-batch-size 1 --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 2",
            "by uniform of 2 layers is not modelled: uniform of 1 and block are",
        ),
        (
            "megatron",
            "--num-layers 32 --micro-batch-size 1 --recompute-granularity full --recompute-method block "
            "--recompute-num-layers 5",
            "--recompute-num-layers 5 of 32: 'full:5/32' is no share",
        ),
        ("megatron", "--num-layers 32 --tensor-model-parallel-size 3", "32 processes do not divide by tp"),
        ("megatron", "--num-layers 32 --micro-batch-size x", "--micro-batch-size x: a whole number"),
        ("megatron", "--num-layers 'x", "No closing quotation"),
        (
            "megatron",
            "--num-layers 32 --micro-batch-size 1 --global-batch-size 32 --seq-length 8",
            "neither --bf16 nor --fp16: Megatron-LM trains in 32 bit",
        ),
        ("megatron", f"{EXPERTS}", "allgather .the default. gathers all tokens"),
        (
            "megatron",
            f"{EXPERTS} --moe-token-dispatcher-type alltoall --cuda-graph-impl local",
            "whole layers. is not modelled",
        ),
        (
            "megatron",
            f"{EXPERTS} --use-distributed-optimizer --num-distributed-optimizer-instances 32",
            "2 does not divide the 1 replicas",
        ),
        (
            "megatron",
            "--num-layers 32 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 1 "
            "--global-batch-size 80 --microbatch-group-size-per-virtual-pipeline-stage 10 --seq-length 8",
            "10 micro-batches on pp 4 in rounds of 5; state 5",
        ),
        ("torchtitan", "def train(: pass", "line 1: no Python module"),
        ("torchtitan", "x = 1", "0 calls of TrainingConfig"),
        (
            "torchtitan",
            "f(ParallelismConfig(), TrainingConfig(seq_len=8), activation_checkpoint=MemoryBudgetAC.Config())",
            "activation checkpointing MemoryBudgetAC",
        ),
    ],
)
def test_settings_that_no_plan_can_say_are_refused_by_name(target: str, text: str, message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        READERS[target](text, "settings", 32, 32)


def test_the_number_of_processes_must_be_stated(tmp_path: Path) -> None:
    (tmp_path / "args.sh").write_text("--num-layers 32")
    with pytest.raises(sa.InputError, match=r"--hosts hosts.txt or --world N"):
        evaluate_settings("megatron", tmp_path / "args.sh", JOB)
    with pytest.raises(sa.InputError, match="there are megatron, torchtitan"):
        evaluate_settings("deepspeed", tmp_path / "args.sh", JOB, world=8)
