"""Changes to a profile for the same model in an older or other framework; the mathematics stays the same.

``problem.profile_of`` applies them for jobs, ``validation.mapping`` for measured runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from scaleacross.spec.framework import Kept
from scaleacross.spec.recomputation import Module
from scaleacross.workloads.layer_profile import ActivationBytes, Gemm, LayerProfile, ModelProfile, ModuleShare

FUSED_NORM_BYTES: Final = 4.0
FUSED_ROTARY_BYTES: Final = 4.0
"""Bytes per feature of one kernel that reads its input and writes its output in 16 bit."""
EAGER_NORM_BYTES: Final = 34.0
"""Bytes per feature: 2+4 cast, 4+4 square, 4 mean, 4+4 scale, 4+2 cast back, 2+2 weight."""
EAGER_ROTARY_BYTES: Final = 20.0
"""Bytes per feature: 2+4 cast, 4+4 complex product, 4+2 cast back."""
EAGER_ACTIVATION_BYTES: Final = 10.0
"""Bytes per feature: 2+2 SiLU, 4+2 product."""
PADDING_BYTES: Final = 8.0
"""Bytes per feature of a token copy: read and written in 16 bit, into the padded batch and out of it."""
EXPERT_BIAS_BYTES: Final = (28.0 + 40.0) / 3.0
"""HBM bytes per feature of a token copy to add biases to experts' results in Megatron-Core, in fp32.

Source: TEGroupedMLP._apply_bias of megatron/core/transformer/moe/experts.py. The model counts backward traffic as twice
the forward's, so a third of the bytes of both passes is stated. Forward 28: product with the routing weight 4, sum
2+4+4, joined 4+4, back to 16 bit 4+2. Backward 40: to fp32 2+4, gradient of the result 4+2, of the bias 4+4+4, of the
weight 4+4+4, and the sum over rows that is the gradient of the first bias, 4.
"""
FUSED_ACTIVATION_BYTES: Final = 6.0
"""Bytes per feature and row of the fused gated activation kernel (gate and up in, product out)."""


def _each_block(profile: ModelProfile, change: Callable[[LayerProfile], LayerProfile]) -> ModelProfile:
    known = {id(layer): change(layer) for layer in profile.layers}  # equal runs share a layer
    return replace(profile, blocks=tuple((known[id(layer)], count) for layer, count in profile.blocks))


def _changed(block: LayerProfile, *names: Module, **by: float) -> Mapping[Module, ModuleShare]:
    """Modules of a block; those in ``names`` get ``by`` added to the fields it names, but never less than 0."""

    def moved(share: ModuleShare) -> ModuleShare:
        return replace(share, **{key: max(0.0, getattr(share, key) + more) for key, more in by.items()})

    return {name: moved(share) if name in names else share for name, share in block.modules.items()}


def without_sequence_parallelism(profile: ModelProfile) -> ModelProfile:
    """Repeat norms, dropout and residual additions on every tp rank, as before Korthikanti et al. (arXiv 2205.05198).

    What they hold is replicated too, as is the block input that full recomputation keeps.
    """

    def change(block: LayerProfile) -> LayerProfile:
        stream = block.stream_activation_bytes
        kept = {
            policy: replace(
                held,
                sharded=max(0.0, held.sharded - stream),
                # ``full`` keeps the block input alone, which is less than the stream's tensors
                replicated=held.replicated + min(stream, held.sharded),
            )
            for policy, held in block.activations.items()
        }
        return replace(block, replicated_elementwise_bytes=block.stream_bytes, activations=kept)

    return _each_block(profile, change)


def with_unfused_attention(profile: ModelProfile) -> ModelProfile:
    """Attention as batched matrix products, softmax and dropout over stored s × s scores (before FlashAttention)."""

    def change(block: LayerProfile) -> LayerProfile:
        return replace(block, attention=block.attention and replace(block.attention, fused=False))

    return _each_block(profile, change)


def with_attention_rate(profile: ModelProfile, ratio: float) -> ModelProfile:
    """Attention at ``ratio`` times the speed of the accelerator's attention efficiency, because another kernel runs."""

    def change(block: LayerProfile) -> LayerProfile:
        return replace(block, attention=block.attention and replace(block.attention, rate_ratio=ratio))

    return _each_block(profile, change)


class Uncompiled(NamedTuple):
    """Operators that need several kernels uncompiled. LayerNorm, GELU and additions are one kernel in any case."""

    norms: bool = True  # those that are RMSNorms
    rotary: bool = True
    gates: bool = True


