"""Flattens a pipeline schedule into arrays, in an order in which every action follows those that it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Ints
from scaleacross.schedules.pipeline import Kind, PipelineSchedule
from scaleacross.schedules.pipeline.check import execution_order

KINDS: Final = {kind: code for code, kind in enumerate(Kind)}
"""Code of every kind of action."""


@dataclass(frozen=True)
class CompiledSchedule:
    """A schedule as flat arrays, one entry per action, valid for any times. Actions follow those that they wait for.

    ``needs`` and ``fills`` are message slots that an action waits for and sends to: forward of stage x and micro-batch
    i in slot x·m+i, backward in (p·v+x)·m+i. Two more slots stand for "already there" and "nobody waits". ``boundary``
    is the boundary between virtual stages that a message crosses from rank to rank, p·v−1 if none. ``link``: pair of
    ranks.
    """

    schedule: PipelineSchedule
    rank: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints
    needs: Ints
    fills: Ints
    boundary: Ints
    link: Ints

    @property
    def num_slots(self) -> int:
        """Number of messages plus two."""
        return 2 * self.schedule.num_virtual_stages * self.schedule.num_microbatches + 2

    @property
    def by_rank(self) -> tuple[Ints, Ints]:
        """Actions of rank 0, of rank 1 ..., and the index where each rank's begin, (ranks + 1,)."""
        count = np.bincount(self.rank, minlength=self.schedule.num_ranks)
        return np.argsort(self.rank, kind="stable"), np.append(0, np.cumsum(count))


def compile_schedule(schedule: PipelineSchedule) -> CompiledSchedule:
    """Flatten ``schedule`` for ``time_schedule``.

    Raises:
        VerificationError: deadlock (``check.check`` proves the rest).
    """
    p, m, num_stages = schedule.num_ranks, schedule.num_microbatches, schedule.num_virtual_stages
    rank_of = np.array([schedule.locate(stage)[0] for stage in range(num_stages)])
    stage_of = np.array([[schedule.virtual_stage(r, c) for c in range(schedule.num_chunks)] for r in range(p)])
    is_first = np.array([schedule.is_first(stage) for stage in range(num_stages)])
    is_last = np.array([schedule.is_last(stage) for stage in range(num_stages)])
    order = np.array(execution_order(schedule), dtype=np.int64)
    by_rank = np.argsort(order, kind="stable")

    def flat(values: list[int]) -> Ints:
        out = np.empty(len(values), dtype=np.int64)
        out[by_rank] = values
        return out

    kind = flat([KINDS[action.kind] for row in schedule.actions for action in row])
    microbatch = flat([action.microbatch for row in schedule.actions for action in row])
    stage = stage_of[order, flat([action.chunk for row in schedule.actions for action in row])]
    there, nobody = 2 * num_stages * m, 2 * num_stages * m + 1
    forward, weight = kind == KINDS[Kind.F], kind == KINDS[Kind.W]
    slot = stage * m + microbatch
    # the last stage sends no forward message, the first one no backward message, and W sends none
    sends = np.where(forward, ~is_last[stage], ~is_first[stage] & ~weight)
    receiver = np.where(sends, np.where(forward, stage + 1, stage - 1), stage)
    return CompiledSchedule(
        schedule=schedule,
        rank=order,
        kind=kind,
        stage=stage,
        microbatch=microbatch,
        needs=np.where(forward, slot, np.where(weight, there, slot + num_stages * m)),
        fills=np.where(sends, np.where(forward, slot + m, slot - m + num_stages * m), nobody),
        boundary=np.where(sends & (rank_of[receiver] != order), np.minimum(stage, receiver), num_stages - 1),
        link=order * p + rank_of[receiver],
    )
