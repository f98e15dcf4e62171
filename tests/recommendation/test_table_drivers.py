"""Drivers of the exchange of embedding vectors are chosen, recounted, simulated, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from scaleacross.api import plan_recommendation
from scaleacross.api.recommendation import evaluate_recommendation
from scaleacross.catalogue import load_recommendation_job
from scaleacross.cost_models.embedding.early_rows import exposed_fetch_s
from scaleacross.cost_models.embedding.problem import allocation_of
from scaleacross.emitters import embedding_launch, torchrec
from scaleacross.errors import EmitError, InputError, VerificationError
from scaleacross.simulation.table_step import simulated_tables
from scaleacross.spec.recommendation import RecommendationPlan
from scaleacross.spec.topology import Topology
from scaleacross.verification.embeddings import verify_recommendation
from scaleacross.workloads.recommendation import Dlrm

HEAVY_BOTTOM: dict[str, Any] = {
    "name": "heavy",
    "workload": {
        "family": "dlrm",
        "name": "heavy_bottom",
        "num_dense_features": 8192,
        "bottom_mlp": [16384, 16384, 64],
        "top_mlp": [64, 1],
        "tables": [{"name": f"t{i}", "rows": 10_000_000, "dimension": 64, "pooling": [8]} for i in range(32)],
    },
    "topology": "zionex_128",
    "num_accelerators": 16,
    "global_batch_samples": 65536,
    "shardings": ["table_wise"],
}


def planned(*drivers: str, **changes: Any) -> RecommendationPlan:
    job = load_recommendation_job({**HEAVY_BOTTOM, "drivers": list(drivers), **changes})[0]
    return plan_recommendation(job, time_limit_s=1)


def simulated_s(plan: RecommendationPlan) -> float:
    topology = Topology.model_validate(plan.job.topology)
    return simulated_tables(
        plan, Dlrm.model_validate(plan.job.workload), topology, allocation_of(plan.job, topology)
    ).step_s


def test_copy_engines_give_the_bottom_mlp_back_what_kernels_take() -> None:
    kernels, engines = planned("multiprocessors"), planned("multiprocessors", "copy_engines")
    assert (kernels.decision.driver, engines.decision.driver) == ("multiprocessors", "copy_engines")
    saved_s = kernels.cost.step_s - engines.cost.step_s
    started_s = engines.cost.start_s - kernels.cost.start_s
    taken = [max(load.taken_s for load in plan.ranks) for plan in (kernels, engines)]
    assert saved_s == pytest.approx(taken[0] - taken[1] - started_s) and saved_s > 0
    assert simulated_s(kernels) - simulated_s(engines) == pytest.approx(saved_s, rel=0.3)
    assert engines.report.bound_s <= engines.report.objective_s
    again = evaluate_recommendation(engines.job, engines.decision)
    assert again.cost == engines.cost


def test_what_no_target_can_express_is_refused_by_name() -> None:
    engines = planned("multiprocessors", "copy_engines")
    with pytest.raises(EmitError, match="moved by copy_engines"):
        torchrec.render(engines)
    with pytest.raises(EmitError, match="moved by copy_engines"):
        embedding_launch.launch_config(engines)
    job = engines.job.model_copy(update={"drivers": ("multiprocessors",)})
    with pytest.raises(VerificationError, match="moved by copy_engines; the job allows multiprocessors"):
        verify_recommendation(engines.model_copy(update={"job": job}))


def test_the_host_needs_a_host_and_reductions_need_kernels() -> None:
    for wrong in ({"drivers": ["host"]}, {"drivers": ["multiprocessors", "host"], "cost_model": "torchrec"}):
        with pytest.raises(InputError, match="drivers"):
            load_recommendation_job({**HEAVY_BOTTOM, **wrong})
    assert planned("multiprocessors", "host").decision.driver in ("multiprocessors", "host")
    topology = load_recommendation_job(HEAVY_BOTTOM)[0].topology
    for region in topology["regions"]:
        for building in region["buildings"]:
            del building["host"]
    with pytest.raises(InputError, match="leave host out of drivers"):
        planned("multiprocessors", "host", topology=topology)


def test_fetching_ahead_costs_what_products_lose() -> None:
    """A fetch ahead costs the products' lost time.

    A fetch of 4 s overlaps with the products and takes 0.5 s of them. If it outlasts the computation,
    only the rest is exposed.
    """
    assert float(exposed_fetch_s(4.0, 10.0, 0.0, 0.0, 0.5)) == 0.5
    assert float(exposed_fetch_s(4.0, 10.0, 0.5, 0.0, 0.5)) == 2.25
    assert float(exposed_fetch_s(12.0, 10.0, 0.0, 0.0, 0.5)) == 2.0
