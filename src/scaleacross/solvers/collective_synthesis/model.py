"""The CP-SAT model of an all-gather of whole chunks.

Sets: ranks v, lanes e = (u → v) with ticks busy_e and delay_e, capacities q with demand_eq, chunks c with origin o(c).
Variables: y_ce whether c takes lane e, s_ce when, a_cv when c is at v (a_co = 0), T. Objective: min T.

    C1 routed    Σ_{e into v} y_ce = 1              for every chunk c and rank v ≠ o(c): once, from one neighbour
    C2 causal    y_ce ⇒ s_ce ≥ a_cu                 a rank passes on what it holds; times rise along a route: no circle
    C3 arrival   y_ce ⇒ a_cv = s_ce + delay_e
    C4 capacity  at any time Σ demand_eq of messages in [s_ce, s_ce + busy_e) ≤ 1 of q
                 (no overlap where two never fit)
    C5 last      T ≥ a_cv, and T ≥ the bound of ``bounds``

This is the multi-commodity flow over epochs of TE-CCL (SIGCOMM 2024) with the epoch reduced to a tick: flows may be
copied at ranks, buffers are unlimited, and start times replace one variable per epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ortools.sat.python import cp_model

from scaleacross.solvers.backends.cpsat import timed_solver
from scaleacross.solvers.collective_synthesis.lanes import CAPACITY_UNITS, Instance
from scaleacross.solvers.collective_synthesis.routes import Hop, Hops, makespan


class ModelResult(NamedTuple):
    """``bound`` is a lower bound on T in ticks; ``hops`` is None if nothing as good as the start was found."""

    bound: int
    hops: Hops | None


class GatherModel:
    """One model for schedules no longer than ``start``, which is also the hint."""

    def __init__(self, instance: Instance, lower: int, start: Hops) -> None:
        self.instance, self.cp, self.lower = instance, cp_model.CpModel(), lower
        self.horizon = makespan(instance, start)
        self.last = self.cp.new_int_var(lower, self.horizon, "T")
        self.arrival = {
            (chunk, rank): self._arrival(chunk, rank)
            for chunk in instance.chunks
            for rank in range(instance.network.num_ranks)
        }
        self.taken: dict[tuple[int, int], cp_model.IntVar] = {}
        self.starts: dict[tuple[int, int], cp_model.IntVar] = {}
        self.intervals: dict[tuple[int, int], cp_model.IntervalVar] = {}
        self._c2_causal_c3_arrival()
        self._c1_routed()
        self._c4_capacity()
        self._c5_last()
        self._hint(start)
        self.cp.minimize(self.last)

    def solve(self, time_limit_s: float, seed: int, gap: float, tell: Callable[[], None]) -> ModelResult:
        """Search until the relative gap is at most ``gap``; ``tell`` is called at every improvement."""
        solver = timed_solver(time_limit_s, seed)
        solver.parameters.relative_gap_limit = gap
        status = solver.solve(self.cp, _Listener(tell))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return ModelResult(self.lower, None)
        hops = tuple(
            sorted(
                Hop(solver.value(self.starts[key]), key[1], key[0])
                for key, taken in self.taken.items()
                if solver.value(taken)
            )
        )
        return ModelResult(max(self.lower, int(solver.best_objective_bound)), hops)

    def _arrival(self, chunk: int, rank: int) -> cp_model.IntVar:
        nearest = self.instance.distance[self.instance.origin(chunk)][rank]
        # only the origin of a chunk is at distance 0, and it has the chunk at tick 0
        return self.cp.new_int_var(nearest, self.horizon if nearest else 0, f"a{chunk},{rank}")

    def _c2_causal_c3_arrival(self) -> None:
        for chunk in self.instance.chunks:
            for index, lane in enumerate(self.instance.network.lanes):
                earliest = self.instance.distance[self.instance.origin(chunk)][lane.source]
                latest = self.horizon - self.instance.delay[index]
                if lane.destination == self.instance.origin(chunk) or latest < earliest:
                    continue
                key = (chunk, index)
                taken = self.taken[key] = self.cp.new_bool_var(f"y{chunk},{index}")
                start = self.starts[key] = self.cp.new_int_var(earliest, latest, f"s{chunk},{index}")
                self.intervals[key] = self.cp.new_optional_fixed_size_interval_var(
                    start, self.instance.busy[index], taken, f"i{chunk},{index}"
                )
                self.cp.add(start >= self.arrival[chunk, lane.source]).only_enforce_if(taken)
                arrives = self.arrival[chunk, lane.destination]
                self.cp.add(arrives == start + self.instance.delay[index]).only_enforce_if(taken)

    def _c1_routed(self) -> None:
        for chunk in self.instance.chunks:
            for rank in range(self.instance.network.num_ranks):
                if rank != self.instance.origin(chunk):
                    lanes = self.instance.network.lanes
                    ways = [(chunk, i) for i, lane in enumerate(lanes) if lane.destination == rank]
                    into = [self.taken[way] for way in ways if way in self.taken]
                    self.cp.add_exactly_one(into)

    def _c4_capacity(self) -> None:
        for use in range(len(self.instance.network.capacities)):
            users = [key for key in self.intervals if use in self.instance.demand[key[1]]]
            demands = [self.instance.demand[index][use] for _, index in users]
            intervals = [self.intervals[key] for key in users]
            # every message needs more than half of the capacity, so no two fit at once
            if all(2 * demand > CAPACITY_UNITS for demand in demands):
                self.cp.add_no_overlap(intervals)
            else:
                self.cp.add_cumulative(intervals, demands, CAPACITY_UNITS)

    def _c5_last(self) -> None:
        for arrives in self.arrival.values():
            self.cp.add(self.last >= arrives)

    def _hint(self, start: Hops) -> None:
        used = {(hop.chunk, hop.lane): hop.start for hop in start}
        self.cp.add_hint(self.last, self.horizon)
        for key, taken in self.taken.items():
            self.cp.add_hint(taken, key in used)
            if key in used:
                self.cp.add_hint(self.starts[key], used[key])
                there = self.instance.network.lanes[key[1]].destination
                self.cp.add_hint(self.arrival[key[0], there], used[key] + self.instance.delay[key[1]])


class _Listener(cp_model.CpSolverSolutionCallback):
    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self.tell = tell

    def on_solution_callback(self) -> None:
        """Report a better solution."""
        self.tell()
