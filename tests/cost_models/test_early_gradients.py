"""Earliest times of the first gradients of each stage agree with schedules timed action by action."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from machines import candidates

from scaleacross.cost_models.early_gradients import early_backwards, lead_s
from scaleacross.cost_models.pipeline.exact import compiled_schedule, exact_ends
from scaleacross.cost_models.work import NO_WORK
from scaleacross.schedules.pipeline import SCHEDULES, Kind, is_legal
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import SCHEDULE_NAMES, PipelineChoice, ScheduleName

SHAPES = [(p, m, v) for p in (2, 3, 4) for m in (1, 2, 4, 5, 6, 12) for v in (1, 2, 3)]


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_no_stage_has_gradients_before_what_every_rank_has_to_do_first(name: ScheduleName) -> None:
    """No stage has gradients before a lower bound, whichever rank it is computed for.

    The bound is the warm-up plus m passes, less the lead. A bucket is reduced once its last backward pass has begun.
    """
    rng, tried = np.random.default_rng(SCHEDULE_NAMES.index(name)), 0
    for p, m, v in SHAPES:
        if not is_legal(name, p, m, v):
            continue
        tried += 1
        forward, alone, weight = rng.uniform(0.2, 2, (3, p * v))
        backward, boundaries = alone + weight, np.zeros((2, p if v > 1 else p - 1))
        choice = PipelineChoice(schedule=name, num_chunks=v)
        ends = exact_ends(choice, p, m, [forward, backward, alone, weight, *np.zeros((2, p * v))], *boundaries)
        placement = SCHEDULES[name].placement
        rank, chunk = np.array([locate(placement, p, stage) for stage in range(p * v)]).T
        for r in range(p):
            fill = forward[(rank < r) & (chunk == 0)].sum()
            one = candidates(pp=p, num_micro_batches=m, num_chunks=v, schedule=SCHEDULE_NAMES.index(name))
            work = replace(
                NO_WORK, ranks_after=np.array([p - 1.0 - r]), chunk_backward_s=backward[rank == r].max(keepdims=True)
            )
            first = fill + m * (forward + backward)[rank == r].sum() - lead_s(one, work)[0]
            assert ends.last_start_s.min() >= first - 1e-9, (p, m, v, r)
    assert tried >= 3


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_so_many_micro_batches_have_passed_every_chunk_backward(name: ScheduleName) -> None:
    """The number of backward passes of each chunk is correct when the first stage begins its last gradients.

    All stages take equal time.
    """
    back = [list(Kind).index(one) for one in (Kind.B, Kind.W)]
    for p, m, v in SHAPES:
        if not is_legal(name, p, m, v):
            continue
        compiled = compiled_schedule(PipelineChoice(schedule=name, num_chunks=v), p, m)
        one = candidates(pp=p, num_micro_batches=m, num_chunks=v, schedule=SCHEDULE_NAMES.index(name))
        passed = early_backwards(one)[0]
        for r in range(p):
            mine = compiled.rank == r
            kind, stage = compiled.kind[mine], compiled.stage[mine]
            last_forward = np.flatnonzero(kind == list(Kind).index(Kind.F)).max()
            done = np.bincount(stage[:last_forward][np.isin(kind[:last_forward], back)], minlength=p * v)
            assert done[np.unique(stage)].min() >= passed, (p, m, v, r)


def test_of_equal_ranks_1f1b_leads_by_a_backward_pass_of_every_rank() -> None:
    one = candidates(pp=4, num_micro_batches=16, num_chunks=1, schedule=SCHEDULE_NAMES.index("1F1B"))
    first = replace(NO_WORK, ranks_after=np.array([3.0]), chunk_backward_s=np.array([2.0]))
    assert lead_s(one, first)[0] == 8.0
    behind = replace(first, ranks_after=np.zeros(1), fill_backward_s=np.array([6.0]))
    assert lead_s(one, behind)[0] == 8.0
