"""The fit of step-time parameters on predictions that are linear by construction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from measured_rows import run, runs

from scaleacross.validation.fitting import SPREAD, Linearised, best_change, leave_out, linearise, refit, row_weights
from scaleacross.validation.knobs import KNOBS, PARENTS, generation_of
from scaleacross.validation.mapping import case_of

PRIOR = np.log([knob.prior for knob in KNOBS])
PRODUCTS = 0
"""Index of the rate of 16-bit products."""


def linear(generations: Sequence[str]) -> Linearised:
    """Rows of 1 s at the priors. Their time is inverse to the rate of 16-bit products and depends on nothing else."""
    rows = len(generations)
    jacobian = np.zeros((rows, len(KNOBS)))
    jacobian[:, PRODUCTS] = -1.0
    return Linearised(np.zeros(rows), jacobian, dict.fromkeys(generations, PRIOR), tuple(generations))


def fitted(logs: Sequence[float], generations: Sequence[str] | None = None) -> dict[str, float]:
    """Log of the ratio of the fitted rate of 16-bit products to its prior, by generation."""
    names = generations or ["Ampere"] * len(logs)
    rows = len(logs)
    found = refit(linear(names), np.array(logs), np.ones(rows), np.ones(rows, dtype=bool))
    return {name: float(values[PRODUCTS] - PRIOR[PRODUCTS]) for name, values in found.items()}


def test_one_row_is_weighed_against_the_prior() -> None:
    # a row that is 1 % slow: precision 1/SPREAD² against 1/σ², nearly Gaussian so close to the centre
    share = (1 / SPREAD**2) / (1 / SPREAD**2 + 1 / KNOBS[PRODUCTS].sigma ** 2)
    assert fitted([0.01])["Ampere"] == pytest.approx(-0.01 * share, rel=0.02)


def test_a_row_far_off_pulls_less_than_one_nearby() -> None:
    assert abs(fitted([1.5])["Ampere"]) < abs(fitted([0.1])["Ampere"])
    many = [0.05] * 20
    assert fitted([*many, 1.5])["Ampere"] == pytest.approx(fitted(many)["Ampere"], rel=0.05)


def test_a_few_rows_that_ran_otherwise_decide_nothing() -> None:
    """A few outliers change no parameter.

    Three rows took 2.4 times as long and are alone in their generation, so the prior stays.
    """
    assert fitted([0.9] * 3)["Ampere"] == pytest.approx(0.0, abs=0.01)
    assert fitted([0.05] * 3)["Ampere"] < -0.03
    column = np.eye(len(KNOBS))[[PRODUCTS] * 3]
    own = best_change(column, np.full(3, 0.9), np.ones(3), np.zeros(len(KNOBS)))  # the fit uses a user's own runs
    assert own[PRODUCTS] > 0.2


def test_priors_of_a_child_are_what_its_parent_was_fitted_to() -> None:
    child = "Hopper, 500 W"
    parent, slower = PARENTS[child]
    found = fitted([0.1] * 50 + [0.0], [parent] * 50 + [child])
    alone = fitted([0.0], [child])
    assert found[parent] == pytest.approx(-0.1, rel=0.05)
    assert found[child] < alone[child] == pytest.approx(0.0, abs=1e-9)
    unseen = refit(
        linear([parent, child]), np.array([0.1, 0.0]), np.ones(2), np.array([True, False])
    )  # no row of the child
    assert unseen[child][PRODUCTS] == pytest.approx(unseen[parent][PRODUCTS] + np.log(slower))
    memory = next(index for index, knob in enumerate(KNOBS) if knob.name == "memory_efficiency_fraction")
    assert unseen[child][memory] == unseen[parent][memory]  # HBM does not depend on the power limit


def test_left_out_rows_do_not_see_themselves() -> None:
    cases = [case_of(row) for row in runs()]
    flat = linear([generation_of(case) for case in cases])
    measured = np.ones(len(cases))
    own = leave_out(flat, cases, measured, lambda case: case.run.id)
    measured[0] = 5.0  # only the other rows of its generation may change
    again = leave_out(flat, cases, measured, lambda case: case.run.id)
    assert again[0] == own[0]
    assert (again[1:] != own[1:]).any()


def test_knobs_that_do_not_matter_are_not_estimated() -> None:
    case = case_of(run("n2"))  # fp8, no experts
    found = linearise([case])
    seen = {knob.name for knob, slope in zip(KNOBS, found.jacobian[0], strict=True) if slope}
    assert {"training_gemm_ratio.bf16", "training_gemm_ratio.fp8", "step_overhead_s"} <= seen
    assert not seen & {"training_gemm_ratio.nvfp4", "host_moe_pass_s"}
    assert np.exp(found.base[0]) == pytest.approx(1.98, rel=0.2)
    assert row_weights([case, case, case_of(run("n1"))]).tolist() == [0.5, 0.5, 1.0]
