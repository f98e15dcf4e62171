"""Target ``megatron``: what Megatron-LM can run (NVIDIA/Megatron-LM d98e8a64; core 0.20 in development).

Laws are explained in ``law``; each function below with ``rows`` returns a mask of shape (n,), True where the row is
allowed. Recomputation is by whole layers, or modules by name (``workloads.modules``). No policy reruns norms and
activation products of a layer alone: ``layernorm`` frees nothing in a dense layer under Transformer Engine, whose norms
are inside the projections (core/models/gpt/gpt_layer_specs.py), and ``moe_act`` is for grouped experts
(core/transformer/transformer_config.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from scaleacross.spec.framework import MEGATRON_OVERLAP
from scaleacross.spec.offloading import MILLIONTHS
from scaleacross.spec.parallelism import ScheduleName
from scaleacross.spec.recomputation import BY_STAGE, MODULES, Recompute, modules_of, repeats_tokens
from scaleacross.spec.recomputation import RECOMPUTES as EVERY_POLICY
from scaleacross.targets import megatron_bytes, megatron_models
from scaleacross.targets.common import encodes_nothing, order_and_shares, runs_schedules, trains_everything
from scaleacross.targets.law import (
    ALL_TO_ALL,
    ALL_TO_ALL_RING,
    GATHER,
    RING,
    SHARD_GRADIENTS,
    SHARD_NONE,
    SHARD_ONCE,
    SHARD_OPTIMIZER,
    SHARD_PARAMETERS,
    Bools,
    Case,
    Columns,
    Ints,
    JobLaw,
    Law,
    Subject,
    Target,
    in_codes,
    recompute_codes,
)
from scaleacross.workloads.layer_profile import Attention, ModelProfile

TITLE: Final = "Megatron-LM"
SCHEDULES: Final[tuple[ScheduleName, ...]] = ("1F1B", "Interleaved1F1B")
RECOMPUTES: Final[tuple[Recompute, ...]] = tuple(p for p in EVERY_POLICY if p not in ("selective", BY_STAGE))
OPTIMIZERS: Final = ("adam", "sgd")
DISCARDED: Final = frozenset({"moe_act", "layernorm"})


def _only(schedule: str) -> str:
    return f"schedule {schedule}: Megatron-LM has 1F1B and Interleaved1F1B only; set schedules: [1F1B, Interleaved1F1B]"


def _expert_overlap(subject: Subject, rows: Columns) -> Bools:
    """All-to-all overlap needs virtual stages when pp > 1, and no recomputed layers or ``moe`` (transformer_config.py)."""
    overlapped = np.bool_(subject.job.experts.overlap_fraction > 0)
    again = in_codes(rows.recompute, recompute_codes(filter(repeats_tokens, EVERY_POLICY)))
    out: Bools = ~overlapped | (rows.ep * rows.expert_lanes == 1) | (((rows.pp == 1) | (rows.num_chunks > 1)) & ~again)
    return out


def _shared_overlap(subject: Subject, rows: Columns) -> Bools:
    """Shared experts that overlap with all-to-alls cannot be recomputed by name (transformer_config.py)."""
    again = in_codes(rows.recompute, recompute_codes(p for p in EVERY_POLICY if "shared_experts" in modules_of(p)))
    out: Bools = np.bool_(not subject.job.experts.shared_overlap) | (rows.ep * rows.expert_lanes == 1) | ~again
    return out


def _graphs(subject: Subject, rows: Columns) -> Bools:
    """Partial graphs hold the router, so neither layers nor ``moe`` may be recomputed (transformer_config.py)."""
    partial = np.bool_(subject.job.experts.graphs == "partial")
    out: Bools = ~partial | ~in_codes(rows.recompute, recompute_codes(filter(repeats_tokens, EVERY_POLICY)))
    return out


def _eight_bit(subject: Subject, rows: Columns) -> Bools:
    """Delayed scaling excludes recomputation of modules whose output is discarded (transformer_config.py)."""
    refused = [policy for policy in EVERY_POLICY if DISCARDED & set(modules_of(policy))]
    out: Bools = np.bool_(subject.job.recipe != "delayed") | ~in_codes(rows.recompute, recompute_codes(refused))
    return out


def _narrow_parameters(subject: Subject, rows: Columns) -> Bools:
    """Gathers in 8 bit need a distributed optimizer, and its offloading needs delayed scaling (training/arguments.py)."""
    wide = np.bool_(not subject.job.conversion.narrow_parameters)
    offloaded = (rows.optimizer_offload > 0) & np.bool_(subject.job.recipe != "delayed")
    out: Bools = wide | ((rows.shard != SHARD_NONE) & ~offloaded)
    return out


def _waiting_messages(subject: Subject, rows: Columns) -> Bools:
    """Pipeline messages without overlap need pp > 2 with several chunks (training/arguments.py)."""
    out: Bools = np.bool_(subject.job.overlap.pipeline_messages) | (rows.num_chunks == 1) | (rows.pp > 2)
    return out


def offloaded_layers(profile: ModelProfile, shares: Ints) -> Ints:
    """Return the layers for --cpu-offloading-num-layers, shape (n,), given fractions in millionths."""
    return np.rint(shares * profile.num_layers / MILLIONTHS).astype(np.int64)


def _activation_offload(subject: Subject, rows: Columns) -> Bools:
    """Activation offload needs fewer than all layers, pp 1, no recomputation, no partial graphs (transformer_config.py).

    Megatron-LM does not count a prediction layer among the offloaded ones, so there may be none.
    """
    share, layers = rows.activation_offload, subject.profile.num_layers
    # a fraction of n layers is rounded to millionths, so it may miss a whole number by n millionths
    whole = np.abs(share * layers / MILLIONTHS - offloaded_layers(subject.profile, share)) < layers / MILLIONTHS
    alone = (rows.pp == 1) & in_codes(rows.recompute, recompute_codes(("none",)))
    graphs = np.bool_(subject.job.experts.graphs != "partial")
    main = np.bool_(not subject.job.prediction_layers)
    out: Bools = (share == 0) | (whole & (share < MILLIONTHS) & alone & graphs & main)
    return out


def _optimizer_offload(subject: Subject, rows: Columns) -> Bools:
    """Offloading needs the precision-aware optimizer: Adam over a distributed optimizer (training/arguments.py)."""
    adam = np.bool_(subject.job.optimizer.name == "adam")
    out: Bools = (rows.optimizer_offload == 0) | ((rows.shard == SHARD_OPTIMIZER) & adam)
    return out


JOB_LAWS: Final = (
    *megatron_models.JOB_LAWS,
    JobLaw(
        lambda s: s.job.overlap.gradient_reduce or not s.job.overlap.parameter_gather,
        lambda s: (
            "overlap.parameter_gather without overlap.gradient_reduce: --overlap-param-gather asks for "
            "--overlap-grad-reduce; set both or neither"
        ),
    ),
    JobLaw(
        lambda s: s.job.experts.graphs != "full" or s.profile.num_experts <= 1,
        lambda s: (
            "experts.graphs full: Megatron-LM's dispatchers read the tokens of every expert on the host, which no graph of a "
            "whole iteration holds; set experts.graphs: partial or none"
        ),
    ),
    JobLaw(
        lambda s: not (s.job.recipe or "").startswith("torchao"),
        lambda s: (
            f"conversion.recipe {s.job.recipe}: Megatron-LM runs Transformer Engine's: delayed, tensorwise, blockwise, mxfp8, "
            "nvfp4"
        ),
    ),
    JobLaw(
        lambda s: s.job.conversion.moved is None,
        lambda s: "conversion.moved: no option of Megatron-LM names a recipe of your own; leave it out",
    ),
    JobLaw(
        lambda s: s.job.optimizer.name in OPTIMIZERS,
        lambda s: f"optimizer '{s.job.optimizer.name}': the megatron target writes adam and sgd",
    ),
    *megatron_bytes.JOB_LAWS,
    encodes_nothing(TITLE),
    trains_everything("Megatron-LM's pretrain_gpt.py"),
)


def _attention(subject: Subject) -> Iterator[Attention]:
    return (block.attention for block, _ in subject.profile.blocks if block.attention is not None)


def _exchange(subject: Subject, rows: Columns) -> Bools:
    """Sinks and windows limit the context exchange (transformer_engine
    attention/dot_product_attention/context_parallel.py, attn_forward_func_with_cp).
    """
    windows = any(one.window is not None for one in _attention(subject))
    sinks = any(one.sinks for one in _attention(subject))
    able = {ALL_TO_ALL} if sinks else {GATHER, ALL_TO_ALL} if windows else {RING, GATHER, ALL_TO_ALL, ALL_TO_ALL_RING}
    out: Bools = (rows.cp == 1) | in_codes(rows.context, able)
    return out


def _refused_exchange(case: Case) -> str:
    sinks = any(one.sinks for one in _attention(case.subject))
    what, able = ("attention sinks", "all_to_all") if sinks else ("sliding windows", "gather and all_to_all")
    return (
        f"cp {case.decision.degrees.cp} with context_exchange {case.decision.context_exchange} and {what}: Transformer Engine "
        f"has these with {able} only; set context_exchange: {able.replace(' and ', ' or ')}, or cp 1"
    )


LAWS: Final = (
    Law(
        "recompute",
        "partial",
        lambda s, rows: in_codes(rows.recompute, recompute_codes(RECOMPUTES)),
        lambda c: (
            f"recompute {c.decision.recompute}: Megatron-LM has no policy that reruns norms and activation products alone, "
            "nor one by stage; set recompute: "
            f"[none, full] or modules ({', '.join(MODULES)}), or plan with target: megatron"
        ),
    ),
    runs_schedules(SCHEDULES, _only),
    Law(
        "activation offload",
        "partial",
        _activation_offload,
        lambda c: (
            f"activation_offload {c.decision.activation_offload:g}: Megatron-LM offloads whole layers, fewer than all "
            f"{c.subject.profile.num_layers}, with pp 1, recompute none, no prediction_layers and no graphs of layers; set "
            f"activation_offload: 0 or "
            f"n/{c.subject.profile.num_layers}"
        ),
    ),
    Law(
        "optimizer offload",
        "split",
        _optimizer_offload,
        lambda c: (
            f"optimizer_offload {c.decision.optimizer_offload:g} with shard '{c.decision.shard}': Megatron-LM offloads states of "
            "Adam in its distributed optimizer; set shard: optimizer, or optimizer_offload: 0"
        ),
    ),
    Law(
        "chunks without pipeline",
        "partial",
        lambda s, rows: (rows.pp > 1) | (rows.num_chunks == 1),
        lambda c: "Megatron-LM interleaves only with pipeline-model-parallel-size > 1: set pp > 1 or num_chunks 1",
    ),
    Law(
        "micro-batches",
        "partial",
        lambda s, rows: (rows.pp == 1) | (rows.num_chunks == 1) | (rows.num_micro_batches >= rows.pp),
        lambda c: (
            f"Interleaved1F1B with {c.m} micro-batches on pp {c.decision.degrees.pp}: Megatron-LM needs at least pp "
            "micro-batches (--microbatch-group-size-per-virtual-pipeline-stage); raise the batch or lower dp"
        ),
    ),
    Law(
        "experts with cp",
        "partial",
        lambda s, rows: (rows.ep == 1) | (rows.cp == 1) | (rows.expert_lanes > 1),
        lambda c: (
            f"ep {c.decision.degrees.ep} with cp {c.decision.degrees.cp}: Megatron-LM's expert groups run over cp first, "
            "the plan's inside dp_shard; set expert_folding: tp_cp, or cp 1"
        ),
    ),
    Law(
        "fp16 experts",
        "partial",
        lambda s, rows: (rows.ep * rows.expert_lanes == 1) | np.bool_(s.job.precision != "fp16"),
        lambda c: "precision fp16 with ep > 1: Megatron-LM trains experts in parallel with bf16 only",
    ),
    Law(
        "expert overlap",
        "partial",
        _expert_overlap,
        lambda c: (
            "experts.overlap_fraction: Megatron-LM overlaps experts' all-to-alls with more than one chunk when pp > 1, and "
            "without recomputation of layers or of moe; set num_chunks ≥ 2 and recompute: none, or overlap_fraction: 0"
        ),
    ),
    Law(
        "shared overlap",
        "partial",
        _shared_overlap,
        lambda c: (
            f"experts.shared_overlap with recompute {c.decision.recompute}: Megatron-LM does not rerun shared_experts that run "
            "concurrently with all-to-alls; leave that module out, or set shared_overlap: false"
        ),
    ),
    Law(
        "graphs",
        "partial",
        _graphs,
        lambda c: (
            f"experts.graphs partial with recompute {c.decision.recompute}: Megatron-LM reruns whole layers and moe without "
            "graphs only; set recompute: none or experts.graphs: none"
        ),
    ),
    Law(
        "fp8 recompute",
        "partial",
        _eight_bit,
        lambda c: (
            f"precision fp8 with recompute {c.decision.recompute}: Megatron-LM's delayed scaling reruns neither moe_act nor "
            "layernorm; leave them out, or set conversion.recipe: tensorwise, blockwise or mxfp8"
        ),
    ),
    Law(
        "narrow parameters",
        "split",
        _narrow_parameters,
        lambda c: (
            f"conversion.narrow_parameters with shard '{c.decision.shard}', optimizer_offload "
            f"{c.decision.optimizer_offload:g}: Megatron-LM keeps 8- and 4-bit parameters with a distributed optimizer, and "
            "offloads that with recipe delayed only; set shard: optimizer, optimizer_offload: 0, or narrow_parameters: false"
        ),
    ),
    *megatron_bytes.LAWS,
    Law(
        "waiting messages",
        "partial",
        _waiting_messages,
        lambda c: (
            f"overlap.pipeline_messages false with {c.decision.pipeline.num_chunks} chunks on pp {c.decision.degrees.pp}: "
            "--no-overlap-p2p-communication asks for pp > 2"
        ),
    ),
    Law(
        "sequence",
        "partial",
        lambda s, rows: (rows.cp == 1) | (s.job.sequence_length % (2 * rows.cp) == 0),
        lambda c: (
            f"sequence length {c.subject.job.sequence_length} is no multiple of 2 · cp = {2 * c.decision.degrees.cp}, "
            "which Megatron-LM asks for"
        ),
    ),
    Law("attention with cp", "split", _exchange, _refused_exchange),
    Law(
        "reshard after forward",
        "split",
        lambda s, rows: rows.shard != SHARD_ONCE,
        lambda c: (
            "shard 'parameters_once': Megatron-FSDP gathers parameters before either pass (optim_grads_params); set shard: "
            "parameters or gradients"
        ),
    ),
    Law(
        "parameters with pp",
        "split",
        lambda s, rows: ((rows.shard != SHARD_PARAMETERS) & (rows.shard != SHARD_GRADIENTS)) | (rows.pp == 1),
        lambda c: (
            f"shard '{c.decision.shard}' with pp {c.decision.degrees.pp}: Megatron-FSDP builds its mesh without a "
            "pipeline axis; set shard: optimizer or pp 1"
        ),
    ),
)


# core/parallel_state.py; dp_replicate has one group between optimizer instances, for dense and expert layers
GROUPS: Final = {
    "tp": ("TENSOR_MODEL_PARALLEL_GROUP",),
    "cp": ("CONTEXT_PARALLEL_GROUP",),
    "pp": ("PIPELINE_MODEL_PARALLEL_GROUP",),
    "dp_shard": ("DATA_PARALLEL_GROUP_WITH_CP", "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"),
    "dp_replicate": ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1",),
    "ep": ("EXPERT_MODEL_PARALLEL_GROUP",),
}

TARGET: Final = Target(
    "megatron",
    TITLE,
    JOB_LAWS,
    LAWS,
    order_and_shares(TITLE, _only),
    equal_batches=True,
    behaviour={
        "overlap.tp_reduce": True,  # training/arguments.py
        **{f"overlap.{field}": value for field, value in MEGATRON_OVERLAP.items()},
        "optimizer.gathered_from_master": False,
        "kept.by": "megatron",
    },
    groups=GROUPS,
)
