"""Lower bounds on the passes of heterogeneous ranks: exposed sharded parameters, one micro-batch's path, and warm-up.

Symbols       as in ``mixed_pools``; i  replica class with m_i micro-batches (some class has m or more);  r  pipeline rank;
              P[r,i] its passes, W[r,i] its exposed waits, t  seconds that the fullest rank takes at least to gather and
              scatter its layers in one micro-batch (``least_passes.Travel``). All layers count as its mean layer
1 busiest     A rank takes P + W or more for a micro-batch, and g or more for each of its layers, g a call of the
              smallest layer's bytes: no call takes less than one of fewer bytes, nor less per byte than one of more.
              max(Σ (P + W), Σ g) is no less than either sum. So the bound of ``mixed_pools`` on m·T holds with the
              seconds of a type's layers replaced by the longer of both.
2 filled      The fullest rank is busy for m·t or more. So is, with its own t, the rank of a replica with most expert
              parameters. It has the mean of all ranks or more of these, and the dense parameters of as many layers.
              Links that all groups share carry the mean rank's calls in m⁻ micro-batches or more
3 first piece The first layer of a chunk is gathered before its pass, the last one's gradients are scattered after it: λ
              of every micro-batch on all v chunks of a rank, beyond all that is computed. Every replica has m⁻
              micro-batches or more, so step ≥ (the bound without it) + m⁻·λ; one of these may overlap with gradients,
              which are counted there. Of m·T alone: Σ f·m_i·(P + W + λ), f ≥ φ, gives step ≥ m·(T + λ·φ·G/Σ f) for G
              groups.
4 path        Where the backward is whole, every micro-batch passes all layers of the model forward, then backward, and the
              messages between all stages twice; no layer is faster than on its fastest type.
5 trunk       A pipeline with ranks in two buildings sends, in either direction, a message or more for every micro-batch
              and chunk (``DualPipe``, whose chunks are copies: for every micro-batch). Where there are only two
              buildings, it also sends those from the last rank back to the first (``least_waits.messages_one_way``). So
              a link is busy for as long as all pipelines that cross take turns on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.layer_seconds import StackedTimes, recomputed_s
from scaleacross.cost_models.least_passes import Travel
from scaleacross.cost_models.least_waits import boundary_delays, messages_one_way, way_s
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.memory import Held
from scaleacross.cost_models.messages import Boundary
from scaleacross.cost_models.overlap import BUSY, CALLS, EVERY_PASS
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among, folded
from scaleacross.cost_models.sharding import pass_gathers, reduced_every_pass
from scaleacross.cost_models.stages import block_counts
from scaleacross.cost_models.traffic import Volumes
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.workloads.layer_profile import ModelProfile

Speed = Callable[[Candidates, Floats], Floats]
"""Function that returns Σ f over all groups, (n,), of candidates with shares f of the reference work, (types, n)."""


def path_s(profile: ModelProfile, candidates: Candidates, seconds: Floats, message: Boundary | None) -> Floats:
    """Return bound 4 of the module docstring, s, (n,); 0 where backwards are split.

    Args:
        seconds: passes and waits of a layer of each block type and both ends, (types, block types + 2, n).
    """
    least, counts = seconds.min(axis=0), np.array([*block_counts(profile), 1, 1])
    path: Floats = counts @ least
    if message is not None:
        path = path + 2 * way_s(candidates, boundary_delays(message))
    return np.where(among(candidates.schedule, WHOLE), path, 0.0)


def trunk_messages_s(pool: AcceleratorPool, links: Links, volumes: Volumes, strides: Ints, fewest: Ints) -> Floats:
    """Return bound 5 of the module docstring, s, (k, n), with pipeline ranks ``strides`` (k, n) apart.

    Every pipeline has ``fewest`` micro-batches (n,) or more, and all together have m each in the mean.
    """
    candidates = volumes.candidates
    pipelines = candidates.world_size // candidates.pp
    crossing = pool.must_cross(np.broadcast_to(candidates.pp, strides.shape), strides, candidates.world_size)[..., 0]
    # if all pipelines cross, they have m micro-batches in the mean; those that cross alone may have fewest
    batches = np.where(crossing >= pipelines, candidates.num_micro_batches, fewest)
    ways = max(1, len(pool.buildings) - 1)
    every = messages_one_way(volumes, np.full(len(candidates), float(links.two_buildings)))
    message = volumes.hidden_bytes / candidates.tp
    busy: Floats = np.ceil(crossing / ways) * batches * every * message / links.capacity[CAMPUS:].max()
    return busy


def prefix_share(candidates: Candidates, times: Sequence[StackedTimes], seconds: Floats) -> Floats:
    """Return d of ``heterogeneous_ranks``, (n,): the least share of a rank's micro-batch that its first chunk adds to warm-up.

    With a whole backward it is the pass through that chunk, otherwise its forward. The chunk has 1/v of the rank's
    layers or more, from three chunks on v/(2v−1) times that, where the middle ones take the remainder
    (``split_layers``). With several chunks they may be of the fastest block type. It is 0 for ``DualPipe``, which fills
    from both ends.
    """
    seconds, chunks = seconds[:, :-1], candidates.num_chunks  # the head comes after all others
    forward = np.stack([each.forward_s[:-1] for each in times])
    certain = np.where(among(candidates.schedule, WHOLE), seconds, forward)
    shares = np.where(seconds > 0, certain / np.where(seconds > 0, seconds, 1.0), 1.0)
    unequal = certain[:, :-1].min(axis=1) / seconds[:, :-1].max(axis=1)
    of_many = np.minimum(unequal, shares[:, -1]) / np.where(chunks > 2, 2 * chunks - 1, chunks)
    least: Floats = np.where(chunks > 1, of_many, shares.min(axis=1)).min(axis=0)
    return np.where(among(candidates.schedule, ("DualPipe",)), 0.0, least)


def of_most_experts(volumes: Volumes, held: Held) -> Volumes | None:
    """Return ``volumes`` with the least parameters of the rank that has most expert parameters (bound 2).

    None where nothing travels in every micro-batch, or without experts.

    Args:
        held: parameters of a layer of each block type, (block types, n).
    """
    candidates, experts = volumes.candidates, held.expert
    travels = (pass_gathers(candidates) > 0) | reduced_every_pass(candidates)
    if not (experts.any() and travels.any()):
        return None
    mean = np.array(block_counts(volumes.profile)) @ experts / candidates.pp
    dense = np.where(experts > 0, held.dense / np.where(experts > 0, experts, 1.0), np.inf).min(axis=0) * mean
    return replace(volumes, work=replace(volumes.work, dense_parameters=dense, expert_parameters=mean))


def least_chunks(candidates: Candidates, num_layers: int) -> Ints:
    """Return the least number of a rank's chunks that hold layers, (n,).

    With more virtual stages than layers, an end of the model may have a virtual stage of its own. Where stages form a V,
    one rank may hold both ends.
    """
    alone = candidates.pp * candidates.num_chunks > num_layers
    return np.asarray(candidates.num_chunks - alone * (1 + folded(candidates.schedule)))


@dataclass(frozen=True)
class ShardedPasses:
    """Bounds 1 to 3 of the module docstring, for parameters or gradients that travel in every micro-batch.

    Attributes:
        times: of layers, on every accelerator type.
        waits_s: tp, cp and ep waits of a layer of each block type and both ends, (types, block types + 2, n).
        traffic_s: of ``volumes``, (windows, n): a call with the least dense parameters of the fullest rank.
        of_experts_s: of ``of_most_experts``, (TRAFFIC_ROWS, n); 0 without experts.
        held: parameters of a layer of each block type, (block types, n), and of both ends, (1, n).
        speed: Σ f of all groups.
    """

    volumes: Volumes
    times: Sequence[StackedTimes]
    waits_s: Floats
    traffic_s: Floats
    of_experts_s: Floats
    held: tuple[Held, Held]
    speed: Speed

    def least_s(self, others_s: Floats, fewest: Ints) -> Floats:
        """Return a lower bound on the step without what comes once in a step, s, (n,).

        Args:
            others_s: bound that ignores this traffic.
            fewest: m⁻.
        """
        candidates, (pace, speed, slowest) = self.volumes.candidates, self._pace(sent=False)
        m, piece = candidates.num_micro_batches, self._first_piece_s
        groups = slowest * candidates.pp * candidates.dp / speed
        pieced = np.maximum(others_s + (fewest - 1) * piece, m * (pace + piece * groups))
        filled = np.maximum(m * np.maximum(self._travel_s, self._experts_travel_s), m * self._pace(sent=True)[0])
        shared = fewest * self.of_experts_s[BUSY][EVERY_PASS].sum(axis=0)
        return np.maximum(np.maximum(pieced, filled), shared)

    def _pace(self, *, sent: bool) -> tuple[Floats, Floats, Floats]:
        """Return T of ``mixed_pools``, Σ f and φ, (n,) each, of layers that compute.

        ``sent``: layers compute or travel, whichever takes longer.
        """
        counts, candidates = np.array(block_counts(self.volumes.profile)), self.volumes.candidates
        layers, travel = self.waits_s[:, :-2] + sum(self._passes), self._piece * self._travel_s
        longer = sent & (np.einsum("k,tkn->tn", counts, layers) < counts.sum() * travel)
        layers = np.where(longer[:, None], travel, layers)
        least = layers.min(axis=0)
        f = (least / layers).max(axis=1)
        speed = self.speed(candidates, f)
        return candidates.dp * (counts @ least) / speed, speed, f.min(axis=0)

    @cached_property
    def _passes(self) -> tuple[Floats, Floats]:
        """Forward and backward of a layer of each block type, s, (types, block types, n) each."""
        again = [recomputed_s(each, self.volumes.candidates) for each in self.times]
        backward = (each.backward_s + more for each, more in zip(self.times, again, strict=True))
        return np.stack([each.forward_s[:-2] for each in self.times]), np.stack([each[:-2] for each in backward])

    @property
    def _first_piece_s(self) -> Floats:
        """λ of the module docstring, s, (n,)."""
        chunks = least_chunks(self.volumes.candidates, self.volumes.profile.num_layers)
        dense = self._piece * self.traffic_s[EVERY_PASS].sum(axis=0)
        return np.asarray(
            chunks * np.maximum(dense, self._piece_of_experts * self.of_experts_s[CALLS][EVERY_PASS].sum(axis=0))
        )

    @property
    def _piece(self) -> Floats:
        """Least share of ``traffic_s`` that a call of the smallest layer takes, (n,)."""
        smallest = self.held[0].dense.min(axis=0)
        return np.asarray(smallest / np.maximum(self.volumes.work.dense_parameters, smallest))

    @property
    def _piece_of_experts(self) -> Floats:
        """Least share of ``of_experts_s`` that the calls of a layer take, (n,); 0 where a layer has no experts."""
        most = of_most_experts(self.volumes, self.held[0])
        if most is None:
            return np.zeros(len(self.volumes.candidates))
        dense, expert = most.work.dense_parameters, most.work.expert_parameters
        share = np.minimum(self.held[0].dense / dense, self.held[0].expert / expert).min(axis=0)
        return np.asarray(np.minimum(1.0, share))

    @cached_property
    def _travel_s(self) -> Floats:
        """t of the module docstring, s, (n,)."""
        return self._travel.least_s(*self.traffic_s[EVERY_PASS])

    @property
    def _experts_travel_s(self) -> Floats:
        """t of the rank with most expert parameters, s, (n,)."""
        return self._travel.least_s(*self.of_experts_s[CALLS][EVERY_PASS])

    @property
    def _travel(self) -> Travel:
        return Travel.of(self.volumes.candidates, bool(self.volumes.profile.num_experts))
