"""Bounds on passes whose layers gather parameters and scatter gradients (timed by ``pipeline.shard_passes``).

There are m micro-batches, v chunks, and n layers on the fullest rank, n' or more on every rank. All calls in a forward
and a backward pass of the fullest rank take t_F and t_B seconds if all its layers are its mean layer. A layer has the
parameters of its chunk's mean layer, and a larger call takes no more seconds per byte. So calls for x of the parameters
take at least x of the seconds (``work.ShardShares``: x of the busiest rank, x' of the fullest, y of all ranks in the
mean).

* Beyond all else that a rank does: the first layer of every chunk is gathered before it runs, and the gradients of the
  last one are scattered after it has run, both through all communicators. Besides, products lose speed to calls while
  both last

      m · ((t_F + t_B)·x·v/n + taken·(min(t_F·x·n'/n, F/(1 − taken)) + min(t_B·x·n'/n, B/(1 − taken))))

  with F and B of the chunk that computes least, which any other outlasts; B counts whole backwards only.
* In all, on the fullest rank: a layer is gathered through all communicators no sooner than the one before begins, so
  passes that gather take at least t_F. In a pass that scatters, one of the k communicators makes calls for at least
  t_R/k, one after another; t_R = t_B − t_F where backward passes gather, else t_B. In whole backward passes that
  gather, too, one call follows another. For the communicator that gathers last reduces first, so a layer is reduced
  after the gather of the next one; and the communicator that reduces last gathers first. Of the last two layers of a
  chunk, this holds for one communicator's reductions only. Inter-building links, which all ranks share, carry N_F and
  N_B

      m · max(x'·(t_F + t_B − (1 − 1/k)·t_R·z), y·(N_F + N_B))      z = v/n of whole backward passes that gather, else 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats
from scaleacross.cost_models.overlap import BUSY, CALLS, EVERY_PASS, Window, computation_s, num_communicators
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among
from scaleacross.cost_models.sharding import pass_gathers, reduced_every_pass
from scaleacross.cost_models.traffic import Volumes


class Travel(NamedTuple):
    """How calls of passes follow one another, each (n,).

    Attributes:
        again: 1 where backward passes gather, else 0.
        overlapped: the largest share of reductions that overlaps with other calls, (1 − 1/k)·z.
    """

    again: Floats
    overlapped: Floats

    @classmethod
    def of(cls, candidates: Candidates, experts: Bools | bool, piece: Floats | float = 1.0) -> Travel:
        """``Travel`` of candidates.

        Args:
            experts: whether the model's experts have a communicator of their own.
            piece: v/n, or 1 where that is not known.
        """
        again = pass_gathers(candidates) > 1
        last = np.where(again & among(candidates.schedule, WHOLE), piece, 1.0)
        return cls(again.astype(np.float64), (1 - 1 / num_communicators(candidates, experts)) * last)

    def least_s(self, forward_s: Floats, backward_s: Floats) -> Floats:
        """Lower bound on the seconds of a micro-batch's calls on the fullest rank, (..., n), from t_F and t_B."""
        return np.asarray(forward_s + backward_s - self.overlapped * (backward_s - self.again * forward_s))


class LeastPasses(NamedTuple):
    """Figures that bounds use for candidates of which some shard parameters or gradients, each (n,).

    Attributes:
        micro_batches: m.
        piece, least_share: x·v/n and x·n'/n.
        fullest_share, mean_share: x' and y.
        contention: as in the module docstring.
        overlapped_s: F and B over 1 − taken, (2, n).
        computed_s: computation of the pipeline (``computation_s``).
        every_pass: whether gradients are scattered in every pass.
    """

    micro_batches: Floats
    piece: Floats
    least_share: Floats
    fullest_share: Floats
    mean_share: Floats
    travel: Travel
    contention: Floats
    overlapped_s: Floats
    computed_s: Floats
    every_pass: Bools

    @classmethod
    def of(cls, volumes: Volumes) -> LeastPasses | None:
        """Figures of these candidates; None where no candidate shards parameters or gradients."""
        candidates, work = volumes.candidates, volumes.work
        if not (pass_gathers(candidates).any() or reduced_every_pass(candidates).any()):
            return None
        contention, v = work.least_contention_fraction * (1 - work.elementwise_fraction), candidates.num_chunks
        back = np.where(among(candidates.schedule, WHOLE), work.least_backward_s, 0.0)
        return cls(
            candidates.num_micro_batches.astype(np.float64),
            work.own_layer_share * v / work.buckets,
            work.own_layer_share * np.minimum(1.0, work.least_layers / work.buckets),
            work.fullest_layer_share,
            work.mean_shard_share,
            Travel.of(candidates, work.expert_parameters > 0, np.minimum(1.0, v / work.buckets)),
            contention,
            np.stack([work.least_forward_s, back]) / v / (1 - contention),
            computation_s(candidates, work),
            reduced_every_pass(candidates),
        )

    def overlapping(self, over: Sequence[Window], waited_s: Floats) -> tuple[Window, ...]:
        """The windows of passes that wait at most ``waited_s`` in all, (..., n).

        Where passes scatter gradients, gradients reduced once in a step may overlap with these waits, too.
        """
        gradients, *others = over
        length_s = gradients.length_s + np.where(self.every_pass, waited_s, 0.0)
        return gradients._replace(length_s=length_s), *others

    def bounds_s(self, traffic: Floats) -> tuple[Floats, Floats]:
        """Lower bounds on the pipeline's seconds, (..., n) each: beyond all else that its busiest rank does, and in
        all.

        Args:
            traffic: sum of ``window_traffic.least_communicators``, (TRAFFIC_ROWS, ..., n). Both bounds are 0 without
                any in EVERY_PASS.
        """
        (forward, backward), busy = traffic[CALLS][EVERY_PASS], traffic[BUSY][EVERY_PASS]
        some = self.least_share
        overlapped = np.minimum(some * forward, self.overlapped_s[0]) + np.minimum(
            some * backward, self.overlapped_s[1]
        )
        beyond = self.micro_batches * (self.piece * (forward + backward) + self.contention * overlapped)
        travel, links = self.travel.least_s(forward, backward), busy.sum(axis=0)
        whole = self.micro_batches * np.maximum(self.fullest_share * travel, self.mean_share * links)
        return beyond, whole
