"""TorchRec reads the emitted files and trains by the plan on gloo ranks.

Its planner makes our choices under our constraints.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from interpreters import python_with
from placed_tables import WAYS, mixed_plan
from scaleacross.api import plan_recommendation
from scaleacross.catalogue.recommendation import load_recommendation_job
from scaleacross.emitters.torchrec import render
from scaleacross.spec.recommendation import RecommendationPlan

pytestmark = pytest.mark.consumer
READER = Path(__file__).with_name("torchrec_reader.py")


@pytest.fixture(scope="module")
def python() -> str:
    return python_with("torchrec", "SCALEACROSS_TORCHREC_PYTHON")


def read(python: str, plan: RecommendationPlan, folder: Path, *what: str) -> Any:
    """The result of TorchRec's package for the plan's files."""
    for name, text in render(plan).items():
        (folder / Path(name).name).write_text(text)
    done = subprocess.run([python, str(READER), str(folder), *what], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fields", [{}, {"cost_model": "torchrec"}, {"workload": "synthetic-large"}])
def test_its_planner_comes_to_our_choices(fields: dict[str, Any], python: str, tmp_path: Path) -> None:
    job = {"name": "j", "workload": "mlperf-dlrm-dcnv2", "topology": "zionex_128", "num_accelerators": 16}
    plan = plan_recommendation(
        load_recommendation_job({**job, "global_batch_samples": 16384, "optimizer": "sgd", **fields})[0], time_limit_s=3
    )
    assert read(python, plan, tmp_path, "plan", "8") == {"tables": len(plan.decision.tables)}


def test_gloo_ranks_train_by_the_plan_as_one_process_does(python: str, tmp_path: Path) -> None:
    # on a CPU: no data-parallel and fused tables under one optimizer; LOCAL_WORLD_SIZE defines hosts
    ways = WAYS | {"copied": ("table_wise", (1,), 32), "host": ("table_wise", (2,), 64)}
    found = read(python, mixed_plan(ways=ways), tmp_path, "train")
    assert len(found["alone"]) == 4 and found["alone"][-1] != pytest.approx(found["alone"][0], rel=0.01)
    assert found["sharded"] == pytest.approx(found["alone"], rel=1e-4)
