"""The verb evaluate: the step time of user-supplied decisions, without a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scaleacross import catalogue
from scaleacross import verification as checks
from scaleacross.api.arguments import instance
from scaleacross.api.assemble import assemble, cost_of, versions
from scaleacross.api.objectives import gap_of, objective_value
from scaleacross.api.problems import problem_of
from scaleacross.api.stated import noted, stated
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import accelerator_types
from scaleacross.cost_models.plan_cost import PlanCost, placed_shapes
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.solvers.bounds import compute_bound
from scaleacross.solvers.every_placement import EveryPlacement, placer_on
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.network_of_plan import with_library_network, with_network
from scaleacross.solvers.pools import most_accelerators, pools, shares
from scaleacross.spec.job import Job
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision, Plan, SolveReport
from scaleacross.verification.network import v9_network
from scaleacross.workloads.problem import Problem


def evaluate(source: Plan | str | Path | tuple[Job, Decision], *, overrides: Sequence[str] = ()) -> Plan:
    """Return the plan of user-supplied decisions with its step time; ``report.status`` is ``evaluated``.

    The step time is simulated (``stated``), and the only bound is ``compute``. A decision without a placement gets the
    best one. A network that does not suit the sizes which ``overrides`` leave is chosen anew, and notes say so. A plan
    that exceeds memory is evaluated all the same and carries a note; it fails verification.

    Args:
        source: a Plan, a path or catalogue name of a plan or decision, or a pair of a job and a decision.
        overrides: ``a.b.c=value`` on any field of the job.

    Returns:
        A Plan. ``cost`` holds the step time and its parts in seconds, ``memory`` bytes per pipeline stage.

    Raises:
        InputError: the file, the job or the decision is wrong, or breaks a rule; every broken rule is listed.
        InfeasibleError: no allocation of the topology holds the degrees.
    """
    job, decision, left = _job_and_decision(source, overrides)
    problem = problem_of(job, left)
    found = stated(evaluated(problem, decision, adapts=bool(overrides)), problem)
    hint = _other_tokens(job, problem.job, left)
    return noted(found, hint) if hint else found


def evaluated(problem: Problem, decision: Decision, degraded: bool = True, adapts: bool = False) -> Plan:
    """Return the estimated plan of a resolved problem, not simulated.

    Args:
        problem: the resolved job.
        decision: the decision; without a placement it gets the best one.
        degraded: also compute the step time after the loss of a part.
        adapts: choose the network anew, with a note, where the stated one cannot run.

    Raises:
        InputError, InfeasibleError: as ``evaluate``.
    """
    job = problem.job
    notes: list[str] = []
    if len(job.context_exchange) == 1 and "context_exchange" not in decision.model_fields_set:
        decision = decision.model_copy(update={"context_exchange": job.context_exchange[0]})  # nothing else is allowed
    # rules without a placement come first: placing a decision that breaks them would be wasted or fail obscurely
    broken = checks.refused_rules(problem, decision)
    if broken:
        raise InputError(f"'{job.name}' cannot run like this:\n" + "\n".join(f"- {line}" for line in broken))
    if decision.placement is None and decision.batch_shares is not None:
        raise InputError(f"'{job.name}': batch_shares name replicas by building: state the placement too")
    if decision.placement is None:
        decision = _place(problem, decision)
        decision = _place_for_network(problem, decision) if decision.network else decision
        notes.append("the settings name no placement: the best one was chosen")
    broken = list(checks.illegal(problem, decision))
    if broken:
        raise InputError(f"'{job.name}' cannot be placed like this:\n" + "\n".join(f"- {line}" for line in broken))
    cost = cost_of(problem, decision)
    broken = list(_communication(problem, decision, cost, placed_shapes(problem.topology, decision)))
    if broken and adapts:
        networked = with_network(problem, decision)
        decision, cost, broken = networked.decision, networked.cost, []
        notes.append("the stated network is one for other sizes: it was chosen anew, as plan does")
    if broken:
        raise InputError(f"'{job.name}' cannot communicate like this:\n" + "\n".join(f"- {line}" for line in broken))
    notes += [f"does not fit: {line}" for line in checks.does_not_fit(cost.memory)]
    notes += [f"takes memory that plans keep free: {line}" for line in checks.takes_headroom(cost.memory)]
    report = _evaluation_report(problem, decision, cost, notes)
    return assemble(problem, decision, cost, report, degraded=degraded)


def _other_tokens(before: Job, job: Job, overrides: Sequence[str]) -> str:
    """Return a note where ``overrides`` change the sequence length alone, and with it the tokens of a step."""
    kept = job.global_batch_sequences
    of_batch = any(one.startswith("global_batch_") for one in overrides)
    if before.sequence_length == job.sequence_length or before.global_batch_sequences != kept or of_batch:
        return ""
    return (
        f"the batch stays {kept:,} sequences: {job.tokens_per_step:,} tokens a step, {before.tokens_per_step:,} before; "
        f"--set global_batch_tokens={before.tokens_per_step} keeps the tokens"
    )


def runs(problem: Problem, decision: Decision) -> bool:
    """Return whether a placed decision without a network is legal for a problem and fits in memory."""
    if any(checks.illegal(problem, decision)):
        return False
    return not any(checks.does_not_fit(cost_of(problem, decision).memory))


def _job_and_decision(
    source: Plan | str | Path | tuple[Job, Decision], overrides: Sequence[str]
) -> tuple[Job, Decision, Sequence[str]]:
    """Return the job, the decision, and the overrides that are left to apply to the job.

    Those of a file are applied to what it states: a batch in tokens stays one in tokens, whatever the sequence length.
    """
    if isinstance(source, tuple):
        if len(source) != 2:
            raise InputError(f"a pair of a job and a decision is expected, not a tuple of {len(source)}")
        return source[0], instance("decision", source[1], Decision, "a Decision (plan.decision)"), overrides
    loaded = source if isinstance(source, Plan) else catalogue.load_plan_or_decision(source, overrides)
    return (loaded.job, loaded.decision, overrides) if isinstance(loaded, Plan) else (*loaded, ())


def _place(problem: Problem, decision: Decision) -> Decision:
    """Return the decision with the placement of least estimated step time in any accelerator pool.

    Raises InfeasibleError where none fits.
    """
    settings = candidate_of(decision, problem.job.global_batch_sequences)
    problem = problem if decision.network else with_library_network(problem)
    best: tuple[float, Placement] | None = None
    for pool in pools(problem.topology):
        placer = placer_on(pool, problem.job, problem.profile, balanced=False)
        placed = placer.place(settings, placer.bounder.coarse(settings).work)
        if placed is None:
            continue
        placement = Placement(axis_order=placed.axis_order, fill=shares(placed.fill))
        step_s = cost_of(problem, decision.model_copy(update={"placement": placement})).cost.step_s
        if best is None or step_s < best[0]:
            best = (step_s, placement)
    if best is None:
        raise InfeasibleError(
            f"{decision.degrees} does not fit into {most_accelerators(problem.topology):,} accelerators in whole hosts: "
            "lower a degree or add accelerators"
        )
    return decision.model_copy(update={"placement": best[1]})


def _place_for_network(problem: Problem, decision: Decision) -> Decision:
    """Return the decision at the fastest placement on which its stated network can run.

    The placement stays where the network can run there, or can run nowhere.
    """
    here = cost_of(problem, decision)
    if not list(_communication(problem, decision, here, placed_shapes(problem.topology, decision))):
        return decision
    settings, runs = candidate_of(decision, problem.job.global_batch_sequences), []
    for pool in pools(problem.topology):
        placer = EveryPlacement(pool, bounder_on(pool, problem.job, problem.profile), balanced=False)
        for allocation, order in placer.places(settings):
            there = decision.model_copy(update={"placement": Placement(axis_order=order, fill=shares(allocation))})
            shapes = {name: group.shape.take(0) for name, group in placer.on(allocation).groups(there).items()}
            # ``here`` states the bytes sent, which do not depend on the placement
            if not list(_communication(problem, there, here, shapes)):
                runs.append(there)
    return min(runs, key=lambda there: cost_of(problem, there).cost.step_s, default=decision)


def _communication(
    problem: Problem, decision: Decision, cost: PlanCost, shapes: Mapping[str, GroupShape]
) -> Iterator[str]:
    """Yield what is wrong with the network of a placed decision.

    Args:
        cost: states the bytes that the groups send.
        shapes: topology of every group, by name.
    """
    used = accelerator_types([problem.topology.building(share.building) for share in decision.placed.fill])
    return v9_network(problem.job, decision, cost, shapes, used)


def _evaluation_report(problem: Problem, decision: Decision, cost: PlanCost, notes: Sequence[str]) -> SolveReport:
    bound = compute_bound(problem)
    step_s = cost.cost.step_s
    value = objective_value(problem, cost, decision)
    return SolveReport(
        status="evaluated",
        objective_s=step_s,
        bound_s=bound.step_s,
        gap=gap_of(value, step_s, bound.step_s),
        objective=value,
        bounds=(bound,),
        num_candidates=1,
        num_pruned=0,
        num_placed=1,
        seconds=0.0,
        seed=0,
        versions=versions(),
        notes=tuple(notes),
    )
