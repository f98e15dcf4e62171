"""Profile of one layer and of a whole model, the same type for every model family.

Cost models, step graph and search read only this profile and never ask for the family. A *token* is one position of one
sequence on one data-parallel replica; a rank holds sequence/cp of them per sequence. Counts are per token and for the
whole layer, before any sharding; ``shard`` names the axes that divide them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

from scaleacross.spec.parallelism import EMPTY_ENDS
from scaleacross.spec.recomputation import (
    BY_STAGE,
    MODULES,
    PARTS,
    PLAIN,
    RECOMPUTES,
    Module,
    modules_of,
    rerun_share,
    tokens_again,
)

# column: output features divided by tp; row: input features divided by tp; none: replicated;
# expert_*: the same inside a routed expert, whose weights are also divided by ep; folded experts are not divided by tp.
GemmShard = Literal["column", "row", "none", "expert_column", "expert_row"]


@dataclass(frozen=True)
class Gemm:
    """A matrix product ``tokens × in_features → out_features``.

    ``tokens_per_token``: 1 for a dense layer, top-k for routed experts (summed over the experts of the layer).
    ``always_16_bit``: 8- and 4-bit recipes leave it in 16 bit (output projection, router). ``siblings``: products with
    the same input, itself included, whose input gradients are added up. ``trained``: its weights have a gradient.
    ``modules``: modules that rerun it. ``selective``: share that selective recomputation reruns. ``bias``: it has a
    bias.
    """

    name: str
    in_features: int
    out_features: int
    shard: GemmShard
    tokens_per_token: float = 1.0
    always_16_bit: bool = False
    siblings: int = 1
    trained: bool = True
    modules: tuple[Module, ...] = ()
    selective: float = 0.0
    bias: bool = False

    @property
    def flop_per_token(self) -> float:
        """Forward FLOP per token: 2 · in · out · tokens_per_token. Each of the two gradients needs the same again."""
        return 2.0 * self.in_features * self.out_features * self.tokens_per_token


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention core (the projections are Gemms). Heads are divided by tp, the sequence by cp.

    ``fused`` kernels skip the upper triangle and never store the s × s scores. Unfused ones (before FlashAttention) do
    both, with dropout on the scores. ``rate_ratio``: speed over that of the accelerator's own attention efficiency.
    ``window``: positions that a query sees. ``chunk``: length of the chunks that attention stays inside. ``sinks``: a
    learned logit per head takes part in the softmax.
    """

    num_heads: int
    num_kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    fused: bool = True
    rate_ratio: float = 1.0
    window: int | None = None
    chunk: int | None = None
    sinks: bool = False

    def reach(self, sequence_length: int) -> float:
        """Length of a causal sequence with as many scores per query: s, or less with a window or chunks.

        A window of w < s positions leaves w·(2s − w) / 2 of the s² / 2 scores. Chunks of c positions leave c·s / 2: c
        divides s, or the last chunk counts as a whole one.
        """
        if self.window is not None and self.window < sequence_length:
            return self.window * (2.0 - self.window / sequence_length)
        if self.chunk is not None and self.chunk < sequence_length:
            return float(self.chunk)
        return float(sequence_length)

    def flop_per_token(self, sequence_length: int) -> float:
        """Causal forward FLOP per token: 2·(qk+v)·heads·s multiply-adds over half of the s × s square = heads·(qk+v)·s."""
        return self.num_heads * (self.qk_head_dim + self.v_head_dim) * self.reach(sequence_length)


@dataclass(frozen=True)
class Recurrence:
    """Core of a linear-attention or state-space layer: a state per head, updated by chunks; nothing grows with s².

    Attributes:
        heads: numbers of heads and groups that tp must divide.
        flop_per_token: forward FLOP of its matrix products, whole layer.
        moved_bytes_per_token: HBM bytes of its inputs, outputs and states, forward, whole layer.
        exchanged_features: features per token that context parallelism moves between sequence and heads, in and out.
    """

    heads: tuple[int, ...]
    flop_per_token: float
    moved_bytes_per_token: float
    exchanged_features: int


