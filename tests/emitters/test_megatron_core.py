"""Megatron Core 0.16.1 reads our layout and forms our groups.

Set SCALEACROSS_MEGATRON_PYTHON to an interpreter with megatron-core, or install it in the environment of the tests.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from plans import make_plan

from interpreters import python_with
from scaleacross.emitters import EMITTERS
from scaleacross.emitters.megatron_layout import layout
from scaleacross.spec.parallelism import Degrees, GridAxis

LAYOUT = """
import json, os
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
text, pp = json.loads(os.environ["ASK"])
found = PipelineParallelLayerLayout.from_str(text, pp)
print(json.dumps([[[layer.name for layer in chunk] for chunk in rank] for rank in found.layout]))
"""

GROUPS = """
import json, os
from megatron.core.parallel_state import RankGenerator
sizes, order, tokens = json.loads(os.environ["ASK"])
ranks = RankGenerator(**sizes, order=order)
print(json.dumps({token: ranks.get_ranks(token) for token in tokens}))
"""


def ask_megatron(program: str, question: Any, folder: Path) -> Any:
    """Run ``program`` under an interpreter with Megatron Core; its last line is JSON. Skips with the reason."""
    python = python_with("megatron", "SCALEACROSS_MEGATRON_PYTHON")
    env = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "ASK": json.dumps(question)}
    done = subprocess.run(
        [python, "-c", program], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.consumer
@pytest.mark.parametrize("stages", [((7,), *((8,),) * 14, (7,)), ((1, 2), (3, 3), (2, 1)), ((6,), (7,))])
def test_layout_is_read_as_planned(stages: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    found = ask_megatron(LAYOUT, [layout(stages), len(stages)], tmp_path)
    assert [[chunk.count("decoder") for chunk in rank] for rank in found] == [list(stage) for stage in stages]
    assert found[0][0][0] == "embedding"
    assert found[-1][-1][-1] == "loss"


@pytest.mark.consumer
@pytest.mark.parametrize(
    ("order", "megatron_order"),
    [
        (("tp", "pp", "cp", "dp_shard", "dp_replicate"), "tp-cp-ep-pp-dp"),
        (("tp", "dp_shard", "cp", "dp_replicate", "pp"), "tp-cp-ep-dp-pp"),
    ],
)
def test_groups_are_megatrons(order: tuple[GridAxis, ...], megatron_order: str, tmp_path: Path) -> None:
    plan = make_plan(Degrees(tp=2, cp=2, dp_shard=2, dp_replicate=2, pp=2), order)
    sizes = {"tp": 2, "cp": 2, "dp": 4, "pp": 2, "ep": 1}
    found = ask_megatron(GROUPS, [sizes, megatron_order, ["tp", "cp", "pp", "dp"]], tmp_path)
    files = EMITTERS["megatron"](plan)
    assert ("--use-tp-pp-dp-mapping" in files["megatron/megatron_args.sh"]) == megatron_order.endswith("pp-dp")
    rows = list(csv.DictReader(files["megatron/ranks.csv"].splitlines()))
    names = {"tp": ["tp"], "cp": ["cp"], "pp": ["pp"], "dp": ["dp_shard", "dp_replicate"]}
    for token, axes in names.items():
        others = [axis for axis in ("tp", "cp", "pp", "dp_shard", "dp_replicate") if axis not in axes]
        ours: dict[tuple[str, ...], list[int]] = {}
        for row in rows:
            ours.setdefault(tuple(row[axis] for axis in others), []).append(int(row["rank"]))
        assert sorted(ours.values()) == sorted(found[token])


@pytest.mark.consumer
def test_expert_groups_are_megatrons(tmp_path: Path) -> None:
    from test_megatron import moe

    plan = make_plan(Degrees(tp=2, dp_shard=4, dp_replicate=2, pp=2, ep=2), workload=moe())
    sizes = {"tp": 2, "cp": 1, "dp": 4, "pp": 2, "ep": 2}  # the expert grid: etp = tp, expert dp = 8 / 2
    found = ask_megatron(GROUPS, [sizes, "tp-cp-ep-dp-pp", ["ep"]], tmp_path)["ep"]
    ours: dict[tuple[str, ...], list[int]] = {}
    for row in csv.DictReader(EMITTERS["megatron"](plan)["megatron/ranks.csv"].splitlines()):
        run = str(int(row["dp_shard"]) // 2)
        ours.setdefault((row["tp"], row["pp"], row["dp_replicate"], run), []).append(int(row["rank"]))
    assert sorted(ours.values()) == sorted(found)
