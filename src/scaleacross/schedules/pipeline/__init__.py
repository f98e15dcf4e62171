"""Pipeline schedules as data: one family per file, one line per schedule in ``SCHEDULES``; ``check`` proves what they produce."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import (
    building_block,
    dualpipe,
    eager_1f1b,
    gpipe,
    interleaved_1f1b,
    looped_bfs,
    one_f_one_b,
    zbv,
    zero_bubble,
)
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
    "Eager1F1B": ScheduleFamily(eager_1f1b.generate, eager_1f1b.refusal),
    "LoopedBFS": ScheduleFamily(looped_bfs.generate, looped_bfs.refusal),
    "ZBH1": ScheduleFamily(zero_bubble.generate_h1, zero_bubble.h1_refusal),
    "ZBH2": ScheduleFamily(zero_bubble.generate_h2, zero_bubble.h2_refusal),
    "InterleavedZeroBubble": ScheduleFamily(zero_bubble.generate_interleaved, zero_bubble.interleaved_refusal),
    "ZBVZeroBubble": ScheduleFamily(zbv.generate, zbv.refusal),
    "VHalf": ScheduleFamily(building_block.generate_half, building_block.half_refusal),
    "VMin": ScheduleFamily(building_block.generate_min, building_block.min_refusal),
    "DualPipe": ScheduleFamily(dualpipe.generate, dualpipe.refusal),
    "DualPipeV": ScheduleFamily(dualpipe.generate_folded, dualpipe.folded_refusal),
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
    near = difflib.get_close_matches(name, SCHEDULES, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise InputError(f"no pipeline schedule '{name}': choose from {', '.join(SCHEDULES)}{hint}")
