"""A plan whose pipeline has an order of its own.

Its step time comes from timing the order. The plan is verified, and an illegal order is refused.
"""

from __future__ import annotations

import pytest

import scaleacross as sa
from instances import plain_job
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import chosen, generate
from scaleacross.schedules.pipeline.cells import to_rows
from scaleacross.schedules.pipeline.eager_1f1b import with_extra
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice, ScheduleName
from scaleacross.spec.plan import Decision, Plan

P, M = 4, 16


def evaluated(schedule: ScheduleName, chunks: int = 1, order: tuple[str, ...] | None = None) -> Plan:
    """A plan of ten layers: two on each end and three on the ranks between.

    With embedding and head the ends have no more work than the others.
    """
    workload = plain_job(1).model_dump(mode="json")["workload"] | {"num_layers": 10, "vocabulary_size": 1536}
    job = plain_job(2, 2, schedules=["1F1B", "ZBH1", "ZBVZeroBubble"], workload=workload)
    pipeline = PipelineChoice(schedule=schedule, num_chunks=chunks, order=order)
    decision = Decision(degrees=Degrees(pp=P), pipeline=pipeline, recompute="none", shard="none")
    return sa.evaluate((Job.model_validate(job), decision))


@pytest.mark.parametrize(("schedule", "chunks"), [("1F1B", 1), ("ZBH1", 1), ("ZBVZeroBubble", 2)])
def test_the_generated_order_costs_what_its_name_costs(schedule: ScheduleName, chunks: int) -> None:
    named = evaluated(schedule, chunks)
    carried = evaluated(schedule, chunks, to_rows(generate(schedule, P, M, chunks)))
    assert carried.cost.step_s == pytest.approx(named.cost.step_s, rel=1e-9)
    assert [stage.activations_bytes for stage in carried.memory] == pytest.approx(
        [stage.activations_bytes for stage in named.memory]
    )
    sa.verify(carried)


def test_another_order_costs_what_timing_says() -> None:
    plain = evaluated("1F1B")
    eager = evaluated("1F1B", order=to_rows(with_extra(M, [3, 2, 1, 0])))
    sa.verify(eager)
    assert eager.cost.step_s < plain.cost.step_s, "more micro-batches in flight overlap with more messages"
    assert eager.memory[0].activations_bytes > plain.memory[0].activations_bytes
    assert chosen(eager.decision.pipeline, P, M).name == "1F1B reordered"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:3], "the pipeline's order has 3 rows for 4 ranks"),
        (lambda rows: ("0B0," + rows[0], *rows[1:]), "0B0, is a backward before its forward"),
        (lambda rows: ("1F0", *rows[1:]), "cell '1F0' of rank 0: stage 1 is on rank 1 of 4"),
        (lambda rows: ("0X0", *rows[1:]), "'0X0' of rank 0 is no cell"),
        (lambda rows: (rows[0].replace("0F1,0F2", "0F2,0F1"), *rows[1:]), None),
    ],
)
def test_orders_that_are_not_legal_are_refused(change: object, words: str | None) -> None:
    rows = change(to_rows(generate("1F1B", P, M, 1)))  # type: ignore[operator]
    if words is None:
        assert evaluated("1F1B", order=rows).cost.step_s >= evaluated("1F1B").cost.step_s
        return
    with pytest.raises(InputError, match=words):
        evaluated("1F1B", order=rows)
