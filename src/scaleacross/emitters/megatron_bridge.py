"""The plan for Megatron-Bridge: a function that writes it into a recipe's ConfigContainer.

A recipe, or AutoBridge, knows the model; parallelism, batch, recomputation, overlap and communicators are the plan's.
Field names: megatron-bridge 0.3.1 (training/config.py, comm_overlap.py, mixed_precision.py) and megatron-core. Nothing
here was run: its package needs Python 3.12 and GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from scaleacross.emitters.filling import filled
from scaleacross.emitters.megatron_communicators import FILE as COMMUNICATORS
from scaleacross.emitters.shell import one_line
from scaleacross.errors import EmitError
from scaleacross.spec.framework import default_bucket
from scaleacross.spec.plan import Plan

FILE: Final = "bridge_recipe.py"
WHOLE, SHARE, TEXT, ON, OFF, WORDS, SIZES, DTYPE = "whole", "share", "text", "on", "off", "words", "sizes", "dtype"
FIELDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "--tensor-model-parallel-size": (WHOLE, ("model.tensor_model_parallel_size",)),
    "--pipeline-model-parallel-size": (WHOLE, ("model.pipeline_model_parallel_size",)),
    "--context-parallel-size": (WHOLE, ("model.context_parallel_size",)),
    "--expert-model-parallel-size": (WHOLE, ("model.expert_model_parallel_size",)),
    "--expert-tensor-parallel-size": (WHOLE, ("model.expert_tensor_parallel_size",)),
    "--sequence-parallel": (ON, ("model.sequence_parallel",)),
    "--pipeline-model-parallel-layout": (TEXT, ("model.pipeline_model_parallel_layout",)),
    "--mtp-num-layers": (WHOLE, ("model.mtp_num_layers",)),
    "--microbatch-group-size-per-virtual-pipeline-stage": (WHOLE, ("model.microbatch_group_size_per_vp_stage",)),
    "--micro-batch-size": (WHOLE, ("train.micro_batch_size",)),
    "--global-batch-size": (WHOLE, ("train.global_batch_size",)),
    "--seq-length": (WHOLE, ("model.seq_length", "dataset.seq_length")),
    "--cross-entropy-loss-fusion": (ON, ("model.cross_entropy_loss_fusion",)),
    "--cross-entropy-fusion-impl": (TEXT, ("model.cross_entropy_fusion_impl",)),
    "--recompute-granularity": (TEXT, ("model.recompute_granularity",)),
    "--recompute-method": (TEXT, ("model.recompute_method",)),
    "--recompute-num-layers": (WHOLE, ("model.recompute_num_layers",)),
    "--recompute-modules": (WORDS, ("model.recompute_modules",)),
    "--cpu-offloading-num-layers": (WHOLE, ("model.cpu_offloading_num_layers",)),
    "--optimizer-cpu-offload": (ON, ("optimizer.optimizer_cpu_offload",)),
    "--optimizer-offload-fraction": (SHARE, ("optimizer.optimizer_offload_fraction",)),
    "--use-precision-aware-optimizer": (ON, ("optimizer.use_precision_aware_optimizer",)),
    "--exp-avg-dtype": (DTYPE, ("optimizer.exp_avg_dtype",)),
    "--exp-avg-sq-dtype": (DTYPE, ("optimizer.exp_avg_sq_dtype",)),
    "--main-grads-dtype": (DTYPE, ("optimizer.main_grads_dtype",)),
    "--overlap-cpu-optimizer-d2h-h2d": (ON, ("optimizer.overlap_cpu_optimizer_d2h_h2d",)),
    "--cp-comm-type": (TEXT, ("model.cp_comm_type",)),
    "--hierarchical-context-parallel-sizes": (SIZES, ("model.hierarchical_context_parallel_sizes",)),
    "--use-tp-pp-dp-mapping": (ON, ("dist.use_tp_pp_dp_mapping",)),
    "--use-distributed-optimizer": (ON, ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")),
    "--overlap-grad-reduce": (ON, ("ddp.overlap_grad_reduce", "comm_overlap.overlap_grad_reduce")),
    "--overlap-param-gather": (ON, ("ddp.overlap_param_gather", "comm_overlap.overlap_param_gather")),
    "--ddp-bucket-size": (WHOLE, ("ddp.bucket_size", "comm_overlap.bucket_size")),
    "--num-distributed-optimizer-instances": (WHOLE, ("ddp.num_distributed_optimizer_instances",)),
    "--use-megatron-fsdp": (ON, ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")),
    "--data-parallel-sharding-strategy": (TEXT, ("ddp.data_parallel_sharding_strategy",)),
    "--outer-dp-sharding-strategy": (TEXT, ("ddp.outer_dp_sharding_strategy",)),
    "--ckpt-format": (TEXT, ("checkpoint.ckpt_format",)),
    "--grad-reduce-in-bf16": (OFF, ("mixed_precision.grad_reduce_in_fp32",)),
    "--accumulate-allreduce-grads-in-fp32": (ON, ("mixed_precision.grad_reduce_in_fp32",)),
    "--fp8-format": (TEXT, ("mixed_precision.fp8",)),
    "--fp8-recipe": (TEXT, ("mixed_precision.fp8_recipe",)),
    "--fp8-param-gather": (ON, ("mixed_precision.fp8_param_gather",)),
    "--reuse-grad-buf-for-mxfp8-param-ag": (ON, ("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",)),
    "--fp4-format": (TEXT, ("mixed_precision.fp4",)),
    "--tp-comm-overlap": (ON, ("comm_overlap.tp_comm_overlap",)),
    "--no-overlap-p2p-communication": (OFF, ("comm_overlap.overlap_p2p_comm",)),
    "--no-gradient-accumulation-fusion": (OFF, ("model.gradient_accumulation_fusion",)),
    "--moe-token-dispatcher-type": (TEXT, ("model.moe_token_dispatcher_type",)),
    "--moe-flex-dispatcher-backend": (TEXT, ("model.moe_flex_dispatcher_backend",)),
    "--moe-permute-fusion": (ON, ("model.moe_permute_fusion",)),
    "--moe-shared-expert-overlap": (ON, ("model.moe_shared_expert_overlap",)),
    "--overlap-moe-expert-parallel-comm": (
        ON, ("model.overlap_moe_expert_parallel_comm", "comm_overlap.overlap_moe_expert_parallel_comm"),
    ),
    "--cuda-graph-impl": (TEXT, ("model.cuda_graph_impl",)),
    "--cuda-graph-modules": (WORDS, ("model.cuda_graph_scope",)),
    "--no-check-for-nan-in-loss-and-grad": (OFF, ("rerun_state_machine.check_for_nan_in_loss", "ddp.check_for_nan_in_grad")),
    "--optimizer": (TEXT, ("optimizer.optimizer",)),
}  # fmt: skip
"""Option of Megatron-LM -> kind of value, and the Megatron-Bridge fields that it sets."""
ELSEWHERE: Final = (
    "--num-layers-per-virtual-pipeline-stage", "--bf16", "--fp16", "--megatron-fsdp-main-grads-dtype",
    "--megatron-fsdp-grad-comm-dtype", "--no-create-attention-mask-in-dataloader",
)  # fmt: skip
"""Options that ``bridge_recipe`` writes in another way. That release also reads grad_reduce_in_fp32 for Megatron-FSDP,
and its data loader sends no masks by default (skip_getting_attention_mask_from_dataset).
"""
DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16"}


class Dtype(str):
    """A torch type by its name; its repr is code."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the name as code of the emitted module."""
        return f"torch.{self}"


