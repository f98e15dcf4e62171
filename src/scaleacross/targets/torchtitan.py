"""Target ``torchtitan``: what torchtitan 0.3.0 can run on torch 2.13.0.

Without a pipeline FSDP reduces gradients after every micro-batch (torchtitan/trainer.py never switches that off). With
one it accumulates whole gradients and reduces them once per step (torch/distributed/pipelining/stage.py). So a plan
with a pipeline has shard level ``optimizer``. A plan without one has one micro-batch, or shards parameters. These are
gathered before either pass, or kept from the forward to the backward pass. Functions with ``rows`` return a mask of
shape (n,), True where allowed (``law``).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.spec.conversion import Recipe
from scaleacross.spec.framework import TORCH_OVERLAP
from scaleacross.spec.parallelism import ScheduleName
from scaleacross.spec.recomputation import Recompute
from scaleacross.targets import torchtitan_models
from scaleacross.targets.common import encodes_nothing, order_and_shares, runs_schedules, trains_everything
from scaleacross.targets.law import (
    GATHER,
    SHARD_GRADIENTS,
    SHARD_NONE,
    SHARD_ONCE,
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
    schedule_codes,
)

TITLE: Final = "torchtitan 0.3.0"
SCHEDULES: Final[tuple[ScheduleName, ...]] = (
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV",
)  # fmt: skip
ROUNDS: Final[tuple[ScheduleName, ...]] = ("Interleaved1F1B", "InterleavedZeroBubble")
RECOMPUTES: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
OPTIMIZERS: Final = ("adam", "adamw")


def _sequence_divisor(tp: Ints, cp: Ints) -> Ints:
    out: Ints = tp * np.where(cp > 1, 2 * cp, 1)
    return out


def _refused_sequence(case: Case) -> str:
    tp, cp = case.decision.degrees.tp, case.decision.degrees.cp
    return (
        f"sequence length {case.subject.job.sequence_length} is no multiple of {tp * (2 * cp if cp > 1 else 1)}, which "
        f"torchtitan asks for at tp {tp}, cp {cp}"
    )


def _rounds(subject: Subject, rows: Columns) -> Bools:
    """torch runs max(1, m // pp) rounds of equally many micro-batches (torch/distributed/pipelining/schedules.py)."""
    interleaved = in_codes(rows.schedule, schedule_codes(ROUNDS))
    rounds = np.maximum(1, rows.num_micro_batches // rows.pp)
    out: Bools = (rows.pp == 1) | ~interleaved | (rows.num_micro_batches % rounds == 0)
    return out


def _refused_rounds(case: Case) -> str:
    pp, rounds = case.decision.degrees.pp, max(1, case.m // case.decision.degrees.pp)
    schedule = case.decision.pipeline.schedule
    return f"{schedule} with {case.m} micro-batches on pp {pp}: torch runs {rounds} rounds and {case.m} is no multiple of that"


def _one_f_one_b(subject: Subject, rows: Columns) -> Bools:
    plain = in_codes(rows.schedule, schedule_codes(("1F1B",)))
    out: Bools = (rows.pp == 1) | ~plain | (rows.num_micro_batches >= rows.pp)
    return out


def _only(schedule: str) -> str:
    return f"schedule {schedule}: torchtitan 0.3.0 names {', '.join(SCHEDULES)}; the target pipeline_csv writes the order itself"


def _reduced_once(subject: Subject, rows: Columns) -> Bools:
    """Allow rows whose estimate of gradient traffic torchtitan matches: DDP and ZeRO-1 plans reduce once per step."""
    # a single data-parallel rank has nothing to reduce
    alone = rows.dp_shard * rows.dp_replicate * rows.cp == 1
    out: Bools = (
        alone
        | (rows.shard == SHARD_PARAMETERS)
        | (rows.shard == SHARD_ONCE)
        | (rows.pp > 1)
        | (rows.num_micro_batches == 1)
    )
    return out


def _refused_accumulation(case: Case) -> str:
    return (
        f"shard '{case.decision.shard}' with pp 1 and {case.m} micro-batches: torchtitan 0.3.0 would reduce "
        "gradients after every micro-batch; set shard: [parameters, parameters_once], pp > 1, or one micro-batch"
    )


RECIPES: Final[tuple[Recipe, ...]] = ("torchao_rowwise", "torchao_mxfp8", "torchao_nvfp4")
"""Recipes with torchtitan converters; rowwise_with_gw_hp of Float8LinearConverter is not modelled."""

FULL_SHARDS: Final = (2.0, 4.0, 12.0)
"""Bytes of a gathered parameter, of its gradient, and of master and moments. They follow from the defaults of
TrainingConfig's dtype, mixed_precision_param and mixed_precision_reduce, which the emitted module leaves alone.
"""


def _bytes_of(subject: Subject) -> tuple[float, float, float]:
    optimizer = subject.job.optimizer
    return optimizer.parameter_bytes, optimizer.gradient_bytes, optimizer.state_bytes


ALWAYS: Final = ("shard_prefetch", "parameter_gather", "pipeline_messages")
"""Overlaps of a job that torchtitan cannot switch off."""


def _switched_off(subject: Subject) -> str:
    """Return the overlaps that the job switches off and torchtitan always runs, by the job's names."""
    return ", ".join(f"overlap.{name}" for name in ALWAYS if not getattr(subject.job.overlap, name))


def _package(subject: Subject) -> str:
    flavor = torchtitan_models.find_flavor(subject.profile)
    return flavor.package if flavor else ""


JOB_LAWS: Final = (
    JobLaw(
        lambda s: not s.job.prediction_layers,
        lambda s: (
            f"prediction_layers {s.job.prediction_layers}: torchtitan 0.3.0 trains its models without; set prediction_layers: 0, "
            "or target: megatron"
        ),
    ),
    *torchtitan_models.JOB_LAWS,
    JobLaw(
        lambda s: s.job.precision != "fp16",
        lambda s: "precision fp16: the torchtitan target writes bf16, fp8 and nvfp4",
    ),
    JobLaw(
        lambda s: s.job.recipe in (None, *RECIPES),
        lambda s: (
            f"precision {s.job.precision} with conversion.recipe {s.job.recipe}: torchtitan 0.3.0 has converters for "
            f"{', '.join(RECIPES)} (components/quantization); state one of them"
        ),
    ),
    JobLaw(
        lambda s: s.job.recipe != "torchao_nvfp4" or s.profile.num_experts <= 1,
        lambda s: (
            "conversion.recipe torchao_nvfp4 with experts: torchtitan 0.3.0 has no converter for 4-bit experts; state "
            "torchao_mxfp8 or torchao_rowwise"
        ),
    ),
    JobLaw(
        lambda s: s.job.conversion.moved is None and not s.job.conversion.narrow_parameters,
        lambda s: (
            "conversion.moved or narrow_parameters: torchtitan 0.3.0's converters take neither a recipe of your own nor gathers "
            "in 8 or 4 bit; leave both out"
        ),
    ),
    JobLaw(
        lambda s: s.job.optimizer.name in OPTIMIZERS,
        lambda s: f"optimizer '{s.job.optimizer.name}': the torchtitan target writes AdamW",
    ),
    JobLaw(
        lambda s: s.job.overlap.bucket_parameters is None,
        lambda s: (
            f"overlap.bucket_parameters {s.job.overlap.bucket_parameters:,}: FSDP2 of torchtitan 0.3.0 reduces layer by layer, "
            "and no setting says otherwise; leave it out"
        ),
    ),
    JobLaw(
        lambda s: not _switched_off(s),
        lambda s: (
            f"{_switched_off(s)} false: FSDP2 gathers a layer ahead, torch's pipelines send during other chunks' passes, and no "
            "setting of torchtitan 0.3.0 says otherwise; leave it out"
        ),
    ),
    JobLaw(
        lambda s: s.job.experts.graphs == "none" or s.profile.num_experts <= 1,
        lambda s: (
            f"experts.graphs {s.job.experts.graphs}: torchtitan 0.3.0 with experts runs without CUDA graphs here "
            "(disable_cuda_graphs); set graphs: none"
        ),
    ),
    JobLaw(
        lambda s: s.job.optimizer.reduce_bytes == 4.0,
        lambda s: (
            f"gradients of {s.job.optimizer.reduce_bytes:g} bytes on the wire: torchtitan 0.3.0 reduces in "
            "float32 (4 bytes) only"
        ),
    ),
    JobLaw(
        lambda s: _bytes_of(s) == FULL_SHARDS,
        lambda s: (
            "optimizer.parameter_bytes, gradient_bytes, state_bytes {:g}, {:g}, {:g}: torchtitan 0.3.0 trains fp32 shards by "
            "AdamW and gathers bf16; set {:g}, {:g}, {:g}".format(*_bytes_of(s), *FULL_SHARDS)
        ),
    ),
    encodes_nothing(TITLE),
    trains_everything("torchtitan 0.3.0 as configured here"),
)

LAWS: Final = (
    Law(
        "recompute",
        "partial",
        lambda s, rows: in_codes(rows.recompute, recompute_codes(RECOMPUTES)),
        lambda c: (
            f"recompute {c.decision.recompute}: torchtitan 0.3.0 reruns whole layers (full: FullAC) or operators (selective: "
            "SelectiveAC); set recompute: [none, selective, full], or plan with target: torchtitan"
        ),
    ),
    Law(
        "operators in 8 bit",
        "partial",
        lambda s, rows: np.bool_(s.job.recipe is None) | ~in_codes(rows.recompute, recompute_codes(("selective",))),
        lambda c: (
            f"recompute selective with conversion.recipe {c.subject.job.recipe}: which converted products SelectiveAC keeps in "
            "compiled layers of torchtitan 0.3.0 is not modelled; set recompute: [none, full]"
        ),
    ),
    Law(
        "context exchange",
        "split",
        lambda s, rows: (rows.cp == 1) | (rows.context == GATHER),
        lambda c: (
            f"cp {c.decision.degrees.cp} with context_exchange {c.decision.context_exchange}: torchtitan 0.3.0 gathers "
            "keys and values before attention; set context_exchange: gather or cp 1"
        ),
    ),
    Law(
        "context of gpt_oss",
        "partial",
        lambda s, rows: (rows.cp == 1) | np.bool_(_package(s) != "gpt_oss"),
        lambda c: (
            f"cp {c.decision.degrees.cp}: gpt_oss of torchtitan 0.3.0 runs its default attention (varlen), which does not divide "
            "sequences; set cp 1"
        ),
    ),
    Law(
        "expert overlap",
        "partial",
        lambda s, rows: (rows.ep * rows.expert_lanes == 1) | np.bool_(s.job.experts.overlap_fraction == 0),
        lambda c: (
            "experts.overlap_fraction: torchtitan 0.3.0 overlaps no all-to-all of experts; set overlap_fraction: 0"
        ),
    ),
    Law(
        "expert dispatch",
        "partial",
        lambda s, rows: (rows.ep * rows.expert_lanes == 1) | np.bool_(s.job.experts.dispatch == "copies"),
        lambda c: (
            "experts.dispatch deduplicated: torchtitan 0.3.0 as configured here sends a token once per expert "
            "(models/common/token_dispatcher.py, standard); set dispatch: copies"
        ),
    ),
    Law(
        "overlap of tp",
        "partial",
        lambda s, rows: (rows.tp == 1) | np.bool_(s.job.overlap.tp_fraction == 0),
        lambda c: (
            f"overlap.tp_fraction {c.subject.job.overlap.tp_fraction:g} with tp {c.decision.degrees.tp}: torchtitan 0.3.0 as "
            "configured here waits for the collectives of tp; set tp_fraction: 0, or tp 1"
        ),
    ),
    Law(
        "shared overlap",
        "partial",
        lambda s, rows: (rows.ep * rows.expert_lanes == 1) | np.bool_(not s.job.experts.shared_overlap),
        lambda c: (
            "experts.shared_overlap: torchtitan 0.3.0 runs shared experts after the routed ones have returned "
            "(models/common/moe.py); set shared_overlap: false"
        ),
    ),
    Law(
        "sequence",
        "partial",
        lambda s, rows: s.job.sequence_length % _sequence_divisor(rows.tp, rows.cp) == 0,
        _refused_sequence,
    ),
    Law(
        "experts with tp or cp",
        "partial",
        lambda s, rows: (rows.ep == 1) | (rows.tp * rows.cp == 1) | (rows.expert_lanes > 1),
        lambda c: (
            f"ep {c.decision.degrees.ep} with tp {c.decision.degrees.tp}, cp {c.decision.degrees.cp}: torchtitan's expert "
            "groups run over tp and cp first, the plan's inside dp_shard; set expert_folding: tp_cp, or tp 1 and cp 1"
        ),
    ),
    runs_schedules(SCHEDULES, _only),
    Law(
        "micro-batches",
        "partial",
        _one_f_one_b,
        lambda c: (
            f"1F1B with {c.m} micro-batches on {c.decision.degrees.pp} stages: torch's schedule needs at least as many "
            "micro-batches as stages"
        ),
    ),
    Law("rounds", "partial", _rounds, _refused_rounds),
    Law("accumulation", "split", _reduced_once, _refused_accumulation),
    Law(
        "offload",
        "partial",
        lambda s, rows: rows.activation_offload + rows.optimizer_offload == 0,
        lambda c: (
            f"activation_offload {c.decision.activation_offload:g}, optimizer_offload {c.decision.optimizer_offload:g}: "
            "torchtitan 0.3.0 offloads parameters, gradients and states together (training.enable_cpu_offload), which is not "
            "modelled; set both to 0"
        ),
    ),
    Law(
        "whole parameters",
        "split",
        lambda s, rows: rows.shard != SHARD_GRADIENTS,
        lambda c: (
            "shard 'gradients': FSDP2 shards parameters too; set shard: parameters_once (kept from the forward to the backward "
            "pass) or parameters"
        ),
    ),
    Law(
        "parameters with pp",
        "split",
        lambda s, rows: (rows.shard != SHARD_PARAMETERS) | (rows.pp == 1),
        lambda c: (
            f"shard 'parameters' with pp {c.decision.degrees.pp}: torchtitan 0.3.0 accumulates whole gradients through the "
            "pipeline and reduces them once; set shard: optimizer or pp 1"
        ),
    ),
    Law(
        "replicas only",
        "split",
        lambda s, rows: (rows.shard != SHARD_NONE) | ((rows.cp == 1) & (rows.ep == 1)),
        lambda c: (
            f"shard 'none' with cp {c.decision.degrees.cp}, ep {c.decision.degrees.ep}: torchtitan 0.3.0 always shards over "
            "dp_shard · cp and needs dp_shard for experts; set shard: optimizer or parameters"
        ),
    ),
)


MESHES: Final = {"tp": "tp", "cp": "cp", "pp": "pp", "dp_shard": "fsdp", "dp_replicate": "dp_replicate", "ep": "ep"}
"""Mesh axes of partial_dtensor; torch/distributed/device_mesh.py describes a group as mesh_<axis>."""
TYPED_SHARDS: Final = "dp_shard"
"""Name of the fsdp axis under spmd_types. With cp, fully_shard creates a group of both by itself."""

TARGET: Final = Target(
    "torchtitan",
    TITLE,
    JOB_LAWS,
    LAWS,
    order_and_shares(TITLE, _only),
    equal_batches=True,
    behaviour={
        "overlap.tp_reduce": False,
        **{f"overlap.{field}": value for field, value in TORCH_OVERLAP.items()},
        "experts.fused_permutation": False,  # models/common/token_dispatcher.py: argsort, index, scatter_add
        "optimizer.checked_gradients": False,
        "optimizer.fused_accumulation": False,
        "optimizer.gathered_from_master": True,
        "kept.by": "pytorch",
        "kept.autocast": False,  # fully_shard converts parameters, of one rank too
    },
    groups={axis: (f"mesh_{name}",) for axis, name in MESHES.items()}
    | {"dp_shard": (f"mesh_{MESHES['dp_shard']}", f"mesh_{TYPED_SHARDS}")},
)