def with_eager_operators(profile: ModelProfile, operators: Uncompiled) -> ModelProfile:
    """Run the element-wise operators of a block kernel by kernel, as PyTorch does without compilation.

    Per feature, forward, in 16 bit unless stated: RMSNorm casts to fp32, squares, averages, scales, casts back and
    multiplies by its weight (EAGER_NORM_BYTES). Rotary embedding casts to fp32, multiplies complex numbers and casts
    back (EAGER_ROTARY_BYTES). SiLU and the product with the other half are two kernels (EAGER_ACTIVATION_BYTES).
    All RMSNorms of a block count, those of q, k and latents too. Residual additions stay the same, as do operators that
    ``operators`` excludes.
    """

    def change(block: LayerProfile) -> LayerProfile:
        core = block.attention
        rotated = 0 if core is None else (core.num_heads + core.num_kv_heads) * core.qk_head_dim
        width = sum(gemm.in_features * gemm.tokens_per_token for gemm in block.gemms if _ends_feed_forward(gemm))
        norm = (EAGER_NORM_BYTES - FUSED_NORM_BYTES) * operators.norms
        more = norm * block.rms_features + (EAGER_ROTARY_BYTES - FUSED_ROTARY_BYTES) * rotated * operators.rotary
        more += (EAGER_ACTIVATION_BYTES - FUSED_ACTIVATION_BYTES) * width * operators.gates
        stream = block.stream_bytes + norm * block.stream_rms_features
        return replace(block, elementwise_bytes=block.elementwise_bytes + more, stream_bytes=stream)

    return _each_block(profile, change)


def with_padded_experts(profile: ModelProfile) -> ModelProfile:
    """Experts whose products need rows in multiples of 16 or 32: tokens are copied in and out of padded batches.

    Two copies of k·d elements, each read and written (Megatron-Core's Fp8Padding and Fp8Unpadding around its grouped
    products).
    """

    return _each_block(profile, lambda block: _with_expert_traffic(block, PADDING_BYTES))


def _with_expert_traffic(block: LayerProfile, bytes_per_feature: float) -> LayerProfile:
    """The block with so many more bytes of HBM traffic per feature of every token copy that its experts get."""
    added = bytes_per_feature * block.hidden_size * block.routed_tokens
    modules = _changed(block, "moe", elementwise_bytes=added)
    return replace(block, elementwise_bytes=block.elementwise_bytes + added, modules=modules)


def with_separate_expert_bias(profile: ModelProfile) -> ModelProfile:
    """Add the biases of experts, if the model has them, in separate kernels (EXPERT_BIAS_BYTES)."""

    def change(block: LayerProfile) -> LayerProfile:
        experts = [gemm for gemm in block.gemms if gemm.shard.startswith("expert")]
        weights = sum(gemm.in_features * gemm.out_features for gemm in experts) * profile.num_experts
        return block if block.num_expert_parameters <= weights else _with_expert_traffic(block, EXPERT_BIAS_BYTES)

    return _each_block(profile, change)


def with_pruned_recompute(profile: ModelProfile) -> ModelProfile:
    """Full recomputation that leaves out a layer's last product, whose result no gradient needs.

    XLA and torch.compile remove dead code. PyTorch's non-reentrant checkpoint stops at the last tensor that the
    backward pass needs. Megatron-LM's checkpoint reruns the whole layer. The share is that of the product's FLOP.
    """

    def change(block: LayerProfile) -> LayerProfile:
        total = sum(gemm.flop_per_token for gemm in block.gemms)
        last = sum(gemm.flop_per_token for gemm in block.gemms if _ends_feed_forward(gemm))
        return replace(block, full_recompute_fraction=1.0 - last / total)

    return _each_block(profile, change)


def with_lean_activations(profile: ModelProfile, *, narrow: bool) -> ModelProfile:
    """Without recomputation, hold what Megatron-Core with Transformer Engine holds of a gated block.

    The fused gated activation recomputes SiLU(gate) and holds only its inputs and its product: 2f bytes less.
    ``narrow`` products (8 bit and less) hold their inputs after conversion, 1 byte per element: norm outputs d each and
    the product f less. The attention output takes v·h more, because attention holds it in 16 bit as well.
    """

    def change(block: LayerProfile) -> LayerProfile:
        saved, modules = 0.0, block.modules
        for gemm in block.gemms:
            if _ends_feed_forward(gemm):
                product = (2.0 * _is_gated(gemm, block) + narrow) * gemm.in_features * gemm.tokens_per_token
                saved += product
                within: tuple[Module, ...] = ("moe_act",) if gemm.shard.startswith("expert") else ()
                modules = _changed(replace(block, modules=modules), *gemm.modules, *within, freed_bytes=-product)
        if narrow and block.attention is not None:
            saved += 2.0 * block.hidden_size - block.attention.num_heads * block.attention.v_head_dim
        none = block.activations["none"]
        kept = {**block.activations, "none": replace(none, sharded=none.sharded - saved)}
        if narrow:  # a norm before such a product keeps its output in 8 bit only
            modules = {
                name: replace(share, freed_bytes=share.freed_bytes - half, stream_freed_bytes=half)
                for name, share in modules.items()
                for half in [share.stream_freed_bytes / 2]
            }
        return replace(block, activations=kept, modules=modules)

    return _each_block(profile, change)


