"""Emitted torchtitan configurations train: two steps of torchtitan 0.3.0's small Llama 3 on two CPU processes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from plans import make_plan

from interpreters import python_with
from scaleacross.emitters import emit
from scaleacross.spec.parallelism import Degrees
from scaleacross.workloads.dense_transformer import DenseTransformer

VOCABULARY = 2048
SMALL = DenseTransformer(
    name="llama3-debug", num_layers=6, hidden_size=256, num_heads=16, num_kv_heads=16, head_dim=16, intermediate_size=768,
    vocabulary_size=VOCABULARY, gated_mlp=True, tied_embedding=False,
)  # fmt: skip
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
made = Tokenizer(models.BPE(vocab={**letters, "<bos>": 256, "<eos>": 257}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.save(sys.argv[1])
"""


@pytest.mark.consumer
@pytest.mark.slow
@pytest.mark.parametrize(
    ("degrees", "changes"),
    [
        (Degrees(pp=2), {"schedule": "Interleaved1F1B", "num_chunks": 2, "recompute": "full"}),
        (Degrees(pp=2), {"schedule": "ZBVZeroBubble", "num_chunks": 2}),
        (Degrees(dp_shard=2), {"shard": "parameters"}),
        (Degrees(tp=2), {"shard": "none", "num_micro_batches": 1}),
    ],
    ids=["interleaved", "zero bubble", "sharded parameters", "tensor parallel"],
)
def test_torchtitan_trains_two_steps(degrees: Degrees, changes: dict[str, Any], tmp_path: Path) -> None:
    python = python_with("torchtitan")
    plan = make_plan(degrees, workload=SMALL, sequence_length=256, **{"num_micro_batches": 4, **changes})
    emit(plan, "torchtitan", tmp_path)
    env = assets(python, tmp_path)
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(Path(__file__).parent / "titan_on_cpu.py")
    done = subprocess.run(
        [*launcher, script, "--module", "scaleacross_plan", "--config", "train"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    losses: dict[int, list[float]] = {}
    for one in re.finditer(r"RESULT \d+ (\d+) (-?[\d.]+)", done.stdout):  # lines of two processes may share one
        losses.setdefault(int(one[1]), []).append(float(one[2]))
    assert sorted(losses) == [1, 2]
    first = sum(loss for loss in losses[1] if loss >= 0)
    if degrees.pp == 2:  # ranks without the last stage report -1
        assert first == pytest.approx(math.log(VOCABULARY), rel=0.15)
    assert all(math.isfinite(loss) for told in losses.values() for loss in told)
    assert sum(losses[2]) < sum(losses[1])


def assets(python: str, folder: Path) -> dict[str, str]:
    """A tokenizer of bytes and a data set of one sentence, and the environment that names them."""
    (folder / "hf").mkdir()
    subprocess.run([python, "-c", TOKENIZER, str(folder / "hf/tokenizer.json")], check=True)
    (folder / "hf/tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    data = folder / "tests/assets/c4_test"
    data.mkdir(parents=True)
    (data / "data.json").write_text("".join(f'{{"text": "{"plans across buildings " * 40}{k}"}}\n' for k in range(64)))
    keep = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "HF_HOME": str(folder / "cache")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    stated = {"DATASET": "c4_test", "HF_ASSETS_PATH": str(folder / "hf"), "STEPS": "2", "LEARNING_RATE": "1e-2"}
    return {**keep, **offline, **stated, "PYTHONPATH": str(folder / "torchtitan")}
