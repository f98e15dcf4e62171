"""Everything that pricing and solving start from, resolved once."""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.errors import InputError
from scaleacross.spec.job import Job
from scaleacross.spec.topology import Topology, without_spares
from scaleacross.workloads import FAMILIES
from scaleacross.workloads.layer_profile import ModelProfile, Workload


@dataclass(frozen=True)
class Problem:
    """A job with what it refers to.

    Attributes:
        job: self-contained: ``workload`` and ``topology`` are full mappings.
        workload: the model as described.
        topology: the fleet without the job's spare hosts.
        profile: the model as layers (``workload.profile()``).
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
    return Problem(job, workload, topology, workload.profile())
