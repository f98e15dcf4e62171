"""The CP-SAT model of a pipeline order, whole or with most of the order kept.

Every computation has a start. Computations of a rank do not overlap, nor do messages of a directed link that several
streams share. Memory on a rank with one stage states which computation must have ended before each F. On a rank with
several stages there is also a cumulative of what is held from F to B or W. The domains of the starts come from
``bounds`` and the incumbent. The micro-batches of a stream are in order (``streams`` proves that nothing is lost). A
link sends in any order here, but in the order of the computations when timed. So the bound of the model still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ortools.sat.python import cp_model

from scaleacross.solvers.backends.cpsat import timed_solver
from scaleacross.solvers.pipeline_order.bounds import Windows, memory_depths
from scaleacross.solvers.pipeline_order.greedy import Starts
from scaleacross.solvers.pipeline_order.streams import Streams

LIGHT_PRESOLVE: Final = {"cp_model_probing_level": 0, "symmetry_level": 0, "linearization_level": 0}
"""A neighbourhood is small, so presolve would take longer than the search."""
Free = Callable[[int, int], bool]  # (stream, micro-batch) -> whether its place in the order is open


@dataclass(frozen=True)
class ModelResult:
    """``bound`` ≤ least step of the model, ticks; ``starts`` is None if nothing better than the horizon was found."""

    bound: int
    starts: Starts | None


class OrderModel:
    """One model, built for steps of at most ``horizon`` ticks.

    Args:
        incumbent: hint, and the order that computations keep unless they are ``free``.
        free: None opens the whole order.
    """

    def __init__(
        self,
        streams: Streams,
        windows: Windows,
        lower: int,
        horizon: int,
        incumbent: Starts,
        free: Free | None = None,
    ) -> None:
        self.streams, self.cp = streams, cp_model.CpModel()
        self.lower, self.horizon = lower, horizon
        m = streams.count
        self.step = self.cp.new_int_var(lower, horizon, "step")
        self.start = [
            [
                self.cp.new_int_var(int(windows.head[k, j]), int(horizon - windows.tail[k, j] - s.ticks), "")
                for j in range(m)
            ]
            for k, s in enumerate(streams.streams)
        ]
        for k, s in enumerate(streams.streams):
            for j in range(m - 1):
                self.cp.add(self.start[k][j + 1] >= self.start[k][j] + s.ticks)
            self.cp.add(self.step >= self.start[k][m - 1] + s.ticks)
            for j in range(m):
                if windows.tail[k, j] > 0:
                    self.cp.add(self.step >= self.start[k][j] + s.ticks + int(windows.tail[k, j]))
        self._links()
        for rank in range(streams.problem.num_ranks):
            self._rank(rank, incumbent, free)
        self.cp.minimize(self.step)
        for row, values in zip(self.start, incumbent, strict=True):
            for variable, value in zip(row, values, strict=True):
                self.cp.add_hint(variable, value)

    def _links(self) -> None:
        """Add precedences, with the message between the two computations."""
        cp, streams = self.cp, self.streams
        shared: dict[tuple[int, int], list[Any]] = {}
        users: dict[tuple[int, int], int] = {}
        for arc in streams.arcs:
            if arc.link and arc.occupancy:
                users[arc.link] = users.get(arc.link, 0) + 1
        for arc in streams.arcs:
            length = streams.streams[arc.source].ticks
            before: Any = None
            for source, target in zip(self.start[arc.source], self.start[arc.target], strict=True):
                if not arc.occupancy:
                    cp.add(target >= source + length + arc.latency)
                    continue
                leave = cp.new_int_var(0, self.horizon, "")
                cp.add(leave >= source + length)
                cp.add(target >= leave + arc.occupancy + arc.latency)
                if before is not None:
                    cp.add(leave >= before + arc.occupancy)
                before = leave
                if arc.link and users[arc.link] > 1:
                    shared.setdefault(arc.link, []).append(cp.new_fixed_size_interval_var(leave, arc.occupancy, ""))
        for intervals in shared.values():
            cp.add_no_overlap(intervals)

    def _rank(self, rank: int, incumbent: Starts, free: Free | None) -> None:
        """Add order and memory of one rank."""
        cp, streams = self.cp, self.streams
        jobs = [(k, j) for k in streams.on_rank[rank] for j in range(streams.count) if streams.streams[k].ticks]
        kept = [] if free is None else [job for job in jobs if not free(*job)]
        kept.sort(key=lambda job: incumbent[job[0]][job[1]])
        for (k, j), (after, i) in pairwise(kept):
            # the micro-batches of one stream are in order already
            if k != after:
                cp.add(self.start[after][i] >= self.start[k][j] + streams.streams[k].ticks)
        if len(kept) < len(jobs):
            cp.add_no_overlap(
                [cp.new_fixed_size_interval_var(self.start[k][j], streams.streams[k].ticks, "") for k, j in jobs]
            )
        self._memory(rank)

    def _memory(self, rank: int) -> None:
        """Keep what is held within the limit, and add the depths that it implies as precedences."""
        cp, streams = self.cp, self.streams
        stages = [x for x in range(streams.problem.num_virtual_stages) if streams.streams[x].rank == rank]
        for frees, x, depth, gap in memory_depths(streams):
            if x in stages:
                for freed, first in zip(self.start[frees], self.start[x][depth:], strict=False):
                    cp.add(first >= freed + streams.streams[frees].ticks + gap)
        if len(stages) == 1 or len(stages) * streams.count <= streams.limit[rank]:
            return  # the depths say it all, or nothing binds
        intervals = []
        for x in stages:
            end = streams.weight(x)
            for first, last in zip(self.start[x], self.start[end], strict=True):
                size = cp.new_int_var(0, self.horizon, "")
                intervals.append(cp.new_interval_var(first, size, last + streams.streams[end].ticks, ""))
        cp.add_cumulative(intervals, [1] * len(intervals), streams.limit[rank])

    def solve(
        self,
        time_limit_s: float,
        seed: int,
        stopped: Callable[[], bool],
        on_solution: Callable[[int], None] | None = None,
    ) -> ModelResult:
        """Return the best starts within the time limit, or until ``stopped``."""
        solver = timed_solver(time_limit_s, seed)
        for name, value in LIGHT_PRESOLVE.items():
            setattr(solver.parameters, name, value)
        callback = None if on_solution is None else _Progress(on_solution)
        status = solver.solve_within(self.cp, time_limit_s, stopped=stopped, solution_callback=callback)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            starts = [[solver.value(v) for v in row] for row in self.start]
            return ModelResult(int(solver.best_objective_bound), starts)
        if status == cp_model.INFEASIBLE:
            # no step of at most ``horizon`` exists, so the next tick is a bound
            return ModelResult(self.horizon + 1, None)
        return ModelResult(max(self.lower, int(solver.best_objective_bound)), None)


class _Progress(cp_model.CpSolverSolutionCallback):
    """Reports each new objective."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        super().__init__()
        self._tell = tell

    def on_solution_callback(self) -> None:
        """Called by the solver."""
        self._tell(int(self.objective_value))
