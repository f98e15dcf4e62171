"""Cached layer times are those of each row, whatever was computed before or together with it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from machines import accelerator, candidates, gpt, job

from scaleacross.cost_models.candidates import Candidates
from scaleacross.cost_models.layer_seconds import StackedTimes, times_by_type
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import ModelProfile


def both(profile: ModelProfile, of: Job, chip: Accelerator, rows: Candidates) -> np.ndarray:
    (times,) = times_by_type(profile, of, [chip], rows)
    return np.stack([getattr(times, field.name) for field in fields(StackedTimes)])


def test_a_remembered_row_is_the_row_timed_afresh() -> None:
    rows = candidates(tp=[1, 2, 4, 2, 8], micro_batch=[1, 2, 1, 2, 4])
    profile, of, chip = gpt().profile(), job(2048, 256), accelerator()
    both(profile, of, chip, rows.take(np.array([3, 0])))
    again = both(profile, of, chip, rows)
    assert again.tolist() == both(gpt().profile(), of, accelerator(), rows).tolist()
    assert again[..., 1].tolist() == again[..., 3].tolist()
    assert len(np.unique(again[0, 0])) == 3  # tp 2 with 2 sequences is tp 1 with 1


def test_nothing_is_remembered_across_models_accelerators_and_jobs() -> None:
    """The cache distinguishes models, accelerators and jobs.

    Each request differs from the first in one respect. A table with a coarser key would return the old times.
    """
    rows, chip = candidates(tp=[1, 2]), accelerator(memory_bandwidth_bytes_per_s=1e10)  # memory limits everything
    profile, of = gpt().profile(), job(2048, 256)
    first = both(profile, of, chip, rows)
    faster = accelerator(memory_bandwidth_bytes_per_s=2 * chip.memory_bandwidth_bytes_per_s)
    assert (both(profile, of, faster, rows)[0] < first[0]).all()
    longer = of.model_copy(update={"sequence_length": 2 * of.sequence_length})
    assert (both(profile, longer, chip, rows)[0] > first[0]).all()
    fused = of.model_copy(
        update={
            "optimizer": of.optimizer.model_copy(update={"fused_accumulation": not of.optimizer.fused_accumulation})
        }
    )
    assert (both(profile, fused, chip, rows)[2] != first[2]).any()
    assert both(profile, of, chip, rows).tolist() == first.tolist()


def test_micro_batches_of_thousands_are_not_those_of_the_next_expert_degree() -> None:
    """Large micro-batches have keys of their own.

    (ep 1, 4,097 sequences) and (ep 2, 1 sequence) once shared a key and so their times.
    """
    rows = candidates(ep=[1, 2], micro_batch=[4097, 1])
    timed = both(gpt().profile(), job(2048, 256), accelerator(), rows)
    assert (timed[0, 0, 0] > 1000 * timed[0, 0, 1]).all()
