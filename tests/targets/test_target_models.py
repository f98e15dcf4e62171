"""A job whose target cannot run its model is refused before any search, with the emitter's reason."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from published import CONFIGS
from scaleacross import catalogue
from scaleacross.api.problems import problem_of
from scaleacross.emitters.megatron_model import model_arguments
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.plan import Decision, Plan
from scaleacross.targets import refused_by, refused_job
from scaleacross.targets.torchtitan_models import find_flavor
from scaleacross.workloads.huggingface import from_hf_config
from scaleacross.workloads.workload import Workload

LENGTH = 4096


def job_of(workload: Workload, **fields: Any) -> Job:
    stated = {"sequence_length": LENGTH, "global_batch_sequences": 64, "topology": "one_building", **fields}
    return Job.model_validate({"name": "models", "workload": workload.model_dump(mode="json"), **stated})


def emitted(job: Job) -> str:
    """The emitter's reason to refuse the model of a job; empty if it writes the files."""
    decision = Decision(degrees=Degrees(), pipeline=PipelineChoice(schedule="1F1B"), recompute="none", shard="none")
    try:
        model_arguments(Plan.model_construct(job=job, decision=decision))
    except sa.EmitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CONFIGS)
def test_megatron_refuses_the_models_that_its_emitter_refuses(name: str) -> None:
    workload = from_hf_config(CONFIGS[name], name)
    length = 2048 if name == "opt-6.7b" else LENGTH  # otherwise both its positions and its activation are refused
    job = job_of(workload, target="megatron", sequence_length=length)
    said = [line for line in refused_job(job, workload.profile()) if "model" in line or "positions" in line]
    assert said == [text for text in [emitted(job)] if text]
    assert bool(said) == any(mark in name.lower() for mark in ("gemma", "olmo", "granite", "llama4", "llama-4", "nemotron",
                                                               "neox", "gpt2", "glm-4-", "minimax", "exaone-4", "mamba",
                                                               "bamba", "ernie-4.5-21b", "glm4v-text",
                                                               "arcee", "command", "phi-2", "phi-3.5", "falcon-7b", "falcon-40b",
                                                               "gpt-j", "opt-", "stablelm-parallel"))  # fmt: skip


def test_a_model_without_options_is_refused_before_the_search() -> None:
    job = job_of(from_hf_config(CONFIGS["gemma-3-1b"], "gemma"))
    with pytest.raises(
        sa.InputError, match=r"target megatron, which cannot run it:\n- model 'gemma': .*normalise what"
    ):
        sa.plan(job, overrides=("target=megatron",))


def test_learned_positions_end_the_sequence() -> None:
    job = job_of(from_hf_config(CONFIGS["gpt2"], "gpt2"), target="megatron")
    profile = from_hf_config(CONFIGS["gpt2"], "gpt2").profile()
    assert "set sequence_length: 1024 or less" in refused_job(job, profile)[0]
    assert not refused_job(job.model_copy(update={"sequence_length": 1024}), profile)


def test_a_family_that_says_its_costs_only_is_refused() -> None:
    class Costs(Workload):
        family: str = "costs"

    profile = from_hf_config(CONFIGS["Llama-3.1-8B"], "x").profile()
    job = job_of(Costs(name="x"), target="megatron")
    assert "workload family 'costs' is unknown" in refused_job(job, profile)[0]


@pytest.mark.parametrize(
    ("change", "tuning", "message"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, None, "rotary scaling linear: torchtitan 0.3.0's CosSin"),
        ({}, {"checkpoint": "weights/here"}, "takes absolute paths and URIs only"),
        ({}, {"checkpoint": "/weights/here"}, None),
    ],
)  # fmt: skip
def test_what_torchtitans_emitter_refuses_is_refused_of_the_job(
    change: dict[str, Any], tuning: dict[str, Any] | None, message: str | None
) -> None:
    workload = from_hf_config({**CONFIGS["Qwen3-8B"], **change}, "x")
    job = job_of(workload, target="torchtitan", **({"fine_tuning": tuning} if tuning else {}))
    said = refused_job(job, workload.profile())
    assert said == [] if message is None else message in said[0]


def test_torchtitan_runs_gpt_oss_without_context_parallelism() -> None:
    job = problem_of("llama3_8b_one_building", ("workload=gpt-oss-120b", "target=torchtitan")).job
    profile = catalogue.load_workload("gpt-oss-120b").profile()
    assert not refused_job(job, profile)
    assert (found := find_flavor(profile)) is not None and (found.package, found.name) == ("gpt_oss", "120b")
    whole = Decision(
        degrees=Degrees(dp_shard=8, ep=8),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="full",
        shard="parameters",
    )
    divided = whole.model_copy(update={"degrees": Degrees(dp_shard=8, ep=8, cp=2), "context_exchange": "gather"})
    assert not [line for line in refused_by("torchtitan", job, profile, whole) if "cp" in line]
    assert any(
        "does not divide sequences; set cp 1" in line for line in refused_by("torchtitan", job, profile, divided)
    )
