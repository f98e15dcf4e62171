"""R3 of ``search_space``: numbers of pipeline stages worth a look, of all that a model with so many layers can have.

A number is idle where a smaller one gives the fullest stage no more layers, whether or not the embedding and the head have
virtual stages of their own: it occupies more accelerators for the same step. That holds where the smaller one may be chosen. A
job that asks for 120 accelerators rules out 14 stages, and of 80 layers 15 stages are then the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleacross.spec.job import Job


def pinned(job: Job, axis: str) -> frozenset[int]:
    """Values of an axis that the job names one by one, not as a range."""
    choice = getattr(job.degrees, axis)
    return frozenset((choice,) if isinstance(choice, int) else choice if isinstance(choice, tuple) else ())


@dataclass(frozen=True)
class StageCounts:
    """Numbers of stages that the job leaves open, for so many layers."""

    job: Job
    num_layers: int

    @cached_property
    def fewer(self) -> dict[int, int]:
        """Of every number that the job's degrees allow, the next smaller one that does the same; itself where there is none."""
        out, last, layers = dict[int, int](), dict[tuple[int, int], int](), self.num_layers
        for pp in range(1, layers + 1):
            if self.job.degrees.allows("pp", pp):
                fullest = -(-layers // pp), -(-(layers + 2) // pp)
                out[pp] = last.get(fullest, pp)
                last[fullest] = pp
        return out

    @cached_property
    def pinned(self) -> frozenset[int]:
        """Those that the job names one by one: taken as they are."""
        return pinned(self.job, "pp")

    @property
    def worth(self) -> list[int]:
        """Those that some number of ranks per stage needs, ascending; pinned ones may exceed the layers."""
        asked = self.job.num_accelerators
        needed = {pp for pp, fewer in self.fewer.items() if fewer == pp} | self.pinned
        if asked is not None:
            needed |= {pp for pp in self.fewer if not isinstance(asked, int) or asked % pp == 0}
        return sorted(needed)

    def needs(self, pp: int, ranks: int) -> bool:
        """Whether, with so many ranks per stage, no smaller number that does the same is left by the accelerators asked for."""
        fewer = self.fewer.get(pp, pp)
        return fewer == pp or pp in self.pinned or not self.job.allows_accelerators(fewer * ranks)
