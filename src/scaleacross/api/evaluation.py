"""The verb evaluate: settings that the user brings, priced and nothing searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scaleacross import catalogue
from scaleacross import verification as checks
from scaleacross.api.arguments import instance
from scaleacross.api.assemble import assemble, cost_of, versions
from scaleacross.api.objectives import objective_value
from scaleacross.api.problems import problem_of
from scaleacross.api.stated import stated
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import accelerator_types
from scaleacross.cost_models.plan_cost import PlanCost, placed_shapes
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.solvers.bounds import compute_bound
from scaleacross.solvers.every_placement import EveryPlacement, placer_on
from scaleacross.solvers.fleets import fleets, shares
from scaleacross.solvers.mixed_fleets import pricing_on
from scaleacross.solvers.network_of_plan import with_library_network, with_network
from scaleacross.spec.job import Job
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision, Plan, SolveReport
from scaleacross.verification.network import v9_network
from scaleacross.workloads.problem import Problem


def evaluate(source: Plan | str | Path | tuple[Job, Decision], *, overrides: Sequence[str] = ()) -> Plan:
    """The step time of settings that the user brings; ``report.status`` is ``evaluated`` and the only bound is arithmetic.

    The step time is that of their simulation (``stated``). A decision without placement gets the best one, and one whose network
    is for other sizes than ``overrides`` leave gets a plan's (notes say so). A plan that does not fit in memory is priced all the
    same and carries a note; it will not verify.

    Raises:
        InputError: the file, the job or the decision is wrong, or breaks a rule; every broken rule is listed.
        InfeasibleError: no fill of the topology holds the degrees.
    """
    job, decision = _job_and_decision(source)
    problem = problem_of(job, overrides)
    return stated(evaluated(problem, decision, adapts=bool(overrides)), problem)


def evaluated(problem: Problem, decision: Decision, degraded: bool = True, adapts: bool = False) -> Plan:
    """The estimate of a problem that is resolved, not simulated.

    Args:
        degraded: with what it costs with something lost.
        adapts: a network that the decision cannot have (any more) is chosen anew, and a note says so.

    Raises:
        InputError, InfeasibleError: as ``evaluate``.
    """
    job = problem.job
    notes: list[str] = []
    if len(job.context_exchange) == 1 and "context_exchange" not in decision.model_fields_set:
        decision = decision.model_copy(update={"context_exchange": job.context_exchange[0]})  # nothing else is allowed
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


def runs(problem: Problem, decision: Decision) -> bool:
    """Whether a placed decision without a network may run on a problem, and fits."""
    if list(checks.refused_rules(problem, decision)) or list(checks.illegal(problem, decision)):
        return False
    return not list(checks.does_not_fit(cost_of(problem, decision).memory))


def _job_and_decision(source: Plan | str | Path | tuple[Job, Decision]) -> tuple[Job, Decision]:
    if isinstance(source, tuple):
        if len(source) != 2:
            raise InputError(f"a pair of a job and a decision is expected, not a tuple of {len(source)}")
        return source[0], instance("decision", source[1], Decision, "a Decision (plan.decision)")
    loaded = source if isinstance(source, Plan) else catalogue.load_plan_or_decision(source)
    return (loaded.job, loaded.decision) if isinstance(loaded, Plan) else loaded


def _place(problem: Problem, decision: Decision) -> Decision:
    """The decision with the best placement that any fleet offers."""
    settings = candidate_of(decision, problem.job.global_batch_sequences)
    problem = problem if decision.network else with_library_network(problem)
    best: tuple[float, Placement] | None = None
    for fleet in fleets(problem.topology):
        placer = placer_on(fleet, problem.job, problem.profile, balanced=False)
        placed = placer.place(settings, placer.pricing.coarse(settings).work)
        if placed is None:
            continue
        placement = Placement(axis_order=placed.axis_order, fill=shares(placed.fill))
        step_s = cost_of(problem, decision.model_copy(update={"placement": placement})).cost.step_s
        if best is None or step_s < best[0]:
            best = (step_s, placement)
    if best is None:
        raise InfeasibleError(
            f"{decision.degrees} does not fit into {problem.topology.num_accelerators:,} accelerators in whole hosts: "
            "lower a degree or add accelerators"
        )
    return decision.model_copy(update={"placement": best[1]})


def _place_for_network(problem: Problem, decision: Decision) -> Decision:
    """The placed decision where its network can run, at the least step time; as it lies where that is here or nowhere."""
    here = cost_of(problem, decision)
    if not list(_communication(problem, decision, here, placed_shapes(problem.topology, decision))):
        return decision
    settings, runs = candidate_of(decision, problem.job.global_batch_sequences), []
    for fleet in fleets(problem.topology):
        placer = EveryPlacement(fleet, pricing_on(fleet, problem.job, problem.profile), balanced=False)
        for fill, order in placer.places(settings):
            there = decision.model_copy(update={"placement": Placement(axis_order=order, fill=shares(fill))})
            shapes = {name: group.shape.take(0) for name, group in placer.on(fill).groups(there).items()}
            if not list(_communication(problem, there, here, shapes)):
                runs.append(there)
    return min(runs, key=lambda there: cost_of(problem, there).cost.step_s, default=decision)


def _communication(
    problem: Problem, decision: Decision, cost: PlanCost, shapes: Mapping[str, GroupShape]
) -> Iterator[str]:
    """What is wrong with the network of a placed decision whose groups have these ``shapes``; ``cost`` says what it sends."""
    if decision.placement is None:
        raise ValueError("the decision has no placement")
    used = accelerator_types([problem.topology.building(share.building) for share in decision.placement.fill])
    return v9_network(problem.job, decision, cost, shapes, used)


def _evaluation_report(problem: Problem, decision: Decision, cost: PlanCost, notes: Sequence[str]) -> SolveReport:
    bound = compute_bound(problem)
    step_s = cost.cost.step_s
    value = objective_value(problem, cost, decision)
    spent = value.spent_per_step if value else step_s
    spent_bound = value.spent_bound_per_step if value else bound.step_s
    return SolveReport(
        status="evaluated",
        objective_s=step_s,
        bound_s=bound.step_s,
        gap=(spent - spent_bound) / spent,
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
