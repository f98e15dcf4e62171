"""A schedule as text in the grammar of PyTorch's pipelining: a row per rank, cells ``<virtual stage><kind><micro-batch>``.

For example, ``2F0,0B1`` runs the forward of micro-batch 0 on virtual stage 2, then the backward of 1 on stage 0. The
row gives the rank of a stage, the schedule's placement its chunk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.stage_placement import StagePlacement

_CELL: Final = re.compile(r"(\d+)([FBIW])(\d+)")


def to_rows(schedule: PipelineSchedule) -> tuple[str, ...]:
    """Return one line of cells per rank, separated by commas."""
    return tuple(
        ",".join(f"{schedule.virtual_stage(rank, a.chunk)}{a.kind.value}{a.microbatch}" for a in actions)
        for rank, actions in enumerate(schedule.actions)
    )


def from_rows(
    name: str,
    rows: Sequence[str],
    num_microbatches: int,
    num_chunks: int,
    placement: StagePlacement = "loop",
    num_copies: int = 1,
) -> PipelineSchedule:
    """Parse ``rows`` into a schedule; the inverse of ``to_rows``. Legality is left to ``check.check``.

    Raises:
        InputError: an invalid cell, or a stage that its rank does not hold.
    """
    shape = PipelineSchedule(name, len(rows), num_microbatches, num_chunks, (), placement, num_copies)
    actions = tuple(
        tuple(_action(shape, rank, cell.strip()) for cell in row.split(",") if cell.strip())
        for rank, row in enumerate(rows)
    )
    return PipelineSchedule(name, len(rows), num_microbatches, num_chunks, actions, placement, num_copies)


def _action(shape: PipelineSchedule, rank: int, cell: str) -> Action:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise InputError(
            f"{shape.name}: '{cell}' of rank {rank} is no cell: write <virtual stage><F|B|I|W><micro-batch>, e.g. 2F0"
        )
    stage = int(match[1])
    holder, chunk = shape.locate(stage) if stage < shape.num_virtual_stages else (None, 0)
    if holder != rank:
        where = "no rank" if holder is None else f"rank {holder}"
        raise InputError(
            f"{shape.name}: cell '{cell}' of rank {rank}: stage {stage} is on {where} of {shape.num_ranks} in the "
            f"{shape.placement} placement of {shape.num_chunks} chunk(s)"
        )
    return Action(Kind(match[2]), int(match[3]), chunk)
