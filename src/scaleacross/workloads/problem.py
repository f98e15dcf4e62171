"""Everything that pricing and solving start from, resolved once."""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.errors import InputError
from scaleacross.spec.job import Job
from scaleacross.spec.topology import Topology, without_spares
from scaleacross.workloads import FAMILIES
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import ModelProfile, Workload
from scaleacross.workloads.variants import with_eager_operators


@dataclass(frozen=True)
class Problem:
    """A job with what it refers to.

    Attributes:
        job: self-contained: ``workload`` and ``topology`` are full mappings.
        workload: the model as described.
        topology: the fleet without the job's spare hosts.
        profile: the model as layers (``profile_of``).
    """

    job: Job
    workload: Workload
    topology: Topology
    profile: ModelProfile


def problem_of(job: Job) -> Problem:
    """The problem of a self-contained job, without reading any file.

    Raises:
        InputError: the job names its workload or topology instead of holding it, or the family is unknown.
    """
    if isinstance(job.workload, str) or isinstance(job.topology, str):
        raise InputError(f"job '{job.name}' refers to files: resolve it first (catalogue.resolve)")
    family = FAMILIES.get(str(job.workload.get("family")))
    if family is None:
        raise InputError(f"workload family '{job.workload.get('family')}' is unknown; there are {', '.join(FAMILIES)}")
    workload = family.model_validate(job.workload)
    topology = without_spares(Topology.model_validate(job.topology), job.spare_hosts)
    return Problem(job, workload, topology, profile_of(job, workload))


def profile_of(job: Job, workload: Workload) -> ModelProfile:
    """The model as layers, as the job's framework runs them.

    Raises:
        InputError: ``eager_operators`` for a model whose operators are not those of ``with_eager_operators``.
    """
    if not job.eager_operators:
        return workload.profile()
    if isinstance(workload, DenseTransformer) and not (workload.gated_mlp and workload.norm == "rmsnorm"):
        raise InputError(
            f"job '{job.name}' has eager_operators, which are known for RMSNorm and a gated MLP; "
            f"workload '{workload.name}' has {workload.norm} and {'a gated' if workload.gated_mlp else 'a plain'} MLP"
        )
    return with_eager_operators(workload.profile())
