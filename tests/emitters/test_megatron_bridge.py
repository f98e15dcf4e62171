"""bridge_recipe.py: every option of Megatron-LM has a field, and every field exists in the source of Megatron-Bridge."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plans import make_plan

from interpreters import python_with
from scaleacross.emitters import EMITTERS
from scaleacross.emitters.megatron_bridge import BEFORE, FIELDS, FILE, bridge_recipe
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Plan


def plan() -> Plan:
    return make_plan(
        Degrees(tp=2, pp=2, dp_shard=2), schedule="Interleaved1F1B", num_chunks=2, recompute="full", shard="optimizer"
    )


class Section(SimpleNamespace):
    """A part of a ConfigContainer that takes any field."""


def applied(text: str, folder: Path) -> Any:
    """The configuration after apply(), with stand-ins for what the module imports."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith(("from megatron", "import torch")))
    names: dict[str, Any] = {
        "__file__": str(folder / FILE), "CommOverlapConfig": Section, "ConfigContainer": SimpleNamespace,
        "get_mixed_precision_config": lambda name: Section(name=name),
        "torch": SimpleNamespace(float32="fp32", bfloat16="bf16"),
    }  # fmt: skip
    exec(compile(body, FILE, "exec"), names)
    sections = ("model", "train", "ddp", "optimizer", "dataset", "dist", "checkpoint", "rerun_state_machine")
    return names["apply"](SimpleNamespace(**{name: Section() for name in sections}))


def test_the_recipe_says_what_the_arguments_say(tmp_path: Path) -> None:
    cfg = applied(EMITTERS["megatron"](plan())[f"megatron/{FILE}"], tmp_path)
    assert (cfg.model.tensor_model_parallel_size, cfg.model.pipeline_model_parallel_size) == (2, 2)
    assert (cfg.model.virtual_pipeline_model_parallel_size, cfg.model.sequence_parallel) == (2, True)
    assert (cfg.model.recompute_granularity, cfg.model.recompute_num_layers) == ("full", 1)
    assert (cfg.model.cross_entropy_loss_fusion, cfg.model.cross_entropy_fusion_impl) == (True, "native")
    assert cfg.train.global_batch_size == plan().job.global_batch_sequences
    assert cfg.ddp.use_distributed_optimizer and cfg.optimizer.use_distributed_optimizer
    assert (cfg.mixed_precision.name, cfg.mixed_precision.grad_reduce_in_fp32) == ("bf16_mixed", True)
    assert not hasattr(cfg.dist, "nccl_communicator_config_path")


ACT_WITH_ANOTHER = {
    "model.cp_comm_type": "context_parallel_size",
    "optimizer.optimizer_offload_fraction": "optimizer_cpu_offload",
    "optimizer.overlap_cpu_optimizer_d2h_h2d": "optimizer_cpu_offload",
    "checkpoint.ckpt_format": "use_megatron_fsdp",
    "model.moe_flex_dispatcher_backend": "moe_token_dispatcher_type",
    "model.moe_token_dispatcher_type": "stated wherever there are experts",
    "model.cuda_graph_scope": "cuda_graph_impl",
    "mixed_precision.fp8": "the preset",
    "mixed_precision.fp8_recipe": "the preset",
    "mixed_precision.fp4": "the preset",
    "comm_overlap.overlap_p2p_comm": "a new CommOverlapConfig, which overlaps chunks by default",
    "comm_overlap.overlap_moe_expert_parallel_comm": "a new CommOverlapConfig",
    "model.gradient_accumulation_fusion": "fused wherever the container can",
}
"""Fields that may keep the recipe's value, and what decides about them instead."""


def test_nothing_of_a_recipe_outlives_the_plan(tmp_path: Path) -> None:
    """A plan overwrites every setting of a recipe that any plan can state.

    A plain plan sets all those fields, because the recipe may have switched them on.
    """
    plain = make_plan(Degrees(dp_shard=8))
    cfg = applied(EMITTERS["megatron"](plain)[f"megatron/{FILE}"], tmp_path)
    fields = {name for _, names in FIELDS.values() for name in names}
    kept = {name for name in fields if not hasattr(getattr(cfg, name.split(".")[0]), name.split(".")[1])}
    assert kept == set(ACT_WITH_ANOTHER)


def test_a_prediction_layer_is_the_recipe_s(tmp_path: Path) -> None:
    other = make_plan(Degrees(tp=2, pp=2, dp_shard=2), prediction_layers=1)
    other = other.model_copy(update={"layers_per_stage": ((17,), (16,))})
    cfg = applied(EMITTERS["megatron"](other)[f"megatron/{FILE}"], tmp_path)
    assert (cfg.model.mtp_num_layers, cfg.model.pipeline_model_parallel_layout) == (1, "Et*17|t*15mL")


