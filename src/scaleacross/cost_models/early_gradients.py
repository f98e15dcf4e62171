"""Bounds on gradients that may cross buildings, where ranks use links one after another (``crossing_gradients``).

Whichever stage has its gradients first, the last micro-batch has passed all stages forward by then. So the busiest rank
r has run all its forward passes. It has run all backward passes, too, except those of the K chunk activations that it
may hold (``max_in_flight``). From then on the links carry N seconds of gradients:

    step ≥ Σ_{s<r} F_s + m·(F+B)_r − K·B_chunk + N = ``computation_s`` + N − lead

Later waits of the pipeline lengthen the window (``least_waits.Waits.early_s`` are the earlier ones). Groups of one rank
end no sooner than with the links to themselves.

Of parameters only the first bucket certainly delays the step: others may arrive before the first forward passes that
need them. A single rank has nothing before that but the layers of its first micro-batch and their waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import hidden_reductions
from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.overlap import GRADIENTS, WINDOW_NAMES, Window
from scaleacross.cost_models.pipeline.delay import microbatches_per_round
from scaleacross.cost_models.pipeline.timed_bounds import among, max_in_flight
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.work import Work
from scaleacross.schedules.pipeline import ROUNDS
from scaleacross.spec.parallelism import SCHEDULE_NAMES

BOTH_WAYS: Final = SCHEDULE_NAMES.index("DualPipe")
"""Schedule whose micro-batches pass the ranks in both directions, so that those of one direction may end first."""


class Early(NamedTuple):
    """Figures for bounds on gradients that cross buildings, each (..., n).

    Attributes:
        lead_s: most seconds by which computation outlasts the first gradients; −inf where these do not cross buildings.
        mean, least: gradients of all ranks in the mean, and of the emptiest rank, divided by those that traffic counts.
        batches: micro-batches of a single rank; 0 where there are several ranks.
    """

    lead_s: Floats
    mean: Floats
    least: Floats
    batches: Floats

    @property
    def gradients_cross(self) -> Bools:
        """Candidates whose gradients cross buildings, (..., n)."""
        return np.asarray(self.lead_s > -np.inf)

    def where(self, crosses: Bools) -> Early:
        """These figures with ``lead_s`` restricted to the candidates marked in ``crosses``."""
        return self._replace(lead_s=np.where(crosses, self.lead_s, -np.inf))

    def alone(self, traffic_s: Floats, unshared_s: Floats) -> Floats:
        """Lower bound on traffic, (TRAFFIC_ROWS, ..., n), where ranks use inter-building links one after another.

        Gradients have the seconds of one rank's groups, ``unshared_s`` (``unshared_links_s``), and the busy seconds of all
        ranks.
        """
        out = np.array(np.broadcast_to(traffic_s, (len(traffic_s), *self.lead_s.shape)))
        out[GRADIENTS] = np.where(self.gradients_cross, self.least * unshared_s[0], out[GRADIENTS])
        out[len(WINDOW_NAMES) + GRADIENTS] *= np.where(self.gradients_cross, self.mean, 1.0)
        return out

    def overlapping(self, over: Sequence[Window], waited_s: Floats, before_s: Floats | float) -> tuple[Window, ...]:
        """The windows of pipelines that wait at most ``waited_s``, (..., n).

        At least ``before_s`` of these come before any stage has its gradients.
        """
        crosses, (gradients, parameters, *others) = self.gradients_cross, over
        length_s = np.where(crosses, np.where(crosses, self.lead_s, 0.0) + waited_s - before_s, gradients.length_s)
        single = self.batches > 0
        first = np.where(single, waited_s / np.maximum(1.0, self.batches), np.inf)
        held_s = np.where(crosses, parameters.length_s + first, parameters.length_s)
        return gradients._replace(length_s=length_s), parameters._replace(length_s=held_s), *others


def early_gradients(volumes: Volumes) -> Early | None:
    """Figures of candidates, as if their gradients all crossed buildings; None where gradients are not overlapped."""
    candidates = volumes.candidates
    if not volumes.job.overlap.gradient_reduce:
        return None
    lead = np.where(hidden_reductions(volumes.job.overlap, candidates), lead_s(candidates, volumes.work), -np.inf)
    if volumes.order is not None:
        # an order of the plan's own may compute gradients at any time, so nothing bounds the lead
        lead[lead > -np.inf] = np.inf
    batches = np.where(candidates.pp == 1, candidates.num_micro_batches, 0).astype(np.float64)
    return Early(lead, volumes.work.mean_held_share, volumes.work.least_held_share, batches)


def lead_s(candidates: Candidates, work: Work) -> Floats:
    """Most seconds by which ``computation_s`` outlasts the first gradients of any stage, (n,)."""
    last = candidates.pp - 1 - work.ranks_after.astype(np.int64)
    return np.asarray(work.fill_backward_s + _held(candidates, last) * work.chunk_backward_s)


def before_gradients(candidates: Candidates, fewest: Ints) -> Floats:
    """Least share of computation, with warm-up and cool-down, before the first gradients of any stage, (n,).

    It holds for arbitrarily heterogeneous ranks with ``fewest`` micro-batches or more. With K' chunk activations that a
    rank may hold of any one chunk it is (m − K') / (m + p − 1), because ``heterogeneous_ranks`` counts at most p − 1 passes
    for warm-up and cool-down.
    """
    share: Floats = np.maximum(0.0, fewest - _held_of_chunk(candidates)) / (fewest + candidates.pp - 1)
    return share


def early_backwards(candidates: Candidates) -> Floats:
    """Micro-batches that have passed every chunk of every rank backward before any stage has its gradients, (n,)."""
    return np.maximum(0.0, candidates.num_micro_batches - _held_of_chunk(candidates))


def _held_of_chunk(candidates: Candidates) -> Ints:
    """Chunk activations that any rank may hold of one chunk, (n,). The fullest rank is the first or the last."""
    a_round = microbatches_per_round(candidates.pp, candidates.num_micro_batches)
    held = np.maximum(_held(candidates, np.zeros_like(candidates.pp)), _held(candidates, candidates.pp - 1))
    return np.asarray(np.where(among(candidates.schedule, ROUNDS), np.minimum(held, 2 * a_round), held))


def _held(candidates: Candidates, rank: Ints) -> Ints:
    """Chunk activations that a rank may hold, (n,)."""
    every = candidates.num_micro_batches * candidates.num_chunks
    held = max_in_flight(
        candidates.schedule_names, candidates.pp, candidates.num_micro_batches, candidates.num_chunks, rank
    )
    return np.asarray(np.where(candidates.schedule == BOTH_WAYS, every, np.minimum(held, every)))