BEFORE: Final = {
    "model.sequence_parallel": False, "model.pipeline_model_parallel_layout": None, "model.recompute_granularity": None,
    "model.recompute_method": None, "model.recompute_num_layers": None, "model.recompute_modules": None,
    "model.expert_model_parallel_size": 1, "model.microbatch_group_size_per_vp_stage": None,
    "model.account_for_embedding_in_pipeline_split": False, "model.account_for_loss_in_pipeline_split": False,
    "model.num_layers_in_first_pipeline_stage": None, "model.num_layers_in_last_pipeline_stage": None,
    "model.mtp_num_layers": None, "model.hierarchical_context_parallel_sizes": None,
    "model.fine_grained_activation_offloading": False, "model.cpu_offloading": False, "model.cpu_offloading_num_layers": 0,
    "model.moe_permute_fusion": False, "model.moe_shared_expert_overlap": False,
    "model.overlap_moe_expert_parallel_comm": False, "model.cuda_graph_impl": "none",
    "ddp.use_distributed_optimizer": False, "ddp.overlap_grad_reduce": False, "ddp.overlap_param_gather": False,
    "ddp.num_distributed_optimizer_instances": 1, "ddp.use_megatron_fsdp": False,
    "ddp.data_parallel_sharding_strategy": "no_shard", "ddp.outer_dp_sharding_strategy": "no_shard",
    "ddp.check_for_nan_in_grad": True, "rerun_state_machine.check_for_nan_in_loss": True,
    "optimizer.use_distributed_optimizer": False, "optimizer.optimizer_cpu_offload": False,
    "optimizer.use_precision_aware_optimizer": False, "optimizer.main_params_dtype": Dtype("float32"),
    "optimizer.main_grads_dtype": Dtype("float32"), "optimizer.exp_avg_dtype": Dtype("float32"),
    "optimizer.exp_avg_sq_dtype": Dtype("float32"), "dist.use_tp_pp_dp_mapping": False, "dist.use_megatron_fsdp": False,
    "comm_overlap.overlap_grad_reduce": False, "comm_overlap.overlap_param_gather": False,
    "mixed_precision.fp8_param_gather": False, "mixed_precision.first_last_layers_bf16": False,
    "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": False, "mixed_precision.grad_reduce_in_fp32": None,
}  # fmt: skip
"""Values of fields that a recipe or model configuration may set and that the plan's options leave unset."""
PRESETS: Final[dict[str, str]] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""16-bit precision or recipe -> Megatron-Bridge's preset. ``BEFORE`` resets what a preset states beyond it."""


