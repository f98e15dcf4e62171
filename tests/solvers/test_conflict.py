"""The reported conflict of an impossible job is irreducible and equals the one that the test creates."""

from __future__ import annotations

import random
from typing import Any

import pytest

from instances import accelerator, moe, plain_job, plain_topology
from scaleacross.solvers.conflict import _requirements, conflict_of, possible
from scaleacross.workloads.problem import Problem, problem_of

SMALL = plain_topology(2, accelerator=accelerator(random.Random(0), "small", 250.0))
CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({"degrees": {"tp": 3}}, {"degrees.tp 3"}),
    ({"micro_batch_sequences": 5}, {"micro_batch_sequences 5"}),
    ({"shard": "none", "degrees": {"ep": 2}, "workload": moe()}, {"shard none", "degrees.ep 2"}),
    ({"num_accelerators": 6}, {"num_accelerators 6", "whole hosts of 4 accelerators"}),
    ({"num_accelerators": {"min": 17}}, {"num_accelerators from 17 (there are 16)", "16 accelerators"}),
    ({"num_accelerators": 625}, {"num_accelerators 625 (there are 16)"}),
    ({"num_accelerators": 24}, {"num_accelerators 24 (there are 16)", "16 accelerators"}),
    (
        {"topology": SMALL, "recompute": "none", "micro_batch_sequences": 8},
        {
            "recompute none",
            "micro_batch_sequences 8",
            "8 accelerators",
            "221.5 MiB of memory per accelerator, 5% kept free",
        },
    ),
    (
        {"failure_domains": {"level": "zone", "max_replicas_lost": 0}},
        {"failure_domains (at most 0 replicas lost with one zone)"},
    ),
    (
        {
            "topology": plain_topology(2, 2),
            "degrees": {"pp": 4, "dp_replicate": 4, "tp": 1},
            "failure_domains": {"level": "building", "max_replicas_lost": 1},
        },
        {"degrees.dp_replicate 4", "failure_domains (at most 1 replicas lost with one building)", "16 accelerators"},
    ),
]


def _problem(changes: dict[str, Any]) -> Problem:
    changes = dict(changes)
    return problem_of(plain_job(**changes) if "topology" in changes else plain_job(4, **changes))


@pytest.mark.parametrize(("changes", "expected"), CASES, ids=range(len(CASES)))
def test_conflict_is_irreducible(changes: dict[str, Any], expected: set[str]) -> None:
    problem = _problem(changes)
    conflict = conflict_of(problem, 600)
    assert conflict is not None
    assert conflict.irreducible
    assert set(conflict.requirements) == expected
    named = _requirements(problem)
    kept = {name for name, words in named.items() if words in conflict.requirements}
    assert not possible(problem, frozenset(named) - kept)
    for name in kept:
        assert possible(problem, frozenset(named) - kept | {name}), name


def test_a_possible_job_has_no_conflict() -> None:
    assert conflict_of(_problem({}), 600) is None


def test_time_limit_is_said() -> None:
    conflict = conflict_of(_problem({"degrees": {"tp": 3, "cp": 1}}), 0.0)
    assert conflict is not None
    assert not conflict.irreducible
    assert "time limit" in str(conflict)