@dataclass(frozen=True)
class ActivationBytes:
    """Activation bytes per token that one layer holds from its forward to its backward pass, at 2-byte precision.

    ``sharded`` is divided by tp (sequence parallelism also divides norms, residuals and experts' token copies).
    ``replicated`` is not divided. The other fields are divided by tp. ``of_context`` is held once for every further
    rank of cp. ``of_tp`` is held if tp is above 1, ``of_experts`` if experts are spread over ranks: collectives return
    them only then. ``of_divided`` is held once for every further rank of tp that divides experts: each has all copies.
    """

    sharded: float
    replicated: float = 0.0
    of_context: float = 0.0
    of_tp: float = 0.0
    of_experts: float = 0.0
    of_divided: float = 0.0


@dataclass(frozen=True)
class ModuleShare:
    """Bytes freed and work repeated when one module of a layer is recomputed, besides the products that carry its name.

    Attributes:
        freed_bytes: activation bytes per token that need not be kept.
        elementwise_bytes: HBM bytes per token that its element-wise kernels move again.
        stream_freed_bytes, stream_elementwise_bytes: parts of both on the tensor between layers.
        tp_gathers: gathers (= scatters) of the tokens × hidden tensor over tp that run again, without routed experts'.
        attention: attention runs again, and so does its exchange over cp.
        experts: dispatch and combine run again.
    """

    freed_bytes: float = 0.0
    elementwise_bytes: float = 0.0
    stream_freed_bytes: float = 0.0
    stream_elementwise_bytes: float = 0.0
    tp_gathers: float = 0.0
    attention: bool = False
    experts: bool = False