def with_separate_projections(profile: ModelProfile) -> ModelProfile:
    """Run query, key and value, and gate and up, as separate products.

    Each has its own gradient for their common input.
    """

    def change(block: LayerProfile) -> LayerProfile:
        gemms = []
        for gemm in block.gemms:
            parts = _separate(gemm, block)
            for index, features in enumerate(parts):
                name = gemm.name if len(parts) == 1 else f"{gemm.name}_{index}"
                gemms.append(replace(gemm, name=name, out_features=round(features), siblings=len(parts)))
        return replace(block, gemms=tuple(gemms))

    return _each_block(profile, change)


def with_operator_recompute(profile: ModelProfile, how: Kept) -> ModelProfile:
    """``selective`` as torchtitan's SelectiveAC, operator by operator.

    Kept are the block's input and the results of these operators (torchtitan/distributed/activation_checkpoint.py,
    0.3.0):

    * attention: 2 bytes per feature of its output, 4 per head
    * every second product from the first (q, k, v as the profile has them, output, gate, up, down; gate and up count
      separately)
    * every product with a bias (addmm)
    * scatters over tp and all-to-alls of experts, if they are functional collectives

    All else runs again: the other products, those of routed experts, the router, recurrences, element-wise work,
    gathers over tp and of keys and values over cp. The result of a row-parallel product is a partial sum over all
    tokens, so tp does not divide it.
    """

    def change(block: LayerProfile) -> LayerProfile:
        gemms, hidden, index = [], 2.0 * block.hidden_size, 0
        sharded, replicated = hidden, 0.0
        for gemm in block.gemms:
            again = 0.0
            for features in (gemm.out_features,) if gemm.name == "qkv" else _separate(gemm, block):
                counted = not (gemm.bias or gemm.shard.startswith("expert") or gemm.name == "router")
                # only counted products alternate: a bias is always kept, experts and a router without bias always rerun
                index += counted
                if (
                    gemm.shard.startswith("expert")
                    or (counted and index % 2 == 0)
                    or (gemm.name == "router" and not gemm.bias)
                ):
                    again += features / gemm.out_features
                elif gemm.shard == "column":
                    sharded += 2.0 * features
                else:
                    replicated += 2.0 * features
            gemms.append(replace(gemm, selective=again))
        if block.attention is not None:
            sharded += block.attention.num_heads * (2.0 * block.attention.v_head_dim + 4.0)
        kept = ActivationBytes(sharded, replicated)
        if how.functional_collectives:
            scatters = math.ceil(block.tp_gathers + block.routed_gathers)
            kept = replace(kept, of_tp=hidden * scatters, of_experts=2 * hidden * block.routed_tokens)
        return replace(
            block, gemms=tuple(gemms), by_operator=True, sends_again=not how.functional_collectives,
            activations={**block.activations, "selective": kept},
        )  # fmt: skip

    return _each_block(profile, change)


def _separate(gemm: Gemm, block: LayerProfile) -> tuple[float, ...]:
    """Output features of the products that replace ``gemm`` in a framework without fused projections."""
    if gemm.name == "qkv":
        half = block.kv_features / 2
        return gemm.out_features - 2 * half, half, half
    down = next((other for other in block.gemms if other.name == gemm.name.removesuffix("_up") + "_down"), None)
    if down is not None and _ends_feed_forward(down) and _is_gated(down, block):
        return gemm.out_features / 2, gemm.out_features / 2
    return (float(gemm.out_features),)


def _ends_feed_forward(gemm: Gemm) -> bool:
    """Whether a product is the down-projection of a feed-forward; those to latents are replicated over tp."""
    return gemm.name.endswith("_down") and gemm.shard.endswith("row")


def _copies(gemm: Gemm, block: LayerProfile) -> float:
    """Number of further products that read the same input once fused products are separate, averaged over siblings."""
    return (gemm.siblings - 1) / gemm.siblings + len(_separate(gemm, block)) - 1


def _is_gated(down: Gemm, block: LayerProfile) -> bool:
    """Whether the up-projection of the same feed-forward computes gate and up; a block may have several of them."""
    up = down.name.removesuffix("_down") + "_up"
    return any(other.name == up and other.out_features == 2 * down.in_features for other in block.gemms)


