"""Predict step time and memory of a case: estimate its alternatives and use the middle one of the plausible ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.validation.mapping import Case

TUNED: Final = 1.1
"""Ratio to the fastest alternative above which an alternative is not plausible.

A team that publishes a run has tuned it.
"""


@dataclass(frozen=True)
class Prediction:
    """Prediction of the cost model for one row.

    Attributes:
        step_s: predicted step time.
        decision: the alternative used.
        cost: all other predicted quantities of it.
        again: a decision that recomputes more, for ``again_fraction`` of the layers, as far as memory requires it;
            None: no layers.
        plausible_s: step times of the fastest and the slowest plausible alternative.
        memory_bytes, capacity_bytes: bytes of the fullest stage, reserve included, and capacity of its accelerator.
        fits: whether the fullest stage fits.
    """

    step_s: float
    decision: Decision
    cost: PlanCost
    plausible_s: tuple[float, float]
    memory_bytes: float
    capacity_bytes: float
    again: Decision | None = None
    again_fraction: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the fullest stage fits in its accelerator."""
        return self.memory_bytes <= self.capacity_bytes


def predict(case: Case) -> Prediction:
    """Estimate the alternatives of ``case`` and choose one, by rules that use no measured value.

    For each pipeline the lightest recompute policy that fits counts, for as many layers as need it; the others have the
    policy before it (Megatron-LM's ``--recompute-method block``). If no pipeline fits, all are considered: the row did
    run, so the verdict is wrong, not the row. Those within TUNED of the fastest are plausible. The middle one is
    chosen; of an even number, the slower of the two in the middle.
    """
    lightest: dict[object, Prediction] = {}
    # the lightest policy first, so that later ones are tried only if it does not fit
    for decision in sorted(case.decisions, key=lambda decision: RECOMPUTES.index(decision.recompute)):
        key = decision.pipeline
        if key not in lightest or not lightest[key].fits:
            price = _price(case, decision)
            lightest[key] = _mixed(lightest[key], price) if key in lightest else price
    found = list(lightest.values())
    fitting = [prediction for prediction in found if prediction.fits] or found
    fitting.sort(key=lambda prediction: prediction.step_s)
    plausible = [prediction for prediction in fitting if prediction.step_s <= TUNED * fitting[0].step_s]
    return replace(plausible[len(plausible) // 2], plausible_s=(plausible[0].step_s, plausible[-1].step_s))


def _price(case: Case, decision: Decision) -> Prediction:
    cost = plan_cost(case.job, case.profile, case.topology, decision)
    fullest = max(cost.memory, key=lambda stage: stage.total_bytes)
    step_s = cost.cost.step_s
    return Prediction(step_s, decision, cost, (step_s, step_s), fullest.total_bytes, fullest.capacity_bytes)


def _mixed(light: Prediction, heavy: Prediction) -> Prediction:
    """``light`` does not fit: use ``heavy`` for as many layers as memory requires."""
    if not heavy.fits or heavy.memory_bytes >= light.memory_bytes:
        return heavy
    # memory falls linearly with the share of layers that recompute more
    share = (light.memory_bytes - heavy.capacity_bytes) / (light.memory_bytes - heavy.memory_bytes)
    step_s = light.step_s + share * (heavy.step_s - light.step_s)
    return replace(
        heavy,
        step_s=step_s,
        plausible_s=(step_s, step_s),
        decision=light.decision,
        again=heavy.decision,
        again_fraction=share,
    )
