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

    def laws(self, counted: Bools, *, by_rank: bool) -> tuple[Laws, ...]:
        """Laws of reductions for every size, of each kind of groups that may be the slowest.

        Args:
            counted: OUTER_LEVELS or ALL_LEVELS.
            by_rank: True for a gather or scatter.
        """
        key = counted is OUTER_LEVELS, by_rank
        if key not in self._found:
            kinds = self.shape.kinds
            steps = None if self.steps is None else _of_levels(self.steps, kinds.fanout)
            if self.compression is None:
                found = laws(kinds, self.links, counted, steps, by_rank=by_rank)
            else:
                found = coded_laws(kinds, self.links, counted, self.compression, steps, by_rank=by_rank)
            self._found[key] = slowest_laws(found, self.each)
        return self._found[key]

    @cached_property
    def protocols(self) -> ProtocolTimes | None:
        """Lower bounds by NCCL's protocols; None for encoded messages, relaxed shapes (whose nodes are unknown), or
        groups without such bounds."""
        if isinstance(self.shape, RelaxedShape) or self.links.curves is None or self.compression is not None:
            return None
        times = ProtocolTimes(self.shape, self.links, self.links.curves, self.each)
        return times if times.hold else None

    @cached_property
    def _found(self) -> dict[tuple[bool, bool], tuple[Laws, ...]]:
        return {}


def slowest_laws(found: Laws, each: Callable[[Floats], Floats]) -> tuple[Laws, ...]:
    """Laws for every size of each of ``GroupShape.kinds``, without nearer ones that are faster at all sizes."""
    farthest, *nearer = (Laws(*(term[kind] for term in found)) for kind in range(len(found.ring_s_per_byte)))
    return tuple(spread_laws(one, each) for one in (farthest, *(one for one in nearer if not one.within(farthest))))


def spread_laws(found: Laws, each: Callable[[Floats], Floats]) -> Laws:
    """Spread laws of the shapes over all sizes."""
    return Laws(*map(each, found))


def _of_levels(steps: Sequence[Sequence[LevelStep]], fanout: Floats) -> Floats:
    """Consecutive messages on each level; of several choices, whose groups are one row, a row each."""
    every = [steps_of(one, fanout) for one in steps]
    return every[0] if len(every) == 1 else np.concatenate(every, axis=-2)
