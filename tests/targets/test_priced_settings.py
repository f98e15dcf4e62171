"""Job settings about the program that runs it are written for the target, refused, or have no effect on the step."""

from __future__ import annotations

import re

import pytest

import scaleacross as sa
from decisions import DENSE, LARGE, QWEN, Case, decision_of, job_of
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of
from scaleacross.api.simulating import stepped
from scaleacross.cost_models.compute import memory_bytes_per_s
from scaleacross.emitters import EMITTERS
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology
from scaleacross.targets import refused_by

STATED = (
    "experts.dispatch=deduplicated",
    "experts.overlap_fraction=0.8",
    "experts.graphs=partial",
    "overlap.tp_fraction=0.8",
    "overlap.bucket_parameters=400000000",
    "overlap.shard_prefetch=false",
    "overlap.parameter_gather=false",
    "overlap.pipeline_messages=false",
    "optimizer.checked_gradients=false",
    "optimizer.checked_gradients=true",
    "kept.compiled=[model]",
)
EXPERTS = Case(QWEN, "tp4 pp2 dp32 ep8 lanes4", recompute="full", overrides=("global_batch_sequences=512",))


def plan_of(case: Case, target: str, *stated: str) -> Plan | None:
    """The plan; None if the target refuses it."""
    job = Job.model_validate(job_of(case))
    try:
        problem = problem_of(job, ("network.settings=library", f"target={target}", *case.overrides, *stated))
        return evaluated(problem, decision_of(case), degraded=False)
    except sa.InputError as error:
        if "target" in str(error):
            return None
        raise


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_what_is_estimated_is_written_or_refused(target: str) -> None:
    plain = plan_of(EXPERTS, target)
    assert plain is not None
    files = {name: text for name, text in EMITTERS[target](plain).items() if name.endswith((".py", "args.sh"))}
    for stated in STATED:
        other = plan_of(EXPERTS, target, stated)
        if other is not None and other.cost.step_s != plain.cost.step_s:
            assert any(text != files[name] for name, text in EMITTERS[target](other).items() if name in files), stated


@pytest.mark.parametrize(
    ("case", "stated", "message"),
    [
        (EXPERTS, "experts.dispatch=deduplicated", "experts.dispatch deduplicated: .* once per expert"),
        (EXPERTS, "experts.graphs=partial", "experts.graphs partial: .* without CUDA graphs"),
        (EXPERTS, "overlap.tp_fraction=0.8", "overlap.tp_fraction 0.8 with tp 4"),
        (EXPERTS, "overlap.bucket_parameters=50000000", "bucket_parameters 50,000,000: .* layer by layer"),
        (Case(DENSE, "dp16", shard="parameters"), "overlap.tp_fraction=0.8", ""),
        (Case(DENSE, "dp16", shard="parameters"), "experts.graphs=partial", ""),
        (Case(DENSE, "dp16", shard="parameters"), "experts.dispatch=deduplicated", ""),
    ],
)
def test_torchtitan_refuses_what_its_settings_do_not_say(case: Case, stated: str, message: str) -> None:
    problem = problem_of(Job.model_validate(job_of(case)), (*case.overrides, stated))
    refused = refused_by("torchtitan", problem.job, problem.profile, decision_of(case))
    assert len(refused) == bool(message)
    if message:
        assert re.search(message, refused[0])


def test_torchtitan_compiles_layers_only_where_the_job_says_so() -> None:
    """torchtitan compiles layers only if the job says so.

    Operator-by-operator execution is timed as such: rotary embedding 16 bytes more per feature, activation 4.
    """
    case = Case(DENSE, "dp16", shard="parameters")
    layers = []
    for stated in ((), ("kept.compiled=[model]",), ("precision=fp8", "conversion.recipe=torchao_rowwise")):
        job = Job.model_validate(job_of(case))
        problem = problem_of(job, ("network.settings=library", "target=torchtitan", *case.overrides, *stated))
        layers.append(problem.profile.blocks[0][0])
    plain, compiled, converted = layers
    core, (down,) = plain.attention, [gemm for gemm in plain.gemms if gemm.name == "mlp_down"]
    assert core is not None
    more = 16 * (core.num_heads + core.num_kv_heads) * core.qk_head_dim + 4 * down.in_features
    assert plain.elementwise_bytes - compiled.elementwise_bytes == more
    assert converted.elementwise_bytes == compiled.elementwise_bytes


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_one_chunk_per_rank_waits_for_its_messages_and_several_do_not(target: str) -> None:
    """Messages are exposed with one chunk per rank, and not with several.

    Megatron-LM's 1F1B and torch's Schedule1F1B issue a send together with the next receive and wait for both.
    """
    overlap = problem_of(Job.model_validate(job_of(Case(DENSE, "pp4 dp8"))), (f"target={target}",)).job.overlap
    assert overlap.messages(chunked=True)
    assert not overlap.messages(chunked=False)


@pytest.mark.parametrize(
    ("case", "waits"),
    [
        (Case(DENSE, "pp4 dp8"), True),
        (Case(LARGE, "tp8 dp16 x2", "1F1B b4"), False),
    ],
)
def test_gradients_of_torchs_pipelines_leave_after_the_last_pass(case: Case, waits: bool) -> None:
    """Gradients of torch's pipelines start after the last pass.

    A stage of one chunk has no computation left to overlap with. Without a pipeline they start layer by layer.
    """
    steps = []
    for stated in (
        "overlap.reduce_within_pass=true",
        "overlap.reduce_within_pass=false",
        "overlap.gradient_reduce=false",
    ):
        problem = problem_of(Job.model_validate(job_of(case)), ("network.settings=library", stated))
        plan = evaluated(problem, decision_of(case), degraded=False)
        steps.append((plan.cost.step_s, stepped(plan, problem).step_s))
    for within, after, never in zip(*steps, strict=True):
        assert (within < after <= never) if waits else (within == after < never)
    overlap = problem_of(Job.model_validate(job_of(case)), ("target=torchtitan",)).job.overlap
    assert not overlap.reduces_within(pipelined=True) and overlap.reduces_within(pipelined=False)


def test_megatron_reads_its_gradients_for_nan_unless_told_otherwise() -> None:
    """Megatron-LM checks gradients for NaN by default.

    It reads 4 bytes of each of 8,030,261,248 parameters on tp 2 at memory speed. Both ranks have the norms. Other
    targets have no such check.
    """
    case = Case(DENSE, "tp2 dp16", "1F1B b2")
    checked, unchecked = (
        plan_of(case, "megatron", f"optimizer.checked_gradients={flag}") for flag in ("null", "false")
    )
    assert checked is not None and unchecked is not None
    chip = Topology.model_validate(checked.job.topology).buildings[0].accelerator
    read_s = 4 * 8_030_261_248 / 2 / memory_bytes_per_s(chip)
    assert checked.estimated.step_s - unchecked.estimated.step_s == pytest.approx(read_s, rel=1e-3)
    assert checked.cost.step_s - unchecked.cost.step_s == pytest.approx(read_s, rel=2e-2)
    flag = "--no-check-for-nan-in-loss-and-grad"
    found = [flag in EMITTERS["megatron"](plan)["megatron/megatron_args.sh"] for plan in (checked, unchecked)]
    assert found == [False, True]
