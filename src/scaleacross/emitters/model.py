"""The model inside a plan, as its family object."""

from __future__ import annotations

from scaleacross.errors import EmitError, InputError
from scaleacross.spec.plan import Plan
from scaleacross.targets import refused_by
from scaleacross.workloads import problem
from scaleacross.workloads.workload import Workload


def workload_of(plan: Plan) -> Workload:
    """Return the workload that the plan contains.

    Raises:
        EmitError: the plan names a workload instead of containing it, or its family is unknown.
    """
    try:
        return problem.workload_of(plan.job)
    except InputError as error:
        raise EmitError(str(error)) from None


def check_stages(plan: Plan) -> None:
    """Check that the stages hold every layer of the model, and that the batch adds up.

    Raises:
        EmitError: a count that does not agree.
    """
    degrees, pipeline = plan.degrees, plan.decision.pipeline
    shape = [len(stage) for stage in plan.layers_per_stage]
    if shape != [pipeline.num_chunks] * degrees.pp:
        raise EmitError(
            f"layers_per_stage has the shape {shape}; pp {degrees.pp} × {pipeline.num_chunks} chunks are planned"
        )
    profile = problem.profile_of(plan.job, workload_of(plan))
    planned, needed = sum(sum(stage) for stage in plan.layers_per_stage), profile.num_layers
    if planned != needed:
        raise EmitError(f"layers_per_stage holds {planned} layers; the model has {needed}")
    if plan.decision.batch_shares is not None:
        return  # targets that can express unequal micro-batches check them
    sequences = degrees.dp * pipeline.micro_batch_sequences * plan.num_micro_batches
    if sequences != plan.job.global_batch_sequences:
        raise EmitError(
            f"dp {degrees.dp} × micro-batch {pipeline.micro_batch_sequences} × {plan.num_micro_batches} micro-batches = "
            f"{sequences} sequences; the job's global batch has {plan.job.global_batch_sequences}"
        )


def refuse(plan: Plan, target: str) -> None:
    """Raise unless ``target`` can express the plan (``targets``) and run it in the memory that the plan states.

    Raises:
        EmitError: everything that it cannot express, by name and with the way out, or the memory that it lacks.
    """
    refused = refused_by(target, plan.job, problem.profile_of(plan.job, workload_of(plan)), plan.decision)
    refused = refused or [line for one in plan.targets if one.target == target for line in one.refused]
    if refused:
        raise EmitError("; ".join(refused))