def with_pytorch_tensors(profile: ModelProfile, how: Kept) -> ModelProfile:
    """Hold the tensors that autograd keeps of torchtitan's models, instead of those that Megatron-Core keeps.

    * A projection that gathers its input over tp keeps the gathered tensor and no norm output: 2d undivided, per
      gather.
    * Routed experts that tp divides gather tokens, not copies, in common with shared ones if there are any. They
      scatter their own results (models/common/moe_sharding.py).
    * Expert outputs are converted to fp32 before their weighted sum and kept: 4d per copy of a token, on every rank of
      tp that divides experts.
    * Operators that are not fused keep their inputs: those of sinks and of clamped activations (``autograd_bytes``).
    * The value of latent attention is a view of the up-projection, which is kept whole: 2 further bytes per feature of
      k.
    * Keys and values gathered over cp are kept, 2 bytes per feature and rank, and not gathered again.
    * A loss in chunks keeps the head's input and its gradient, and no softmax. A compiled loss in one piece keeps the
      16-bit logits, 2 bytes per entry, instead of the softmax in fp32.
    * A compiled dense layer recomputes SiLU(gate), as Transformer Engine does: 2 bytes per feature of the activation
      less.

    These figures and those of ``with_operator_recompute`` were counted with PyTorch itself
    (tests/oracles/torch_counts.py, compiled_counts.py).
    """

    def change(block: LayerProfile) -> LayerProfile:
        # shared experts gather the same tokens already, so of the pair only the scatter is added
        routed = (0.5 if "shared_experts" in block.modules else 1.0) * (block.routed_tokens > 0)
        # a lone scatter (half a pair) gathers nothing, so it keeps nothing
        gathered = 2.0 * block.hidden_size * math.floor(block.tp_gathers + routed)
        results = 4.0 * block.hidden_size * block.routed_tokens
        more = results + block.autograd_bytes
        if block.attention is not None:
            values = block.attention.num_heads * block.attention.v_head_dim
            more += sum(2.0 * (gemm.out_features - values) for gemm in block.gemms if gemm.name == "kv_up")
        if "model" in how.compiled and not block.routed_tokens:
            more -= sum(
                2.0 * gemm.in_features for gemm in block.gemms if _ends_feed_forward(gemm) and _is_gated(gemm, block)
            )
        none = block.activations["none"]
        kept = ActivationBytes(
            none.sharded + more - gathered, none.replicated + gathered, 2.0 * block.kv_features,
            of_divided=none.of_divided + results,
        )  # fmt: skip
        return replace(block, routed_gathers=routed, activations={**block.activations, "none": kept})

    head, hidden = profile.head, 2.0 * profile.head.hidden_size
    whole = head.activations["none"]
    if how.loss_chunks == 1:
        logits = 2.0 * profile.vocabulary_size if "loss" in how.compiled else 0.0
        kept = replace(whole, sharded=whole.sharded - hidden - logits, replicated=whole.replicated + hidden)
    else:
        kept = ActivationBytes(hidden, 2 * hidden)
    return replace(_each_block(profile, change), head=replace(head, activations=dict.fromkeys(head.activations, kept)))


def with_autocast(profile: ModelProfile, how: Kept) -> ModelProfile:
    """Autocast converts the inputs of products; norms and the tensor between layers are in fp32.

    A layer's input takes 4 bytes per feature, not 2, under every policy, and so does the head's. If layers are not
    compiled, the input of the second norm does, too, and every product of a norm's output keeps a 16-bit copy of its
    own: query, key, value, gate, up. A compiled layer keeps one copy of each, and the result of attention's projection
    in 16 bit. Counted with PyTorch (tests/oracles/compiled_counts.py) for Llama's layers. Assumed: what selective
    recomputation keeps besides the input is unchanged.
    """

    def change(block: LayerProfile) -> LayerProfile:
        wider = 2.0 * block.hidden_size
        of_whole = wider
        if "model" not in how.compiled:
            copies = sum(_copies(gemm, block) for gemm in block.gemms)
            of_whole += wider + 2.0 * block.hidden_size * copies
        kept = {
            policy: replace(held, sharded=held.sharded + (of_whole if policy == "none" else wider))
            for policy, held in block.activations.items()
        }
        return replace(block, activations=kept)

    head = profile.head
    kept = {
        policy: replace(held, replicated=held.replicated + 2.0 * head.hidden_size)
        for policy, held in head.activations.items()
    }
    return replace(_each_block(profile, change), head=replace(head, activations=kept))
