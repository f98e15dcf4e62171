"""The models that Megatron-LM's pretrain_gpt.py can build, as laws over a workload's layer kinds.

Option names and checks: NVIDIA/Megatron-LM at d98e8a64, megatron/training/arguments.py,
core/transformer/transformer_config.py and models/common/embeddings. ``emitters.megatron_model`` writes the options of
models that pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from scaleacross.errors import InputError
from scaleacross.targets.common import decoder_of
from scaleacross.targets.law import JobLaw, Subject
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import Rope
from scaleacross.workloads.layer_kinds import Attention, GatedDeltaNet, Latent, LayerKind, Mlp

LLAMA3_SCALING: Final = (1.0, 4.0, 8192)
"""Low and high frequency factor and original length that ``--use-rope-scaling`` fixes (models/common/embeddings)."""

T = TypeVar("T")


def refused_model(subject: Subject) -> list[str]:
    """Return what pretrain_gpt.py has no option for, one phrase each."""
    try:
        return list(inexpressible(decoder_of(subject.job)))
    except InputError as error:
        return [str(error)]


def says_model(name: str, problems: Sequence[str]) -> str:
    """Return the refusal of a model, with the way out."""
    return (
        f"model '{name}': {'; '.join(dict.fromkeys(problems))}: Megatron-LM's pretrain_gpt.py has no option for that; leave "
        "target out: the targets launch and torchrun carry the plan to a script of your own"
    )


def lacks_positions(decoder: Decoder, length: int) -> bool:
    """Return whether sequences are longer than the table of learned positions."""
    return bool(decoder.num_learned_positions) and decoder.num_learned_positions < length


def says_positions(decoder: Decoder, length: int) -> str:
    """Return the refusal of sequences longer than the learned positions."""
    return (
        f"{decoder.num_learned_positions} learned positions for sequences of {length} tokens: Megatron-LM needs "
        f"max-position-embeddings ≥ seq-length; set sequence_length: {decoder.num_learned_positions} or less"
    )


def inexpressible(decoder: Decoder) -> Iterator[str]:
    """Yield the properties of a model that pretrain_gpt.py has no option for, one phrase each."""
    mixers, feeds = mixers_of(decoder, Attention), [kind.feed_forward for kind in decoder.kinds.values()]
    for name, kind in decoder.kinds.items():
        if not isinstance(kind.mixer, Attention | Latent | GatedDeltaNet) or kind.feed_forward is None:
            yield f"layers '{name}' are not attention (or a gated delta net) followed by a feed-forward"
        if kind.norms != "before":
            yield f"layers '{name}' normalise what sub-layers return (norms: {kind.norms})"
        if kind.parallel:
            yield f"layers '{name}' run attention and feed-forward in parallel"
    if decoder.norm.startswith("layernorm_"):
        yield f"LayerNorm {decoder.norm.removeprefix('layernorm_')}"
    if decoder.output_bias:
        yield "a bias of the output projection over the vocabulary"
    for factor, value in decoder.multipliers.model_dump(exclude_none=True).items():
        yield f"multiplier {factor} {value:g}"
    for a in mixers:
        if a.qk_norm == "full":
            yield "q and k are normalised over all heads at once (qk_norm: full)"
        if a.score_cap is not None:
            yield f"attention scores are capped at {a.score_cap:g}"
        if a.chunk is not None:
            yield f"attention stays in chunks of {a.chunk} positions"
        if a.softmax_scale is not None and not math.isclose(a.softmax_scale, a.head_dim**-0.5):
            yield f"softmax scale {a.softmax_scale:g} is not 1/√head_dim"
    yield from _unlike(decoder)
    yield from _unscaled(decoder)
    for feed in feeds:
        if feed is not None and (feed.gated, feed.activation) not in ACTIVATIONS:
            yield f"{'gated' if feed.gated else 'plain'} feed-forward with {feed.activation}"
    for experts in decoder.experts():
        router = experts.router
        if router and router.score_function == "sigmoid" and not router.normalized and experts.top_k > 1:
            yield "sigmoid weights of several experts that are not normalised"
        if router and router.score_function == "softmax" and experts.router_bias == "balancing":
            yield "a balancing bias on softmax scores"


def _unlike(decoder: Decoder) -> Iterator[str]:
    """Yield values that options state once for all layers but that differ between layers of the model."""
    attention, feeds = mixers_of(decoder, Attention), [kind.feed_forward for kind in decoder.kinds.values()]
    several: dict[str, Sequence[Any]] = {
        "numbers of heads": [(a.num_heads, a.num_kv_heads, a.head_dim) for a in attention],
        "attention biases": [(a.qkv_bias, a.output_bias) for a in attention],
        "windows": [a.window for a in attention if a.window is not None],
        "norms of q and k": [a.qk_norm for a in attention if a.rope != "none"],
        "rotary embeddings": [
            rope.model_dump_json() for kind in decoder.kinds.values() if isinstance(rope := rope_of(kind), Rope)
        ],
        "experts": list(decoder.experts()),
        "feed-forward widths": [feed.width for feed in feeds if isinstance(feed, Mlp)],
        "activations": [(feed.gated, feed.activation) for feed in feeds if feed is not None],
        "kinds of attention": [kind.mixer.kind for kind in decoder.kinds.values() if isinstance(kind.mixer, Attention | Latent)],
    }  # fmt: skip
    for what, values in several.items():
        if len(set(values)) > 1:
            yield f"layers have different {what}"
    if biases(decoder) is None:
        yield "biases of some projections only (qkv alone, or all of attention and feed-forward, can be said)"


ACTIVATIONS: Final[Mapping[tuple[bool, str], tuple[str, ...]]] = {
    (True, "silu"): ("--swiglu",),
    (True, "clamped_silu"): (
        "--quick-geglu", "--glu-linear-offset", "1.0", "--activation-func-clamp-value", "7.0", "--no-bias-gelu-fusion"
    ),
    (False, "gelu"): ("--no-bias-gelu-fusion",),  # the fused kernel is the tanh approximation
    (False, "gelu_tanh"): (),
    (False, "relu2"): ("--squared-relu",),
}  # fmt: skip


def mixers_of(decoder: Decoder, kind: type[T]) -> list[T]:
    """Return the mixers of a type, one per kind of layer."""
    return [one.mixer for one in decoder.kinds.values() if isinstance(one.mixer, kind)]


def rope_of(kind: LayerKind) -> Any:
    """Return the rotary embedding of a kind of layer; "none": no positions; None: not stated."""
    return kind.mixer.rope if isinstance(kind.mixer, Attention | Latent) else "none"


def biases(decoder: Decoder) -> list[str] | None:
    """Return the options for biases, or None where they differ in a way that no option can state."""
    attention = mixers_of(decoder, Attention)
    feeds = {feed.bias for kind in decoder.kinds.values() if (feed := kind.feed_forward) is not None}
    learned = {experts.router_bias == "learned" for experts in decoder.experts()}
    stated = {a.qkv_bias for a in attention}, {a.output_bias for a in attention} | feeds | learned
    if stated[1] <= {False}:
        return ["--disable-bias-linear", *(["--add-qkv-bias"] if True in stated[0] else [])]
    return [] if stated == ({True}, {True}) and not mixers_of(decoder, Latent) else None


def _unscaled(decoder: Decoder) -> Iterator[str]:
    """Yield rotary scalings that no option can state."""
    rope = next((one for kind in decoder.kinds.values() if isinstance(one := rope_of(kind), Rope)), None)
    scaling = rope.scaling if rope else None
    if scaling is None or scaling.kind == "yarn":
        return
    if mixers_of(decoder, Latent):
        yield f"rotary scaling {scaling.kind} of latent attention (yarn is there)"
    elif scaling.kind == "llama3":
        fixed = (scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_positions)
        if fixed != LLAMA3_SCALING:
            yield f"rotary scaling llama3 with low and high factor and original length {fixed} (fixed at {LLAMA3_SCALING})"
    elif scaling.kind != "linear" or not scaling.factor or not scaling.factor.is_integer():
        yield f"rotary scaling {scaling.kind} {scaling.factor or ''} (llama3, yarn and whole linear ones are there)"


def _positions_suffice(subject: Subject) -> bool:
    try:
        return not lacks_positions(decoder_of(subject.job), subject.job.sequence_length)
    except InputError:  # another law refuses the model
        return True


def _predicts_without_rope(subject: Subject) -> bool:
    """Return whether prediction layers meet positions other than rope or none (training/arguments.py)."""
    if not subject.job.prediction_layers or refused_model(subject):
        return False
    decoder = decoder_of(subject.job)
    ropes = [rope_of(kind) for kind in decoder.kinds.values() if not isinstance(kind.mixer, Latent)]
    yarn = any(isinstance(rope, Rope) and rope.scaling and rope.scaling.kind == "yarn" for rope in ropes)
    return bool(decoder.num_learned_positions) or yarn


JOB_LAWS: Final = (
    JobLaw(
        lambda s: not _predicts_without_rope(s),
        lambda s: (
            f"prediction_layers {s.job.prediction_layers} with learned positions or yarn: Megatron-LM predicts further tokens "
            "with position embedding rope or none only; set prediction_layers: 0"
        ),
    ),
    JobLaw(lambda s: not refused_model(s), lambda s: says_model(s.profile.name, refused_model(s))),
    JobLaw(_positions_suffice, lambda s: says_positions(decoder_of(s.job), s.job.sequence_length)),
)
