"""Resolve a job with all that it refers to; every verb starts here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from scaleacross import catalogue
from scaleacross.errors import InputError
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import PASS_GATHERS
from scaleacross.spec.topology import Topology
from scaleacross.targets import TARGETS, behaving, refused_job
from scaleacross.workloads.problem import Problem, profile_of


def written_for(job: Job | str, overrides: Sequence[str], names: Iterable[str]) -> tuple[Job | str, Sequence[str]]:
    """Return a job and its overrides for launch files of these ``names``.

    A framework among them becomes the target of a job without one.

    Raises:
        InputError: as ``problem_of``; or several frameworks are named, or another than its target, and one cannot run
            the job.
    """
    frameworks = [name for name in names if name in TARGETS]
    if not frameworks:
        return job, overrides
    loaded = catalogue.load_job(job, overrides)
    if loaded.target == "any" and len(frameworks) == 1:
        return loaded.model_copy(update={"target": frameworks[0]}), ()
    for name in frameworks:
        _require(catalogue.resolve(loaded.model_copy(update={"target": name})))
    return loaded, ()


def _require(problem: Problem) -> None:
    """Raise InputError where the job's target cannot run it under any decision."""
    refused = refused_job(problem.job, problem.profile)
    if refused:
        raise InputError(
            f"job '{problem.job.name}' has target {problem.job.target}, which cannot run it:\n"
            + "\n".join(f"- {line}" for line in refused)
        )


def problem_of(job: Job | str | Path, overrides: Sequence[str]) -> Problem:
    """Return the job with all names resolved, overrides applied, and the fields that its target fixes.

    Raises:
        InputError: an accelerator states no peak for the job's precision, the target cannot run the job, or ``kept``
            has options of another framework.
    """
    problem = catalogue.resolve(catalogue.load_job(job, overrides))
    for building in problem.topology.buildings:
        if problem.job.precision not in building.accelerator.peak_flop_per_s:
            known = list(building.accelerator.peak_flop_per_s)
            raise InputError(
                f"job '{problem.job.name}': precision {problem.job.precision} is not stated for {building.accelerator.name} "
                f"in building '{building.name}'; it has {', '.join(known)}: set precision: {known[0]} in the job, "
                f"or add --set precision={known[0]}"
            )
    _require(problem)
    job = _by_library(behaving(problem.job), problem.topology)
    of_pytorch = {
        f"kept.loss_chunks {job.kept.loss_chunks}": job.kept.loss_chunks > 1,
        f"kept.compiled {list(job.kept.compiled)}": bool(job.kept.compiled),
        "kept.autocast": job.kept.autocast,
        f"kept.spmd_backend {job.kept.spmd_backend}": job.kept.spmd_backend != "partial_dtensor",
    }
    if job.kept.by != "pytorch" and any(of_pytorch.values()):
        raise InputError(
            f"job '{job.name}' has {', '.join(said for said, holds in of_pytorch.items() if holds)}, which is PyTorch's alone: "
            "set target: torchtitan or kept.by: pytorch"
        )
    gathered = [level for level in job.shard if level in PASS_GATHERS]
    if job.kept.autocast and gathered:
        raise InputError(
            f"job '{job.name}' has kept.autocast, which is PyTorch without FSDP, and shard '{gathered[0]}', which is FSDP: "
            "state shard: [none, optimizer], or leave kept.autocast out"
        )
    return replace(problem, job=job, profile=profile_of(job, problem.workload))


def _held_back(topology: Topology, *, hccl: bool) -> str:
    """Return the overrides that hold back every building with HCCL, or every building without."""
    held = (b for b in topology.buildings if (b.accelerator.collective_library == "hccl") == hccl)
    return " ".join(f"--set spare_hosts.{building.name}={building.hosts}" for building in held)


def _by_library(job: Job, topology: Topology) -> Job:
    """Return the job; where accelerators run HCCL, network settings stay the library's own.

    Raises:
        InputError: HCCL and other libraries, or a target or choice of the job that is written for NCCL.
    """
    libraries = {one.accelerator.collective_library: one.accelerator.name for one in reversed(topology.buildings)}
    if "hccl" not in libraries:
        return job
    if len(libraries) > 1:
        *first, last = [f"{name} {library.upper()}" for library, name in libraries.items()]
        raise InputError(
            f"job '{job.name}': {', '.join(first)} and {last} run collectives that cannot join each other: plan these "
            f"buildings apart, those of HCCL with {_held_back(topology, hccl=False)}, the others with "
            f"{_held_back(topology, hccl=True)}"
        )
    chosen = {
        f"target {job.target}": job.target != "any",
        f"network.drivers {list(job.network.drivers)}": len(job.network.drivers) > 1,
        "network.compression": job.network.compression is not None,
    }
    if wrong := [said for said, holds in chosen.items() if holds]:
        raise InputError(
            f"job '{job.name}' has {', '.join(wrong)}, which is written for NCCL and RCCL; {libraries['hccl']} runs "
            "HCCL: leave it out, and start a program of your own with the launch files of torchrun"
        )
    return job.model_copy(update={"network": job.network.model_copy(update={"settings": "library"})})
