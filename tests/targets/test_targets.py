"""Rules of targets are the same in the search, the checker and the emitters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from decisions import DENSE, Case, decision_of, job_of
from instances import plain_job
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of
from scaleacross.bundle import write_bundle
from scaleacross.catalogue import load_workload
from scaleacross.cost_models.candidates import Candidates
from scaleacross.emitters import EMITTERS
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, Degrees
from scaleacross.spec.plan import Decision, Plan
from scaleacross.targets import TARGETS, behaving, refused_by
from scaleacross.targets.torchtitan_models import find_flavor
from scaleacross.units import human_bytes
from scaleacross.workloads.decoder import Decoder

JOB = "llama3_8b_one_building"
SMALL = ("num_accelerators={min: 16, max: 32}", "global_batch_sequences=64")
EVERY_SCHEDULE = "schedules=[GPipe, 1F1B, Interleaved1F1B, ZBH1, ZBVZeroBubble]"


def space_of(*overrides: str) -> SearchSpace:
    problem = problem_of(JOB, (*SMALL, *overrides))
    return SearchSpace(problem.job, problem.profile, 32, 8)


def rows(candidates: Candidates) -> set[tuple[int, ...]]:
    return set(
        map(tuple, np.stack([getattr(candidates, name) for name in candidates.__dataclass_fields__], axis=1).tolist())
    )


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
@pytest.mark.parametrize("exchange", ["ring", pytest.param("gather", marks=pytest.mark.heavy)])
def test_the_search_keeps_what_the_words_allow(target: str, exchange: str) -> None:
    """The search keeps the candidates that the rules allow.

    Candidates of a target are those of ``any`` that the same rules do not refuse one by one.
    """
    asked = (EVERY_SCHEDULE, f"context_exchange={exchange}")
    free, bound = space_of(*asked), space_of(*asked, f"target={target}")
    refusals = Refusals()
    found = [batch for batch in bound.batches(refusals) if len(batch)]
    kept = set().union(*map(rows, found))
    job, profile, seen, lost = bound.job, bound.profile, 0, 0
    for batch in free.batches(Refusals()):
        for index in range(0, len(batch), 97):  # a sample
            refused = refused_by(target, job, profile, batch.decision(index))
            row = tuple(int(getattr(batch, name)[index]) for name in batch.__dataclass_fields__)
            assert (row in kept) == (not refused), (row, refused)
            seen, lost = seen + 1, lost + bool(refused)
    assert 0 < lost < seen
    assert any(name.startswith(f"target {target}: ") for name in refusals.counts)


@pytest.mark.parametrize(
    ("change", "able"),
    [
        ({"sinks": True}, {"all_to_all"}),
        ({"sinks": True, "window": 128}, {"all_to_all"}),
        ({"window": 128}, {"all_to_all", "gather"}),
        ({}, {"all_to_all", "gather", "ring", "all_to_all_ring"}),
    ],
)
def test_megatron_exchanges_what_transformer_engine_has(change: dict[str, Any], able: set[str]) -> None:
    """Megatron-LM has the exchanges of Transformer Engine 2.20.

    Learnable softmax over cp needs a2a; windows need a2a or all_gather.
    """
    problem = problem_of(JOB, (*SMALL, "sequence_length=8192"))
    decoder = load_workload("llama3.1-8b").decoder().model_dump()
    decoder["kinds"]["dense_block"]["mixer"] |= change
    workload = Decoder.model_validate(decoder)
    job = problem.job.model_copy(update={"workload": workload.model_dump(mode="json")})
    for exchange in CONTEXT_EXCHANGES:
        degrees = {"cp": 4, "dp_shard": 4, "cp_inner": 2 if exchange == "all_to_all_ring" else 1}
        choice = {"context_exchange": exchange, "shard": "optimizer", "recompute": "none"}
        decision = Decision.model_validate({"degrees": degrees, "pipeline": {"schedule": "1F1B"}, **choice})
        refused = refused_by("megatron", job, workload.profile(), decision)
        assert (not refused) == (exchange in able), refused
        assert all("Transformer Engine has these with" in line for line in refused)
        alone = decision.model_copy(update={"degrees": Degrees(dp_shard=16)})
        assert not refused_by("megatron", job, workload.profile(), alone)


def test_without_a_target_nothing_is_refused() -> None:
    refusals = Refusals()
    list(space_of(EVERY_SCHEDULE).batches(refusals))
    assert not Counter(name for name in refusals.counts if name.startswith("target"))


@pytest.fixture(scope="module")
def free_plan() -> Plan:
    """A plan for any target, with a policy that no framework has."""
    return sa.plan(
        JOB,
        time_limit_s=20,
        gap_tolerance=0.1,
        alternatives=False,
        overrides=(*SMALL, "recompute=selective", "degrees.cp=1"),
    )


def test_a_plan_for_any_target_names_those_that_express_it(free_plan: Plan) -> None:
    verdicts = {fit.target: fit.refused for fit in free_plan.targets}
    assert list(verdicts) == list(TARGETS)
    assert verdicts["scaleacross"] == ()
    assert verdicts["megatron"][0].startswith("recompute selective: Megatron-LM has no policy")
    with pytest.raises(sa.EmitError, match="recompute selective: Megatron-LM"):
        sa.emit(free_plan, "megatron", "unused")


def test_evaluate_names_what_the_target_cannot_express(free_plan: Plan) -> None:
    job = free_plan.job.model_copy(update={"target": "megatron"})
    with pytest.raises(sa.InputError, match=r"V10: target megatron: recompute selective"):
        sa.evaluate((job, free_plan.decision))


def test_a_stated_verdict_must_follow_from_the_laws(free_plan: Plan) -> None:
    first, *others = free_plan.targets
    forged = (first, *(other.model_copy(update={"refused": ()}) for other in others))
    for targets in (forged, ()):
        with pytest.raises(sa.VerificationError, match="V10"):
            sa.verify(free_plan.model_copy(update={"targets": targets}))


@pytest.fixture(scope="module")
def tight_plan() -> Plan:
    """A plan with 77 of 80 GiB in use by Megatron-LM. torchtitan needs more for the loss and for gathered layers."""
    case = Case(DENSE, "dp16", shard="parameters", overrides=("sequence_length=11264", "target=megatron"))
    problem = problem_of(Job.model_validate(job_of(case)), ("network.settings=library", *case.overrides))
    return evaluated(problem, decision_of(case), degraded=False)


def test_a_target_without_the_memory_is_named(tight_plan: Plan, tmp_path: Path) -> None:
    """A target with too little memory is named.

    The message has the memory that ``evaluate`` counts under that target, and its files are not written.
    """
    verdicts = {fit.target: fit.refused for fit in tight_plan.targets}
    assert verdicts["megatron"] == verdicts["scaleacross"] == ()
    under = evaluated(problem_of(tight_plan.job, ("target=torchtitan",)), tight_plan.decision, degraded=False)
    most = max(stage.total_bytes for stage in under.memory)
    assert most > under.memory[0].capacity_bytes
    (reason,) = verdicts["torchtitan"]
    assert reason.startswith(f"memory: stage 0 needs {human_bytes(most)} of ")
    written = write_bundle(tight_plan, tmp_path)
    assert written.refused["torchtitan"] == reason
    assert (tmp_path / "megatron").is_dir() and not (tmp_path / "torchtitan").exists()
    with pytest.raises(sa.EmitError, match="memory: stage 0 needs"):
        sa.emit(tight_plan, "torchtitan", tmp_path)


def test_a_plan_that_does_not_fit_at_all_is_said_once(tight_plan: Plan) -> None:
    """A plan that does not fit anywhere is reported once, by ``evaluate``. The targets would repeat the same."""
    under = evaluated(problem_of(tight_plan.job, ("target=torchtitan",)), tight_plan.decision, degraded=False)
    assert not any(fit.refused for fit in under.targets)
    assert any(note.startswith("does not fit") for note in under.report.notes)


def test_what_one_target_fixes_does_not_stay_with_another() -> None:
    """Settings of one target do not carry over to another.

    Each target counts the memory of a plan in its own way, whichever one it was planned for.
    """
    titan = problem_of(JOB, ("target=torchtitan",)).job
    assert (titan.kept.by, titan.optimizer.gathered_from_master) == ("pytorch", True)
    megatron = behaving(titan.model_copy(update={"target": "megatron"}))
    assert (megatron.kept.by, megatron.optimizer.gathered_from_master) == ("megatron", False)


def test_a_target_is_planned_for_and_behaves() -> None:
    found = sa.plan(
        JOB, time_limit_s=20, gap_tolerance=0.1, alternatives=False, overrides=(*SMALL, "target=torchtitan")
    )
    assert not found.job.overlap.tp_reduce
    assert found.decision.recompute != "selective"
    assert {fit.target: fit.refused for fit in found.targets}["torchtitan"] == ()
    text = EMITTERS["torchtitan"](found)["torchtitan/scaleacross_plan.py"]
    assert "fully_shard" not in text
    assert "instead" not in text


def test_a_job_that_its_target_cannot_run_is_refused_at_once() -> None:
    with pytest.raises(sa.InputError, match=r"target torchtitan, which cannot run it:\n- gradients of 2 bytes"):
        sa.plan(JOB, overrides=("target=torchtitan", "optimizer.reduce_bytes=2"))


@pytest.mark.heavy
def test_a_target_that_leaves_nothing_is_named() -> None:
    asked = ("target=megatron", "recompute=selective")
    with pytest.raises(sa.InfeasibleError, match="target megatron") as caught:
        sa.plan(JOB, overrides=(*SMALL, *asked), time_limit_s=20)
    assert "recompute" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "flavor", "untrained"),
    [
        ("llama3.1-8b", "8B", 0),
        ("llama3.1-70b", "70B", 0),
        ("llama3.1-405b", "405B", 0),
        ("qwen3-235b-a22b", "235B-A22B", 0),
        ("deepseek-v3", "671B", 58 * 256),
    ],
)
def test_torchtitans_model_has_the_workloads_parameters(name: str, flavor: str, untrained: int) -> None:
    """torchtitan's model has the workload's parameters.

    Flavors are counted on the meta device (test_flavors_are_torchtitans), where router biases are buffers.
    """
    profile = load_workload(name).profile()
    found = find_flavor(profile)
    assert found is not None
    assert (found.name, found.num_parameters) == (flavor, profile.total_parameters - untrained)


@pytest.mark.heavy
@pytest.mark.parametrize(("schedule", "chunks", "waits"), [("1F1B", 1, True), ("Interleaved1F1B", 2, False)])
def test_megatron_waits_for_the_messages_of_plain_1f1b_only(schedule: str, chunks: int, waits: bool) -> None:
    """Megatron-LM exposes the messages of plain 1F1B only.

    Step time, lower bound and simulation agree. No option of Megatron-LM overlaps them (training/arguments.py).
    """
    unchecked = {"checked_gradients": False}  # Megatron-LM's check of gradients takes time, too
    pinned: dict[str, Any] = {"degrees": {"tp": 1, "cp": 1, "pp": 4}, "recompute": "none", "optimizer": unchecked}
    open_job = plain_job(2, 2, schedules=schedule, num_chunks=chunks, **pinned)
    found = [
        sa.plan(open_job.model_copy(update={"target": target}), time_limit_s=20, alternatives=False, simulated=False)
        for target in ("scaleacross", "megatron")
    ]
    for seconds in (lambda plan: plan.estimated.step_s, lambda plan: sa.simulate(plan).step_s):
        free, waiting = (seconds(plan) for plan in found)
        assert waiting > free * (1 + 1e-4) if waits else waiting == pytest.approx(free, rel=1e-9)
    assert found[1].report.bound_s <= found[1].estimated.step_s
