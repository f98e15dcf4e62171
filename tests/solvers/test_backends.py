"""The CP-SAT backend on small models returns the exact status, and optima known by hand or by enumeration."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from ortools.sat.python import cp_model

from scaleacross import solvers
from scaleacross.solvers.backends.cpsat import Solver, solve, timed_solver
from scaleacross.solvers.backends.linear_model import LinearModel
from scaleacross.solvers.work_limit import SolverWork


def cover(weights: list[float], pairs: list[tuple[int, int]]) -> LinearModel:
    """A model that chooses vertices of least total weight, such that every pair holds at least one."""
    model = LinearModel()
    for index, weight in enumerate(weights):
        model.objective[model.binary(f"x{index}")] = weight
    for a, b in pairs:
        model.add("cover", {a: 1.0, b: 1.0}, ">=", 1.0)
    return model


def test_optimum_of_binaries() -> None:
    solution = solve(cover([3.0, 1.0, 1.0], [(0, 1), (0, 2), (1, 2)]), 10.0)
    assert solution.status == "optimal"
    assert solution.objective == pytest.approx(2.0)
    assert [round(value) for value in solution.values] == [0, 1, 1]
    assert solution.bound <= solution.objective * (1 + 1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_continuous_variables_count_seconds_of_any_scale(scale: float) -> None:
    # e ≥ 0.3 if a, e ≥ 0.7 if b; exactly one of them; b costs 0.3 less: 0.7 with b or 0.3 + 0.3 with a
    model = LinearModel()
    a, b, e = model.binary("a"), model.binary("b"), model.continuous("e")
    model.objective |= {a: 0.3 * scale, e: 1.0}
    model.add("one", {a: 1.0, b: 1.0}, "==", 1.0)
    model.add("exposed", {e: 1.0, a: -0.3 * scale, b: -0.7 * scale}, ">=", 0.0)
    solution = solve(model, 10.0)
    assert solution.status == "optimal"
    assert solution.objective == pytest.approx(0.6 * scale, rel=1e-5)
    assert solution.values[e] == pytest.approx(0.3 * scale, rel=1e-5)
    assert solution.values[a] == pytest.approx(1.0)


@pytest.mark.parametrize("sense", ["<=", "==", ">="])
def test_infeasible_is_called_infeasible(sense: str) -> None:
    model = LinearModel()
    x = model.binary("x")
    impossible = {"<=": (1.0, -1.0), "==": (1.0, 2.0), ">=": (1.0, 2.0)}[sense]
    model.add("impossible", {x: impossible[0]}, sense, impossible[1])  # type: ignore[arg-type]
    solution = solve(model, 10.0)
    assert (solution.status, solution.values) == ("infeasible", ())


@pytest.mark.heavy
@pytest.mark.parametrize("time_limit_s", [0.01, 1.5])
def test_a_time_limit_proves_nothing(time_limit_s: float) -> None:
    """A cover that takes minutes to prove is stopped before and after its first solution. Neither status is optimal."""
    rng = random.Random(0)
    pairs = [(a, b) for a, b in product(range(400), repeat=2) if a < b and rng.random() < 0.05]
    weights = [rng.uniform(1, 2) for _ in range(400)]
    solution = solve(cover(weights, pairs), time_limit_s)
    assert solution.status in ("feasible", "unknown")
    assert bool(solution.values) == (solution.status == "feasible")
    if solution.values:
        assert solution.bound < solution.objective
        assert solution.objective == pytest.approx(sum(w * v for w, v in zip(weights, solution.values, strict=True)))


def test_an_empty_model() -> None:
    assert solve(LinearModel(), 1.0).status == "optimal"


def test_random_models_against_every_choice() -> None:
    rng = random.Random(7)
    for _ in range(30):
        weights = [rng.uniform(0.1, 2.0) for _ in range(8)]
        pairs = [tuple(rng.sample(range(8), 2)) for _ in range(10)]
        model = cover(weights, pairs)  # type: ignore[arg-type]
        brute = min(
            sum(w for w, x in zip(weights, chosen, strict=True) if x)
            for chosen in product((0, 1), repeat=8)
            if all(chosen[a] or chosen[b] for a, b in pairs)
        )
        assert solve(model, 10.0).objective == pytest.approx(brute, rel=1e-5)


SOLVED = """
import signal, threading
from ortools.sat.python import cp_model
from scaleacross.solvers.backends.cpsat import timed_solver

def solve():
    model = cp_model.CpModel()
    model.maximize(model.new_int_var(0, 9, "x"))
    return timed_solver(1, 0).solve(model)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
if {thread}:
    own = threading.Thread(target=solve)
    own.start()
    own.join()
else:
    assert solve() == cp_model.OPTIMAL
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("unwound")
"""


@pytest.mark.parametrize("thread", [False, True])
def test_ctrl_c_after_a_solve_unwinds(thread: bool) -> None:
    """CP-SAT sets the default handler after every search: `pareto` died of its next Ctrl-C without a word."""
    done = subprocess.run([sys.executable, "-c", SOLVED.format(thread=thread)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "unwound\n"), done.stderr


def _hard() -> cp_model.CpModel:
    """A market split, with which CP-SAT is busy for minutes."""
    dice, model = np.random.default_rng(0), cp_model.CpModel()
    taken = [model.new_bool_var("") for _ in range(50)]
    off = []
    for weights in dice.integers(0, 1000, (6, 50)).tolist():
        slack = model.new_int_var(0, 10**6, "")
        off.append(slack)
        total = cp_model.LinearExpr.weighted_sum(taken, weights)
        model.add(total - sum(weights) // 2 <= slack)
        model.add(sum(weights) // 2 - total <= slack)
    model.minimize(sum(off))
    return model


@pytest.mark.parametrize("unwinds", [False, True])
def test_ctrl_c_ends_a_search_and_reaches_the_handler_of_the_process(unwinds: bool) -> None:
    """CP-SAT swallowed Ctrl-C, so that nothing after its search knew of it."""
    heard: list[int] = []

    def hear(number: int, _frame: object) -> None:
        heard.append(number)
        if unwinds:
            raise KeyboardInterrupt

    before, begin = signal.signal(signal.SIGINT, hear), time.monotonic()
    ring = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    ring.start()
    try:
        with pytest.raises(KeyboardInterrupt) if unwinds else nullcontext():
            assert timed_solver(60.0, 0).solve(_hard()) == cp_model.FEASIBLE
        assert signal.getsignal(signal.SIGINT) is hear
    finally:
        signal.signal(signal.SIGINT, before)
        ring.join()
    assert heard == [signal.SIGINT] and time.monotonic() - begin < 20


def test_a_search_ends_once_its_caller_stops_it() -> None:
    begin = time.monotonic()
    status = timed_solver(60.0, 0).solve_within(_hard(), 60.0, stopped=lambda: time.monotonic() - begin > 0.3)
    assert status == cp_model.FEASIBLE and time.monotonic() - begin < 20


def test_a_clock_of_work_counts_what_a_search_did() -> None:
    done = []
    for _ in range(2):
        clock, solver = SolverWork(), Solver()
        solver.parameters.num_workers = 1
        solver.solve_within(_hard(), 0.5, clock)
        done.append((clock(), solver.objective_value))
    assert done[0] == done[1] and 0.4 < done[0][0] < 2


def test_no_other_solver_of_cp_sat_is_made() -> None:
    made = [path.name for path in Path(solvers.__path__[0]).rglob("*.py") if "CpSolver()" in path.read_text()]
    assert made == []
