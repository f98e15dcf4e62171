"""Megatron-LM's own parser and TransformerConfig read the arguments of every plan of the round trip."""

from __future__ import annotations

import json
import os
import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from decisions import MEGATRON, Case, decision_of, job_of
from interpreters import python_with
from readers import unpacked
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of
from scaleacross.emitters import EMITTERS
from scaleacross.emitters.megatron import megatron_arguments, megatron_order
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.spec.recomputation import modules_of

WITHOUT_A_GPU = (
    "--transformer-impl", "local", "--no-persist-layer-norm", "--no-rope-fusion", "--lr", "1e-4", "--train-iters", "10",
    "--tokenizer-type", "NullTokenizer",
)  # fmt: skip
FIELDS = [
    "cp_comm_type", "recompute_granularity", "recompute_num_layers", "recompute_modules", "cuda_graph_impl",
    "moe_token_dispatcher_type", "moe_permute_fusion", "moe_shared_expert_overlap", "moe_shared_expert_intermediate_size",
    "moe_flex_dispatcher_backend", "overlap_moe_expert_parallel_comm", "tp_comm_overlap", "gradient_accumulation_fusion",
    "rotary_base", "overlap_p2p_comm", "overlap_grad_reduce", "overlap_param_gather", "num_microbatches",
    "virtual_pipeline_model_parallel_size", "data_parallel_size", "cpu_offloading_num_layers", "optimizer_cpu_offload",
    "accumulate_allreduce_grads_in_fp32", "optimizer_offload_fraction", "use_precision_aware_optimizer", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "mtp_num_layers",
]  # fmt: skip


def plan_of(case: Case) -> Plan:
    problem = problem_of(
        Job.model_validate(job_of(case)), ("network.settings=library", "target=megatron", *case.overrides)
    )
    return evaluated(problem, decision_of(case), degraded=False)


@pytest.mark.consumer
def test_megatrons_parser_accepts_every_plan_and_carries_what_was_planned(tmp_path: Path) -> None:
    root = unpacked("megatron-lm-*.tar.xz", tmp_path)
    python = python_with("torch", "SCALEACROSS_MEGATRON_PYTHON")
    plans = {str(case): plan_of(case) for case in MEGATRON}
    lists = {
        name: [*megatron_arguments(plan, megatron_order(plan)[0]), *WITHOUT_A_GPU, *unfused(plan)]
        for name, plan in plans.items()
    }
    settings = {name: environment(plan) for name, plan in plans.items()}
    question = {"lists": lists, "fields": FIELDS, "count": [], "env": settings}
    env = {**os.environ, "MEGATRON_LM": str(root), "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [python, str(Path(__file__).parent / "megatron_reader.py")],
        input=json.dumps(question), env=env, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: told["error"] for name, told in found.items() if "error" in told} == {}
    for name, plan in plans.items():
        carries(found[name], plan)


def environment(plan: Plan) -> dict[str, str | None]:
    """The processes, and what megatron_args.sh sets or unsets."""
    text = EMITTERS["megatron"](plan)["megatron/megatron_args.sh"]
    stated = re.search(r"^export CUDA_DEVICE_MAX_CONNECTIONS=(\d+)", text, re.M)
    return {
        "WORLD_SIZE": str(plan.degrees.world_size),
        "CUDA_DEVICE_MAX_CONNECTIONS": stated[1] if stated else None,
    }


def unfused(plan: Plan) -> list[str]:
    """Fused accumulation needs Transformer Engine or APEX where it is parsed."""
    return ["--no-gradient-accumulation-fusion"] if plan.job.optimizer.fused_accumulation else []


def carries(told: dict[str, Any], plan: Plan) -> None:
    job, degrees = plan.job, plan.degrees
    assert told["data_parallel_size"] == degrees.dp
    modules = list(modules_of(plan.decision.recompute))
    again, _, share = plan.decision.recompute.partition(":")
    assert told["recompute_granularity"] == ("selective" if modules else "full" if again == "full" else None)
    if share:  # of n of d layers, so many of every chunk
        assert told["recompute_num_layers"] == Fraction(share) * plan.layers_per_stage[0][0]
    assert told["recompute_modules"] == str(modules or ["core_attn"])  # without granularity nothing reads it
    assert told["mtp_num_layers"] == (job.prediction_layers or None)
    chunks = plan.decision.pipeline.num_chunks
    assert told["virtual_pipeline_model_parallel_size"] == (chunks if chunks > 1 else None)
    if degrees.cp > 1:
        words = {"ring": "p2p", "gather": "all_gather", "all_to_all": "a2a", "all_to_all_ring": "a2a+p2p"}
        assert told["cp_comm_type"] == words[plan.decision.context_exchange]
    assert told["cpu_offloading_num_layers"] == round(
        plan.decision.activation_offload * sum(map(sum, plan.layers_per_stage))
    )
    offloads = plan.decision.optimizer_offload > 0
    narrow = job.optimizer.name == "adam" and job.optimizer.state_bytes < 12
    assert (told["optimizer_cpu_offload"], told["use_precision_aware_optimizer"]) == (offloads, offloads or narrow)
    half = job.optimizer.reduce_bytes == 2
    assert told["accumulate_allreduce_grads_in_fp32"] != half
    assert told["optimizer_offload_fraction"] == (plan.decision.optimizer_offload or 1.0)
    strategies = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
    assert told["use_megatron_fsdp"] == (plan.decision.shard in strategies)
    if plan.decision.shard in strategies:
        assert told["data_parallel_sharding_strategy"] == strategies[plan.decision.shard]
    if degrees.ep > 1:
        deduplicated = job.experts.dispatch == "deduplicated"
        assert told["moe_token_dispatcher_type"] == ("flex" if deduplicated else "alltoall")
        assert told["moe_permute_fusion"] == job.experts.fused_permutation
        shared = bool(told["moe_shared_expert_intermediate_size"])
        assert told["moe_shared_expert_overlap"] == (shared and job.experts.shared_overlap)
        assert told["overlap_moe_expert_parallel_comm"] == (job.experts.overlap_fraction > 0)
    graphs = {"none": "none", "partial": "transformer_engine", "full": "full_iteration"}
    assert told["cuda_graph_impl"] == graphs[job.experts.graphs]
    assert told["tp_comm_overlap"] == (degrees.tp > 1 and job.overlap.tp_fraction > 0)
