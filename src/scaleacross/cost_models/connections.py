"""Groups on their links as the settings of the connections leave these: what no size of a collective changes, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from scaleacross.cost_models.collective_laws import ALL_LEVELS, OUTER_LEVELS, Laws, laws, steps_of
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.compression import coded_laws
from scaleacross.cost_models.protocol_times import ProtocolTimes
from scaleacross.cost_models.settings import Bools, Floats
from scaleacross.spec.network_choice import CommunicatorChoice


@dataclass(frozen=True)
class Connections:
    """Groups of ``shape`` on ``links``, on which ``choice`` (None: the library or the best of all) runs their collectives.

    ``each`` spreads values of the shapes over sizes.
    """

    shape: GroupShape
    links: Links
    choice: CommunicatorChoice | None
    each: Callable[[Floats], Floats]

    def laws(self, counted: Bools) -> Laws:
        """Of reductions, for every size; ``counted``: OUTER_LEVELS or ALL_LEVELS."""
        return self._outer_laws if counted is OUTER_LEVELS else self._all_laws

    @cached_property
    def protocols(self) -> ProtocolTimes | None:
        """What NCCL's protocols take at least; None where they say nothing of any group, of a relaxed shape, whose nodes are
        unknown, and of encoded messages."""
        encoded = self.choice is not None and self.choice.compression is not None
        if isinstance(self.shape, RelaxedShape) or self.links.curves is None or encoded:
            return None
        times = ProtocolTimes(self.shape, self.links, self.links.curves, self.each)
        return times if times.hold else None

    @cached_property
    def _outer_laws(self) -> Laws:
        return self._laws(OUTER_LEVELS)

    @cached_property
    def _all_laws(self) -> Laws:
        return self._laws(ALL_LEVELS)

    def _laws(self, counted: Bools) -> Laws:
        choice, shape = self.choice, self.shape
        steps = None if choice is None else steps_of(choice.steps, shape.fanout)
        if choice is None or choice.compression is None:
            return spread_laws(laws(shape, self.links, counted, steps), self.each)
        return spread_laws(coded_laws(shape, self.links, counted, choice.compression, steps), self.each)


def spread_laws(found: Laws, each: Callable[[Floats], Floats]) -> Laws:
    """Laws of the shapes, for every size."""
    return Laws(*map(each, found))
