"""CP-SAT backend: the one place where seconds become integers.

A continuous variable counts ticks. The coefficients of binaries (seconds) in the objective and in rows with a
continuous variable are divided by ``tick`` and rounded, and so are the right-hand sides of such rows. Coefficients of
continuous variables must be integers. A sum of n chosen terms is then off by at most n·tick/2. With TICKS = 10^7 per
largest coefficient and the few dozen chosen terms of our models that is below 10^-5 of it. Callers recompute the
objective in floating point from the chosen variables. Rows of binaries only are taken as they stand and must have
integer coefficients.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, Final

from ortools.sat.python import cp_model

from scaleacross.solvers.backends.linear_model import LinearModel, Row, Solution, Status

TICKS: Final = 10**7
WORKERS: Final = 2
"""Threads of searches that end by the clock."""
STATUS_NAMES: Final[dict[Any, Status]] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
}


class Solver(cp_model.CpSolver):
    """CP-SAT that leaves the process's handler of Ctrl-C as it was.

    CP-SAT catches Ctrl-C, ends its search, and then sets the system's default: the next Ctrl-C would kill the process
    without KeyboardInterrupt, so that nothing is unwound. The handler is put back. A thread may not set handlers, so
    there CP-SAT catches nothing.
    """

    def solve(
        self, model: cp_model.CpModel, solution_callback: cp_model.CpSolverSolutionCallback | None = None
    ) -> cp_model.CpSolverStatus:
        """Return the status of the search, as CP-SAT does."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or before is None:
            self.parameters.catch_sigint_signal = False
            return super().solve(model, solution_callback)
        try:
            return super().solve(model, solution_callback)
        finally:
            signal.signal(signal.SIGINT, before)


def solve(model: LinearModel, time_limit_s: float, seed: int = 0) -> Solution:
    """Solve with one worker, deterministically for a seed.

    The time limit counts CP-SAT's own seconds: it measures operations, and they are about as long as those of an idle
    machine.
    """
    tick = _tick(model)
    cp = cp_model.CpModel()
    horizon = TICKS * (len(model.names) + 1)
    variables = [
        cp.new_bool_var(name) if binary else cp.new_int_var(0, horizon, name)
        for name, binary in zip(model.names, model.is_binary, strict=True)
    ]
    for row in model.rows:
        unit = tick if _is_timed(model, row) else 1.0
        left = sum(variables[i] * round(c / unit if model.is_binary[i] else c) for i, c in row.terms.items())
        right = round(row.right / unit)
        cp.add(left <= right if row.sense == "<=" else left >= right if row.sense == ">=" else left == right)
    cp.minimize(sum(variables[i] * round(c / tick if model.is_binary[i] else c) for i, c in model.objective.items()))
    solver = Solver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = time_limit_s
    status = STATUS_NAMES.get(solver.solve(cp), "unknown")
    if status not in ("optimal", "feasible"):
        return Solution(status, float("inf"), float("-inf"), ())
    values = tuple(
        float(solver.value(v)) * (1.0 if binary else tick) for v, binary in zip(variables, model.is_binary, strict=True)
    )
    return Solution(status, solver.objective_value * tick, solver.best_objective_bound * tick, values)


def timed_solver(time_limit_s: float, seed: int) -> Solver:
    """Return CP-SAT with a limit in seconds by the clock: what it finds depends on the machine."""
    solver = Solver()
    solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = seed
    return solver


def _is_timed(model: LinearModel, row: Row) -> bool:
    return any(not model.is_binary[index] for index in row.terms)


def _tick(model: LinearModel) -> float:
    """Return the seconds per tick: the largest coefficient in seconds over TICKS."""
    seconds = [abs(c) for i, c in model.objective.items() if model.is_binary[i]]
    for row in model.rows:
        if _is_timed(model, row):
            seconds += [abs(row.right), *(abs(c) for i, c in row.terms.items() if model.is_binary[i])]
    return (max(seconds, default=0.0) or 1.0) / TICKS
