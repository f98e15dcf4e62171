"""Fully sharded data parallelism over everything: no tensor, context or pipeline parallelism."""

from scaleacross.solvers.baselines import Baseline, Clock, Outcome
from scaleacross.solvers.baselines.family import Family, tune
from scaleacross.solvers.baselines.megatron_order import by_name
from scaleacross.solvers.baselines.rules import MEGATRON_ORDER
from scaleacross.workloads.problem import Problem


def decide(problem: Problem, clock: Clock) -> Outcome:
    """The fastest such plan, by trial under the cost model."""
    family = Family(
        job=problem.job.model_copy(update={"schedules": ("1F1B",), "shard": ("parameters",)}),
        orders=(MEGATRON_ORDER,),
        allocations=by_name,
        allows=lambda rows: rows.tp * rows.cp * rows.pp == 1,
    )
    return tune(problem, family, clock)


BASELINE = Baseline("Fully sharded data parallelism", "PyTorch FSDP, arXiv 2304.11277", decide)