@dataclass(frozen=True)
class LayerProfile:
    """One layer (or embedding, or head) of a model.

    Attributes:
        name: e.g. ``dense_block``, ``moe_block``, ``embedding``, ``head``.
        gemms: matrix products of the forward pass.
        attention: attention core, or None.
        recurrence: core of a linear-attention or state-space layer, or None.
        num_parameters: parameters outside routed experts.
        num_replicated_parameters: those of them that tp does not divide (norms, router, latent projections).
        num_expert_parameters: parameters of all routed experts of the layer.
        elementwise_bytes: HBM bytes per token of norms, activation, residuals, rotary embedding and loss (forward).
        activations: policy -> bytes per token held for the backward pass (keys none, selective, full).
        hidden_size: features of the tensor between layers (tp collectives, pipeline messages).
        tp_gathers: gathers (= scatters) of the tokens × hidden tensor over tp in one forward pass, without those of
            routed experts; the backward pass has as many.
        routed_gathers: gathers of routed experts that tp divides, in the same unit. Folded experts have none: tokens,
            already divided by sequence parallelism, go straight to them.
        stream_bytes: part of ``elementwise_bytes`` on the tensor between layers, divided by sequence parallelism alone.
        stream_activation_bytes: part of held activations on that tensor, divided by sequence parallelism alone.
        replicated_elementwise_bytes: part of ``elementwise_bytes`` that tp does not divide.
        rms_features, stream_rms_features: features that RMSNorms work on: all, and those of the tensor between layers.
        autograd_bytes: further activation bytes per token that are held where operators run one by one.
        by_operator: selective recomputation keeps results operator by operator (``variants.with_operator_recompute``).
        sends_again: with ``by_operator``, scatters over tp and experts' all-to-alls run again, their results not kept.
        full_recompute_fraction: share of the forward time that full recomputation repeats.
        kv_features: features of key and value together that cp exchanges per token (0 without attention).
        modules: module -> bytes freed and work repeated when it is recomputed; modules that are left out do nothing.
        routed_tokens: token copies sent to experts per token (top-k; 0 for a dense layer).
        num_frozen_parameters, num_frozen_replicated_parameters, num_frozen_expert_parameters: parts of the three counts
            above that are not trained.
    """

    name: str
    gemms: tuple[Gemm, ...]
    attention: Attention | None
    num_parameters: int
    num_replicated_parameters: int
    num_expert_parameters: int
    elementwise_bytes: float
    activations: dict[str, ActivationBytes]
    hidden_size: int
    tp_gathers: float
    routed_gathers: float = 0.0
    kv_features: int = 0
    routed_tokens: int = 0
    stream_bytes: float = 0.0
    stream_activation_bytes: float = 0.0
    replicated_elementwise_bytes: float = 0.0
    rms_features: int = 0
    stream_rms_features: int = 0
    autograd_bytes: float = 0.0
    by_operator: bool = False
    sends_again: bool = False
    full_recompute_fraction: float = 1.0
    recurrence: Recurrence | None = None
    modules: Mapping[Module, ModuleShare] = field(default_factory=dict)
    num_frozen_parameters: int = 0
    num_frozen_replicated_parameters: int = 0
    num_frozen_expert_parameters: int = 0

    @property
    def trainable_parameters(self) -> int:
        """Parameters of the layer that have a gradient."""
        return self.total_parameters - self.num_frozen_parameters - self.num_frozen_expert_parameters

    def kept(self, policy: str) -> ActivationBytes:
        """Bytes per token held for the backward pass under ``policy``, one of ``RECOMPUTES``."""
        if policy in PLAIN:
            return self.activations[policy]
        whole, shares = self.activations["none"], self.recomputed(policy)
        if policy in PARTS:
            return _blend(whole, self.activations["full"], rerun_share(policy))
        freed = sum(share.freed_bytes for share in shares)
        # without sequence parallelism the freed tensors between layers are replicated
        stream = sum(share.stream_freed_bytes for share in shares) if self.replicated_elementwise_bytes else 0.0
        # dispatch runs again, so no token copies are kept
        copies = 0.0 if any(share.experts for share in shares) else whole.of_divided
        changes = {"sharded": whole.sharded - (freed - stream), "replicated": whole.replicated - stream}
        return replace(whole, **changes, of_divided=copies)

    @cached_property
    def least_kept(self) -> ActivationBytes:
        """Field by field the least value of ``kept`` over all policies."""
        every = [self.kept(policy) for policy in RECOMPUTES]
        return ActivationBytes(*(min(getattr(one, f.name) for one in every) for f in fields(ActivationBytes)))

    def recomputed(self, policy: str) -> tuple[ModuleShare, ...]:
        """Shares of the layer's modules that ``policy`` recomputes by name."""
        return tuple(self.modules[module] for module in modules_of(policy) if module in self.modules)

    def gathers_again(self, policy: str) -> float:
        """Number of ``tp_gathers`` that ``policy`` repeats in the backward pass; a gather alone counts 0.5."""
        if policy == "selective" and self.by_operator:
            return self.tp_gathers * (1.0 if self.sends_again else 0.5)
        if policy in PLAIN or policy in PARTS:
            return self.tp_gathers * rerun_share(policy)
        return sum(share.tp_gathers for share in self.recomputed(policy))

    def routed_again(self, policy: str) -> float:
        """Share of ``routed_gathers`` that ``policy`` repeats, counted as in ``gathers_again``."""
        if policy == "selective" and self.by_operator:
            return 1.0 if self.sends_again else 0.5
        return tokens_again(policy)

    @property
    def heads(self) -> tuple[int, ...]:
        """Numbers of heads and groups that tp must divide."""
        own = (self.attention.num_heads, self.attention.num_kv_heads) if self.attention else ()
        return own + (self.recurrence.heads if self.recurrence else ())

    @property
    def exchanges_over_cp(self) -> bool:
        """Whether cp exchanges data for this layer: keys and values, or a recurrence's inputs and outputs."""
        return self.attention is not None or self.recurrence is not None

    @property
    def swapped_features(self) -> int:
        """Features per token that all-to-alls between sequence and heads move: queries, keys, values and outputs."""
        features = self.recurrence.exchanged_features if self.recurrence else 0
        if self.attention is not None:
            of_heads = self.attention.num_heads + self.attention.num_kv_heads
            features += of_heads * (self.attention.qk_head_dim + self.attention.v_head_dim)
        return features

    @property
    def total_parameters(self) -> int:
        """All parameters of the layer."""
        return self.num_parameters + self.num_expert_parameters

    def forward_flop_per_token(self, sequence_length: int) -> float:
        """Model FLOP per token of the forward pass; causal attention counts half of the square."""
        gemm = sum(g.flop_per_token for g in self.gemms)
        core = self.recurrence.flop_per_token if self.recurrence else 0.0
        return gemm + core + (self.attention.flop_per_token(sequence_length) if self.attention else 0.0)


def _blend(kept: ActivationBytes, rerun: ActivationBytes, share: float) -> ActivationBytes:
    """Mean bytes per layer where ``share`` of the layers are rerun."""
    names = (field.name for field in fields(ActivationBytes))
    return ActivationBytes(*(getattr(kept, n) * (1 - share) + getattr(rerun, n) * share for n in names))


