"""Cases of collectives to time on the ranks of a testbed, and their timings. No torch here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from scaleacross.testbed.ranks import asked
from scaleacross.testbed.session import Testbed

LAYERED: Final = "hierarchical(ring, ring)"


@dataclass(frozen=True)
class Case:
    """One way to run a collective.

    Attributes:
        name: name of the row.
        groups: ranks of the groups that run it at the same time.
        algorithm: a name as ``runtime.policy.named_schedule`` takes it.
        num_chunks: number of chunks that follow one another.
        order: order of the members in the ring; None: their own.
        children: [child] -> its members, for a hierarchical algorithm.
        codec: codec of messages between children.
        size_bytes: size of the tensor, fp32.
        iterations: timed runs.
        operation: all-reduce, or an all-gather in a ring.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    algorithm: str
    size_bytes: int
    iterations: int
    num_chunks: int = 1
    order: tuple[int, ...] | None = None
    children: tuple[tuple[int, ...], ...] = ()
    codec: str | None = None
    operation: Literal["all_reduce", "all_gather"] = "all_reduce"


@dataclass(frozen=True)
class Timing:
    """The measurement of a case.

    Attributes:
        case: the case.
        seconds: seconds of every timed run, from the common start to the end on its slowest rank.
        error_fraction: largest error of an element over the largest element of the result.
    """

    case: Case
    seconds: tuple[float, ...]
    error_fraction: float

    @property
    def median_s(self) -> float:
        """Median seconds of the runs."""
        return statistics.median(self.seconds)


def time_cases(testbed: Testbed, cases: Sequence[Case], folder: Path) -> list[Timing]:
    """Run cases on all hosts, one rank each, in the order of the layout.

    Cases of equal size and iterations take turns, so that disturbances of the machine affect them alike.

    Raises:
        EmulationError: a rank failed.
    """
    program, task = ["-m", "scaleacross.testbed.collective_ranks"], {"cases": [asdict(case) for case in cases]}
    rows = asked(testbed, program, folder, task)
    return [Timing(case, tuple(row["seconds"]), row["error_fraction"]) for case, row in zip(cases, rows, strict=True)]


def case_of(stated: dict[str, object]) -> Case:
    """Return the case of ``asdict`` after JSON has made lists of its tuples."""
    return Case(**{key: _tuples(value) for key, value in stated.items()})  # type: ignore[arg-type]


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
