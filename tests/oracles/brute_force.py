"""The whole search compared with every plan of a small problem."""

from __future__ import annotations

from functools import cache

import pytest

from instances import instance
from oracles.exhaustive import ExhaustiveResult, exhaustive
from scaleacross.solvers.joint import search
from scaleacross.workloads.problem import Problem


@cache
def fastest(seed: int) -> ExhaustiveResult:
    """The best of all plans of the random problem of a seed."""
    return exhaustive(instance(seed))


def equals_brute_force(problem: Problem) -> None:
    """Check the search against all plans.

    It finds a plan if one exists, as fast as the fastest, with no bound above it.
    """
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.bound_violation_s <= 1e-12
    assert (found.best is None) == (oracle.decision is None)
    if found.best is not None:
        assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
        assert found.bound_s <= oracle.step_s * (1 + 1e-12)
