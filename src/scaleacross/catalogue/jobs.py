"""Load jobs, plans and decisions, which refer to entries of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from scaleacross.catalogue.find import find
from scaleacross.catalogue.kinds import require_kind
from scaleacross.catalogue.load import EXTRA_KEYS, Reference, full_topology, part, read, topology_under, workload_from
from scaleacross.catalogue.overrides import Overrides, apply_overrides
from scaleacross.catalogue.validation import validate
from scaleacross.catalogue.yaml_source import Source, read_file
from scaleacross.errors import InputError
from scaleacross.spec.base import Spec
from scaleacross.spec.job import Job, Range
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.reliability import Recovery
from scaleacross.spec.slurm import Slurm
from scaleacross.spec.topology import Building, Topology
from scaleacross.workloads.problem import Problem, assembled
from scaleacross.workloads.workload import Workload

FEW_ACCELERATORS: Final = 1024
"""Largest number of accelerators for which the default objective is step time even if failure rates are known."""
PLAN_VERSION: Final = Plan.model_fields["schema_version"].default


class DecisionFile(Spec):
    """A user-supplied decision for ``evaluate``: the job and what was decided. A missing placement is chosen."""

    job: str | dict[str, Any] = Field(description="catalogue name or path of a job, or a job in full")
    decision: Decision


def load_job(ref: Reference | Job, overrides: Overrides = ()) -> Job:
    """Load a job by catalogue name, path or mapping, with ``a.b.0.c=value`` overrides; return it self-contained.

    The value of an override is read as YAML. It may use any unit and replaces the same quantity stated in another one.
    Its path may lead into ``workload`` and ``topology``.

    Raises:
        InputError: not found, or an error in the job, its workload, its topology or an override, each with its place.
    """
    if isinstance(ref, Job):
        if not overrides:
            return resolve(ref).job
        ref = ref.model_dump(
            mode="json", exclude_none=True, exclude_unset=True
        )  # ``space`` may still widen lists that the job omits
    return job_from(read("jobs", ref), overrides)


def job_from(source: Source, overrides: Overrides = ()) -> Job:
    """Return the self-contained job in ``source``. Raises InputError."""
    if not isinstance(source.data, dict):
        raise InputError(f"{source.place(())}: a job is a mapping, not a {type(source.data).__name__}")
    require_kind(source, "training job")
    source = apply_overrides(source, overrides, Job, {"workload": _full_workload, "topology": full_topology})
    job = validate(Job, source, EXTRA_KEYS)
    return _self_contained(job, _workload(source), topology_under(source))


def _workload(source: Source) -> Workload:
    return workload_from(part(source, "workload", partial(read, "workloads")))


def _full_workload(source: Source) -> tuple[type[BaseModel], dict[str, Any]]:
    workload = _workload(source)
    return type(workload), workload.model_dump(mode="json")


def _self_contained(job: Job, workload: Workload, topology: Topology) -> Job:
    _require_partitions_of_buildings(job.slurm, topology)
    _require_possible_spares(job.reliability, topology)
    full: dict[str, Any] = {
        "workload": workload.model_dump(mode="json"),
        "topology": topology.model_dump(mode="json"),
    }
    if "objective" not in job.model_fields_set and _fails_often(job, topology):
        full["objective"] = "useful_tokens_per_s"
    return job.model_copy(update=full)


def _require_possible_spares(recovery: Recovery | None, topology: Topology) -> None:
    """Raise InputError if more hosts are spare than the topology has."""
    hosts = sum(building.hosts for building in topology.buildings)
    if recovery is not None and recovery.spares != "auto" and recovery.spares > hosts:
        raise InputError(
            f"reliability.spares: {recovery.spares:,} spare hosts, and topology '{topology.name}' has {hosts:,} hosts: "
            "state as many as stand by for this job, or auto"
        )


def _require_partitions_of_buildings(slurm: Slurm, topology: Topology) -> None:
    """Raise InputError if ``slurm.partition`` names an unknown building."""
    known = [building.name for building in topology.buildings]
    for name in slurm.partition if isinstance(slurm.partition, dict) else ():
        if name not in known:
            raise InputError(f"slurm.partition: no building '{name}'; there are {', '.join(known)}")


def _fails_often(job: Job, topology: Topology) -> bool:
    """Whether failures are stated and the job may use more than ``FEW_ACCELERATORS``."""
    wanted = job.num_accelerators
    most = wanted.max if isinstance(wanted, Range) else wanted
    stated = job.reliability is not None or topology.reliability is not None
    return stated and min(topology.num_accelerators, most or topology.num_accelerators) > FEW_ACCELERATORS


def resolve(job: Job, base_dir: Path | None = None) -> Problem:
    """Return the problem of a job: workload, topology and profile. Paths in the job start at ``base_dir``.

    Raises:
        InputError: a reference that is not found or not valid.
    """
    source = Source(f"job '{job.name}'", {"workload": job.workload, "topology": job.topology}, folder=base_dir)
    workload, topology = _workload(source), topology_under(source)
    return assembled(_self_contained(job, workload, topology), workload, topology)


def load_plan(path: str | Path) -> Plan:
    """Load a plan that this package wrote. Raises InputError if the file holds none."""
    return _plan_from(read_file(find("plans", _named(path))))


def load_decision(path: str | Path) -> tuple[Job, Decision]:
    """Load a user's decision: a file with ``job:`` (name, path or mapping) and ``decision:``. Raises InputError."""
    return _decision_from(read_file(find("plans", _named(path))))


