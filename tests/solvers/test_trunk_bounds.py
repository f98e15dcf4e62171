"""Bounds know the load of a narrow inter-building link in any placement.

They are at least half of the exact step and never above it.
"""

from __future__ import annotations

from typing import Any

import pytest

from instances import plain_job, plain_topology, plain_trunk
from scaleacross.cost_models.candidates import Candidates
from scaleacross.solvers.joint import step_placer_on
from scaleacross.solvers.place_parallelism import axes_of
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.parallelism import GridAxis
from scaleacross.workloads.problem import Problem, problem_of


def over_a_thin_trunk(types: int, **fixed: Any) -> Problem:
    """Two buildings of 8 accelerators, of one or two types, with 10 MB/s between them."""
    topology = plain_topology(2, 2)
    topology["trunks"] = [plain_trunk("b0", "b1", 0.01, 1.0)]
    if types > 1:
        building = topology["regions"][0]["buildings"][1]
        building["accelerator"] = building["accelerator"] | {"name": "other", "peak_tflop_per_s": {"bf16": 150.0}}
    return problem_of(plain_job(topology=topology, recompute="none", num_accelerators=16, **fixed))


def only(problem: Problem, types: int) -> Candidates:
    """The one candidate of the pool of all types."""
    pool = pools(problem.topology)[0]
    assert len(pool.accelerators) == types
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    (rows,) = [rows for rows in space.batches(Refusals()) if len(rows)]
    assert len(rows) == 1
    return rows


@pytest.mark.parametrize(
    ("order", "types", "fixed"),
    [
        (("pp", "dp_shard"), 1, {"shard": "parameters", "schedules": "1F1B", "degrees": {"pp": 2, "dp_shard": 8}}),
        (("dp_shard", "dp_replicate"), 1, {"shard": "parameters", "degrees": {"dp_shard": 8, "dp_replicate": 2}}),
        (("dp_shard", "dp_replicate"), 2, {"shard": "parameters", "degrees": {"dp_shard": 8, "dp_replicate": 2}}),
        (("dp_shard",), 2, {"shard": "parameters", "degrees": {"dp_shard": 16}}),
        (("dp_shard", "pp"), 2, {"shard": "optimizer", "schedules": "1F1B", "degrees": {"pp": 2, "dp_shard": 8}}),
    ],
    ids=[
        "shards of every pass",
        "gradients beside shards",
        "the same on two types",
        "shards of two types",
        "messages of two types",
    ],
)
def test_a_bound_has_half_of_what_a_trunk_carries(order: tuple[GridAxis, ...], types: int, fixed: Any) -> None:
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_replicate": 1} | fixed["degrees"]
    problem = over_a_thin_trunk(types, **(fixed | {"degrees": degrees, "micro_batch_sequences": 1}))
    pool = pools(problem.topology)[0]
    placer = step_placer_on(pool, problem.job, problem.profile, lambda: float("inf"))
    one = only(problem, types)
    estimated, (_, idle) = placer.bounder.coarse(one), axes_of(one)
    bound = float(estimated.free_s[0] + placer.bounder.order_bounds_s(one, estimated.work, [order])[0, 0])
    (allocation,) = placer.allocations_of(one)[:1]
    exact = float(estimated.free_s[0]) + placer.exposed_s(one, estimated.work, allocation, (*idle, *order))
    assert 0.5 * exact <= bound <= exact * (1 + 1e-9)
    if types == 1:
        _, estimate = estimated.free_s[0] + placer.bounder.order_figures_s(one, estimated.work, [order])[:, 0, 0]
        assert estimate >= bound
    assert exact > 2 * float(estimated.free_s[0]), "the inter-building link determines the step"
