"""Stages and model shape in Megatron-LM's words."""

from __future__ import annotations

from itertools import groupby

from scaleacross.emitters.model import workload_of
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import Workload
from scaleacross.workloads.moe_transformer import GroupedQueryAttention, MoeTransformer


def layout(layers_per_stage: tuple[tuple[int, ...], ...]) -> str:
    """The stages as ``--pipeline-model-parallel-layout``: ``Et*7|(t*8|)*14t*7L`` for 7, 8 × 14, 7 layers.

    ``layers_per_stage`` is indexed [pipeline rank][chunk]; the layout lists virtual stages in model order, virtual stage k being
    chunk k // PP of rank k % PP. E embedding, t layer, L loss, ``|`` between stages (Megatron Core,
    core/transformer/pipeline_parallel_layer_layout.py).
    """
    num_chunks = len(layers_per_stage[0])
    counts = [stage[chunk] for chunk in range(num_chunks) for stage in layers_per_stage]
    if len(counts) == 1:
        return f"E{_layers(counts[0])}L"
    first, *middle, last = counts
    text = f"E{_layers(first)}|"
    for count, run in groupby(middle):
        times = len(list(run))
        text += f"({_layers(count)}|)*{times}" if times > 1 else f"{_layers(count)}|"
    return f"{text}{_layers(last)}L"


def _layers(count: int) -> str:
    return "t" * count if count < 2 else f"t*{count}"


def pipeline_arguments(plan: Plan) -> list[str]:
    """How layers are cut: nothing for one stage or an even cut, layers per virtual stage, or an explicit layout.

    Raises:
        EmitError: a schedule that Megatron-LM has not, or a micro-batch count that its interleaving cannot run.
    """
    pipeline, pp = plan.decision.pipeline, plan.degrees.pp
    if pp == 1:
        if pipeline.num_chunks > 1:
            raise EmitError(
                "Megatron-LM interleaves only with pipeline-model-parallel-size > 1: set pp > 1 or num_chunks 1"
            )
        return []
    if pipeline.schedule not in ("1F1B", "Interleaved1F1B") or pipeline.order is not None:
        order = " in an order of its own" if pipeline.order is not None else ""
        raise EmitError(
            f"schedule {pipeline.schedule}{order}: Megatron-LM has 1F1B and Interleaved1F1B only; set schedules: "
            "[1F1B, Interleaved1F1B]"
        )
    if pipeline.num_chunks > 1 and plan.num_micro_batches < pp:
        raise EmitError(
            f"Interleaved1F1B with {plan.num_micro_batches} micro-batches on pp {pp}: Megatron-LM needs at least "
            "pp micro-batches (--microbatch-group-size-per-virtual-pipeline-stage); raise the batch or lower dp"
        )
    counts = {count for stage in plan.layers_per_stage for count in stage}
    if len(counts) > 1:
        return ["--pipeline-model-parallel-layout", layout(plan.layers_per_stage)]
    return ["--num-layers-per-virtual-pipeline-stage", str(counts.pop())] if pipeline.num_chunks > 1 else []


def model_arguments(plan: Plan) -> list[str]:
    """The model's shape. Tokeniser, rotary base and data are not part of a plan and stay with the user.

    Raises:
        EmitError: a model family without a Megatron-LM spelling here.
    """
    workload = workload_of(plan)
    if isinstance(workload, DenseTransformer):
        return _dense(workload, plan)
    if isinstance(workload, MoeTransformer):
        return _moe(workload, plan)
    raise EmitError(
        f"workload family '{workload.family}': the megatron target writes dense_transformer and moe_transformer only"
    )


def _common(workload: Workload, num_layers: int, hidden_size: int, num_heads: int) -> list[str]:
    return [
        *("--num-layers", str(num_layers)),
        *("--hidden-size", str(hidden_size)),
        *("--num-attention-heads", str(num_heads)),
    ]


def _dense(model: DenseTransformer, plan: Plan) -> list[str]:
    out = _common(model, model.num_layers, model.hidden_size, model.num_heads)
    out += ["--ffn-hidden-size", str(model.intermediate_size)]
    out += _grouped_query(model.num_heads, model.num_kv_heads, model.head_dim, qk_norm=model.qk_norm)
    out += ["--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"]
    out += ["--swiglu"] if model.gated_mlp else []
    out += [] if model.bias else ["--disable-bias-linear"]
    out += [] if model.tied_embedding else ["--untie-embeddings-and-output-weights"]
    out += [] if model.dropout else ["--hidden-dropout", "0.0", "--attention-dropout", "0.0"]
    if model.num_learned_positions:
        if model.num_learned_positions < plan.job.sequence_length:
            raise EmitError(
                f"{model.num_learned_positions} learned positions for sequences of {plan.job.sequence_length} tokens: "
                "Megatron-LM needs max-position-embeddings ≥ seq-length"
            )
        return [
            *out,
            "--position-embedding-type",
            "learned_absolute",
            "--max-position-embeddings",
            str(model.num_learned_positions),
        ]
    return [*out, "--position-embedding-type", "rope", "--max-position-embeddings", str(plan.job.sequence_length)]


def _moe(model: MoeTransformer, plan: Plan) -> list[str]:
    out = _common(model, model.num_layers, model.hidden_size, model.num_heads)
    attention = model.attention
    if isinstance(attention, GroupedQueryAttention):
        out += _grouped_query(model.num_heads, attention.num_kv_heads, attention.head_dim, qk_norm=attention.qk_norm)
    else:
        out += ["--multi-latent-attention"]
        out += ["--q-lora-rank", str(attention.q_lora_rank)] if attention.q_lora_rank else []
        out += ["--kv-lora-rank", str(attention.kv_lora_rank), "--qk-head-dim", str(attention.qk_nope_head_dim)]
        out += ["--qk-pos-emb-head-dim", str(attention.qk_rope_head_dim), "--v-head-dim", str(attention.v_head_dim)]
    if model.num_dense_layers:
        out += ["--ffn-hidden-size", str(model.dense_intermediate_size)]
        out += ["--moe-layer-freq", f"([0]*{model.num_dense_layers}+[1]*{model.num_layers - model.num_dense_layers})"]
    else:
        out += ["--ffn-hidden-size", str(model.expert_intermediate_size)]
    out += ["--num-experts", str(model.num_experts), "--moe-router-topk", str(model.top_k)]
    out += ["--moe-ffn-hidden-size", str(model.expert_intermediate_size), "--moe-grouped-gemm"]
    out += ["--moe-token-dispatcher-type", "alltoall"]
    if model.num_shared_experts:
        width = model.num_shared_experts * (model.shared_intermediate_size or model.expert_intermediate_size)
        out += ["--moe-shared-expert-intermediate-size", str(width)]
    if model.router_bias:
        out += ["--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"]
    out += ["--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear"]
    out += [] if model.tied_embedding else ["--untie-embeddings-and-output-weights"]
    out += ["--hidden-dropout", "0.0", "--attention-dropout", "0.0"]
    return [*out, "--position-embedding-type", "rope", "--max-position-embeddings", str(plan.job.sequence_length)]


def _grouped_query(num_heads: int, num_kv_heads: int, head_dim: int, *, qk_norm: bool) -> list[str]:
    out = ["--kv-channels", str(head_dim)]
    if num_kv_heads != num_heads:
        out += ["--group-query-attention", "--num-query-groups", str(num_kv_heads)]
    return [*out, "--qk-layernorm"] if qk_norm else out
