"""Seconds of the algorithms that a reduction may run, by the laws of its groups; used by ``collectives``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collective_laws import (
    Inner,
    Laws,
    best_layered_s,
    layered_busy_s,
    layered_s,
    ring_busy_s,
    ring_fixed_s,
    tree_busy_s,
)
from scaleacross.cost_models.protocol_times import ProtocolTimes
from scaleacross.spec.network import CurveOp
from scaleacross.spec.network_choice import ALGORITHM_NAMES

NONE, RING, HIERARCHICAL, TREE, PAIRWISE, POINT_TO_POINT, MEASURED = range(len(ALGORITHM_NAMES))

AlgorithmTime = tuple[int, Floats, Floats]
"""Index into ALGORITHM_NAMES, seconds without the launch, and seconds in which the busiest link is busy."""


class Reduction(NamedTuple):
    """An all-gather, reduce-scatter or all-reduce of some sizes, as the laws of every kind of groups time it.

    Attributes:
        size: bytes of the full tensor.
        passes: 2 for an all-reduce, else 1.
        allowed: indices into ALGORITHM_NAMES.
        launch_s: fixed start-up of a collective.
        library: lower bounds by NCCL's protocols; None where none hold.
        chunks: those of a hierarchical collective; None: the fastest number.
        inner: seconds of its phases inside a scale-up domain, if they are measured.
        tree_share: bytes that a tree sends out of a node, over those of the tensor; None: 2.
    """

    op: CurveOp
    size: Floats
    passes: int
    allowed: Collection[int]
    launch_s: float
    library: ProtocolTimes | None = None
    chunks: Floats | None = None
    inner: Inner | None = None
    tree_share: Floats | None = None

    def options(self, every: Sequence[Laws]) -> list[AlgorithmTime]:
        """The allowed algorithms; each takes as long as the slowest kind of groups, whose laws ``every`` has."""
        protocol_s = None
        if self.library and (RING in self.allowed or HIERARCHICAL in self.allowed):
            protocol_s = self.library.ring_s(self.op, self.size)
        kinds = [list(self._under(law, protocol_s)) for law in every]
        return kinds[0] if len(kinds) == 1 else [_slowest(same) for same in zip(*kinds, strict=True)]

    def _under(self, law: Laws, protocol_s: Floats | None) -> Iterator[AlgorithmTime]:
        """The allowed algorithms under one law; ``protocol_s``: the least time of a ring by the library's protocols."""
        size, passes, library = self.size, self.passes, self.library
        if RING in self.allowed:
            seconds = passes * (law.ring_s_per_byte * size + ring_fixed_s(size, law))
            if protocol_s is not None:
                seconds = np.maximum(seconds, protocol_s - self.launch_s)
            yield RING, seconds, ring_busy_s(size, law, passes)
        if HIERARCHICAL in self.allowed:
            if self.chunks is None:
                seconds = free_s = best_layered_s(size, law, passes, self.inner)
            else:
                both = law, law.without_windows
                seconds, free_s = (layered_s(size, self.chunks, one, passes, self.inner) for one in both)
            if library and protocol_s is not None:
                seconds = np.maximum(seconds, library.layered_s(protocol_s) - self.launch_s)
            yield HIERARCHICAL, seconds, layered_busy_s(free_s, size, law, passes)
        if TREE in self.allowed and self.op == "all_reduce":
            yield TREE, *self._tree(law)

    def _tree(self, law: Laws) -> tuple[Floats, Floats]:
        """Seconds of a double tree, and busy seconds."""
        busy = tree_busy_s(self.size, law)
        if self.tree_share is None:
            return law.tree_s_per_byte * self.size + law.tree_s, busy
        part = self.tree_share / 2
        seconds = part * law.tree_s_per_byte * self.size + law.tree_s
        if self.library:
            seconds = np.maximum(seconds, self.library.tree_s(self.size) - self.launch_s)
        return seconds, part * busy


def _slowest(same: Sequence[AlgorithmTime]) -> AlgorithmTime:
    """One algorithm on the slowest of several kinds of groups."""
    code, seconds, busy = same[0]
    for _, other, moving in same[1:]:
        seconds, busy = np.maximum(seconds, other), np.maximum(busy, moving)
    return code, seconds, busy
