"""Pipeline schedules by name: one family per file, one line per schedule in ``SCHEDULES``; proofs in ``check``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from scaleacross.errors import InputError, VerificationError
from scaleacross.plugins import Plugin, Registry, expect, guarded
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
from scaleacross.schedules.pipeline.cells import from_rows
from scaleacross.schedules.pipeline.check import check as prove
from scaleacross.schedules.pipeline.shape import too_small
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName

__all__ = [
    "ROUNDS",
    "SCHEDULES",
    "Action",
    "Kind",
    "PipelineSchedule",
    "ScheduleFamily",
    "chosen",
    "generate",
    "is_legal",
    "legal_micro_batches",
    "refusal",
]


class ScheduleFamily(NamedTuple):
    """A family of schedules.

    Neither function is called without ranks, micro-batches or chunks, nor ``generate`` for a shape that is refused.

    Attributes:
        generate: (p, m, v) -> the schedule.
        refusal: (p, m, v) -> why the shape has no schedule, or None.
        placement, num_copies: as in ``PipelineSchedule``.
    """

    generate: Callable[[int, int, int], PipelineSchedule]
    refusal: Callable[[int, int, int], str | None]
    placement: StagePlacement = "loop"
    num_copies: int = 1


_BUNDLED: Final[Mapping[ScheduleName, ScheduleFamily]] = {
    "GPipe": ScheduleFamily(gpipe.generate, gpipe.refusal),
    "1F1B": ScheduleFamily(one_f_one_b.generate, one_f_one_b.refusal),
    "Interleaved1F1B": ScheduleFamily(interleaved_1f1b.generate, interleaved_1f1b.refusal),
    "Eager1F1B": ScheduleFamily(eager_1f1b.generate, eager_1f1b.refusal),
    "LoopedBFS": ScheduleFamily(looped_bfs.generate, looped_bfs.refusal),
    "ZBH1": ScheduleFamily(zero_bubble.generate_h1, zero_bubble.h1_refusal),
    "ZBH2": ScheduleFamily(zero_bubble.generate_h2, zero_bubble.h2_refusal),
    "InterleavedZeroBubble": ScheduleFamily(zero_bubble.generate_interleaved, zero_bubble.interleaved_refusal),
    "ZBVZeroBubble": ScheduleFamily(zbv.generate, zbv.refusal, "v"),
    "VHalf": ScheduleFamily(building_block.generate_half, building_block.half_refusal, "v"),
    "VMin": ScheduleFamily(building_block.generate_min, building_block.min_refusal, "v"),
    "DualPipe": ScheduleFamily(dualpipe.generate, dualpipe.refusal, "v", num_copies=2),
    "DualPipeV": ScheduleFamily(dualpipe.generate_folded, dualpipe.folded_refusal, "v"),
}


def _accept(plugin: Plugin, family: Any) -> ScheduleFamily:
    """Return a package's family with guarded refusals; every schedule that it generates is proved legal once."""
    stated = expect(family, ScheduleFamily)
    if stated.placement not in ("loop", "v") or stated.num_copies != 1:
        raise ValueError(
            f"placement {stated.placement!r}, {stated.num_copies} copies: loop or v, and one copy of the model"
        )
    make = guarded(plugin, stated.generate)

    @lru_cache(maxsize=256)
    def generate(num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
        asked = PipelineSchedule(plugin.name, num_ranks, num_microbatches, num_chunks, (), stated.placement)
        made = make(num_ranks, num_microbatches, num_chunks)
        try:
            _require_shape(expect(made, PipelineSchedule), asked)
            prove(made)
        except (TypeError, ValueError, VerificationError) as error:
            raise plugin.failed(error) from error
        return cast(PipelineSchedule, made)

    return stated._replace(generate=generate, refusal=guarded(plugin, stated.refusal))


def _require_shape(made: PipelineSchedule, asked: PipelineSchedule) -> None:
    """Raise ValueError where a schedule states another name, shape or placement than ``asked``.

    A legal order of fewer micro-batches than asked for would be estimated as a faster step.
    """
    for field in ("num_ranks", "num_microbatches", "num_chunks", "placement", "num_copies", "name"):
        got, wanted = getattr(made, field), getattr(asked, field)
        if got != wanted:
            raise ValueError(f"its schedule has {field} {got!r} where {wanted!r} is asked for")


SCHEDULES: Final = Registry[ScheduleName, ScheduleFamily]("schedules", _BUNDLED, _accept)
"""Every schedule by name: the bundled ones, then those of installed packages."""

ROUNDS: Final[tuple[ScheduleName, ...]] = ("Interleaved1F1B", "InterleavedZeroBubble")
"""Schedules that run the micro-batches of one round through a chunk before the next."""


def refusal(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Return why schedule ``name`` cannot run p ranks, m micro-batches and v chunks per rank; None if it can.

    Raises:
        InputError: no schedule of that name.
    """
    family, shape = _family(name), (num_ranks, num_microbatches, num_chunks)
    return too_small(name, *shape) or family.refusal(*shape)


def is_legal(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> bool:
    """Return whether schedule ``name`` can run p ranks, m micro-batches and v chunks per rank."""
    return refusal(name, num_ranks, num_microbatches, num_chunks) is None


@lru_cache(maxsize=4096)
def legal_micro_batches(name: ScheduleName, num_ranks: int, num_chunks: int, most: int) -> tuple[int, ...]:
    """Return all m ≤ ``most``, ascending, with which schedule ``name`` runs on p ranks of v chunks."""
    return tuple(m for m in range(1, most + 1) if is_legal(name, num_ranks, m, num_chunks))


def generate(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    """Return the schedule ``name`` for p ranks, m micro-batches and v chunks per rank.

    Raises:
        InputError: no schedule of that name, or one that cannot run this shape (``refusal``).
    """
    if reason := refusal(name, num_ranks, num_microbatches, num_chunks):
        raise InputError(reason)
    return _family(name).generate(num_ranks, num_microbatches, num_chunks)


def chosen(choice: PipelineChoice, num_ranks: int, num_microbatches: int) -> PipelineSchedule:
    """Return the schedule of a plan: its own order if it states one, otherwise the one that its name generates.

    Raises:
        InputError: a stated order with the wrong number of rows or an invalid cell, or a shape that the name refuses.
    """
    if choice.order is None:
        return generate(choice.schedule, num_ranks, num_microbatches, choice.num_chunks)
    if len(choice.order) != num_ranks:
        raise InputError(f"the pipeline's order has {len(choice.order)} rows for {num_ranks} ranks")
    family = _family(choice.schedule)
    name = f"{choice.schedule} reordered"
    return from_rows(name, choice.order, num_microbatches, choice.num_chunks, family.placement, family.num_copies)


def _family(name: str) -> ScheduleFamily:
    if name in SCHEDULES:
        return SCHEDULES[cast(ScheduleName, name)]
    near = difflib.get_close_matches(name, SCHEDULES, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise InputError(f"no pipeline schedule '{name}': choose from {', '.join(SCHEDULES)}{hint}")
