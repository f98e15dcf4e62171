"""Seconds of all actions and messages of one pipeline, for step times, charts and the search for a better order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.pipeline.exact import exact_ends, virtual_boundaries
from scaleacross.cost_models.pipeline.own_traffic import OwnTraffic
from scaleacross.cost_models.pipeline.stage_ends import StageEnds, chained_ends
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName

_REMEMBERED = 4096  # timed pipelines: candidates that differ in what data parallelism does share theirs


@dataclass(frozen=True, eq=False)
class Actions:
    """A pipeline with its seconds, those of virtual stages (p·v,) in model order.

    Attributes:
        schedule, num_ranks, num_microbatches, num_chunks: name, p, m, v.
        order: an order of the plan's own (``PipelineChoice.order``).
        forward_s, backward_s: of one micro-batch, waits included.
        input_s: input gradients alone, waits included.
        weight_s: weight gradients, part of ``backward_s``.
        outer_s: further seconds of the first forward and of the last backward, (2, p·v).
        latency_s, occupancy_s: of messages from rank r to r + 1; with several chunks the last is the loop-back.
        crossing: whether these messages cross buildings, likewise; None: none does.
        link_s: seconds for which F, B, I and W keep links busy that all ranks share, (4, p·v); None: there are none.
        own_traffic: traffic over links of each rank's own, if any.
    """

    schedule: ScheduleName
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    order: tuple[str, ...] | None
    forward_s: Floats
    backward_s: Floats
    input_s: Floats
    weight_s: Floats
    outer_s: Floats
    latency_s: Floats
    occupancy_s: Floats
    crossing: Bools | None = None
    link_s: Floats | None = None
    own_traffic: OwnTraffic | None = None

    @property
    def total_s(self) -> float:
        """Seconds of the pipeline. Raises InputError as ``exact_ends``."""
        return _ends(self).total_s

    @property
    def ends(self) -> StageEnds:
        """When stages need their parameters and have their gradients. Raises InputError as ``exact_ends``.

        Timed, or in closed form (earliest starts, latest ends) for single chunks, whole backwards and no shared links.
        """
        if self.num_chunks > 1 or self.splits or self.order is not None or self.link_s is not None or self.own_traffic:
            return _ends(self)
        return chained_ends(self.forward_s, self.backward_s, np.sum(self.between_stages(), axis=0))

    @property
    def seconds(self) -> Floats:
        """Seconds of F, B, I and W of every virtual stage, (4, p·v)."""
        return np.stack([self.forward_s, self.backward_s, self.input_s, self.weight_s])

    @property
    def splits(self) -> bool:
        """Whether weight gradients are computed apart from input gradients."""
        return self.schedule not in WHOLE

    @cached_property
    def _key(self) -> tuple[object, ...]:
        """Identity of the pipeline: equal keys mean equal times."""
        messages, links = (self.latency_s, self.occupancy_s), () if self.link_s is None else (self.link_s,)
        arrays = (
            *self.seconds,
            self.outer_s,
            *messages,
            self.crosses(),
            *links,
            *(self.own_traffic or ()),
        )
        shape = self.schedule, self.num_ranks, self.num_microbatches, self.num_chunks, self.order
        return (
            *shape,
            len(links),
            len(self.own_traffic or ()),
            *(each.tobytes() for each in arrays),
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actions) and self._key == other._key

    def crosses(self) -> Bools:
        """Whether messages between consecutive virtual stages cross buildings, (p·v − 1,)."""
        shape = self.num_ranks, self.num_chunks, SCHEDULES[self.schedule].placement
        none = np.zeros(len(self.occupancy_s), dtype=bool)
        return virtual_boundaries("crossing", none if self.crossing is None else self.crossing, *shape) > 0

    def between_stages(self) -> tuple[Floats, Floats]:
        """Latency and occupancy of messages between consecutive virtual stages, (p·v − 1,) each."""
        shape = self.num_ranks, self.num_chunks, SCHEDULES[self.schedule].placement
        return virtual_boundaries("latency_s", self.latency_s, *shape), virtual_boundaries(
            "occupancy_s", self.occupancy_s, *shape
        )


def timed_ends(of: Actions) -> StageEnds:
    """When the stages of a pipeline begin and end; nothing is remembered. Raises InputError as ``exact_ends``."""
    choice = PipelineChoice(schedule=of.schedule, num_chunks=of.num_chunks, order=of.order)
    seconds, messages = (*of.seconds, *of.outer_s), (of.latency_s, of.occupancy_s)
    size = of.num_ranks, of.num_microbatches
    return exact_ends(choice, *size, seconds, *messages, of.link_s, of.crossing, of.own_traffic)


_ends = lru_cache(maxsize=_REMEMBERED)(timed_ends)
