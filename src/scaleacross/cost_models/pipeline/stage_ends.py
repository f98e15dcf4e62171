"""When the virtual stages of a timed pipeline first run forward, and when they have their gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.pipeline.compiled import CompiledSchedule
from scaleacross.cost_models.pipeline.timing import PipelineTimes
from scaleacross.schedules.pipeline import Kind

_FORWARD, _GRADIENTS = (tuple(list(Kind).index(one) for one in kinds) for kinds in ((Kind.F,), (Kind.B, Kind.W)))


class StageEnds(NamedTuple):
    """Seconds from the start of the step, (p·v,) in model order.

    Attributes:
        first_start_s, first_end_s: of the first forward pass.
        last_start_s, last_end_s: of the last action that computes weight gradients, a whole backward pass or W.
        total_s: end of the last action of any stage.
        own_s: end of every rank's ``own_traffic.OwnTraffic``, (p,); 0 without.
    """

    first_start_s: Floats
    first_end_s: Floats
    last_start_s: Floats
    last_end_s: Floats
    total_s: float
    own_s: Floats | float = 0.0

    def after(self, skipped_s: float) -> StageEnds:
        """The ends of a run that is longer by ``skipped_s`` between first forward and last backward passes."""
        last_start_s, last_end_s = self.last_start_s + skipped_s, self.last_end_s + skipped_s
        own_s = np.where(np.greater(self.own_s, 0), self.own_s + skipped_s, 0.0)
        total_s = self.total_s + skipped_s
        return self._replace(last_start_s=last_start_s, last_end_s=last_end_s, total_s=total_s, own_s=own_s)


def stage_ends(compiled: CompiledSchedule, times: PipelineTimes) -> StageEnds:
    """The ends of every stage of ``compiled``, as timed."""
    by_rank, stages = np.argsort(compiled.rank, kind="stable"), compiled.schedule.num_virtual_stages
    kind, stage = compiled.kind[by_rank], compiled.stage[by_rank]
    start, finish = np.concatenate(times.start_s), np.concatenate(times.finish_s)
    forward, gradients = np.isin(kind, _FORWARD), np.isin(kind, _GRADIENTS)
    first_start, first_end = np.full((2, stages), np.inf)
    last_start, last_end = np.zeros((2, stages))
    for first, last, seconds in ((first_start, last_start, start), (first_end, last_end, finish)):
        np.minimum.at(first, stage[forward], seconds[forward])
        np.maximum.at(last, stage[gradients], seconds[gradients])
    return StageEnds(first_start, first_end, last_start, last_end, times.total_s, times.own_s)


def chained_ends(forward_s: Floats, backward_s: Floats, delay_s: Floats) -> StageEnds:
    """Earliest first forward passes and latest ends of stages, for ranks with one chunk each and whole backward passes.

    The first micro-batch has passed all stages before a stage; the last one goes back through them.

    Args:
        forward_s, backward_s: passes with their waits, (p·v,).
        delay_s: of messages between consecutive stages, (p·v − 1,).
    """
    start = np.append(0.0, np.cumsum(forward_s[:-1] + delay_s))
    behind = np.append(0.0, np.cumsum(backward_s[:-1] + delay_s))
    total = float((behind + backward_s).max())
    return StageEnds(start, start + forward_s, total - behind - backward_s, total - behind, total)
