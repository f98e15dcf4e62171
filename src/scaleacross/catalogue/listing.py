"""List the catalogue's entries, and give the JSON Schema of each kind of file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleacross.catalogue.design_spaces import load_design_space
from scaleacross.catalogue.find import KINDS, Kind, find, names
from scaleacross.catalogue.jobs import DecisionFile, load_decision
from scaleacross.catalogue.load import load_accelerator, load_graph, load_network, load_topology, load_workload, read
from scaleacross.catalogue.recommendation import load_recommendation
from scaleacross.catalogue.studies import load_study
from scaleacross.catalogue.validation import nearest
from scaleacross.catalogue.yaml_source import read_text
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.comparison import Comparison
from scaleacross.spec.design_space import DesignSpace
from scaleacross.spec.explanation import Explanation
from scaleacross.spec.inference import InferenceJob, InferencePlan
from scaleacross.spec.job import Job
from scaleacross.spec.json_schema import json_schema
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.link_graph import LinkGraph
from scaleacross.spec.network import NetworkTechnology
from scaleacross.spec.plan import Plan
from scaleacross.spec.recommendation import RecommendationJob, RecommendationPlan
from scaleacross.spec.study import Study
from scaleacross.spec.topology import Topology
from scaleacross.workloads import FAMILIES
from scaleacross.workloads.recommendation import Dlrm

SCHEMA_KINDS: Final = (
    "accelerator",
    "network",
    "topology",
    "graph",
    "workload",
    "job",
    "plan",
    "decision",
    "launch",
    "study",
    "design_space",
    "explanation",
    "comparison",
    "recommendation",
    "recommendation_job",
    "recommendation_plan",
    "inference_job",
    "inference_plan",
)


class Entry(NamedTuple):
    """One file of the catalogue."""

    kind: Kind
    name: str
    path: Path
    summary: str


def entries() -> list[Entry]:
    """Return all files of the catalogue, kind by kind. Every file is read; an unreadable one says so in its summary."""
    return [Entry(kind, name, path, _summary(kind, path)) for kind in KINDS for name, path in names(kind)]


def bundled_text(name: str, kinds: Sequence[Kind] = KINDS) -> str:
    """Return the text of a catalogue name or path; the first of ``kinds`` that has the name is used.

    Raises:
        InputError: nothing there; the message names the nearest entry.
    """
    for kind in kinds:
        if name in dict(names(kind)):
            return read_text(find(kind, name))
    if len(kinds) == 1 or Path(name).is_file():
        return read_text(find(kinds[0], name))
    every = [known for kind in kinds for known, _ in names(kind)]
    raise InputError(f"'{name[:100]}': no file and no name in the catalogue; {nearest(name, every, 'name', 'names')}")


def _summary(kind: Kind, path: Path) -> str:
    try:
        return _SUMMARIES[kind](path)
    except InputError as error:
        return f"cannot be read: {str(error).splitlines()[0]}"


def _accelerator(path: Path) -> str:
    a = load_accelerator(path)
    peaks = ", ".join(f"{precision} {peak / 1e12:,.0f}" for precision, peak in a.peak_flop_per_s.items())
    return f"{peaks} TFLOP/s; {a.memory_bytes / 2**30:.0f} GiB at {a.memory_bandwidth_bytes_per_s / 1e12:g} TB/s"


def _network(path: Path) -> str:
    n = load_network(path)
    return f"{n.bandwidth_bytes_per_s / 1e9:g} GB/s per accelerator and direction, {n.efficiency_fraction:.0%} reached"


def _topology(path: Path) -> str:
    t = load_topology(path)
    return t.description or f"{t.num_accelerators:,} accelerators in {len(t.buildings)} building(s)"


def _graph(path: Path) -> str:
    g = load_graph(path)
    return g.description or f"{g.num_ranks} ranks"


def _workload(path: Path) -> str:
    p = load_workload(path).profile()
    active = f", {p.active_parameters / 1e9:.1f} B active" if p.num_experts else ""
    return (
        f"{p.total_parameters / 1e9:,.1f} B parameters{active}; {p.num_layers} layers of width {p.head.hidden_size:,}"
    )


def _recommendation(path: Path) -> str:
    m = load_recommendation(path)
    own = f"{m.num_tables:,} tables, {m.embedding_parameters / 1e9:,.1f} B elements"
    return m.description or f"{own}, {m.reads_per_sample:,.0f} rows read per sample"


def _job(path: Path) -> str:
    job = read("jobs", path).data
    return f"{job.get('workload')} on {job.get('topology')}, {job.get('sequence_length')} tokens per sequence"


def _decision(path: Path) -> str:
    job, decision = load_decision(path)
    return f"{decision.degrees} for {job.name}"


def _study(path: Path) -> str:
    if read("studies", path).data.get("command") == "reproduce":
        space, _ = load_design_space(path)
        return space.description or f"{space.points:,} points of {len(space.combinations):,}"
    study, _ = load_study(path)
    return study.description or f"{study.num_points:,} points over {', '.join(study.paths)}"


_SUMMARIES: Final[Mapping[Kind, Callable[[Path], str]]] = {
    "accelerators": _accelerator,
    "networks": _network,
    "topologies": _topology,
    "graphs": _graph,
    "workloads": _workload,
    "recommendation": _recommendation,
    "jobs": _job,
    "plans": _decision,
    "studies": _study,
}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a file of ``kind`` (one of ``SCHEMA_KINDS``). Raises InputError for another kind."""
    match kind:
        case "accelerator":
            return json_schema(Accelerator, "scaleacross accelerator")
        case "network":
            return json_schema(NetworkTechnology, "scaleacross network technology")
        case "topology":
            return json_schema(Topology, "scaleacross topology")
        case "graph":
            return json_schema(LinkGraph, "scaleacross graph of links")
        case "workload":
            families = reduce(or_, FAMILIES.values())
            return json_schema(families, "scaleacross workload", discriminator="family")
        case "recommendation":
            return json_schema(Dlrm, "scaleacross recommendation model")
        case "recommendation_job":
            return json_schema(RecommendationJob, "scaleacross recommendation job")
        case "recommendation_plan":
            return json_schema(RecommendationPlan, "scaleacross recommendation plan", named_by_file=False)
        case "inference_job":
            return json_schema(InferenceJob, "scaleacross inference job")
        case "inference_plan":
            return json_schema(InferencePlan, "scaleacross inference plan", named_by_file=False)
        case "job":
            return json_schema(Job, "scaleacross job")
        case "plan":
            return json_schema(Plan, "scaleacross plan", named_by_file=False)
        case "decision":
            return json_schema(DecisionFile, "scaleacross decision", named_by_file=False)
        case "launch":
            return json_schema(LaunchConfig, "scaleacross launch configuration", named_by_file=False)
        case "explanation":
            return json_schema(Explanation, "scaleacross explanation", named_by_file=False)
        case "study":
            return json_schema(Study, "scaleacross study")
        case "design_space":
            return json_schema(DesignSpace, "scaleacross design space")
        case "comparison":
            return json_schema(Comparison, "scaleacross comparison", named_by_file=False)
    raise InputError(f"no schema '{kind}'; there are: {', '.join(SCHEMA_KINDS)}")


def schema_text(kind: str) -> str:
    """Return ``schema(kind)`` as the text of ``configs/schemas/<kind>.schema.json``."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"
