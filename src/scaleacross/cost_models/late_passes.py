"""Delay of a placed pipeline by gradients and parameters that overlap with its passes.

While they travel, they hold multiprocessors that products need and links that calls need (``overlap``,
``overlap_of_layers``). Those laws give the loss of one rank. But the last micro-batch goes back through one stage after
another, each of them late already, and the first one meets stages that wait for their parameters. So the pipeline takes
longer than any rank alone would make it. It is timed once more with the traffic of each rank
(``pipeline.own_traffic``). A pass loses multiprocessors while it computes, not during its calls.

The delay is 0 where layers wait for inter-building links that ranks share (``Actions.link_s``). A rank that waits for
these lets its traffic pass, and the pipeline timed here does not contain these waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.crossing_gradients import TINY_S, Ranks
from scaleacross.cost_models.overlap import CALLS, FREE, GRADIENTS, PARAMETERS, Window, together_s
from scaleacross.cost_models.pipeline.own_traffic import OwnTraffic


def later_s(of: Ranks, over: Sequence[Window], traffic: Sequence[Floats], crossing_parameters: bool) -> Floats:
    """Seconds by which gradients and parameters lengthen the pipeline, (2, ranks); 0 where ``link_s`` is given.

    One bucket and what they take from each rank's computation do not count, because windows count these.

    Args:
        of: ranks with whole backward passes.
        over: the windows that overlap with them.
        traffic: of all communicators, each (TRAFFIC_ROWS, ranks).
        crossing_parameters: whether parameters cross buildings; ``crossing_gradients`` computes their delay then.
    """
    work, every, longer = of.volumes.work, sum(traffic[1:], start=traffic[0]), np.zeros((2, len(of.volumes.candidates)))
    within = of.volumes.job.overlap.reduces_within(pipelined=True)
    passes, stages, rank = of.passes, of.stages, of.stages.rank
    if passes.link_s is not None:
        return longer
    alone = replace(passes, crossing=None)
    for window in (GRADIENTS, PARAMETERS):
        pace_s, one = together_s(traffic, work.buckets)[window], over[window]
        if not pace_s.any() or (window == PARAMETERS and crossing_parameters):
            continue
        held_s = one.contention_fraction * (every[CALLS] - every[FREE])[window]
        memory_s = work.hbm_s_per_byte * of.volumes.received_by_kind[window]
        whole_s = (passes.backward_s, passes.forward_s)[window]
        computed = np.minimum(1.0, (stages.backward_s, stages.forward_s)[window] / np.maximum(whole_s, TINY_S))
        # only the share of a pass that computes loses multiprocessors; windows leave out the bucket that travels alone
        lost_s = (one.slowed_s[rank] + computed * held_s[rank]) / np.maximum(1 - one.first_fraction[rank], TINY_S)
        lost_s = lost_s + computed * memory_s[rank]
        pieces = of.pieces if within or window == PARAMETERS else np.ones_like(of.pieces)
        loss, gathered = lost_s / np.maximum(pace_s[rank], TINY_S), np.array([window == PARAMETERS])
        own = OwnTraffic(stages.held_share * pace_s[rank], pieces, loss, gathered)
        ends = replace(alone, own_traffic=own).ends
        longer[window] = (
            np.maximum(ends.total_s, ends.own_s) - alone.total_s - held_s - memory_s - one.first_fraction * pace_s
        )
    return longer
