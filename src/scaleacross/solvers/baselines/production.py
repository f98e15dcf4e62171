"""What large training runs do today: hybrid sharded data parallelism over the buildings.

Every building holds whole replicas. Inside one, states are sharded (FSDP, or ZeRO-1 under a pipeline). Tensor, context,
expert and pipeline parallelism stay inside a zone. The schedule is interleaved 1F1B (plain 1F1B where there is no
pipeline or the micro-batches do not divide). Only the gradient all-reduce over the replicas crosses buildings. This is
how Llama 3 (arXiv 2407.21783 §3.3: order tp, cp, pp, dp) and Llama 4 (arXiv 2510.20171: tp in the rack, pp and ep in
the zone, HSDP outermost) are described. Network settings are the framework's defaults.

Degrees, micro-batch, chunks, recompute and shard level: the fastest of the family by the exact cost model (``family``).
"""

from __future__ import annotations

from functools import partial

from scaleacross.cost_models.candidates import Bools, Candidates
from scaleacross.solvers.baselines.family import Family, tune
from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.rules import FRAMEWORK_SCHEDULES, allowed_schedules, whole_blocks
from scaleacross.workloads.problem import Problem


def decide(problem: Problem, clock: Clock) -> Outcome:
    """Return the fastest plan of this kind."""
    job = problem.job
    return tune(
        problem,
        Family(
            job=job.model_copy(update={"schedules": allowed_schedules(job, FRAMEWORK_SCHEDULES)}),
            orders=(("tp", "cp", "pp", "dp_shard", "dp_replicate"), ("tp", "cp", "dp_shard", "pp", "dp_replicate")),
            allocations=partial(whole_blocks, axis="dp_replicate"),
            allows_split=_sharded_inside,
            farthest={"tp": "scale_up", "cp": "zone", "ep": "zone", "pp": "zone"},
        ),
        clock,
    )


def _sharded_inside(candidates: Candidates) -> Bools:
    """Return which candidates shard a replica in one building over all data-parallel ranks that it has there."""
    return (candidates.dp_shard > 1) | (candidates.dp == 1)
