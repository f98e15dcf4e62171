"""Lower bounds on the passes of unlike ranks: what sharded parameters expose in every micro-batch, and the path of one of them.

Symbols       as in ``mixed_fleets``; i  replica class with m_i micro-batches (some class has m or more);  r  pipeline rank;
              P[r,i] its passes, W[r,i] what it waits for, e rounds of fill and drain (``Work.fill_rounds``), t  seconds in which
              the fullest rank gathers and scatters its layers in one micro-batch, whose traffic all ranks are priced with
Price         step ≥ pipeline of i + (m_i + e)·max(0, t − P[r,i] − H[r,i]) for every r and i. (m_i + e)·H ≤ m_i·W over ep, what
              runs concurrently with all-to-alls; pipeline of i ≥ m_i·(P + W)[r,i].
1 busiest     With Q[r,i] = max(P[r,i], t) + W[r,i] without ep, the price is m_i·Q[r,i] or more. t is no less than rank r's own
              traffic, Σ of its layers' g[k]: a call takes no less than one of fewer bytes, nor less per byte than one of more
              (pieces have the bytes of the largest layer and both ends at most). max(Σ P, Σ g) is no less than either sum. So
              the bound of ``mixed_fleets`` on m·T holds with the seconds of a type's layers replaced by the longer of both,
              forward and backward each.
2 filled      Let q be the rank of i with least P. Where the backward is whole, the pipeline of i takes m_i·P of the last rank
              and the first chunk, d·P or more, of the p − 1 others: (m_i + (p − 1)·d)·P[q,i] or more. (p − 1)·d ≤ e. So

                  step ≥ (m + (p − 1)·d)·t

3 first piece Of n pieces one is exposed in every round, and products lose speed to the others: λ ≥ t/n + (1 − 1/n)·taken·t
              beyond all that is computed. Every replica has m⁻ micro-batches or more, so step ≥ (the bound without it) + m⁻·λ;
              one of these rounds may hide gradients, which are counted there. Of m·T alone: Σ f·m_i·(P + W + λ), f ≥ φ, gives
              step ≥ m·(T + λ·φ·G/Σ f) for G groups.
4 path        Where the backward is whole, every micro-batch passes all layers of the model forward, then backward, and the
              messages between all stages twice; no layer is faster than on its fastest type.

Candidates whose recompute policy is still open (``Candidates.rerun_open``) leave out 2: d of a candidate may be less than theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.layer_seconds import StackedTimes, recomputed_s
from scaleacross.cost_models.least_waits import boundary_delays
from scaleacross.cost_models.memory import Held
from scaleacross.cost_models.messages import Boundary
from scaleacross.cost_models.overlap import EVERY_PASS
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among, folded
from scaleacross.cost_models.stages import block_counts
from scaleacross.cost_models.traffic import Volumes
from scaleacross.workloads.layer_profile import ModelProfile

Speed = Callable[[Candidates, Floats], Floats]
"""Σ f over all groups, (n,), of candidates with shares f of the reference work, (types, n)."""


def path_s(profile: ModelProfile, candidates: Candidates, seconds: Floats, message: Boundary | None) -> Floats:
    """4 of the module docstring, (n,); 0 where backwards are split.

    Args:
        seconds: passes with their waits of a layer of each block type and both ends, (types, block types + 2, n).
    """
    least, counts = seconds.min(axis=0), np.array([*block_counts(profile), 1, 1])
    path: Floats = counts @ least
    if message is not None:
        delays, v = boundary_delays(message), candidates.num_chunks
        loops = np.where(folded(candidates.schedule), 0, v - 1) * np.asarray(delays.loop_s)
        path = path + np.where(candidates.pp > 1, 2 * (v * delays.total_s(candidates.pp) + loops), 0.0)
    return np.where(among(candidates.schedule, WHOLE), path, 0.0)


@dataclass(frozen=True)
class ShardedPasses:
    """1 to 3 of the module docstring, of candidates whose parameters or gradients travel in every micro-batch.

    Attributes:
        times: of layers, on every accelerator type.
        waits_s: of a layer of each block type and both ends for tp, cp and ep, (types, block types + 2, n).
        inner_s: the same but for ep.
        traffic_s: of ``volumes``, (windows, n): one call with the dense parameters that the fullest rank holds at least.
        held: parameters of a layer of each block type, (block types, n), and of both ends, (1, n).
        first_share: d.
        speed: Σ f of all groups.
    """

    volumes: Volumes
    times: Sequence[StackedTimes]
    waits_s: Floats
    inner_s: Floats
    traffic_s: Floats
    held: tuple[Held, Held]
    first_share: Floats
    speed: Speed

    def least_s(self, others_s: Floats, fewest: Ints) -> Floats:
        """Lower bound on all but what comes once in a step, (n,).

        Args:
            others_s: bound that knows nothing of this traffic.
            fewest: m⁻.
        """
        candidates, (pace, speed, slowest) = self.volumes.candidates, self._pace(sent=False)
        m, piece = candidates.num_micro_batches, self._first_piece_s
        groups = slowest * candidates.pp * candidates.dp / speed
        pieced = np.maximum(others_s + (fewest - 1) * piece, m * (pace + piece * groups))
        fills = among(candidates.schedule, WHOLE) & ~candidates.rerun_open
        filled = (m + fills * (candidates.pp - 1) * self.first_share) * self.traffic_s[EVERY_PASS].sum(axis=0)
        return np.maximum(np.maximum(pieced, filled), m * self._pace(sent=True)[0])

    def _pace(self, *, sent: bool) -> tuple[Floats, Floats, Floats]:
        """T of ``mixed_fleets`` of layers that compute, or (``sent``) compute or travel, whichever is longer; Σ f and φ, (n,)."""
        counts, candidates = np.array(block_counts(self.volumes.profile)), self.volumes.candidates
        layers = np.array((self.inner_s if sent else self.waits_s)[:, :-2])
        for computed, traffic in zip(self._passes, self.traffic_s[EVERY_PASS], strict=True):
            travel = self._shares * traffic
            longer = sent & (np.einsum("k,tkn->tn", counts, computed) < counts @ travel)
            layers += np.where(longer[:, None], travel, computed)
        least = layers.min(axis=0)
        f = (least / layers).max(axis=1)
        speed = self.speed(candidates, f)
        return candidates.dp * (counts @ least) / speed, speed, f.min(axis=0)

    @cached_property
    def _passes(self) -> tuple[Floats, Floats]:
        """Forward and backward of a layer of each block type, (types, block types, n) each."""
        again = [recomputed_s(each, self.volumes.candidates) for each in self.times]
        backward = (each.backward + more for each, more in zip(self.times, again, strict=True))
        return np.stack([each.forward[:-2] for each in self.times]), np.stack([each[:-2] for each in backward])

    @property
    def _shares(self) -> Floats:
        """g of ``traffic_s``, at least, (block types, n): of the dense parameters, the least share of all that a rank holds."""
        each, ends = self.held
        dense = each.total * (each.dense / each.total).min(axis=0)
        largest = each.dense.max(axis=0) + ends.dense[0]
        return np.asarray(dense / np.maximum(self.volumes.work.dense_parameters, largest))

    @property
    def _first_piece_s(self) -> Floats:
        """λ, (n,)."""
        work, smallest = self.volumes.work, self.held[0].dense.min(axis=0)
        piece = smallest / np.maximum(work.dense_parameters, smallest)
        taken = (
            work.least_taken_fraction * (1 - work.elementwise_fraction) * (1 - 1 / self.volumes.candidates.num_chunks)
        )
        return np.asarray((piece + taken) * self.traffic_s[EVERY_PASS].sum(axis=0))
