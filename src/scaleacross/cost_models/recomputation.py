"""What a recompute policy keeps and communicates again, by candidate: tables over RECOMPUTES, looked up by its code.

A policy may still be to be chosen: ``ANY_POLICY``, or ``BY_STAGE`` before the stages have theirs (``on_ranks``). Such a
policy repeats nothing, keeps the least of all policies, and holds nothing while layers run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import ANY_POLICY, Bools, Candidates, Floats, Ints
from scaleacross.cost_models.columns import columns_of
from scaleacross.spec.framework import KeptBy
from scaleacross.spec.recomputation import (
    BY_STAGE,
    RECOMPUTES,
    of_rerun_layer,
    regathers_keys,
    rerun_period,
    rerun_share,
)
from scaleacross.workloads.layer_profile import ActivationBytes, LayerProfile, ModelProfile

_PERIODS: Final = np.array([*map(rerun_period, RECOMPUTES), 1])  # ANY_POLICY is last
_BY_STAGE: Final = RECOMPUTES.index(BY_STAGE)
_KEPT: Final = fields(ActivationBytes)


def _table(value: Callable[[str], float]) -> Floats:
    """``value`` of every policy by its code."""
    return np.array([value(policy) for policy in (*RECOMPUTES, "none")], dtype=np.float64)


_PARTLY: Final = _table(lambda policy: float(policy != "none" and not rerun_share(policy)))
_WHOLE: Final = _table(rerun_share)
_RERUN: Final = _table(lambda policy: RECOMPUTES.index(of_rerun_layer(policy))).astype(np.int64)


def on_ranks(candidates: Candidates, policies: Sequence[str] | None) -> Candidates:
    """One row for every pipeline rank of a single decision, with the rank's policy; a single row for None."""
    if policies is None:
        return candidates
    rows = candidates.take(np.zeros(len(policies), dtype=np.int64))
    return replace(rows, recompute=np.array([RECOMPUTES.index(policy) for policy in policies]))


def is_by_stage(candidates: Candidates) -> bool:
    """Whether the stages of a single candidate do not have their policies yet."""
    return int(candidates.recompute[0]) == _BY_STAGE


def in_whole_layers(recompute: Ints, num_layers: int, stages: Ints, activations: Ints) -> Bools:
    """Whether policies recompute a whole number of layers in each of ``stages`` virtual stages, (n,).

    Where they recompute some layers, no activations may be on the host (``activations``, the share of layers there).
    BY_STAGE needs several stages.
    """
    period, by_stage = _PERIODS[recompute], recompute == _BY_STAGE
    divides = np.where(by_stage, stages > 1, num_layers % (stages * period) == 0)
    return np.asarray(((period == 1) & ~by_stage) | (divides & (activations == 0)))


def on_rows(candidates: Candidates, rank: Ints) -> Candidates:
    """Rows of ``on_ranks`` for these pipeline ranks, one each; the single row where all ranks share one."""
    return candidates.take(rank) if len(candidates) > 1 else candidates


def own(values: Floats) -> Floats:
    """Every rank's value in its own row, (..., ranks), from (..., ranks, rows of ``on_ranks``)."""
    return values[..., 0] if values.shape[-1] == 1 else values.diagonal(axis1=-2, axis2=-1)


def _looked_up(codes: Ints, value: Callable[[str], float]) -> Floats:
    """``value`` of every candidate's policy, (n,); a policy still to be chosen counts as none and repeats nothing."""
    return _rows_looked_up(codes, lambda policy: (value(policy),), 1)[0]


def _rows_looked_up(codes: Ints, values: Callable[[str], Sequence[float]], number: int) -> Floats:
    """``_looked_up`` for a ``number`` of values at once, (number, n)."""
    table = np.zeros((number, len(RECOMPUTES) + 1))
    for code in np.flatnonzero(np.bincount(codes, minlength=1)).tolist():
        table[:, code] = values("none" if code == ANY_POLICY else RECOMPUTES[code])
    out: Floats = table[:, codes]
    return out


