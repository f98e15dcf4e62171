"""State sharded by a shard level, and how often it is communicated: tables over SHARD_LEVELS, by candidate."""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats
from scaleacross.spec.parallelism import PASS_GATHERS, REDUCED_EVERY_PASS, SHARD_LEVELS

_REDUCED: Final = np.array([level in REDUCED_EVERY_PASS for level in SHARD_LEVELS])
_GATHERS: Final = np.array([float(PASS_GATHERS.get(level, 0)) for level in SHARD_LEVELS])


def reduced_every_pass(candidates: Candidates) -> Bools:
    """Whether every micro-batch reduces its gradients into shards, layer by layer, (n,); otherwise once per step."""
    out: Bools = _REDUCED[candidates.shard]
    return out


def pass_gathers(candidates: Candidates) -> Floats:
    """Times that a micro-batch gathers a layer's parameters, (n,): 2 before either pass, 1 before the first, 0
    never."""
    out: Floats = _GATHERS[candidates.shard]
    return out


def gathered_once(candidates: Candidates) -> Bools:
    """Whether updated parameters are gathered once per step, (n,)."""
    out: Bools = (candidates.shard != SHARD_LEVELS.index("none")) & (pass_gathers(candidates) == 0)
    return out