def bridge_recipe(plan: Plan, words: Sequence[str]) -> str:
    """Return the text of the module. It is compiled here to check its syntax.

    Args:
        plan: the plan.
        words: options and values of Megatron-LM, without those of the model.

    Raises:
        EmitError: Megatron-Bridge has no field for an option.
    """
    stated: dict[str, Any] = dict(BEFORE)
    stated["mixed_precision.grad_reduce_in_fp32"] = plan.job.precision != "fp16"
    stated["model.expert_tensor_parallel_size"] = plan.degrees.tp  # recipes of mixtures say 1
    # Megatron-Bridge's own buckets of 128 Mi parameters are not what Megatron-LM takes by default.
    bucket = default_bucket(plan.degrees.dp * plan.degrees.cp)
    stated |= {"ddp.bucket_size": bucket, "comm_overlap.bucket_size": bucket}
    for option, values in _options(words):
        if option not in ELSEWHERE:
            stated |= dict(_fields(option, values))
    if plan.decision.activation_offload:
        stated["model.cpu_offloading"] = True
    chunks = plan.decision.pipeline.num_chunks
    stated["model.virtual_pipeline_model_parallel_size"] = chunks if chunks > 1 else None
    lines = "".join(f"    cfg.{name} = {value!r}\n" for name, value in stated.items())
    text = filled(
        "bridge_recipe.py.txt",
        title=one_line(plan.job.name).replace("\\", " ").replace('"', "'"),
        precision=PRESETS[plan.job.recipe or plan.job.precision],
        lines=lines,
        communicators=COMMUNICATORS,
    )
    compile(text, FILE, "exec")
    return text


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    option, values = "", list[str]()
    for word in [*words, "--"]:
        if word.startswith("--"):
            if option:
                yield option, values
            option, values = word, []
        else:
            values.append(word)


def _fields(option: str, values: list[str]) -> Iterator[tuple[str, Any]]:
    if option not in FIELDS:
        raise EmitError(f"{option}: no field of Megatron-Bridge 0.3.1 is known for it")
    if (option, values) == ("--cuda-graph-impl", ["full_iteration"]):  # a scope of the local graphs in this release
        yield from (("model.cuda_graph_impl", "local"), ("model.cuda_graph_scope", values))
        return
    kind, names = FIELDS[option]
    value: Any = {ON: True, OFF: False, WORDS: values}.get(kind)
    if kind == DTYPE:
        value = Dtype(DTYPES[values[0]])
    if kind == SIZES:
        value = [int(size) for size in values]
    if value is None:
        value = {WHOLE: int, SHARE: float}.get(kind, str)(values[0])
    yield from ((name, value) for name in names)
