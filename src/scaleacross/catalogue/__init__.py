"""Find and load catalogue entries and user files: names, paths or mappings in, validated specs out."""

from __future__ import annotations

from scaleacross.catalogue.design_spaces import DesignPoint as DesignPoint
from scaleacross.catalogue.design_spaces import design_points as design_points
from scaleacross.catalogue.design_spaces import load_design_space as load_design_space
from scaleacross.catalogue.find import hidden as hidden
from scaleacross.catalogue.jobs import load_decision as load_decision
from scaleacross.catalogue.jobs import load_job as load_job
from scaleacross.catalogue.jobs import load_plan as load_plan
from scaleacross.catalogue.jobs import load_plan_or_decision as load_plan_or_decision
from scaleacross.catalogue.jobs import resolve as resolve
from scaleacross.catalogue.jobs import with_hosts as with_hosts
from scaleacross.catalogue.jobs import with_slurm as with_slurm
from scaleacross.catalogue.listing import SCHEMA_KINDS as SCHEMA_KINDS
from scaleacross.catalogue.listing import Entry as Entry
from scaleacross.catalogue.listing import bundled_text as bundled_text
from scaleacross.catalogue.listing import entries as entries
from scaleacross.catalogue.listing import schema as schema
from scaleacross.catalogue.listing import schema_text as schema_text
from scaleacross.catalogue.load import load_accelerator as load_accelerator
from scaleacross.catalogue.load import load_graph as load_graph
from scaleacross.catalogue.load import load_network as load_network
from scaleacross.catalogue.load import load_topology as load_topology
from scaleacross.catalogue.load import load_workload as load_workload
from scaleacross.catalogue.quick_start import Start as Start
from scaleacross.catalogue.quick_start import quick_files as quick_files
from scaleacross.catalogue.quick_start import quick_job as quick_job
from scaleacross.catalogue.quick_start import quick_topology as quick_topology
from scaleacross.catalogue.quick_start import topology_text as topology_text
from scaleacross.catalogue.recommendation import is_inference as is_inference
from scaleacross.catalogue.recommendation import is_recommendation as is_recommendation
from scaleacross.catalogue.recommendation import load_inference_job as load_inference_job
from scaleacross.catalogue.recommendation import load_recommendation as load_recommendation
from scaleacross.catalogue.recommendation import load_recommendation_job as load_recommendation_job
from scaleacross.catalogue.recommendation import load_recommendation_plan as load_recommendation_plan
from scaleacross.catalogue.step_errors import read_step_errors as read_step_errors
from scaleacross.catalogue.step_errors import step_errors as step_errors
from scaleacross.catalogue.studies import Point as Point
from scaleacross.catalogue.studies import load_study as load_study
from scaleacross.catalogue.studies import points_of as points_of
