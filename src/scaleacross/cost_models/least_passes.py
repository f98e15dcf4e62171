"""Bounds on passes whose layers gather their parameters and scatter their gradients (``pipeline.shard_passes`` times them).

Of m micro-batches, v chunks, n layers on the fullest rank and n' or more on every rank, with t_F and t_B seconds of all calls in
a forward and a backward pass of the fullest, were all its layers its mean layer. A layer has the parameters of its chunk's mean
layer, and a call takes no less per byte than one of more bytes. So calls for x of the parameters take x of the seconds or more
(``work.ShardShares``: x of the busiest rank, x' of the fullest, y of all ranks in the mean).

* beyond all else that a rank does: the first layer of every chunk is gathered before it runs, and the gradients of the last one
  are scattered after it has run, both through all communicators; and products lose speed to calls, as long as both last

      m · ((t_F + t_B)·x·v/n + taken·(min(t_F·x·n'/n, F/(1 − taken)) + min(t_B·x·n'/n, B/(1 − taken))))

  with F and B of the chunk that computes least, which any other outlasts, B of whole backwards
* in all, on the fullest rank: a layer is gathered through all communicators no sooner than the one before begins, so that
  passes that gather take t_F or more. Of the k communicators of a pass that scatters one makes calls for t_R/k or more, one
  after another, t_R = t_B − t_F where backward passes gather, else t_B. In whole backward passes that gather, too, one call
  follows another: the communicator that gathers last reduces first, so that a layer is reduced behind the gather of the next
  one, and that which reduces last gathers first; but of the last two layers of a chunk only one communicator's reductions do.
  And links between buildings, which all ranks share, carry N_F and N_B

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
    """How calls of passes follow one another, each (n,): whether backward passes gather, 1 or 0, and the share of reductions that
    overlaps with others at most, (1 − 1/k)·z."""

    again: Floats
    beside: Floats

    @classmethod
    def of(cls, candidates: Candidates, experts: Bools | bool, piece: Floats | float = 1.0) -> Travel:
        """``experts``: whether those of the model have a communicator of their own; ``piece``: v/n, 1 where that is not known."""
        again = pass_gathers(candidates) > 1
        last = np.where(again & among(candidates.schedule, WHOLE), piece, 1.0)
        return cls(again.astype(np.float64), (1 - 1 / num_communicators(candidates, experts)) * last)

    def least_s(self, forward_s: Floats, backward_s: Floats) -> Floats:
        """Seconds of a micro-batch on the fullest rank at least, (..., n), of t_F and t_B."""
        return np.asarray(forward_s + backward_s - self.beside * (backward_s - self.again * forward_s))


class LeastPasses(NamedTuple):
    """What bounds know of candidates some of which shard parameters or gradients, each (n,).

    Attributes:
        micro_batches: m; ``piece``: x·v/n; ``least_share``: x·n'/n; ``fullest_share``: x'; ``mean_share``: y.
        taken: as of the module docstring; ``overlapped_s`` (2, n): F and B over 1 − taken.
        computed_s: what the pipeline computes (``computation_s``).
        every_pass: whether gradients are scattered in every pass.
    """

    micro_batches: Floats
    piece: Floats
    least_share: Floats
    fullest_share: Floats
    mean_share: Floats
    travel: Travel
    taken: Floats
    overlapped_s: Floats
    computed_s: Floats
    every_pass: Bools

    @classmethod
    def of(cls, volumes: Volumes) -> LeastPasses | None:
        """None where no candidate shards either."""
        candidates, work = volumes.candidates, volumes.work
        if not (pass_gathers(candidates).any() or reduced_every_pass(candidates).any()):
            return None
        taken, v = work.least_taken_fraction * (1 - work.elementwise_fraction), candidates.num_chunks
        back = np.where(among(candidates.schedule, WHOLE), work.least_backward_s, 0.0)
        return cls(
            candidates.num_micro_batches.astype(np.float64),
            work.own_layer_share * v / work.buckets,
            work.own_layer_share * np.minimum(1.0, work.least_layers / work.buckets),
            work.fullest_layer_share,
            work.mean_shard_share,
            Travel.of(candidates, work.expert_parameters > 0, np.minimum(1.0, v / work.buckets)),
            taken,
            np.stack([work.least_forward_s, back]) / v / (1 - taken),
            computation_s(candidates, work),
            reduced_every_pass(candidates),
        )

    def behind(self, over: Sequence[Window], waited_s: Floats) -> tuple[Window, ...]:
        """The windows of passes that wait ``waited_s`` at most in all, (..., n): where these scatter gradients, what is reduced
        once in a step has that time, too."""
        gradients, *others = over
        length_s = gradients.length_s + np.where(self.every_pass, waited_s, 0.0)
        return gradients._replace(length_s=length_s), *others

    def bounds_s(self, traffic: Floats) -> tuple[Floats, Floats]:
        """Seconds of the pipeline beyond all else that its busiest rank does, and in all, (..., n) each, of ``traffic``
        (TRAFFIC_ROWS, ..., n).

        ``traffic``: of ``window_traffic.least_communicators``; 0 of both without any in EVERY_PASS.
        """
        (forward, backward), busy = traffic[CALLS][EVERY_PASS], traffic[BUSY][EVERY_PASS]
        some = self.least_share
        beside = np.minimum(some * forward, self.overlapped_s[0]) + np.minimum(some * backward, self.overlapped_s[1])
        beyond = self.micro_batches * (self.piece * (forward + backward) + self.taken * beside)
        travel, links = self.travel.least_s(forward, backward), busy.sum(axis=0)
        whole = self.micro_batches * np.maximum(self.fullest_share * travel, self.mean_share * links)
        return beyond, whole