def kept_bytes(layer: LayerProfile, candidates: Candidates) -> Floats:
    """Activation bytes per token that one layer holds for its backward pass, (n,)."""
    parts = _rows_looked_up(candidates.recompute, lambda policy: columns_of(layer.kept(policy)), len(_KEPT))
    if (later := candidates.rerun_open).any():
        parts = np.where(later, np.array(columns_of(layer.least_kept))[:, None], parts)
    sharded, replicated, of_context, of_tp, of_experts, of_divided = parts
    divided = sharded + of_context * (candidates.cp - 1) + of_tp * (candidates.tp > 1)
    divided = divided + of_divided * (candidates.tp - 1) * (candidates.expert_lanes == 1)
    return (divided + of_experts * (candidates.expert_ranks > 1)) / candidates.tp + replicated


def kept_by_block(profile: ModelProfile, candidates: Candidates) -> Floats:
    """``kept_bytes`` of a layer of every block, (blocks, n)."""
    return np.stack([kept_bytes(layer, candidates) for layer in profile.layers])[profile.of_blocks]


def rerun_bytes(layer: LayerProfile, candidates: Candidates) -> Floats:
    """Activation bytes per token that a recomputed layer holds while it runs again, beyond what it keeps, (n,)."""
    rerun = _RERUN[candidates.recompute]
    whole = replace(candidates, recompute=np.zeros_like(candidates.recompute))  # so are policies still to be chosen
    again: Floats = kept_bytes(layer, whole) - kept_bytes(layer, replace(candidates, recompute=rerun))
    return again


def partly_again(candidates: Candidates) -> Floats:
    """1 where every layer recomputes a part of itself, else 0, (n,)."""
    out: Floats = _PARTLY[candidates.recompute]
    return out


def layers_again(candidates: Candidates) -> Floats:
    """Share of the layers that are recomputed whole, (n,)."""
    out: Floats = _WHOLE[candidates.recompute]
    return out


def gathers_once(layer: LayerProfile, candidates: Candidates) -> Floats:
    """Gathers (= scatters) over tp of one forward pass of a layer, (n,)."""
    return layer.tp_gathers + _routed_gathers(layer, candidates)


def _routed_gathers(layer: LayerProfile, candidates: Candidates) -> Floats:
    """Gathers of a layer's routed experts, (n,); 0 where experts lie on the lanes of tp."""
    return np.where(candidates.expert_lanes > 1, 0.0, layer.routed_gathers)


def gathers_again(layer: LayerProfile, candidates: Candidates) -> Floats:
    """Gathers (= scatters) over tp that a backward pass repeats in one layer, (n,)."""
    again = _looked_up(candidates.recompute, layer.gathers_again)
    if not layer.routed_tokens:
        return again
    return again + _routed_gathers(layer, candidates) * _looked_up(candidates.recompute, layer.routed_again)


def keys_again(profile: ModelProfile, candidates: Candidates) -> Floats:
    """Share of the layers with an exchange over cp whose forward exchange runs once more in the backward pass, (n,)."""
    return _looked_up(candidates.recompute, profile.keys_again)


def regathers(candidates: Candidates, by: KeptBy) -> Floats:
    """1 where the backward pass gathers the keys and values of its attention again, else 0, (n,)."""
    return _looked_up(candidates.recompute, lambda policy: float(regathers_keys(policy, by)))


def tokens_again(profile: ModelProfile, candidates: Candidates) -> Floats:
    """How often dispatch and combine run once more in the backward pass, (n,)."""
    return _looked_up(candidates.recompute, profile.tokens_again)


def elementwise_again(layer: LayerProfile, candidates: Candidates) -> Floats:
    """Share of a layer's element-wise work that its backward pass repeats, (n,)."""

    def share(policy: str) -> float:
        if policy == "selective" or rerun_share(policy):
            return rerun_share(policy) or 1.0
        again = sum(one.elementwise_bytes for one in layer.recomputed(policy))
        return again / layer.elementwise_bytes if layer.elementwise_bytes else 0.0

    return _looked_up(candidates.recompute, share)
