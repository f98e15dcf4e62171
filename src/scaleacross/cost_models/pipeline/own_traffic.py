"""Times actions of ranks that concurrently reduce gradients, or gather parameters, each over its own links.

A stage has N seconds of traffic in n buckets. Buckets travel one after another, also while their rank waits. An action
of d seconds alone that overlaps with h seconds of traffic takes d + ρ·h.

* gradients   The first bucket of a stage starts once 1/n of its last backward pass is computed. h is the remaining
              traffic of earlier stages and (1 − 1/n) · min(N, d) of its own, d at most.
* parameters  All start with the step, in the order of first forward passes. Such a pass begins with its first bucket,
              and computes its last 1/n when all of its buckets are there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.pipeline.compiled import KINDS, CompiledSchedule
from scaleacross.schedules.pipeline import Kind


class OwnTraffic(NamedTuple):
    """Gradients, or parameters, of every virtual stage, which travel once in a step.

    Attributes:
        seconds: N, (p·v,).
        pieces: n, (p·v,).
        loss: ρ, (p·v,).
        gathered: whether they are parameters, (1,).
    """

    seconds: Floats
    pieces: Floats
    loss: Floats
    gathered: Bools


def run_with_traffic(
    compiled: CompiledSchedule, seconds: Floats, latency: Floats, occupancy: Floats, traffic: OwnTraffic
) -> tuple[Floats, Floats, Floats, Floats]:
    """Start and end of actions, arrival of messages, end of every rank's traffic; arguments as of ``run_sharing``."""
    from scaleacross.cost_models.pipeline import action_loop as loop  # late: it brings the compiler

    of, ranks = compiled.stage, compiled.schedule.num_ranks
    due_s, begins_s, ends_s, left_s = 0 * seconds, seconds + np.inf, seconds + np.inf, np.zeros(ranks)
    if traffic.gathered:
        first = np.flatnonzero((compiled.kind == KINDS[Kind.F]) & (compiled.microbatch == 0))
        np.add.at(left_s, compiled.rank[first], traffic.seconds[of[first]])
        for rank in range(ranks):
            own = first[compiled.rank[first] == rank]
            # parameters arrive in the order of first passes: when a pass ends, only those of later stages may be left
            ends_s[own] = left_s[rank] - np.cumsum(traffic.seconds[of[own]])
        begins_s[first] = ends_s[first] + (traffic.seconds * (1 - 1 / traffic.pieces))[of[first]]
    else:
        last = (compiled.kind == KINDS[Kind.B]) & (compiled.microbatch == compiled.schedule.num_microbatches - 1)
        due_s = last * traffic.seconds[of]
    columns = compiled.rank, compiled.needs, compiled.fills, compiled.link, seconds, occupancy, latency
    within = 1 - 1 / traffic.pieces[of]
    return loop.time_with_traffic(
        *columns, due_s, within, begins_s, ends_s, traffic.loss[of], left_s, compiled.num_slots
    )
