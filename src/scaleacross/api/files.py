"""The verbs verify and emit, for a finished plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from scaleacross import catalogue
from scaleacross import verification as checks
from scaleacross.api.arguments import instance, one_of
from scaleacross.api.arguments import path as path_of
from scaleacross.emitters import TABLE_EMITTERS, write_files
from scaleacross.emitters import emit as write_target
from scaleacross.errors import InputError, VerificationError
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import Progress
from scaleacross.spec.recommendation import RecommendationPlan
from scaleacross.spec.verification import PassedCheck, Verification
from scaleacross.verification import embeddings as table_checks

MAX_DIFFERENCE: Final = 0.1
"""Largest |stated − simulated| / simulated step time: a choice. Of 60 planned decisions of ``benchmarks/agreement.py``
two differ by more.
"""


def verify(
    plan: Plan | str | Path,
    *,
    deep: bool = False,
    max_difference: float = MAX_DIFFERENCE,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Check everything that a plan states, without the solver (V1 to V11 of ``verification``); return how.

    Args:
        plan: a Plan or the path of one.
        deep: also simulate the step and compare the stated step time with it.
        max_difference: with ``deep``: the largest |stated − simulated| / simulated step time that passes.
        progress: with ``deep``: called now and then during the simulation.

    Raises:
        InputError: not a plan, or ``max_difference`` is not positive.
        VerificationError: lists everything that is wrong, one line each.
    """
    if not max_difference > 0:
        raise InputError(f"max_difference must be positive, got {max_difference}; leave it out for {MAX_DIFFERENCE}")
    found = plan if isinstance(plan, Plan) else catalogue.load_plan(plan)
    checks.verify(found, catalogue.step_errors())
    passed = tuple(PassedCheck(name=name, how=how, what=what) for name, how, what in checks.CHECKS)
    bound_s = None if found.report.status == "evaluated" else found.report.bound_s
    verified = Verification(plan_name=found.job.name, checks=passed, step_s=found.cost.step_s, bound_s=bound_s)
    return _simulated(found, verified, max_difference, progress) if deep else verified


def verify_recommendation(plan: RecommendationPlan | str | Path) -> None:
    """Recompute a recommendation plan from its job and decision, and compare.

    Args:
        plan: a RecommendationPlan or the path of one.

    Raises:
        InputError: not a recommendation plan.
        VerificationError: a rule is broken, a memory overflows, rows or columns are missing, or a figure does not recompute.
    """
    if not isinstance(plan, RecommendationPlan):
        plan = catalogue.load_recommendation_plan(path_of("plan", plan, "a RecommendationPlan or its path"))
    table_checks.verify_recommendation(plan)


def _simulated(
    plan: Plan, verified: Verification, max_difference: float, progress: Callable[[Progress], None] | None
) -> Verification:
    from scaleacross.api.simulating import simulate  # late, so that a plain verification loads no simulator

    simulated_s = simulate(plan, progress=progress).step_s
    apart = (plan.cost.step_s - simulated_s) / simulated_s
    words = f"the plan states {plan.cost.step_s:.4g} s a step, its simulation takes {simulated_s:.4g} s ({apart:+.1%})"
    estimate = f"; the search's estimate is {plan.estimated.step_s:.4g} s, at least"
    below = "" if verified.bound_s is None else f"{estimate} {verified.bound_s:.4g} s for any plan"
    if abs(apart) > max_difference:
        raise VerificationError(
            f"plan '{plan.job.name}' does not verify:\n- deep: {words}, more than {max_difference:.0%} apart; "
            "scaleacross simulate shows which component differs"
        )
    check = PassedCheck(name="deep", how="simulated", what=words + below)
    return verified.model_copy(update={"checks": (*verified.checks, check), "simulated_step_s": simulated_s})


def verified_plan(path: str | Path) -> Plan:
    """Read a plan from a file and verify that its figures recompute.

    Raises:
        InputError: not a plan.
        VerificationError: the plan was edited, or is of another release.
    """
    plan = catalogue.load_plan(path)
    checks.verify(plan, catalogue.step_errors())
    return plan


def emit(plan: Plan | RecommendationPlan | str | Path, target: str, directory: str | Path) -> list[Path]:
    """Verify a plan, write the files of one target into ``directory``, and return their paths.

    Args:
        plan: a Plan, a RecommendationPlan, or the path of one.
        target: name of a launch target, such as torchrun or megatron; launch or torchrec for a recommendation plan.
        directory: where the files are written.

    Raises:
        EmitError: the target cannot express the plan; the message names what.
        InputError: unknown target, not a plan, or a directory that is none.
        VerificationError: the plan does not verify.
    """
    instance("target", target, str, "the name of a target, such as torchrun")
    folder = path_of("directory", directory)
    if not isinstance(plan, Plan | RecommendationPlan):
        read = catalogue.load_recommendation_plan if catalogue.is_recommendation(plan) else catalogue.load_plan
        plan = read(plan)
    if isinstance(plan, Plan):
        checks.verify(plan, catalogue.step_errors())
        return write_target(plan, target, directory)
    one_of("target of a recommendation plan", target, tuple(TABLE_EMITTERS))
    table_checks.verify_recommendation(plan)
    return write_files(TABLE_EMITTERS[target](plan), folder)
