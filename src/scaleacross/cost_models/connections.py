"""Groups on their links under given connection settings; all that does not depend on a size is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.collective_laws import OUTER_LEVELS, Laws, laws, steps_of
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.compression import coded_laws
from scaleacross.cost_models.protocol_times import ProtocolTimes
from scaleacross.spec.network_choice import Compression, LevelStep


@dataclass(frozen=True)
class Connections:
    """Groups of ``shape`` on ``links``; ``each`` spreads values of the shapes over sizes.

    ``steps`` are those of their hierarchical collectives, one entry per choice (None: as few as any algorithm needs).
    ``compression`` is the codec of their messages, if any.
    """

    shape: GroupShape
    links: Links
    each: Callable[[Floats], Floats]
    steps: Sequence[Sequence[LevelStep]] | None = None
    compression: Compression | None = None

    def laws(self, counted: Bools, *, by_rank: bool) -> Laws:
        """Laws of reductions, for every size.

        Args:
            counted: OUTER_LEVELS or ALL_LEVELS.
            by_rank: True for a gather or scatter.
        """
        key = counted is OUTER_LEVELS, by_rank
        if key not in self._found:
            steps = None if self.steps is None else self._of_levels(self.steps)
            if self.compression is None:
                found = laws(self.shape, self.links, counted, steps, by_rank=by_rank)
            else:
                found = coded_laws(self.shape, self.links, counted, self.compression, steps, by_rank=by_rank)
            self._found[key] = spread_laws(found, self.each)
        return self._found[key]

    def _of_levels(self, steps: Sequence[Sequence[LevelStep]]) -> Floats:
        """Consecutive messages on each level; of several choices, whose groups are one row, a row each."""
        every = [steps_of(one, self.shape.farthest_fanout) for one in steps]
        return every[0] if len(every) == 1 else np.concatenate(every)

    @cached_property
    def protocols(self) -> ProtocolTimes | None:
        """Lower bounds by NCCL's protocols; None for encoded messages, relaxed shapes (whose nodes are unknown), or
        groups without such bounds."""
        if isinstance(self.shape, RelaxedShape) or self.links.curves is None or self.compression is not None:
            return None
        times = ProtocolTimes(self.shape, self.links, self.links.curves, self.each)
        return times if times.hold else None

    @cached_property
    def _found(self) -> dict[tuple[bool, bool], Laws]:
        return {}


def spread_laws(found: Laws, each: Callable[[Floats], Floats]) -> Laws:
    """Spread laws of the shapes over all sizes."""
    return Laws(*map(each, found))