@dataclass(frozen=True)
class ModelProfile:
    """A model: embedding, a sequence of runs of equal layers, and a head.

    ``blocks`` lists (profile, number of layers in a row) in model order. ``embedding`` sits with the first stage,
    ``head`` (final norm, output projection, loss) with the last. A token's experts lie in ``chosen_groups`` of
    ``expert_groups`` groups. The last ``num_prediction_layers`` layers need an embedding on their own stage: a copy
    unless it is the first.
    """

    name: str
    embedding: LayerProfile
    blocks: tuple[tuple[LayerProfile, int], ...]
    head: LayerProfile
    vocabulary_size: int
    num_experts: int = 0
    expert_groups: int = 1
    chosen_groups: int = 1
    num_prediction_layers: int = 0

    @property
    def num_layers(self) -> int:
        """Transformer layers including prediction layers, without embedding and head."""
        return sum(count for _, count in self.blocks)

    @cached_property
    def layers(self) -> tuple[LayerProfile, ...]:
        """Distinct layer profiles of all blocks; blocks of equal layers share one."""
        return tuple({id(layer): layer for layer, _ in self.blocks}.values())

    @cached_property
    def of_blocks(self) -> list[int]:
        """Index into ``layers`` for every block."""
        return [next(i for i, layer in enumerate(self.layers) if layer is of) for of, _ in self.blocks]

    @property
    def empty_ends(self) -> int:
        """Number of virtual stages that may have no layers; 0 with prediction layers, which must stay with the head."""
        return 0 if self.num_prediction_layers else EMPTY_ENDS

    @property
    def total_parameters(self) -> int:
        """All parameters of the model (a tied output matrix is counted once: then the head holds none)."""
        ends = self.embedding.total_parameters + self.head.total_parameters
        return ends + sum(layer.total_parameters * count for layer, count in self.blocks)

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules that a layer of the model has, in the order of MODULES."""
        return tuple(module for module in MODULES if any(module in layer.modules for layer, _ in self.blocks))

    def acting(self, policy: str) -> str:
        """``policy`` without the modules that no layer has."""
        if policy in PLAIN or policy in PARTS or policy == BY_STAGE:
            return policy
        return "+".join(module for module in modules_of(policy) if module in self.modules) or "none"

    def keys_again(self, policy: str) -> float:
        """Share of the cp exchanges, over layers, that ``policy`` repeats: all, or attention's with core_attn."""
        if policy == "full" or policy in PARTS:
            return rerun_share(policy)
        layers = [(layer, count) for layer, count in self.blocks if layer.exchanges_over_cp]
        again = sum(count for layer, count in layers if any(one.attention for one in layer.recomputed(policy)))
        return again / max(1, sum(count for _, count in layers))

    def tokens_again(self, policy: str) -> float:
        """Extra runs of experts' dispatch and combine in the backward pass, mean over layers (0 to 1)."""
        return 1.0 if policy == "selective" and self.layers[0].sends_again else tokens_again(policy)

    @property
    def trainable_parameters(self) -> int:
        """Parameters of the model that have a gradient."""
        ends = self.embedding.trainable_parameters + self.head.trainable_parameters
        return ends + sum(layer.trainable_parameters * count for layer, count in self.blocks)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with (table 1 of arXiv 2508.10925).

        Left out: routed experts that it does not visit, and the embedding table. The output matrix counts, tied or not.
        """
        idle = sum(
            layer.num_expert_parameters * (self.num_experts - layer.routed_tokens) // self.num_experts * count
            for layer, count in self.blocks
            if layer.num_expert_parameters
        )
        return self.total_parameters - idle - self.embedding.total_parameters + self.tied_parameters

    @property
    def tied_parameters(self) -> int:
        """Weights of the output matrix if the embedding holds them (the head has fewer than its product needs), else 0."""
        weights = sum(gemm.in_features * gemm.out_features for gemm in self.head.gemms)
        return weights if self.head.num_parameters < weights else 0

    def model_flop_per_token(self, sequence_length: int) -> float:
        """Forward + backward model FLOP per token: 3 × forward minus frozen weights' gradients, without recompute."""
        forward = sum(one.forward_flop_per_token(sequence_length) for one in (self.embedding, self.head))
        forward += sum(layer.forward_flop_per_token(sequence_length) * count for layer, count in self.blocks)
        runs = ((self.embedding, 1), *self.blocks, (self.head, 1))
        frozen = sum(g.flop_per_token * count for layer, count in runs for g in layer.gemms if not g.trained)
        return 3.0 * forward - frozen
