"""Small problems whose topology states power, costs and egress."""

from __future__ import annotations

import random
from typing import Any

from instances import plain_job, plain_topology
from scaleacross.cost_models.goodput import useful_parts
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.spending import spending_of, spent_parts
from scaleacross.spec.job import Job, ObjectiveName, counts_failures
from scaleacross.spec.plan import Decision
from scaleacross.verification.spending import counted_patterns
from scaleacross.workloads.problem import Problem

POWER: ObjectiveName = "tokens_per_s_per_megawatt"
MONEY: ObjectiveName = "tokens_per_s_per_currency_unit"


def priced(data: dict[str, Any], seed: int, objective: str) -> Job:
    """A job whose topology has costs and power that differ from building to building."""
    rng, sites = random.Random(f"prices {seed}"), random.Random(f"sites {seed}")
    topology = data["topology"] | {"currency": "USD"}
    for region in topology["regions"]:
        for building in region["buildings"]:
            idle = rng.choice([50.0, 200.0])
            power = {"idle_power_watt": idle, "load_power_watt": idle + rng.choice([100.0, 900.0])}
            building["accelerator"] = building["accelerator"] | power
            building["power_usage_effectiveness_ratio"] = rng.choice([1.0, 1.1, 2.0])
            building["accelerator_price_per_hour"] = rng.choice([1.0, 2.0, 3.0])
            building["price_per_hour"] = sites.choice([0.0, 2.0, 20.0])
    for trunk in topology.get("trunks", []):
        trunk["egress_price_per_gb"] = rng.choice([0.0, 1e-7, 1e-5, 1e-3])
        trunk["price_per_hour"] = sites.choice([0.0, 5.0, 50.0])
    return Job.model_validate(data | {"topology": topology, "objective": objective})


def spent(problem: Problem, name: ObjectiveName, decision: Decision, cost: PlanCost) -> float:
    """What a plan spends per step, counted rank by rank."""
    if name == "step_time":
        return cost.cost.step_s
    spending = spending_of(problem.topology, name)
    wall_s = sum(useful_parts(problem, decision, cost.cost.step_s).values()) if counts_failures(name) else None
    return sum(spent_parts(problem.topology, spending, decision, cost, counted_patterns(decision), wall_s).values())


def two(objective: str, **changes: Any) -> Job:
    """Two equal buildings; ``b1`` costs more and is less efficient."""
    topology = plain_topology(2, 2) | {"currency": "EUR"}
    for building, price, pue in zip(topology["regions"][0]["buildings"], (1.0, 3.0), (1.0, 1.5), strict=True):
        building["accelerator"] = building["accelerator"] | {"load_power_watt": 1000.0, "idle_power_watt": 250.0}
        building |= {"accelerator_price_per_hour": price, "power_usage_effectiveness_ratio": pue}
    topology["trunks"][0]["egress_price_per_gb"] = 0.01
    return plain_job(**{"topology": topology, "objective": objective, "degrees": {"tp": 1, "cp": 1}} | changes)
