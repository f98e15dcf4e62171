"""Published models of every type are planned on 64 or 512 accelerators and written for a target that runs the plan."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross
from published import CONFIGS
from scaleacross.emitters import EMITTERS
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan

PUBLISHED = [name for name in CONFIGS if not name.startswith("small")]
KINDS_OF_THEIR_OWN = ("Nemotron-H-8B", "Qwen3-Next-80B-A3B", "gemma-2-9b")
LARGE = ("Kimi-K2", "DeepSeek-V3")
SHORT = {"gpt2": 1024, "gpt-neox-20b": 2048, "Phi-3-mini-4k": 4096, "OLMo-2-7B": 4096, "OLMoE-1B-7B": 4096}


def plan_of(name: str, **changes: Any) -> Plan:
    job = {
        "name": name, "workload": {**CONFIGS[name], "name": name}, "topology": "one_building",
        "sequence_length": SHORT.get(name, 8192), "global_batch_sequences": 512, "precision": "bf16",
        "num_accelerators": 512 if name in LARGE else 64, **changes,
    }  # fmt: skip
    return scaleacross.plan(job, time_limit_s=30, alternatives=False)


def written(plan: Plan) -> set[str]:
    """The targets whose files could be written."""
    out = set()
    for name, render in EMITTERS.items():
        try:
            render(plan)
        except EmitError:
            continue
        out.add(name)
    return out


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in KINDS_OF_THEIR_OWN])
def test_mixed_layers_plan_emit_and_simulate(name: str) -> None:
    plan = plan_of(name, degrees={"pp": 2, "cp": 2, "tp": 2}, global_batch_sequences=64, micro_batch_sequences=1)
    assert (plan.degrees.pp, plan.degrees.cp) == (2, 2)
    assert {"launch", "torchrun"} <= written(plan)
    step = scaleacross.simulate(plan).step_s
    assert step == pytest.approx(plan.cost.step_s, rel=0.10)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_type_plans_and_emits(name: str) -> None:
    assert {"launch", "torchrun"} <= written(plan_of(name))
