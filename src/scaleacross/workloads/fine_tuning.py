"""Profiles of partly trained models: frozen products have no weight gradient, adapters are additional products.

Frozen weights keep their memory, their forward pass and the gradient of their input. Gradients, optimizer states and
their traffic are those of the trainable part. Activations held for the backward pass are unchanged. This is an upper
bound, since a frozen product needs its input only for an adapter. Norms, biases and other vectors of a layer are frozen
together with its last product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from scaleacross.spec.fine_tuning import FineTuning, Frozen, Lora
from scaleacross.workloads.layer_profile import Gemm, GemmShard, LayerProfile, ModelProfile

FEED_FORWARDS: Final = ("mlp_", "shared_")
EXPERTS: Final = ("expert_", "router")


def with_fine_tuning(profile: ModelProfile, request: FineTuning) -> ModelProfile:
    """Return the profile with frozen parts and adapters marked; the same object if everything is trained."""
    if not request.partial:
        return profile
    known = {id(layer): _layer(layer, request) for layer in profile.layers}
    blocks = tuple((known[id(layer)], count) for layer, count in profile.blocks)
    everything = request.lora is not None
    embedding, head = everything or "embedding" in request.frozen, everything or "head" in request.frozen
    return replace(
        profile,
        embedding=_whole(profile.embedding) if embedding else profile.embedding,
        blocks=blocks,
        # a tied output matrix is trained as long as the embedding is
        head=_whole(profile.head) if head and (embedding or not profile.tied_parameters) else profile.head,
    )


def _part_of(gemm: Gemm) -> Frozen:
    if gemm.name.startswith(EXPERTS):
        return "experts"
    return "feed_forward" if gemm.name.startswith(FEED_FORWARDS) else "mixer"


def _whole(layer: LayerProfile) -> LayerProfile:
    """Return the layer with all weights frozen."""
    return replace(
        layer,
        gemms=tuple(replace(gemm, trained=False) for gemm in layer.gemms),
        num_frozen_parameters=layer.num_parameters,
        num_frozen_replicated_parameters=layer.num_replicated_parameters,
        num_frozen_expert_parameters=layer.num_expert_parameters,
    )


def _layer(layer: LayerProfile, request: FineTuning) -> LayerProfile:
    if request.lora is not None:
        return _adapted(_whole(layer), request.lora)
    frozen = [gemm for gemm in layer.gemms if _part_of(gemm) in request.frozen]
    if len(frozen) == len(layer.gemms):
        return _whole(layer)
    dense = [gemm for gemm in frozen if not gemm.shard.startswith("expert")]
    routed = any(gemm.shard.startswith("expert") for gemm in frozen)
    return replace(
        layer,
        gemms=tuple(replace(gemm, trained=gemm not in frozen) for gemm in layer.gemms),
        num_frozen_parameters=_weights(dense),
        num_frozen_replicated_parameters=_weights(gemm for gemm in dense if gemm.shard == "none"),
        num_frozen_expert_parameters=layer.num_expert_parameters if routed else 0,
    )


def _weights(gemms: Iterable[Gemm]) -> int:
    return sum(gemm.in_features * gemm.out_features for gemm in gemms)


def _adapted(layer: LayerProfile, lora: Lora) -> LayerProfile:
    """Return the layer with adapters added to the targeted products.

    The factor on the side of a product that tp divides is divided as well.
    """
    chosen: Callable[[Gemm], bool] = lambda gemm: _part_of(gemm) in lora.targets  # noqa: E731
    added: list[Gemm] = []
    for gemm in filter(chosen, layer.gemms):
        first: GemmShard = "row" if gemm.shard == "row" else "none"
        second: GemmShard = "column" if gemm.shard == "column" else "none"
        copies, modules = gemm.tokens_per_token, gemm.modules
        added.append(Gemm(f"lora_a_{gemm.name}", gemm.in_features, lora.rank, first, copies, modules=modules))
        added.append(Gemm(f"lora_b_{gemm.name}", lora.rank, gemm.out_features, second, copies, modules=modules))
    replicated = _weights(gemm for gemm in added if gemm.shard == "none")
    return replace(
        layer,
        gemms=(*layer.gemms, *added),
        num_parameters=layer.num_parameters + _weights(added),
        num_replicated_parameters=layer.num_replicated_parameters + replicated,
    )
