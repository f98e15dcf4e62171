"""The model as Megatron-LM arguments: shape and identity, from the workload's layer kinds.

Option names: NVIDIA/Megatron-LM at d98e8a64, megatron/training/arguments.py and core/transformer/transformer_config.py.
``targets.megatron_models`` refuses values of the workload without an option. Where only distant positions or ties
change, a comment says so instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from scaleacross.emitters.model import workload_of
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan
from scaleacross.targets.megatron_models import (
    ACTIVATIONS,
    biases,
    inexpressible,
    lacks_positions,
    mixers_of,
    rope_of,
    says_model,
    says_positions,
)
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import Rope
from scaleacross.workloads.layer_kinds import Attention, Experts, GatedDeltaNet, Latent, LayerKind, Mlp

LATENT_YARN: Final = (32.0, 1.0, 4096)
"""beta_fast, beta_slow and original length that Megatron-LM fixes for latent attention, without an option
(MLATransformerConfig).
"""


def model_arguments(plan: Plan) -> list[str]:
    """Return the model's shape and identity. Tokeniser and data are not part of a plan and stay with the user.

    Raises:
        EmitError: pretrain_gpt.py has no option for something in the model; the message names it.
    """
    return decoder_arguments(workload_of(plan).decoder(), plan.job.sequence_length, plan.degrees.tp)


def decoder_arguments(decoder: Decoder, length: int, tp: int) -> list[str]:
    """Return the arguments of a model alone, with sequences of ``length`` tokens.

    Raises EmitError as ``model_arguments``.
    """
    if problems := list(inexpressible(decoder)):
        raise EmitError(says_model(decoder.name, problems))
    if lacks_positions(decoder, length):
        raise EmitError(says_positions(decoder, length))
    return [
        *("--num-layers", str(len(decoder.layers))),
        *("--hidden-size", str(decoder.hidden_size)),
        *_mixers(decoder),
        *_feed_forwards(decoder),
        *_everywhere(decoder),
        *_positions(decoder, length),
        *("--padded-vocab-size", str(math.ceil(decoder.vocabulary_size / tp) * tp)),
    ]


def starting_point(plan: Plan) -> list[str]:
    """Return the option for the checkpoint to start from, if the job names one."""
    tuning = plan.job.fine_tuning
    return ["--pretrained-checkpoint", tuning.checkpoint] if tuning is not None and tuning.checkpoint else []


def model_notes(decoder: Decoder, prediction_layers: int = 0) -> list[str]:
    """Return a sentence for each property that the options leave open or set differently from the model.

    ``prediction_layers`` is the number of prediction layers that the plan trains.
    """
    out = []
    if decoder.norm_epsilon is None:
        out.append("The workload states no norm epsilon: Megatron-LM takes 1e-5.")
    ropes = [rope for kind in decoder.kinds.values() if (rope := rope_of(kind)) != "none"]
    if any(rope is None for rope in ropes):
        out.append("The workload states no rotary base: Megatron-LM takes 10000.")
    if any(experts.router is None for experts in decoder.experts()):
        out.append("The workload states no router rule: softmax over the chosen experts' scores is Megatron-LM's.")
    if decoder.num_prediction_layers > prediction_layers:
        out.append(
            f"The published model has {decoder.num_prediction_layers} prediction layer(s), of which the plan trains "
            f"{prediction_layers}: --mtp-num-layers adds memory and time to the last stage; plan with prediction_layers: 1."
        )
    if decoder.published_quantization:
        out.append(f"Published weights are quantised ({decoder.published_quantization}): convert them to 16 bit first.")
    out += [f"Megatron-LM differs: {said}." for said in _deviations(decoder)]
    return out


def _flags(decoder: Decoder, test: Callable[[LayerKind], bool]) -> list[int]:
    return [int(test(decoder.kinds[name])) for name in decoder.layers]


def _pattern(flags: Sequence[int]) -> str:
    """Write a list of 0 and 1 per layer as the expression that Megatron-LM evaluates, its shortest period repeated."""
    count = len(flags)
    for period in (p for p in range(1, count + 1) if count % p == 0):
        if list(flags[:period]) * (count // period) == list(flags):
            runs = [(flag, len(list(run))) for flag, run in groupby(flags[:period])]
            text = "+".join(f"[{flag}]*{times}" for flag, times in runs)
            return f"({text})*{count // period}" if count > period else f"({text})"
    raise AssertionError("a list is its own period")  # pragma: no cover


def _mixers(decoder: Decoder) -> list[str]:
    attention, latent = mixers_of(decoder, Attention), mixers_of(decoder, Latent)
    out: list[str] = []
    if latent:
        out += _latent(latent[0], decoder.hidden_size)
    elif attention:
        out += _grouped_query(attention)
    if linear := mixers_of(decoder, GatedDeltaNet):
        one = linear[0]
        out += ["--experimental-attention-variant", "gated_delta_net"]
        pattern = _pattern(_flags(decoder, lambda kind: isinstance(kind.mixer, GatedDeltaNet)))
        out += ["--linear-attention-freq", pattern]
        out += ["--linear-conv-kernel-dim", str(one.conv_kernel)]
        out += ["--linear-key-head-dim", str(one.key_head_dim), "--linear-value-head-dim", str(one.value_head_dim)]
        out += ["--linear-num-key-heads", str(one.num_key_heads), "--linear-num-value-heads", str(one.num_value_heads)]
    if windows := [a.window for a in attention if a.window is not None]:
        out += ["--window-size", f"{windows[0] - 1},0"]
        flags = _flags(decoder, lambda kind: isinstance(kind.mixer, Attention) and kind.mixer.window is not None)
        out += [] if all(flags) else ["--window-attn-skip-freq", _pattern(flags)]
    unrotated = _flags(decoder, lambda kind: isinstance(kind.mixer, Attention) and kind.mixer.rope == "none")
    if any(unrotated) and not all(unrotated):
        out += ["--no-rope-freq", _pattern(unrotated)]
    return out


def _latent(model: Latent, hidden_size: int) -> list[str]:
    out = ["--num-attention-heads", str(model.num_heads), "--multi-latent-attention", "--qk-layernorm"]
    if hidden_size % model.num_heads:  # its parser divides where no width is stated; latent attention has its own
        out += ["--kv-channels", str(model.v_head_dim)]
    out += ["--q-lora-rank", str(model.q_lora_rank)] if model.q_lora_rank else []
    out += ["--kv-lora-rank", str(model.kv_lora_rank), "--qk-head-dim", str(model.qk_nope_head_dim)]
    return [*out, "--qk-pos-emb-head-dim", str(model.qk_rope_head_dim), "--v-head-dim", str(model.v_head_dim)]


def _grouped_query(attention: Sequence[Attention]) -> list[str]:
    one = attention[0]
    out = ["--num-attention-heads", str(one.num_heads), "--kv-channels", str(one.head_dim)]
    if one.num_kv_heads != one.num_heads:
        out += ["--group-query-attention", "--num-query-groups", str(one.num_kv_heads)]
    norms = {each.qk_norm for each in attention}
    out += ["--qk-layernorm"] if "head" in norms else []
    out += ["--qk-l2-norm"] if "unweighted" in norms else []
    out += ["--attention-output-gate"] if one.output_gate else []
    return [*out, "--softmax-type", "learnable"] if one.sinks else out


def _feed_forwards(decoder: Decoder) -> list[str]:
    feeds = [kind.feed_forward for kind in decoder.kinds.values()]
    dense = [feed for feed in feeds if isinstance(feed, Mlp)]
    routed = next(decoder.experts(), None)
    first = next(feed for feed in feeds if feed is not None)
    out = ["--ffn-hidden-size", str(dense[0].width if dense else first.width)]
    if routed is not None:
        if dense:
            flags = _flags(decoder, lambda kind: isinstance(kind.feed_forward, Experts))
            out += ["--moe-layer-freq", _pattern(flags)]
        out += _experts(routed)
    return [*out, *ACTIVATIONS[first.gated, first.activation]]


def _experts(model: Experts) -> list[str]:
    out = ["--num-experts", str(model.num_experts), "--moe-router-topk", str(model.top_k)]
    out += ["--moe-ffn-hidden-size", str(model.width), "--moe-grouped-gemm"]
    out += ["--moe-shared-expert-intermediate-size", str(model.shared_width)] if model.shared_width else []
    out += ["--moe-shared-expert-gate"] if model.shared_gate else []
    out += ["--moe-apply-probs-on-input"] if model.weights_on_input else []
    out += ["--moe-router-enable-expert-bias"] if model.router_bias == "balancing" else []
    router = model.router
    if router is None:
        return out + (["--moe-router-score-function", "sigmoid"] if model.router_bias == "balancing" else [])
    out += ["--moe-router-score-function", router.score_function]
    if router.score_function == "sigmoid":
        out += ["--moe-router-dtype", "fp32"]
    elif not router.normalized:
        out += ["--moe-router-pre-softmax"]
    out += ["--moe-router-topk-scaling-factor", f"{router.scaling:g}"] if router.scaling != 1.0 else []
    if router.num_groups > 1:
        out += ["--moe-router-num-groups", str(router.num_groups), "--moe-router-group-topk", str(router.group_top_k)]
    return out


def _everywhere(decoder: Decoder) -> list[str]:
    out = ["--normalization", "RMSNorm" if decoder.norm == "rmsnorm" else "LayerNorm"]
    out += ["--norm-epsilon", repr(decoder.norm_epsilon)] if decoder.norm_epsilon is not None else []
    out += ["--apply-layernorm-1p"] if decoder.unit_offset_norm else []
    out += biases(decoder) or []
    out += [] if decoder.tied_embedding else ["--untie-embeddings-and-output-weights"]
    out += [] if decoder.dropout else ["--hidden-dropout", "0.0", "--attention-dropout", "0.0"]
    return out + (["--init-method-std", repr(decoder.initializer_range)] if decoder.initializer_range else [])


def _positions(decoder: Decoder, length: int) -> list[str]:
    if decoder.num_learned_positions:
        table = str(decoder.num_learned_positions)
        return ["--position-embedding-type", "learned_absolute", "--max-position-embeddings", table]
    stated = [rope_of(kind) for kind in decoder.kinds.values() if not isinstance(kind.mixer, GatedDeltaNet)]
    longest = ["--max-position-embeddings", str(length)]
    if all(rope == "none" for rope in stated):
        return ["--position-embedding-type", "none", *longest]
    rope = next((rope for rope in stated if isinstance(rope, Rope)), None)
    if rope is None:
        return ["--position-embedding-type", "rope", *longest]
    out = ["--rotary-base", str(round(rope.base))]
    if mixers_of(decoder, Latent):
        return ["--position-embedding-type", "rope", *longest, *out, *_latent_scaling(rope)]
    out += ["--rotary-percent", f"{rope.rotated_fraction:g}"] if rope.rotated_fraction != 1.0 else []
    out += ["--rotary-interleaved"] if rope.interleaved else []
    kind, scaling = _scaling(rope)
    return ["--position-embedding-type", kind, *longest, *out, *scaling]


def _latent_scaling(rope: Rope) -> list[str]:
    scaling = rope.scaling
    if scaling is None:
        return ["--rope-type", "rope", "--no-rope-fusion"]
    out = ["--rotary-scaling-factor", f"{scaling.factor:g}"] if scaling.factor else []
    out += ["--mscale", f"{scaling.mscale:g}"] if scaling.mscale is not None else []
    return out + (["--mscale-all-dim", f"{scaling.mscale_all_dim:g}"] if scaling.mscale_all_dim is not None else [])


def _scaling(rope: Rope) -> tuple[str, list[str]]:
    """Return (position embedding type, options) of a scaled or plain rotary embedding."""
    scaling = rope.scaling
    if scaling is None:
        return "rope", []
    if scaling.kind == "llama3":
        return "rope", ["--use-rope-scaling", "--rope-scaling-factor", f"{scaling.factor or 1.0:g}"]
    if scaling.kind == "linear":
        return "rope", ["--rotary-seq-len-interpolation-factor", f"{scaling.factor:.0f}"]
    stated = {
        "--rotary-scaling-factor": scaling.factor,
        "--yarn-original-max-position-embeddings": scaling.original_positions,
        "--yarn-beta-fast": scaling.beta_fast,
        "--yarn-beta-slow": scaling.beta_slow,
        "--mscale": scaling.mscale,
        "--mscale-all-dim": scaling.mscale_all_dim,
    }
    out = [word for option, value in stated.items() if value is not None for word in (option, f"{value:g}")]
    return "yarn", out if scaling.rounded else [*out, "--no-yarn-correction-range-round-to-int"]


def _deviations(decoder: Decoder) -> Iterator[str]:
    """Yield what Megatron-LM computes differently without an option, where the model's shape stays the same."""
    for mixer in mixers_of(decoder, Latent):
        scaling = mixer.rope.scaling if mixer.rope else None
        if scaling is not None and scaling.kind == "yarn":
            stated = (scaling.beta_fast or 32.0, scaling.beta_slow or 1.0, scaling.original_positions or 4096)
            if stated != LATENT_YARN:
                yield f"yarn of latent attention runs with beta_fast, beta_slow and original length {LATENT_YARN}, not {stated}"
                return
    for experts in decoder.experts():
        router = experts.router
        if router and router.num_groups > 1 and router.score_function == "softmax":
            yield "a group of experts is ranked by the sum of its best scores, not by the best"
