"""A plan with a network of its own is no slower than on the library's defaults, by the replay's clock: a hundred random plans."""

from __future__ import annotations

import scaleacross as sa
from cases import each
from instances import random_job

SLOWEST = 0.997
"""Speed over the defaults' at least. A network is chosen by estimate, which leaves out that gradients slow tp down while tp
waits, and that reductions beside the drain end sooner in smaller pieces: up to 0.2 % of 175 plans, seen by simulation alone."""


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
