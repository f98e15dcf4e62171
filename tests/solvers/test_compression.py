"""Compression as a decision: opt-in, chosen if it is faster, within the error limit, explained and verified.

Bounds and simulation count it too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from cases import each
from instances import plain_job, plain_topology, plain_trunk, random_job
from oracles.exhaustive import exhaustive
from scaleacross.cost_models.axes import searched_network
from scaleacross.cost_models.network.codec import CODECS
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.errors import InputError, VerificationError
from scaleacross.report.compression import why_encoded
from scaleacross.solvers.bounds import search_bounds
from scaleacross.solvers.joint import search
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.network_choice import CommunicatorChoice, Compression
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import problem_of

ALL = {"max_relative_error": 0.9, "min_saving_fraction": 0.0}


def two_buildings(trunk_gbyte_per_s: float, compression: dict[str, Any] | None, **changes: Any) -> sa.Job:
    """A data-parallel job over two buildings 20 µs apart."""
    topology = plain_topology(2, 2)
    topology["trunks"][0] = plain_trunk("b0", "b1", trunk_gbyte_per_s, 20.0)
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 8, "dp_replicate": 2}
    network = {} if compression is None else {"compression": compression}
    return plain_job(topology=topology, degrees=degrees, shard=["optimizer"], network=network, **changes)


@cache
def planned(trunk_gbyte_per_s: float, max_relative_error: float | None) -> Plan:
    asked = None if max_relative_error is None else {"max_relative_error": max_relative_error}
    return sa.plan(two_buildings(trunk_gbyte_per_s, asked), alternatives=False)


def encoded(plan: Plan) -> list[CommunicatorChoice]:
    return [choice for choice in plan.decision.network or () if choice.compression is not None]


def across(plan: Plan) -> str:
    """The stated reason why gradients across the buildings use their format."""
    assert plan.network is not None
    reasons = [
        t.compression for t in plan.network.terms if (t.communicator, t.payload) == ("dp_replicate", "gradients")
    ]
    assert reasons[0] is not None
    return f"{reasons[0].verdict}: {why_encoded(reasons[0])}"


def test_nothing_is_encoded_unless_the_job_says_so() -> None:
    plan = planned(0.2, None)
    assert plan.network is not None
    assert not encoded(plan) and all(term.compression is None for term in plan.network.terms)


def test_a_thin_trunk_is_worth_it_and_the_plan_says_what_it_saves() -> None:
    plain, plan = planned(0.2, None), planned(0.2, 0.02)
    [choice] = encoded(plan)
    own = choice.compression
    assert (choice.communicator, choice.payload) == ("dp_replicate", "gradients")
    assert own is not None and (own.codec, own.levels) == ("int8_block", ("campus",))
    assert own.relative_error == pytest.approx(2 / 127)  # one partial sum crosses, the result goes back
    assert plan.cost.step_s < 0.8 * plain.cost.step_s
    assert across(plan).startswith("on: int8_block across campus: ")
    assert plan.report.gap < 0.01
    sa.verify(plan)
    sent, as_it_is = ({t.level: t.bytes_per_step["dp_replicate"] for t in p.traffic if "dp_replicate" in t.bytes_per_step}
                      for p in (plan, plain))  # fmt: skip
    assert sent["campus"] == pytest.approx(as_it_is["campus"] / own.ratio)


@pytest.mark.parametrize(
    ("trunk", "error", "words"),
    [
        (0.2, 0.01, "on: bf16 across campus"),
        (0.2, 0.003, "error: not encoded: no codec keeps the job's error: the least is 0."),
        (200.0, 0.02, "on: int8_block across campus"),
    ],
)
def test_what_decides(trunk: float, error: float, words: str) -> None:
    assert across(planned(trunk, error)).startswith(words)


def test_a_codec_that_saves_too_little_of_the_step_is_left_out() -> None:
    asked = {"max_relative_error": 0.02, "min_saving_fraction": 0.9}
    plan = sa.plan(two_buildings(200.0, asked), alternatives=False)
    assert across(plan).startswith("saves_too_little: not encoded: int8_block would take")
    assert not encoded(plan) and plan.network is not None
    assert plan.network.bound_s < plan.network.step_s and plan.network.status == "feasible"


def test_inside_a_building_nothing_is_encoded() -> None:
    plan = planned(0.2, 0.02)
    assert plan.network is not None
    near = [t.compression for t in plan.network.terms if (t.communicator, t.payload) == ("dp_shard", "gradients")]
    assert near[0] is not None and near[0].verdict == "stays_near"


def test_other_widths_and_libraries_are_refused_or_said() -> None:
    job = two_buildings(0.2, {"max_relative_error": 0.02}, optimizer={"reduce_bytes": 2.0})
    assert across(sa.plan(job, alternatives=False)).startswith("not_fp32")
    with pytest.raises(ValueError, match="with settings: library nothing is chosen"):
        plain_job(network={"settings": "library", "compression": {"max_relative_error": 0.02}})


def changed(plan: Plan, **figures: Any) -> Plan:
    """The plan with another codec for gradients across the buildings."""
    network = tuple(
        choice.model_copy(update={"compression": choice.compression.model_copy(update=figures)})
        if choice.compression
        else choice
        for choice in plan.decision.network or ()
    )
    return plan.model_copy(update={"decision": plan.decision.model_copy(update={"network": network})})


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"ratio": 8.0}, "compression.ratio is stated as 8"),
        ({"relative_error": 0.001}, "compression.relative_error is stated as 0.001, recomputes as 0.015"),
        ({"encode_bytes_per_s": 1e15}, "compression.encode_bytes_per_s is stated"),
        ({"levels": ("zone",)}, "int8_block on zone; the job allows"),
        ({"levels": ("region",)}, "compression on region, which its groups do not cross"),
        ({"codec": "fp8_block"}, "encodings of a result are off by up to 12.5"),
    ],
)
def test_v9_finds_what_was_tampered_with(figures: dict[str, Any], words: str) -> None:
    with pytest.raises(VerificationError, match="V9: dp_replicate all_reduce gradients: .*" + words):
        sa.verify(changed(planned(0.2, 0.02), **figures))


def test_evaluate_refuses_what_the_job_does_not_allow() -> None:
    plan = planned(0.2, 0.02)
    with pytest.raises(InputError, match=r"which job\.network.compression does not allow"):
        sa.evaluate((two_buildings(0.2, None), plan.decision))


@pytest.mark.parametrize("trunk", [0.2, *(pytest.param(rate, marks=pytest.mark.heavy) for rate in (0.05, 1.0, 5.0))])
def test_the_simulation_plays_it(trunk: float) -> None:
    """Codecs save as much time in the simulation as in the estimate."""
    plain, plan = planned(trunk, None), planned(trunk, 0.02)
    saved, replayed = (
        plain.estimated.step_s - plan.estimated.step_s,
        sa.simulate(plain).step_s - sa.simulate(plan).step_s,
    )
    assert replayed == pytest.approx(saved, rel=0.1, abs=0.01 * plain.cost.step_s)
    assert bool(encoded(plan)) == (saved > 0)


@pytest.mark.heavy
@each("seed", (8, 10, 11), (4,))
def test_search_equals_brute_force_with_codecs(seed: int) -> None:
    """On random instances that allow codecs on every level, the search finds the plan of brute force."""
    every = {"levels": ["rack", "zone", "building", "campus", "region"], **ALL}
    job = sa.Job.model_validate(random_job(seed).model_dump() | {"network": {"compression": every}})
    problem = problem_of(job)
    oracle = exhaustive(problem)
    found = search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.bound_violation_s <= 1e-12
    if oracle.decision is None:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
    for bound in search_bounds(found, np.inf):
        assert bound.step_s <= oracle.step_s * (1 + 1e-9), bound.name


def test_no_choice_beats_what_a_search_promises() -> None:
    """No option of any flow, encoded or not, is faster than the time that the search assumes for the flow."""
    coded = 0
    for trunk in (0.05, 0.2, 5.0):
        problem = problem_of(two_buildings(trunk, ALL))
        found = with_network(problem, planned(trunk, None).decision)
        used = [problem.topology.building(share.building).accelerator for share in found.cost.placement.fill]
        best = plan_cost(
            problem.job, problem.profile, problem.topology, found.decision, network=searched_network(problem.job, used)
        )
        promised = {(one.axis, one.op, one.name): one.time_s for one in best.collectives}
        for (communicator, op, payload), options in found.options.items():
            least = promised[communicator, op, f"{communicator} {op} of {payload}"]  # type: ignore[index]
            for option in options:
                coded += option.choice.compression is not None
                assert option.time_s >= least * (1 - 1e-9), option.choice
    assert coded > 5


def test_relative_errors_are_those_of_the_codecs() -> None:
    """The stated error of blocks of 256 with a shared scale is an upper bound that random blocks nearly reach."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2000, 256)).astype(np.float32) * rng.uniform(1, 2, (2000, 1)).astype(np.float32)
    most = np.abs(values).max(axis=1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(most / 127)))
    worst = float((np.abs(np.round(values / scale) * scale - values) / most).max())
    assert 0.5 * CODECS["int8_block"].relative_error < worst <= CODECS["int8_block"].relative_error


def test_the_spec_wants_its_figures() -> None:
    with pytest.raises(ValueError, match="ratio"):
        Compression.model_validate({"codec": "bf16", "levels": ["campus"]})
