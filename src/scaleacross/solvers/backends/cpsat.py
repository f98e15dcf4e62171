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
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from types import FrameType
from typing import Any, Final

from ortools.sat.python import cp_model

from scaleacross.solvers.backends.linear_model import LinearModel, Row, Solution, Status
from scaleacross.solvers.work_limit import SolverWork

TICKS: Final = 10**7
WORKERS: Final = 2
"""Threads of searches that end by the clock."""
LOOK_S: Final = 0.02
"""Seconds between two looks at what may end a search."""
STATUS_NAMES: Final[dict[Any, Status]] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
}


class Solver(cp_model.CpSolver):
    """CP-SAT whose search ends at Ctrl-C, after the process's own handler has run.

    By itself CP-SAT catches Ctrl-C, tells nobody, and sets the system's default handler, so that the next Ctrl-C kills
    the process. Handlers run in the main thread only, which a search would block. So there the search runs in another
    thread. In any other thread Ctrl-C is no concern of the search.
    """

    def solve(
        self, model: cp_model.CpModel, solution_callback: cp_model.CpSolverSolutionCallback | None = None
    ) -> cp_model.CpSolverStatus:
        """Return the status of the search, as CP-SAT does.

        Raises:
            KeyboardInterrupt: the process's handler raised it.
        """
        self.parameters.catch_sigint_signal = False
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            return super().solve(model, solution_callback)
        heard, own = threading.Event(), before

        def hear(number: int, frame: FrameType | None) -> None:
            heard.set()
            own(number, frame)

        thread = ThreadPoolExecutor(1)
        signal.signal(signal.SIGINT, hear)
        try:
            search = thread.submit(super().solve, model, solution_callback)
            try:
                while not search.done():
                    wait([search], LOOK_S)
                    # again and again, as it has no effect on a search that has not begun
                    if heard.is_set():
                        self.stop_search()
            finally:
                while not search.done():
                    self.stop_search()
                    wait([search], LOOK_S)
            return search.result()
        finally:
            signal.signal(signal.SIGINT, before)
            thread.shutdown()

    def solve_within(
        self,
        model: cp_model.CpModel,
        limit_s: float,
        clock: Callable[[], float] = time.perf_counter,
        stopped: Callable[[], bool] = lambda: False,
        solution_callback: cp_model.CpSolverSolutionCallback | None = None,
    ) -> cp_model.CpSolverStatus:
        """Return the status of a search of at most ``limit_s`` seconds of ``clock``, or until ``stopped``.

        A clock of work is advanced by the search's own measure of its operations.
        """
        limit_s = max(limit_s, 0.01)
        if isinstance(clock, SolverWork):
            self.parameters.max_deterministic_time = min(self.parameters.max_deterministic_time, limit_s)
        end, done = clock() + limit_s, threading.Event()

        def watch() -> None:
            while not done.wait(LOOK_S):
                if clock() >= end or stopped():
                    self.stop_search()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            status = self.solve(model, solution_callback)
        finally:
            done.set()
            watcher.join()
        if isinstance(clock, SolverWork):
            clock.spend(self.response_proto.deterministic_time)
        return status


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
