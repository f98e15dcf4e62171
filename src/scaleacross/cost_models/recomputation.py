"""What a recompute policy keeps and sends again, by candidate: tables over RECOMPUTES, looked up by its code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaleacross.cost_models.settings import Floats, Ints, Settings
from scaleacross.spec.recomputation import RECOMPUTES, repeats_tokens
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile


def _looked_up(codes: Ints, value: Callable[[str], float]) -> Floats:
    """``value`` of the policy of every candidate, (n,)."""
    table = np.array([value(policy) for policy in RECOMPUTES[: int(codes.max(initial=0)) + 1]])
    out: Floats = table[codes].astype(np.float64)
    return out


def kept_bytes(layer: LayerProfile, settings: Settings) -> Floats:
    """Activation bytes per token that one layer holds for its backward pass, (n,)."""
    sharded = _looked_up(settings.recompute, lambda policy: layer.kept(policy).sharded)
    replicated = _looked_up(settings.recompute, lambda policy: layer.kept(policy).replicated)
    of_context = _looked_up(settings.recompute, lambda policy: layer.kept(policy).of_context)
    return (sharded + of_context * (settings.cp - 1)) / settings.tp + replicated


def whole_bytes(layer: LayerProfile, settings: Settings) -> Floats:
    """The same where nothing is recomputed, (n,)."""
    whole = layer.kept("none")
    held: Floats = (whole.sharded + whole.of_context * (settings.cp - 1)) / settings.tp + whole.replicated
    return held


def gathers_once(layer: LayerProfile, settings: Settings) -> Floats:
    """Gathers (= scatters) over tp of one forward pass of a layer, (n,)."""
    return np.where(settings.expert_lanes > 1, layer.folded.tp_gathers, layer.tp_gathers).astype(np.float64)


def gathers_again(layer: LayerProfile, settings: Settings) -> Floats:
    """Gathers (= scatters) over tp that a backward pass repeats in one layer, (n,)."""
    again = _looked_up(settings.recompute, layer.gathers_again)
    if not layer.routed_tokens or not (settings.expert_lanes > 1).any():
        return again
    return np.where(settings.expert_lanes > 1, _looked_up(settings.recompute, layer.folded.gathers_again), again)


def keys_again(profile: ModelProfile, settings: Settings) -> Floats:
    """Share of the layers that exchange over cp whose exchange of the forward pass runs once more, (n,)."""
    return _looked_up(settings.recompute, profile.keys_again)


def tokens_again(settings: Settings) -> Floats:
    """1 where dispatch and combine run once more in the backward pass, else 0, (n,)."""
    return _looked_up(settings.recompute, repeats_tokens)


def elementwise_again(layer: LayerProfile, settings: Settings) -> Floats:
    """Share of a layer's element-wise work that its backward pass repeats, (n,)."""

    def share(policy: str) -> float:
        if policy in ("selective", "full"):
            return 1.0
        again = sum(one.elementwise_bytes for one in layer.recomputed(policy))
        return again / layer.elementwise_bytes if layer.elementwise_bytes else 0.0

    return _looked_up(settings.recompute, share)
