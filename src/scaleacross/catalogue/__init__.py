"""Find and load what ``configs/`` (or the user) holds: names, paths or mappings in, validated specs out."""

from __future__ import annotations

from scaleacross.catalogue.design_spaces import DesignPoint, design_points, load_design_space
from scaleacross.catalogue.find import hidden
from scaleacross.catalogue.jobs import (
    load_decision,
    load_job,
    load_plan,
    load_plan_or_decision,
    resolve,
    with_hosts,
    with_slurm,
)
from scaleacross.catalogue.listing import SCHEMA_KINDS, Entry, bundled_text, entries, schema, schema_text
from scaleacross.catalogue.load import load_accelerator, load_graph, load_network, load_topology, load_workload
from scaleacross.catalogue.quick_start import Start, quick_files, quick_job, quick_topology, topology_text
from scaleacross.catalogue.recommendation import (
    is_inference,
    is_recommendation,
    load_inference_job,
    load_recommendation,
    load_recommendation_job,
    load_recommendation_plan,
)
from scaleacross.catalogue.step_errors import read_step_errors, step_errors
from scaleacross.catalogue.studies import Point, load_study, points_of

__all__ = [
    "SCHEMA_KINDS",
    "DesignPoint",
    "Entry",
    "Point",
    "Start",
    "bundled_text",
    "design_points",
    "entries",
    "hidden",
    "is_inference",
    "is_recommendation",
    "load_accelerator",
    "load_decision",
    "load_design_space",
    "load_graph",
    "load_inference_job",
    "load_job",
    "load_network",
    "load_plan",
    "load_plan_or_decision",
    "load_recommendation",
    "load_recommendation_job",
    "load_recommendation_plan",
    "load_study",
    "load_topology",
    "load_workload",
    "points_of",
    "quick_files",
    "quick_job",
    "quick_topology",
    "read_step_errors",
    "resolve",
    "schema",
    "schema_text",
    "step_errors",
    "topology_text",
    "with_hosts",
    "with_slurm",
]
