"""Pipeline schedules as data: one generator per file, one line each in ``SCHEDULES``; ``check`` proves what they produce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import gpipe, interleaved_1f1b, one_f_one_b
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.spec.parallelism import ScheduleName

__all__ = ["SCHEDULES", "Action", "Kind", "PipelineSchedule", "ScheduleFamily", "generate", "is_legal", "refusal"]


class ScheduleFamily(NamedTuple):
    """A family of schedules: ``generate(p, m, v)``, and ``refusal(p, m, v)`` with the reason why a shape has none."""

    generate: Callable[[int, int, int], PipelineSchedule]
    refusal: Callable[[int, int, int], str | None]


SCHEDULES: Final[Mapping[ScheduleName, ScheduleFamily]] = {
    "GPipe": ScheduleFamily(gpipe.generate, gpipe.refusal),
    "1F1B": ScheduleFamily(one_f_one_b.generate, one_f_one_b.refusal),
    "Interleaved1F1B": ScheduleFamily(interleaved_1f1b.generate, interleaved_1f1b.refusal),
}


def refusal(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Why schedule ``name`` cannot run p ranks, m micro-batches and v chunks per rank; None when it can.

    Raises:
        InputError: no schedule of that name.
    """
    return _family(name).refusal(num_ranks, num_microbatches, num_chunks)


def is_legal(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> bool:
    """Whether ``refusal`` has no reason."""
    return refusal(name, num_ranks, num_microbatches, num_chunks) is None


def generate(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    """The schedule ``name`` for p ranks, m micro-batches and v chunks per rank.

    Raises:
        InputError: no schedule of that name, or ``refusal`` has a reason.
    """
    return _family(name).generate(num_ranks, num_microbatches, num_chunks)


def _family(name: str) -> ScheduleFamily:
    for known, family in SCHEDULES.items():
        if name == known:
            return family
    raise InputError(f"no pipeline schedule '{name}': choose from {', '.join(SCHEDULES)}")
