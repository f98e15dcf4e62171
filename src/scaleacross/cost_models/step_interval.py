"""The interval of a step time, and the probability that one plan is faster than another.

With x = log(measured / predicted), the interval of x is (low, high) · r, where r widens it for what is less certain:

    r = [unseen_ratio, where no step time of accelerator and precision was seen]
      · [experts_ratio, for routed experts] · [calibrated_fraction of own runs]

Its median is median · r without own runs, and 0 with them, because they remove a fleet's offset. High grows by
drift_per_doubling for every doubling of accelerators beyond the largest measured run. ``validation.step_errors``
computes (low, median, high).

The errors of two plans of one model on one fleet are correlated, because an error of the model about kernels affects
both. So their difference is a quantity of its own. It is assumed to be Laplace with the mean size ``paired_log``, b:
P(A beats B) = 1 − exp(−d / b) / 2 where A is predicted faster by d = log(B / A).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaleacross.cost_models.levels import accelerator_types
from scaleacross.spec.accelerator import Accelerator, Precision
from scaleacross.spec.placement import Placement
from scaleacross.spec.step_errors import SeenSteps, StepErrors, StepInterval
from scaleacross.workloads.problem import Problem


def spread_ratio(errors: StepErrors, *, seen: bool, experts: bool, runs: int = 0) -> float:
    """r of the module docstring.

    Args:
        runs: own runs that the accelerators were fitted to.
    """
    known = seen or runs > 0
    own = errors.calibrated_fraction[min(runs, len(errors.calibrated_fraction)) - 1] if runs else 1.0
    return (1.0 if known else errors.unseen_ratio) * (errors.experts_ratio if experts else 1.0) * own


def step_interval(
    errors: StepErrors,
    step_s: float,
    accelerators: Sequence[Accelerator],
    precision: Precision,
    *,
    model: str,
    experts: bool,
    num_accelerators: int,
    spans_buildings: bool = False,
) -> StepInterval:
    """The 10th, 50th and 90th percentile of the measured step time of a plan on these accelerator types, s."""
    found = [_seen(errors, accelerator.name, precision) for accelerator in accelerators]
    largest = [one.largest for one in found if one is not None]
    doublings = max(0.0, math.log2(num_accelerators / min(largest))) if largest else 0.0
    runs = min(own_runs(accelerator, model, precision) for accelerator in accelerators)
    seen = len(largest) == len(accelerators)
    ratio = spread_ratio(errors, seen=seen, experts=experts, runs=runs)
    high = errors.high_log * ratio + errors.drift_per_doubling * doublings
    return StepInterval(
        p10_s=step_s * math.exp(errors.low_log * ratio),
        p50_s=step_s if runs else step_s * math.exp(errors.median_log * ratio),
        p90_s=step_s * math.exp(high),
        seen=seen,
        experts=experts,
        calibrated_runs=runs,
        spans_buildings=spans_buildings,
        doublings_beyond=doublings,
    )


def interval_of(errors: StepErrors, problem: Problem, placement: Placement, step_s: float) -> StepInterval:
    """``step_interval`` of a placed decision."""
    return step_interval(
        errors,
        step_s,
        accelerator_types([problem.topology.building(share.building) for share in placement.fill]),
        problem.job.precision,
        model=problem.workload.name,
        experts=problem.profile.num_experts > 0,
        num_accelerators=placement.num_accelerators,
        spans_buildings=len(placement.fill) > 1,
    )


def own_runs(accelerator: Accelerator, model: str, precision: Precision) -> int:
    """Own runs of the model in the precision that the accelerator was fitted to; spelling of names is ignored."""
    return accelerator.step_time_runs.get(run_key(model, precision), 0)


def run_key(model: str, precision: str) -> str:
    """Key of ``Accelerator.step_time_runs``: letters and digits of the model's name, and the precision."""
    return f"{''.join(c for c in model.lower() if c.isalnum())} {precision}"


def _seen(errors: StepErrors, name: str, precision: Precision) -> SeenSteps | None:
    return next((one for one in errors.seen if (one.accelerator, one.precision) == (name, precision)), None)


def probability_faster(errors: StepErrors, step_s: float, other_s: float, *, experts: bool) -> float:
    """Probability that a plan predicted at ``step_s`` is measured faster than one of its model at ``other_s``."""
    lead = math.log(other_s / step_s) / errors.paired_log["experts" if experts else "dense"]
    return 1 - math.exp(-lead) / 2 if lead >= 0 else math.exp(lead) / 2
