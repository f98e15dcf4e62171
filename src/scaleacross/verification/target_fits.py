"""V10: which targets can run a plan, by their rules and by the memory that each of them needs.

A target determines what is kept besides parameters (``Target.behaviour``). A plan that fits under its own job may not
fit under another target: torchtitan keeps and allocates more for a layer and for the loss than Megatron-LM.
"""

from __future__ import annotations

from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.layout import layout_of
from scaleacross.cost_models.levels import accelerator_types
from scaleacross.cost_models.plan_cost import stage_memory
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision, TargetFit
from scaleacross.targets import TARGETS, behaving, refused_by
from scaleacross.verification.memory import does_not_fit
from scaleacross.workloads.problem import Problem, profile_of


def target_fits(problem: Problem, decision: Decision) -> tuple[TargetFit, ...]:
    """Return every target with what it cannot express of a placed decision, or with the memory that it lacks.

    If a decision does not fit under its own job (``evaluate``), V3 reports it, and memory of targets is not checked.
    """
    fits = not _short_of_memory(problem, decision, problem.job)
    out = []
    for name, target in TARGETS.items():
        refused = refused_by(name, problem.job, problem.profile, decision)
        if fits and not refused:
            behaves = behaving(problem.job.model_copy(update={"target": name}))
            lacks = _short_of_memory(problem, decision, behaves)
            refused = [
                f"memory: {line} as {target.title} counts it; plan for it (target: {name})" for line in lacks[:1]
            ]
        out.append(TargetFit(target=name, refused=tuple(refused)))
    return tuple(out)


def _short_of_memory(problem: Problem, decision: Decision, job: Job) -> list[str]:
    """Return messages about stages that need more memory than their accelerator has under ``job``."""
    placement, topology = decision.placement, problem.topology
    if placement is None:
        return []
    stages = stage_memory(
        job,
        profile_of(job, problem.workload),
        accelerator_types([topology.building(share.building) for share in placement.fill]),
        decision,
        candidate_of(decision, job.global_batch_sequences),
        layout_of(topology, decision),
    )
    return [line.removeprefix("V3: ") for line in does_not_fit(stages)]
