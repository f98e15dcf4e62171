"""Gradients and parameters that delay passes of a pipeline: by hand, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import decisions, evaluated

import scaleacross as sa
from scaleacross.catalogue.quick_start import Start, quick_job
from scaleacross.cost_models.pipeline.compiled import compile_schedule
from scaleacross.cost_models.pipeline.own_traffic import OwnTraffic
from scaleacross.cost_models.pipeline.timing import PipelineTimes, time_schedule
from scaleacross.schedules.pipeline import generate
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision


def timed(name: str, p: int, m: int, v: int, sent: OwnTraffic | None) -> PipelineTimes:
    """Times of a pipeline with forward passes of 1 s, backward passes of 2 s and messages without duration."""
    compiled = compile_schedule(generate(name, p, m, v))  # type: ignore[arg-type]
    return time_schedule(compiled, 1.0, 2.0, 0.0, 0.0, own_traffic=sent)


def gradients(p: int, v: int, seconds: float, pieces: float, loss: float) -> OwnTraffic:
    stages = np.ones(p * v)
    return OwnTraffic(seconds * stages, pieces * stages, loss * stages, np.array([False]))


@pytest.mark.parametrize(
    ("seconds", "pieces", "total", "end"),
    [
        (1.0, 2, 9 + 2 * 0.25, 10.0),  # 1/2 s of each stage's in its own pass, the rest after it
        (3.0, 2, 9 + 2 * 0.5, 12.0),  # a pass of 2 s overlaps 1 s
        (1.0, 1, 9.0, 10.0),  # one bucket leaves when its pass has ended
    ],
)
def test_late_passes_follow_one_another(seconds: float, pieces: int, total: float, end: float) -> None:
    """Late passes delay one another; two ranks with two micro-batches take 9 s without traffic.

    Each rank loses half of every second in which its gradients travel. The last micro-batch passes both ranks.
    """
    times = timed("1F1B", 2, 2, 1, gradients(2, 1, seconds, pieces, 0.5))
    assert times.total_s == pytest.approx(total)
    assert times.own_s.max() == pytest.approx(end)


def test_what_an_earlier_stage_left_slows_the_following_passes() -> None:
    """Traffic that a stage leaves slows the following passes.

    Each chunk has one bucket. That of the second chunk travels for 1 s while passes of the first chunk begin. The last
    rank loses half a second. The first rank waits that long and loses half of the rest.
    """
    alone, times = (timed("Interleaved1F1B", 2, 2, 2, sent) for sent in (None, gradients(2, 2, 1.0, 1, 0.5)))
    assert times.total_s == pytest.approx(alone.total_s + 0.5 + 0.25)


@pytest.mark.parametrize(
    ("seconds", "pieces", "total"),
    [
        (1.0, 2, 9 + 0.5 + 0.25),  # the first bucket, and half of the second one's time
        (3.0, 2, 9 + 1.5 + 1.0 + 0.5),  # the second half of the pass waits for the second bucket
        (1.0, 1, 9 + 1.0),
    ],
)
def test_the_first_stage_waits_for_its_parameters(seconds: float, pieces: int, total: float) -> None:
    """Only the first stage waits for its parameters.

    The second stage has its own before the first micro-batch arrives.
    """
    gathered = gradients(2, 1, seconds, pieces, 0.5)._replace(gathered=np.array([True]))
    assert timed("1F1B", 2, 2, 1, gathered).total_s == pytest.approx(total)


@pytest.mark.parametrize(("name", "v"), [("1F1B", 1), ("GPipe", 1), ("Interleaved1F1B", 2)])
def test_gradients_that_take_nothing_change_nothing_and_all_of_them_end(name: str, v: int) -> None:
    alone, free, slow = (
        timed(name, 4, 8, v, sent) for sent in (None, gradients(4, v, 3.0, 3, 0.0), gradients(4, v, 3.0, 3, 0.2))
    )
    assert free.total_s == pytest.approx(alone.total_s)
    assert alone.total_s < slow.total_s <= alone.total_s + 4 * v * 0.2 * 3.0
    assert free.own_s.max() >= alone.total_s + 3.0 / 3


@pytest.mark.heavy
def test_gradients_inside_buildings_delay_all_ranks_of_a_pipeline() -> None:
    """Gradients inside buildings delay all ranks of a pipeline.

    With few micro-batches every last backward pass has slower all-to-alls. The step was 7 % too low when only one rank
    had them.
    """
    job = quick_job(Start("gpt-oss-120b", "h100:128,h100:256", "768K", "4096", trunk="8x400G", km=1000))
    decision = {
        "degrees": {"cp": 2, "dp_shard": 64, "pp": 3, "ep": 16},
        "pipeline": {"schedule": "Interleaved1F1B", "num_chunks": 2},
        "recompute": "none",
        "shard": "optimizer",
        "placement": {
            "axis_order": ["tp", "dp_replicate", "cp", "dp_shard", "pp"],
            "fill": [
                {"building": "building-a", "num_accelerators": 128},
                {"building": "building-b", "num_accelerators": 256},
            ],
        },
    }
    step = sa.simulate(sa.evaluate((Job.model_validate(job), Decision.model_validate(decision))))
    assert abs(step.difference) < 0.03


@pytest.mark.heavy
def test_a_rank_whose_only_bucket_travels_alone_is_late_for_nothing() -> None:
    """One of 31 ranks has a single layer, which travels after its pass; its HBM traffic was divided by 0."""
    row, job = next((row, job) for number, row, job in decisions() if number == 83)
    step = sa.simulate(evaluated(row, job))
    assert abs(step.difference) < 0.05
