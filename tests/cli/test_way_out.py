"""From a config.json and SLURM's topology.conf to a folder to submit, without any YAML by hand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaleacross.cli import app

TOPOLOGY = """
SwitchName=leaf1 Nodes=node[001-002]
SwitchName=leaf2 Nodes=far[01-02]
SwitchName=east Switches=leaf1
SwitchName=west Switches=leaf2
SwitchName=top Switches=east,west
"""
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
# After `pip install .`; the work limit only makes the test short.
COMMANDS = """
scaleacross import slurm topology.conf --accelerator h100 --trunk 4x400G --km 50 -o topology.yaml
scaleacross plan --model config.json --topology topology.yaml --tokens 512K --seq 8192 --target megatron --slurm-partition gpu \
 --slurm-account ai --slurm-time 2-00 --work-limit 20 -o build
"""


@pytest.mark.slow
def test_two_commands_make_a_folder_to_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("topology.conf").write_text(TOPOLOGY)
    Path("config.json").write_text(json.dumps(QWEN3_0_6B))
    commands = [shlex.split(line)[1:] for line in COMMANDS.strip().replace("\\\n", "").splitlines()]
    assert len(commands) + 1 <= 5  # with pip install
    for command in commands:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    folder = Path("build/megatron")
    hosts = [line.split()[0] for line in (folder / "hosts.txt").read_text().splitlines() if not line.startswith("#")]
    assert sorted(hosts) == ["far01", "far02", "node001", "node002"]
    page = (folder / "SUBMIT.md").read_text()
    assert all((folder / script).stat().st_mode & 0o111 for script in re.findall(r"\./(\w+\.sh)", page))
    batch = (folder / "slurm.sbatch").read_text()
    assert "--partition=gpu" in batch and "--time=2-00" in batch
    arguments = (folder / "megatron_args.sh").read_text()
    assert "--qk-layernorm" in arguments and "--rotary-base 1000000" in arguments