def test_what_the_recipes_of_deepseek_and_qwen_say_is_taken_back(tmp_path: Path) -> None:
    """Fields of the recipes of DeepSeek and Qwen that no plan has are reset.

    The recipes are deepseek_v3_pretrain_config and qwen3_235b_a22b_pretrain_config (megatron-bridge 0.3.1).
    """
    cfg = applied(EMITTERS["megatron"](plan())[f"megatron/{FILE}"], tmp_path)
    assert cfg.model.mtp_num_layers is None
    assert cfg.model.account_for_embedding_in_pipeline_split is cfg.model.account_for_loss_in_pipeline_split is False
    assert cfg.model.moe_shared_expert_overlap is False
    assert cfg.optimizer.use_precision_aware_optimizer is False
    assert (cfg.optimizer.main_grads_dtype, cfg.optimizer.exp_avg_dtype, cfg.optimizer.exp_avg_sq_dtype) == (
        "fp32",
    ) * 3


@pytest.mark.parametrize(("stated", "size"), [({}, 40_000_000), ({"overlap": {"bucket_parameters": 7}}, 7)])
def test_buckets_are_those_that_are_estimated(stated: dict[str, Any], size: int, tmp_path: Path) -> None:
    """Buckets are those of the step time.

    Megatron-Bridge's own are 128 Mi parameters (training/comm_overlap.py).
    """
    cfg = applied(EMITTERS["megatron"](make_plan(Degrees(dp_shard=8), **stated))[f"megatron/{FILE}"], tmp_path)
    assert cfg.ddp.bucket_size == cfg.comm_overlap.bucket_size == size


def test_an_option_without_a_field_is_refused() -> None:
    with pytest.raises(EmitError, match="--mystery: no field of Megatron-Bridge"):
        bridge_recipe(plan(), ["--mystery", "3"])


def test_megatron_lm_runs_what_the_bridge_has_no_field_for() -> None:
    stated = {"precision": "nvfp4", "conversion": {"narrow_parameters": True}}
    files = EMITTERS["megatron"](make_plan(Degrees(dp_shard=8), **stated))
    assert f"megatron/{FILE}" not in files
    text = files["megatron/megatron_args.sh"]
    assert "  --fp4-param-gather\n" in text
    assert f"# {FILE} is left out: --fp4-param-gather: no field of Megatron-Bridge 0.3.1 is known for it.\n" in text


# Section of ConfigContainer -> classes whose fields it has, from Megatron-Bridge and from Megatron Core.
CLASSES = {
    "model": ("ModelParallelConfig", "TransformerConfig", "GPTModelProvider"),
    "train": ("TrainingConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "optimizer": ("OptimizerConfig",),
    "dist": ("DistributedInitConfig",),
    "checkpoint": ("CheckpointConfig",),
    "rerun_state_machine": ("RerunStateMachineConfig",),
    "comm_overlap": ("CommOverlapConfig",),
    "mixed_precision": ("MixedPrecisionConfig",),
    "dataset": ("GPTDatasetConfig",),
}
FILES = {
    "bridge": ("training/config.py", "training/comm_overlap.py", "training/mixed_precision.py", "models/gpt_provider.py"),
    "core": (
        "model_parallel_config.py", "transformer/transformer_config.py", "optimizer/optimizer_config.py",
        "distributed/distributed_data_parallel_config.py",
    ),
}  # fmt: skip


@pytest.mark.consumer
def test_every_field_exists() -> None:
    python = Path(python_with("megatron", "SCALEACROSS_MEGATRON_PYTHON"))
    bridge = (
        Path(os.environ.get("SCALEACROSS_MEGATRON_BRIDGE", python.parents[1] / "megatron-bridge")) / "megatron/bridge"
    )
    core = next(python.parents[1].glob("lib/python3*/site-packages/megatron/core"), None)
    if core is None or not bridge.is_dir():
        pytest.skip(f"Megatron-Bridge's source is not at {bridge}: SCALEACROSS_MEGATRON_BRIDGE names its folder")
    known: dict[str, set[str]] = {}
    for path in [*(bridge / name for name in FILES["bridge"]), *(core / name for name in FILES["core"])]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                fields = {
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                }
                methods = {
                    one.name for one in node.body if isinstance(one, ast.FunctionDef)
                }  # seq_length is a property
                known.setdefault(node.name, set()).update(fields | methods)
    container = known["ConfigContainer"]
    stated = {name for _, names in FIELDS.values() for name in names} | set(BEFORE)
    for name in sorted({*stated, "model.virtual_pipeline_model_parallel_size", "dist.nccl_communicator_config_path"}):
        section, field = name.split(".")
        assert section in container
        assert any(field in known.get(one, ()) for one in CLASSES[section]), name
