"""Bytes per parameter that Megatron-LM can hold, and the data types that lead to them (d98e8a64).

Gradients are held in the buffer that is reduced, in fp32 or as wide as parameters
(core/distributed/param_and_grad_buffer.py, ``grad_dtype``). Megatron-FSDP has separate types for the two
(core/distributed/fsdp). Adam keeps an fp32 master and two fp32 moments. --use-precision-aware-optimizer requires Adam
over a distributed optimizer (core/optimizer/__init__.py). With it, moments may be narrower, and the master of a bf16
parameter keeps only the 16 bits that the parameter lacks (``store_param_remainders``). Under an 8-bit recipe other than
delayed scaling the master stays whole. SGD keeps a master and a momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scaleacross.spec.job import Job
from scaleacross.targets.law import SHARD_OPTIMIZER, Bools, Case, Columns, JobLaw, Law, Subject

REDUCE_BYTES: Final = (2.0, 4.0)
PARAMETER_BYTES: Final = 2.0
WHOLE_STATES: Final[Mapping[str, float]] = {"adam": 12.0, "sgd": 8.0}
MOMENTS: Final[Mapping[float, tuple[str, str]]] = {8.0: ("fp32", "fp32"), 6.0: ("bf16", "fp32"), 4.0: ("bf16", "bf16")}
"""Bytes of both moments of the precision-aware optimizer -> --exp-avg-dtype, --exp-avg-sq-dtype."""
WHOLE_MASTER: Final = ("tensorwise", "blockwise", "mxfp8")
"""Recipes under which Megatron Core itself keeps the master (``use_precision_aware_optimizer_no_fp8_or_ds_fp8``)."""


def narrow_moments(job: Job) -> tuple[str, str] | None:
    """Return the types of the precision-aware optimizer's moments; None where the job's states are whole."""
    return _narrow_states(job).get(job.optimizer.state_bytes)


def _narrow_states(job: Job) -> Mapping[float, tuple[str, str]]:
    """Map bytes of states that only the precision-aware optimizer can hold for this job to types of its moments."""
    if job.optimizer.name != "adam" or job.precision == "fp16":
        return {}
    remainders = job.recipe in (None, "delayed") and not job.conversion.narrow_parameters
    if not remainders and job.recipe not in WHOLE_MASTER:
        return {}
    master = 2.0 if remainders else 4.0
    whole = WHOLE_STATES[job.optimizer.name]
    return {master + size: types for size, types in MOMENTS.items() if master + size != whole}


def _held_states(job: Job) -> tuple[float, ...]:
    """Return the bytes of states per parameter that some decision can run."""
    whole = WHOLE_STATES.get(job.optimizer.name)
    if whole is None:
        return (job.optimizer.state_bytes,)  # another law refuses the optimizer
    return (whole, *_narrow_states(job))


def _refused_states(subject: Subject) -> str:
    optimizer, held = subject.job.optimizer, _held_states(subject.job)
    return (
        f"optimizer.state_bytes {optimizer.state_bytes:g}: Megatron-LM's {optimizer.name} holds "
        f"{', '.join(f'{size:g}' for size in held)} bytes a parameter here (an fp32 master and moments"
        f"{', or --use-precision-aware-optimizer' if len(held) > 1 else ''}); set one of these"
    )


def _sharded_states(subject: Subject, rows: Columns) -> Bools:
    """Narrow states need a distributed optimizer on the accelerator (core/optimizer/__init__.py).

    States on the host are fp32 (core/optimizer/cpu_offloading), and Megatron-FSDP's masters are whole.
    """
    whole = np.bool_(narrow_moments(subject.job) is None)
    out: Bools = whole | ((rows.shard == SHARD_OPTIMIZER) & (rows.optimizer_offload == 0))
    return out


def _says_sharded_states(case: Case) -> str:
    return (
        f"optimizer.state_bytes {case.subject.job.optimizer.state_bytes:g} with shard '{case.decision.shard}', optimizer_offload "
        f"{case.decision.optimizer_offload:g}: Megatron-LM's precision-aware optimizer holds that many in a distributed "
        "optimizer on the accelerator; set shard: optimizer and optimizer_offload: 0, or optimizer.state_bytes: 12"
    )


JOB_LAWS: Final = (
    JobLaw(
        lambda s: s.job.optimizer.reduce_bytes in REDUCE_BYTES,
        lambda s: (
            f"gradients of {s.job.optimizer.reduce_bytes:g} bytes on the wire: Megatron-LM reduces in fp32 or in bf16"
        ),
    ),
    JobLaw(  # readers may state reduce_bytes alone; gradients held wider than they are reduced then overestimate memory
        lambda s: s.job.optimizer.gradient_bytes in (4.0, s.job.optimizer.reduce_bytes),
        lambda s: (
            f"optimizer.gradient_bytes {s.job.optimizer.gradient_bytes:g} with optimizer.reduce_bytes "
            f"{s.job.optimizer.reduce_bytes:g}: Megatron-LM holds gradients as it reduces them, in fp32 or in bf16 "
            "(--grad-reduce-in-bf16); set both to 2 or both to 4"
        ),
    ),
    JobLaw(
        lambda s: s.job.optimizer.parameter_bytes == PARAMETER_BYTES,
        lambda s: (
            f"optimizer.parameter_bytes {s.job.optimizer.parameter_bytes:g}: Megatron-LM computes with copies of 2 bytes next to "
            "the fp32 master; set 2 (8 and 4 bit: conversion.narrow_parameters)"
        ),
    ),
    JobLaw(lambda s: s.job.optimizer.state_bytes in _held_states(s.job), _refused_states),
)
LAWS: Final = (Law("narrow states", "split", _sharded_states, _says_sharded_states),)
