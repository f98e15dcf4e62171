"""CrossPipe (ATC'25, arXiv 2507.00217): the pipeline crosses the slow links, and the schedule knows their delay.

Stages are kept whole inside a building, and so is data parallelism (ZeRO-1). The schedule is chosen by timing it with
the delay and bandwidth of every link under the memory limit (§4, "keep the best of static, solver and greedy"). A plan
of this version cannot name the solver's own orders. So the choice is among the schedules that the job allows, timed by
the cost model, including any that are added to the catalogue later.

The paper takes degrees as given. Here they are the fastest ones of the family by the exact cost model (``family``). No
fixed choice of degrees is faster.
"""

from __future__ import annotations

from functools import partial

from scaleacross.solvers.baselines.family import Family, tune
from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.rules import MEGATRON_ORDER, whole_blocks, whole_or_zero_1
from scaleacross.workloads.problem import Problem


def decide(problem: Problem, clock: Clock) -> Outcome:
    """Return the fastest plan of this kind."""
    job = problem.job
    return tune(
        problem,
        Family(
            job=job.model_copy(update={"shard": whole_or_zero_1(job)}),
            orders=(MEGATRON_ORDER,),
            allocations=partial(whole_blocks, axis="pp"),
            farthest={"tp": "scale_up", "cp": "building", "dp_shard": "building", "dp_replicate": "building"},
        ),
        clock,
    )
