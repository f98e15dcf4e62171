"""The resolved job: the common input of cost models, solvers and verification."""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.errors import InputError
from scaleacross.spec.framework import Kept
from scaleacross.spec.job import Job
from scaleacross.spec.offloading import OFFLOADS
from scaleacross.spec.recomputation import BY_STAGE, EVERY, MODULE_SETS, PARTS, modules_of
from scaleacross.spec.topology import Topology, with_host_shares, without_spares
from scaleacross.workloads import FAMILIES
from scaleacross.workloads.fine_tuning import with_fine_tuning
from scaleacross.workloads.layer_kinds import Attention, Latent
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.space import widened
from scaleacross.workloads.variants import (
    Uncompiled,
    with_autocast,
    with_eager_operators,
    with_lean_activations,
    with_operator_recompute,
    with_padded_experts,
    with_pytorch_tensors,
    with_separate_expert_bias,
    with_separate_projections,
)
from scaleacross.workloads.workload import Workload


@dataclass(frozen=True)
class Problem:
    """A self-contained job with its model and topology.

    Attributes:
        job: ``workload`` and ``topology`` are full mappings.
        workload: the model as described.
        topology: the buildings without the job's spare hosts.
        profile: the model as layers (``profile_of``).
    """

    job: Job
    workload: Workload
    topology: Topology
    profile: ModelProfile


def problem_of(job: Job) -> Problem:
    """Return the problem of a self-contained job; no file is read.

    Raises:
        InputError: the job names its workload or topology instead of holding it; the family is unknown; ``recompute``
            names a module that no layer has; or it allows offloads or the host as a driver and a building states no
            host.
    """
    if isinstance(job.topology, str):
        raise InputError(
            f"job '{job.name}' names its topology ('{job.topology}'): resolve it first (catalogue.resolve)"
        )
    return assembled(job, workload_of(job), Topology.model_validate(job.topology))


def workload_of(job: Job) -> Workload:
    """Return the model that a job holds.

    Raises:
        InputError: the job names its workload instead of holding it, or the family is unknown.
    """
    if isinstance(job.workload, str):
        raise InputError(
            f"job '{job.name}' names its workload ('{job.workload}'): resolve it first (catalogue.resolve)"
        )
    family = FAMILIES.get(str(job.workload.get("family")))
    if family is None:
        raise InputError(f"workload family '{job.workload.get('family')}' is unknown; there are {', '.join(FAMILIES)}")
    return family.model_validate(job.workload)


def assembled(job: Job, workload: Workload, topology: Topology) -> Problem:
    """Return the problem of a self-contained job, its model and topology. Raises InputError as ``problem_of``."""
    topology, profile = without_spares(topology, job.spare_hosts), profile_of(job, workload)
    job = with_policies(widened(job, profile, topology), profile)
    if "host" in job.network.drivers or any(share > 0 for name in OFFLOADS for share in getattr(job, name)):
        topology = with_host_shares(topology)
    return Problem(job, workload, topology, profile)


def with_policies(job: Job, profile: ModelProfile) -> Job:
    """Return the job with every recompute policy by name: ``modules`` becomes all sets of the model's modules.

    Raises:
        InputError: a policy names a module that no layer has, or it does not suit the model's layers, ``stages`` or
            objective.
    """
    named = [policy for policy in job.recompute if policy != EVERY]
    for policy in named:
        if profile.acting(policy) != policy:
            idle = ", ".join(module for module in modules_of(policy) if module not in profile.modules)
            raise InputError(
                f"recompute {policy}: in '{profile.name}' {idle} frees nothing or is not there; its modules are "
                f"{', '.join(profile.modules) or 'none'}"
            )
        if policy in (*PARTS, BY_STAGE) and len(profile.blocks) > 1:
            raise InputError(
                f"recompute {policy}: '{profile.name}' has layers of {len(profile.blocks)} kinds, and this policy is "
                "modelled only where all layers are alike; set recompute: none, full or modules"
            )
        if policy == BY_STAGE and (job.stages == "equal" or job.objective != "step_time"):
            raise InputError(
                f"recompute {policy} chooses layers and policies of every stage together, for step time; set stages: any and "
                "objective: step_time, or leave it out"
            )
    if EVERY in job.recompute:
        named += ["+".join(some) for some in MODULE_SETS if set(some) <= set(profile.modules)]
    return job.model_copy(update={"recompute": tuple(dict.fromkeys(named))})


def as_pytorch_keeps(profile: ModelProfile, how: Kept, *, separate: bool = False) -> ModelProfile:
    """Profile with the tensors that autograd keeps; ``separate``: query, key and value are separate products."""
    profile = with_pytorch_tensors(profile, how)
    profile = with_operator_recompute(with_separate_projections(profile) if separate else profile, how)
    return with_autocast(profile, how) if how.autocast else profile


def profile_of(job: Job, workload: Workload) -> ModelProfile:
    """Profile of the model as the job's framework runs it.

    Raises:
        InputError: ``eager_operators`` for a model with other mixers than softmax attention, or ``prediction_layers``
            for a family without layer kinds or with what PyTorch keeps.
    """
    tuning, predicted = job.fine_tuning, job.prediction_layers
    profile = workload.decoder().profile(predicted) if predicted else workload.profile()
    profile = profile if tuning is None else with_fine_tuning(profile, tuning)
    if job.kept.by == "pytorch" and predicted:
        raise InputError(
            f"prediction_layers {predicted} with kept.by pytorch: what a second loss keeps is known of a fused one alone; set "
            "prediction_layers: 0, or target: megatron"
        )
    if job.kept.by == "pytorch":
        profile = as_pytorch_keeps(profile, job.kept)
    else:
        profile = with_separate_expert_bias(with_lean_activations(profile, narrow=job.recipe is not None))
        profile = with_padded_experts(profile) if job.recipe is not None else profile
    compiled = "model" in job.kept.compiled or job.recipe is not None  # 8- and 4-bit converters need compiled layers
    if not job.eager_operators and (job.target != "torchtitan" or compiled):
        return profile
    operators = uncompiled(workload)
    if not job.eager_operators:  # torch.rms_norm is one kernel (torchtitan 0.3.0, models/common/nn_modules.py)
        return with_eager_operators(profile, operators._replace(norms=False))
    mixers = [kind.mixer for kind in workload.decoder().kinds.values() if kind.mixer is not None]
    others = [mixer.kind for mixer in mixers if not isinstance(mixer, Attention | Latent)]
    if others:
        raise InputError(
            f"job '{job.name}' has eager_operators, which are known for softmax attention; workload '{workload.name}' has "
            f"other mixers: {', '.join(others)}"
        )
    return with_eager_operators(profile, operators)


def uncompiled(workload: Workload) -> Uncompiled:
    """Operators of the model that need several kernels uncompiled: RMSNorms, rotary embedding, gated activations.

    One layer kind with such an operator is enough. A rotary embedding that is not stated is assumed.
    """
    decoder = workload.decoder()
    kinds = decoder.kinds.values()
    mixers = [kind.mixer for kind in kinds if isinstance(kind.mixer, Attention | Latent)]
    return Uncompiled(
        rotary=any(mixer.rope != "none" for mixer in mixers),
        gates=any(kind.feed_forward is not None and kind.feed_forward.gated for kind in kinds),
    )
