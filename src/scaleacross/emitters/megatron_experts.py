"""Megatron-LM options for routed experts and CUDA graphs, from the job's ``experts``.

Option names and rules: NVIDIA/Megatron-LM d98e8a64, core/transformer/transformer_config.py. ``targets.megatron``
refuses what no option can state.
"""

from __future__ import annotations

from scaleacross.emitters.model import workload_of
from scaleacross.spec.plan import Plan
from scaleacross.workloads.layer_kinds import Mlp


def expert_runtime(plan: Plan) -> list[str]:
    """Return options for dispatcher, permutation, overlap of all-to-alls, and graphs."""
    decoder, runtime = workload_of(plan).decoder(), plan.job.experts
    return (_dispatch(plan) if next(decoder.experts(), None) is not None else []) + _graphs(plan, runtime.graphs)


def _dispatch(plan: Plan) -> list[str]:
    """Return dispatcher options.

    ``alltoall`` sends a copy per expert. ``flex`` with DeepEP sends a token once per rank, and once per host over
    adapters.
    """
    runtime, several = plan.job.experts, plan.degrees.expert_ranks > 1
    out = ["--moe-token-dispatcher-type"]
    out += (
        ["flex", "--moe-flex-dispatcher-backend", "deepep"]
        if several and runtime.dispatch == "deduplicated"
        else ["alltoall"]
    )
    out += ["--moe-permute-fusion"] if runtime.fused_permutation else []
    if (
        several
        and runtime.shared_overlap
        and any(experts.shared_width for experts in workload_of(plan).decoder().experts())
    ):
        out.append("--moe-shared-expert-overlap")
    return out + (["--overlap-moe-expert-parallel-comm"] if several and runtime.overlap_fraction > 0 else [])


def _graphs(plan: Plan, graphs: str) -> list[str]:
    if graphs == "none":
        return []
    if graphs == "full":
        return ["--cuda-graph-impl", "full_iteration"]
    decoder = workload_of(plan).decoder()
    dense = any(isinstance(kind.feed_forward, Mlp) for kind in decoder.kinds.values())
    routed = next(decoder.experts(), None) is not None
    dense &= (
        plan.job.experts.overlap_fraction == 0 or plan.degrees.expert_ranks == 1
    )  # neither with overlap of all-to-alls
    modules = ["attn", *(["mlp"] if dense else []), *(["moe_router"] if routed else [])]
    return ["--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", *modules]
