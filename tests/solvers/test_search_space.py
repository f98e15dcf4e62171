"""Each rule R1–R9 admits legal candidates, refuses others and counts them. No candidate appears twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from cases import each
from instances import instance, moe, plain_job
from oracles import exhaustive
from scaleacross.cost_models.candidates import Candidates, concatenate
from scaleacross.errors import InputError
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import MIN_TOKENS_PER_RANK, Refusals, SearchSpace, divisors
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import problem_of


def space_of(job: Job) -> SearchSpace:
    problem = problem_of(job)
    pool = pools(problem.topology)[0]
    return SearchSpace(job, problem.profile, pool.num_accelerators, pool.unit)


def rows_of(job: Job, refusals: Refusals | None = None) -> Candidates:
    batches = list(space_of(job).batches(refusals or Refusals()))
    return concatenate(batches) if batches else Candidates(*(np.zeros(0, dtype=np.int64) for _ in fields(Candidates)))


def values(job: Job, column: str) -> set[int]:
    return set(getattr(rows_of(job), column).tolist())


def decisions(job: Job) -> Iterator[Decision]:
    rows = rows_of(job)
    return (rows.decision(index) for index in range(len(rows)))


def refused(job: Job) -> set[str]:
    """Numbers of the rules that refused a candidate."""
    refusals = Refusals()
    rows_of(job, refusals)
    return {rule.split()[0] for rule in refusals.counts}


def pinned(**degrees: Any) -> dict[str, Any]:
    return {"degrees": degrees}


# one micro-batch size and one policy keep the spaces small where neither matters
NARROW: dict[str, Any] = {"micro_batch_sequences": 1, "recompute": "none"}


def test_r1_heads_and_widths() -> None:
    assert values(plain_job(4, **NARROW), "tp") == {1, 2, 4}  # 4 heads
    assert values(plain_job(4, **NARROW, workload=moe(expert_intermediate_size=130)), "tp") == {1, 2}
    assert len(rows_of(plain_job(4, **NARROW, **pinned(tp=3)))) == 0
    assert "R1" in refused(plain_job(4, **NARROW, **pinned(tp=3)))


def test_r2_sequence() -> None:
    assert MIN_TOKENS_PER_RANK == 1024
    assert values(plain_job(4, **NARROW), "cp") == {1, 2, 4}
    assert values(plain_job(4, **NARROW, sequence_length=3072), "cp") == {1, 2, 3}
    assert values(plain_job(4, **NARROW, sequence_length=3073), "cp") == {1}  # 7 divides it, 2·7 does not
    assert {"R2"} <= refused(plain_job(4, **NARROW, sequence_length=3073))
    assert values(plain_job(4, **NARROW, sequence_length=4098), "tp") == {1, 2}  # 4 does not divide 4,098 tokens


def test_r3_layers() -> None:
    # 8 layers: 1, 2, 3, 4, 8 stages hold 8, 4, 3, 2, 1 layers; 5 reaches the 2 of ten (two ends); 6 and 7 add no size
    assert values(plain_job(8, **NARROW), "pp") == {1, 2, 3, 4, 5, 8}
    assert values(plain_job(8, **NARROW, **pinned(pp=[6, 7])), "pp") == {6, 7}
    assert values(plain_job(8, **NARROW, **pinned(pp={"min": 6, "max": 7})), "pp") == {6}  # 5 is not allowed
    assert len(rows_of(plain_job(8, **NARROW, **pinned(pp=9)))) == 0
    assert "R3" in refused(plain_job(8, **NARROW, **pinned(pp=9)))
    chunks = {(d.degrees.pp, d.pipeline.num_chunks) for d in decisions(plain_job(8, **NARROW))}
    assert {(4, 2), (2, 5)} <= chunks  # 10 virtual stages: embedding and head without layers
    assert max(pp * v for pp, v in chunks) == 8 + 2


@pytest.mark.parametrize("asked", [12, {"min": 12}, {"min": 12, "max": 15}])
def test_r3_stages_that_only_a_stated_number_of_accelerators_needs(asked: object) -> None:
    rows = rows_of(plain_job(16, **NARROW, num_accelerators=asked))
    ranks = rows.tp * rows.cp * rows.dp
    # 5 stages hold as many layers, but on two ranks each they are 10, not 12
    assert ((rows.pp == 6) & (ranks == 2)).any()
    assert not ((rows.pp == 6) & (ranks * 5 >= 12)).any()


def test_r4_batch() -> None:
    job = plain_job(4, micro_batch_sequences=[1, 3, 4], recompute="none", global_batch_sequences=12)
    rows = rows_of(job)
    assert (rows.dp * rows.micro_batch * rows.num_micro_batches == 12).all()
    assert set(rows.micro_batch.tolist()) == {1, 3, 4}
    assert 5 not in rows.dp
    assert len(rows_of(plain_job(4, micro_batch_sequences=5))) == 0
    assert "R4" in refused(plain_job(4, micro_batch_sequences=5))


def test_r5_experts() -> None:
    job = plain_job(4, **NARROW, workload=moe())
    rows = rows_of(job)
    assert set(rows.ep.tolist()) == {1, 2, 4, 8}
    assert (rows.dp_shard % rows.ep == 0).all()
    assert (rows.ep[rows.shard == 0] == 1).all()
    assert values(plain_job(4, **NARROW), "ep") == {1}  # nothing to spread without experts
    assert len(rows_of(plain_job(4, **NARROW, workload=moe(), **pinned(ep=3)))) == 0


def test_r6_accelerators() -> None:
    rows = rows_of(plain_job(3, **NARROW))  # 12 accelerators in hosts of 4
    assert set(rows.world_size.tolist()) == {1, 2, 4, 8, 12}
    assert values(plain_job(3, **NARROW, num_accelerators=8), "tp") == {1, 2, 4}
    assert set(rows_of(plain_job(3, **NARROW, num_accelerators=8)).world_size.tolist()) == {8}
    for number in (6, 16):  # a host and a half; more than there are
        assert len(rows_of(plain_job(3, **NARROW, num_accelerators=number))) == 0
        assert "R6" in refused(plain_job(3, **NARROW, num_accelerators=number))


@pytest.mark.parametrize("axis", ["tp", "cp", "pp", "dp_shard", "dp_replicate"])
def test_r6_hosts_are_used_whole_whatever_makes_the_number(axis: str) -> None:
    job = plain_job(3, 3, **NARROW, global_batch_sequences=12, sequence_length=6144, **pinned(**{axis: 3}))
    assert all(world % 4 == 0 for world in rows_of(job).world_size.tolist())


def test_r7_schedules() -> None:
    found = list(decisions(plain_job(4, **NARROW, global_batch_sequences=4)))
    for decision in found:
        m, pp = 4 // decision.degrees.dp, decision.degrees.pp
        if decision.pipeline.schedule == "Interleaved1F1B":
            assert pp > 1
            assert m % max(1, m // pp) == 0
            assert decision.pipeline.num_chunks >= 2
        elif decision.pipeline.schedule == "1F1B":
            assert pp == 1 or m >= pp
    assert {d.pipeline.schedule for d in found if d.degrees.pp == 8} == {"GPipe"}  # 4 micro-batches for 8 stages
    assert {d.pipeline.schedule for d in found if d.degrees.pp == 1} == {"1F1B"}
    assert "R7" in refused(plain_job(4, **NARROW, global_batch_sequences=4))
    assert values(plain_job(8, **NARROW, schedules="GPipe"), "pp") == {2, 3, 4, 5, 8}


def test_r8_shard_level() -> None:
    found = list(decisions(plain_job(4, **NARROW)))
    for decision in found:
        degrees = decision.degrees
        assert (decision.shard != "none") or degrees.dp_shard == 1
        assert (decision.shard == "none") or degrees.dp_shard * degrees.cp > 1
    assert {d.shard for d in found} == {"none", "optimizer", "parameters"}
    assert any(d.shard == "none" and d.degrees.cp > 1 for d in found)
    assert any(d.shard == "parameters" and d.degrees.dp_shard == 1 for d in found)  # sharded over cp alone


@pytest.mark.parametrize(
    "pin",
    [
        pinned(tp=2, cp=2, pp=2, dp_shard=2, dp_replicate=1),
        pinned(dp_shard={"min": 2, "max": 4}),
        pinned(dp_replicate=[2, 4], ep=2),
        {"schedules": "GPipe"},
        {"recompute": ["full"]},
        {"shard": ["optimizer"]},
        {"micro_batch_sequences": [2]},
        {"num_chunks": [1, 3]},
    ],
    ids=str,
)
def test_r9_what_the_user_pins(pin: dict[str, Any]) -> None:
    job = plain_job(4, workload=moe(), **pin)
    found = list(decisions(job))
    assert found
    for decision in found:
        for axis, value in decision.degrees.model_dump().items():
            assert job.degrees.allows(axis, value)
        assert decision.pipeline.schedule in job.schedules
        assert decision.pipeline.num_chunks in job.num_chunks
        assert decision.pipeline.micro_batch_sequences in job.micro_batch_sequences
        assert decision.recompute in job.recompute
        assert decision.shard in job.shard


@each("seed", (4, 10, 19, 48, 54), range(0, 60, 3))
def test_the_space_is_the_oracle_s_and_nothing_appears_twice(seed: int) -> None:
    problem = instance(seed)
    for pool in pools(problem.topology):
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
        partials = list(space.partials(Refusals()))
        found = [
            rows.decision(i) for part in partials for rows in [space.expand(part, Refusals())] for i in range(len(rows))
        ]
        assert sum(int(space.num_candidates(part).sum()) for part in partials) == len(found)
        keys = [decision.model_dump_json() for decision in found]
        assert len(keys) == len(set(keys))
        assert set(keys) == {decision.model_dump_json() for decision in exhaustive.candidates(problem, pool)}


def test_divisors() -> None:
    assert divisors(1) == (1,)
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(97) == (1, 97)


def test_a_space_that_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = instance(4).job
    some = sum(len(partials) for partials in space_of(job).partials(Refusals()))
    monkeypatch.setattr("scaleacross.solvers.search_space.MOST_PARTIALS", some)
    assert sum(len(partials) for partials in space_of(job).partials(Refusals())) == some
    monkeypatch.setattr("scaleacross.solvers.search_space.MOST_PARTIALS", some - 1)
    with pytest.raises(InputError, match="more than memory holds at once"):
        list(space_of(job).partials(Refusals()))
