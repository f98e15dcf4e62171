"""R3 of ``search_space``: the numbers of pipeline stages worth searching, for a model with a given number of layers.

A number of stages is idle if a smaller one gives the fullest stage no more layers: it uses more accelerators for the
same step. This is judged both with and without virtual stages for the embedding and the head. It holds only where the
smaller number may be chosen. A job that asks for 120 accelerators rules out 14 stages, and of 80 layers 15 stages are
then the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleacross.spec.job import Job


def pinned(job: Job, axis: str) -> frozenset[int]:
    """Values of an axis that the job names one by one; empty for a range."""
    choice = getattr(job.degrees, axis)
    return frozenset((choice,) if isinstance(choice, int) else choice if isinstance(choice, tuple) else ())


@dataclass(frozen=True)
class StageCounts:
    """Numbers of stages that the job leaves open for a model of ``num_layers`` layers."""

    job: Job
    num_layers: int

    @cached_property
    def fewer(self) -> dict[int, int]:
        """Allowed number of stages -> the next smaller one with the same fullest stage, else the number itself."""
        out, last, layers = dict[int, int](), dict[tuple[int, int], int](), self.num_layers
        for pp in range(1, layers + 1):
            if self.job.degrees.allows("pp", pp):
                fullest = -(-layers // pp), -(-(layers + 2) // pp)
                out[pp] = last.get(fullest, pp)
                last[fullest] = pp
        return out

    @cached_property
    def pinned(self) -> frozenset[int]:
        """Numbers of stages that the job names one by one; they are used as they are."""
        return pinned(self.job, "pp")

    @property
    def worth(self) -> list[int]:
        """Numbers of stages that some number of ranks per stage needs, ascending; pinned ones may exceed the layers."""
        asked = self.job.num_accelerators
        needed = {pp for pp, fewer in self.fewer.items() if fewer == pp} | self.pinned
        if asked is not None:
            needed |= {pp for pp in self.fewer if not isinstance(asked, int) or asked % pp == 0}
        return sorted(needed)

    def needs(self, pp: int, ranks: int) -> bool:
        """Whether no smaller number does the same with ``ranks`` per stage and the accelerators asked for."""
        fewer = self.fewer.get(pp, pp)
        return fewer == pp or pp in self.pinned or not self.job.allows_accelerators(fewer * ranks)