def _named(path: str | Path) -> str:
    """Return a plan's name or path as text."""
    if not isinstance(path, str | Path):
        raise InputError(f"plans: a plan, a name or a path is expected, not a {type(path).__name__}")
    return str(path)


def load_plan_or_decision(path: str | Path, overrides: Overrides = ()) -> Plan | tuple[Job, Decision]:
    """Return the plan, or the job and decision, in a file. ``overrides`` change the job of a decision, not of a plan.

    Raises InputError if the file holds neither.
    """
    source = read_file(find("plans", _named(path)))
    require_kind(source, "training plan", "decision", "training job")
    keys = set(source.data) if isinstance(source.data, dict) else set()
    if {"job", "decision", "report"} <= keys and source.data.get("schema_version") != PLAN_VERSION:
        source = replace(source, data={key: source.data[key] for key in ("job", "decision")})
        return _decision_from(source, overrides)
    if "layers_per_stage" in keys or "schema_version" in keys:
        return _plan_from(source)
    if "decision" in keys:
        return _decision_from(source, overrides)
    raise InputError(
        f"{source.label}: neither a plan (plan.json, as 'scaleacross plan -o DIR' writes it) "
        "nor a decision (a file with the keys job: and decision:)"
        + ("; this is a job: use 'scaleacross plan'" if "workload" in keys else "")
        + ("; settings of a framework are read with --from megatron or torchtitan, and --job" if not keys else "")
    )


def job_source(path: str | Path) -> Source:
    """Return the job in a file of a plan or of a decision, as it stands there. Raises InputError if there is none."""
    return part(read_file(find("plans", _named(path))), "job", partial(read, "jobs"))


def _plan_from(source: Source) -> Plan:
    require_kind(source, "training plan", "decision")
    stated = source.data.get("schema_version") if isinstance(source.data, dict) else PLAN_VERSION
    if stated != PLAN_VERSION or isinstance(stated, bool):
        which = "states no schema_version" if stated is None else f"is of schema_version {str(stated)[:20]}"
        raise InputError(
            f"{source.label}: the plan {which}; this release reads {PLAN_VERSION}. "
            f"'scaleacross evaluate {source.label} -o DIR' computes it anew from its job and decision"
        )
    plan, job = validate(Plan, source), source.sub("job")
    _workload(job)  # Plan does not validate these mappings
    topology_under(job)
    return plan


def _decision_from(source: Source, overrides: Overrides = ()) -> tuple[Job, Decision]:
    decision = validate(DecisionFile, source).decision
    return job_from(part(source, "job", partial(read, "jobs")), overrides), decision


def with_hosts(plan: Plan, ref: str | Path) -> Plan:
    """Return the plan with real host names from a YAML file: building -> host list (``node[001-064]``, or a list).

    Each building needs at least as many names as hosts that the plan uses.

    Raises:
        InputError: no such file, an unknown building, or too few names.
    """
    source = read_file(Path(ref))
    topology = Topology.model_validate(plan.job.topology)
    known = {building.name: building for building in topology.buildings}
    if not isinstance(source.data, dict):
        raise InputError(
            f"{source.label}: a mapping of building to host list is expected, e.g. building-a: node[001-064]"
        )
    named: dict[str, Building] = {}
    for name, hosts in source.data.items():
        if name not in known:
            raise InputError(f"{source.place((name,))}: the plan has no building '{name}'; it has {', '.join(known)}")
        fields = {key: getattr(known[name], key) for key in Building.model_fields if key != "host_names"}
        named[name] = validate(Building, replace(source.sub(name), data={**fields, "hosts": hosts}), EXTRA_KEYS)
    for share in plan.placement.fill:
        used = -(-share.num_accelerators // known[share.building].accelerators_per_host)
        building = named.get(share.building)
        if building is None or len(building.host_names) < used:
            got = len(building.host_names) if building else 0
            raise InputError(
                f"{source.label}: {got:,} host names for '{share.building}', of which the plan uses {used:,} hosts"
            )
    regions = [
        {"name": region.name, "buildings": [named.get(one.name, one) for one in region.buildings]}
        for region in topology.regions
    ]
    others = {field: getattr(topology, field) for field in Topology.model_fields if field != "regions"}
    bound = Topology.model_validate({**others, "regions": regions})
    job = plan.job.model_copy(update={"topology": bound.model_dump(mode="json")})
    return plan.model_copy(update={"job": job})


def with_slurm(plan: Plan, fields: Mapping[str, Any]) -> Plan:
    """Return the plan with ``fields`` replaced in its job's ``slurm:``. Raises InputError for a bad value."""
    stated = {**plan.job.slurm.model_dump(), **fields}
    slurm = validate(Slurm, Source("--slurm-*", stated), EXTRA_KEYS)
    _require_partitions_of_buildings(slurm, Topology.model_validate(plan.job.topology))
    return plan.model_copy(update={"job": plan.job.model_copy(update={"slurm": slurm})})
