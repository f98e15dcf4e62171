"""In the simulation a plan's own network is no slower than the library's defaults, on random plans."""

from __future__ import annotations

import scaleacross as sa
from cases import each
from instances import random_job

SLOWEST = 0.997
"""Least speed relative to the defaults.

The estimate that chooses a network leaves out two effects. Gradients slow tp during its waits, and smaller pieces let
reductions during the drain end sooner. Together they take up to 0.2 % in 175 plans.
"""


@each("seed", (10,), range(175), heavy=(19,))
def test_a_plan_is_no_slower_than_on_the_librarys_defaults(seed: int) -> None:
    job = random_job(seed)
    try:
        plan = sa.plan(job, alternatives=False)
    except sa.InfeasibleError:
        return
    defaults = sa.evaluate((job, plan.decision.model_copy(update={"network": None})))
    speed = sa.simulate(defaults).step_s / sa.simulate(plan).step_s
    assert speed >= SLOWEST
