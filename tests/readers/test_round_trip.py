"""Plan -> files -> settings -> step time: what is read back costs what was planned."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleacross as sa
from scaleacross.api.reading import evaluate_settings
from scaleacross.emitters import emit
from scaleacross.readers import READERS
from scaleacross.readers.megatron import expand, words
from scaleacross.spec.plan import Plan

JOB = "llama3_8b_one_building"
FILES = {"megatron": "megatron_args.sh", "torchtitan": "scaleacross_plan.py"}
CASES = [
    ("megatron", {"tp": 2, "pp": 4, "dp_shard": 8, "dp_replicate": 1}, ("num_chunks=2",)),
    ("megatron", {"tp": 1, "cp": 1, "pp": 5, "dp_shard": 2, "dp_replicate": 4}, ("recompute=full",)),
    ("megatron", {"tp": 1, "cp": 2, "pp": 1, "dp_shard": 4, "dp_replicate": 2}, ("context_exchange=gather",)),
    ("megatron", {"tp": 2, "cp": 1, "pp": 4, "dp_shard": 1, "dp_replicate": 8}, ("optimizer.reduce_bytes=2",)),
    ("megatron", {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 2}, ("shard=parameters",)),
    ("torchtitan", {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 4, "dp_replicate": 2}, ("network.settings=library",)),
    ("torchtitan", {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 2}, ("network.settings=library",)),
]


def planned(target: str, degrees: dict[str, int], overrides: tuple[str, ...], folder: Path) -> Plan:
    pinned = [f"degrees.{axis}={degree}" for axis, degree in degrees.items()]
    free = ("global_batch_sequences=64", "num_accelerators={min: 1}", f"target={target}")
    found = sa.plan(JOB, time_limit_s=10, gap_tolerance=0.2, alternatives=False, overrides=(*free, *pinned, *overrides))
    emit(found, target, folder)
    return found


@pytest.mark.parametrize(("target", "degrees", "overrides"), CASES)
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
    assert words(text, "x") == {"--num-layers": ["4"], "--seq-length": ["128"], "--bf16": []}


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("megatron", "echo hello", "no Megatron-LM arguments"),
        ("megatron", "--num-layers 4 --seq-length $SEQ", "--seq-length .SEQ needs a shell"),
        (
            "megatron",
            "--num-layers 32 --micro-batch-size 1 --recompute-granularity selective",
            "selective recomputation of core_attn",
        ),
        ("megatron", "--num-layers 32 --tensor-model-parallel-size 3", "32 processes do not divide by tp"),
        ("megatron", "--num-layers 32 --micro-batch-size x", "--micro-batch-size x: a whole number"),
        ("megatron", "--num-layers 'x", "No closing quotation"),
        (
            "megatron",
            "--num-layers 32 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 1 "
            "--global-batch-size 80 --microbatch-group-size-per-virtual-pipeline-stage 10 --seq-length 8",
            "10 micro-batches on pp 4 in rounds of 5; state 5",
        ),
        ("torchtitan", "def train(: pass", "line 1: no Python module"),
        ("torchtitan", "x = 1", "0 calls of ParallelismConfig"),
        ("torchtitan", "f(ParallelismConfig(), TrainingConfig(seq_len=8))", "activation checkpointing SelectiveAC"),
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
