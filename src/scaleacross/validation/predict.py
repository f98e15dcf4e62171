"""Predicted step time and memory of a case: its alternatives priced, the best that fits taken."""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.validation.mapping import Case


@dataclass(frozen=True)
class Prediction:
    """What the cost model says of one row.

    Attributes:
        step_s: predicted step time.
        decision: the alternative taken.
        cost: everything else that is known of it.
        memory_bytes, capacity_bytes: the fullest stage with and its accelerator without what is reserved.
        fits: whether the fullest stage fits.
    """

    step_s: float
    decision: Decision
    cost: PlanCost
    memory_bytes: float
    capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether the fullest stage fits in its accelerator."""
        return self.memory_bytes <= self.capacity_bytes


def predict(case: Case) -> Prediction:
    """Price the alternatives of ``case`` and take one, by rules that use no measured value.

    Per pipeline the lightest recompute policy that fits counts; of the pipelines the fastest that fits. Where nothing fits,
    the fastest: the row did run, so the verdict is wrong, not the row.
    """
    lightest: dict[object, Prediction] = {}
    for decision in sorted(case.decisions, key=lambda decision: RECOMPUTES.index(decision.recompute)):
        key = decision.pipeline
        if key not in lightest or not lightest[key].fits:
            lightest[key] = _price(case, decision)
    found = list(lightest.values())
    fitting = [prediction for prediction in found if prediction.fits]
    return min(fitting or found, key=lambda prediction: prediction.step_s)


def _price(case: Case, decision: Decision) -> Prediction:
    cost = plan_cost(case.job, case.profile, case.topology, decision)
    fullest = max(cost.memory, key=lambda stage: stage.total_bytes)
    return Prediction(cost.cost.step_s, decision, cost, fullest.total_bytes, fullest.capacity_bytes)
