"""Fine-tuning jobs: memory of the trainable part, and the checkpoint in emitted files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import scaleacross
from scaleacross.emitters import EMITTERS
from scaleacross.errors import EmitError, InfeasibleError, InputError

sys.path.append(str(Path(__file__).parent / "emitters"))
from plans import make_plan

from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees


def planned(**job: Any) -> Any:
    fields = {
        "name": "tune", "workload": "llama3.1-8b", "topology": "one_building", "sequence_length": 4096,
        "global_batch_sequences": 16, "num_accelerators": 8, "shard": ["none"], "degrees": {"tp": 8}, "recompute": ["full"],
        "micro_batch_sequences": 1, **job,
    }  # fmt: skip
    return scaleacross.plan(fields, time_limit_s=30)


def test_adapters_need_memory_and_time_of_the_trainable_part() -> None:
    full, lora = planned(), planned(fine_tuning={"lora": {"rank": 16}})
    (before,), (after,) = full.memory, lora.memory
    assert after.parameters_bytes == pytest.approx(before.parameters_bytes, rel=0.02)
    assert after.gradients_bytes < 0.02 * before.gradients_bytes
    assert after.optimizer_bytes < 0.02 * before.optimizer_bytes
    scaleacross.verify(lora)


@pytest.mark.heavy
def test_frozen_layers_save_time_and_adapters_fit_where_all_weights_do_not() -> None:
    frozen = planned(fine_tuning={"frozen": ["mixer", "feed_forward"]})
    assert frozen.cost.compute_s < 0.9 * planned().cost.compute_s
    alone = {"degrees": {"tp": 1, "pp": 1}, "fine_tuning": {"lora": {"rank": 16}}}
    assert planned(**alone).degrees.tp == 1
    with pytest.raises(InfeasibleError):
        planned(degrees={"tp": 1, "pp": 1})


def test_relative_paths_are_refused_by_torchtitan() -> None:
    with pytest.raises(EmitError, match="absolute paths and URIs only"):
        EMITTERS["torchtitan"](make_plan(Degrees(pp=2), fine_tuning={"checkpoint": "weights"}))


def test_gathers_of_frozen_weights_are_refused() -> None:
    with pytest.raises(InputError, match="gathers of frozen weights are not modelled"):
        planned(shard=["parameters"], fine_tuning={"lora": {"rank": 16}})


def test_checkpoint_is_in_the_emitted_files() -> None:
    plan = make_plan(Degrees(pp=2), fine_tuning={"checkpoint": "/data/llama base"})
    assert "--pretrained-checkpoint '/data/llama base'" in EMITTERS["megatron"](plan)["megatron/megatron_args.sh"]
    assert "initial_load_path='/data/llama base'" in EMITTERS["torchtitan"](plan)["torchtitan/scaleacross_plan.py"]


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_partial_training_is_refused_by_targets_that_train_all(target: str) -> None:
    job = {"fine_tuning": {"lora": {"rank": 16}}}
    plan = make_plan(Degrees(pp=2))
    tuned = plan.model_copy(
        update={"job": Job.model_validate({**plan.job.model_dump(), "shard": ["optimizer"], **job})}
    )
    with pytest.raises(EmitError, match="LoRA of rank 16"):
        EMITTERS[target](tuned)
