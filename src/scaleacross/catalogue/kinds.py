"""Recognise the kind of a mapping (training, recommendation or inference; job or plan) and the commands for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError
from scaleacross.workloads.recommendation import Family

Kind = Literal[
    "training job", "training plan", "decision", "recommendation job", "recommendation plan", "inference job",
    "inference plan", "study", "topology", "launch", "comparison", "simulation",
]  # fmt: skip
FAMILIES: Final = get_args(Family)
"""Families of recommendation models."""
_OWN_VERSIONS: Final[Mapping[str, Kind]] = {
    "inference-1": "inference plan",
    "recommendation-1": "recommendation plan",
}
_SAID: Final[Mapping[Kind, str]] = {
    "training job": "a training job; 'scaleacross plan JOB -o DIR' makes a plan of it, and sweep takes it as the base of a study",
    "training plan": "a plan, not a job; its job stands under 'job'. evaluate, explain, verify, simulate, schedule and emit take "
    "plans",
    "decision": "settings (a job and a decision), which evaluate and explain take",
    "recommendation job": "a recommendation job; plan, compare and explain take it, and sweep as the base of a study (in Python: "
    "plan_recommendation, compare_recommendation, explain_recommendation)",
    "recommendation plan": "a plan of a recommendation model; verify, simulate, explain and emit take it, and plan and compare "
    "its job (in Python: load_recommendation_plan, simulate_recommendation, explain_recommendation, emit)",
    "inference job": "an inference job (cards); plan takes it, and no other command (in Python: plan_inference)",
    "inference plan": "a plan of inference cards, which no command reads; 'scaleacross plan JOB -o DIR' shows and writes it anew",
    "study": "a study, which sweep takes",
    "topology": "a topology, which a job names (topology: FILE); 'scaleacross init DIR --topology FILE' writes the job, and "
    "'show topology FILE' shows it",
    "launch": "what a plan launches, which run and bench take; the plan itself is plan.json beside it",
    "comparison": "a comparison; our plan is plan.json beside it, and a baseline's settings are rivals/NAME.json",
    "simulation": "a simulated step of a plan; give the plan.json that was simulated",
}


def kind_of(data: object) -> Kind | None:
    """Kind of ``data``, judged by its keys; None if they do not tell."""
    if not isinstance(data, Mapping):
        return None
    version, keys = data.get("schema_version"), data.keys()
    if isinstance(version, str) and version in _OWN_VERSIONS:
        return _OWN_VERSIONS[version]
    if {"plan_name", "plan_sha256"} <= keys:
        return "launch"
    if {"plan", "rivals"} <= keys:
        return "comparison"
    if {"plan_name", "what_if"} <= keys:
        return "simulation"
    if {"decision", "layers_per_stage"} <= keys:
        return "training plan"
    if {"job", "decision"} <= keys:
        return "decision"
    if "cards" in keys:
        return "inference job"
    if "global_batch_samples" in keys or _family(data.get("workload")) in FAMILIES:
        return "recommendation job"
    if "base" in keys and {"grid", "zipped"} & keys:
        return "study"
    if "regions" in keys and not {"workload", "topology"} & keys:
        return "topology"
    return "training job" if {"workload", "topology"} <= keys else None


def _family(workload: Any) -> Any:
    return workload.get("family") if isinstance(workload, Mapping) else None


def require_kind(source: Source, *kinds: Kind) -> None:
    """Raise InputError if ``source`` is of another known kind; the message names the commands for that kind."""
    found = kind_of(source.data)
    if found is not None and found not in kinds:
        raise InputError(f"{source.place(())}: this is {_SAID[found]}")
