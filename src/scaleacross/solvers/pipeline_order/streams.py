"""An order problem in whole ticks, as streams: the m computations of one kind on one virtual stage.

All micro-batches are alike, so the micro-batches of a stream may be taken in order without loss: in any schedule, hand
the j-th earliest start of every stream to micro-batch j. Each stream keeps its set of starts, so ranks, links and
memory see the same load at every moment. If every start of one stream is at least d after the start of the same
micro-batch in another, then the j-th earliest start of the one is at least d after the j-th earliest of the other.
Hence only the interleaving of streams is open.

Seconds become ticks by rounding **down**. Any schedule in seconds, its starts rounded down to ticks, satisfies all
precedences of the rounded durations. So a bound in ticks is a bound in seconds. Where a common tick of all times
exists, nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import Action, Kind, PipelineSchedule
from scaleacross.solvers.pipeline_order.problem import OrderProblem

TICKS_PER_RANK: Final = 2_000_000  # ticks of the busiest rank's work, when the times have no common tick
_FINEST_S: Final = 1e-9  # times are looked at in whole nanoseconds when a common tick is searched


@dataclass(frozen=True, slots=True)
class Stream:
    """Computations of one kind on one virtual stage."""

    kind: Kind
    stage: int
    chunk: int
    rank: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Arc:
    """Micro-batch j of ``source`` comes before micro-batch j of ``target``.

    ``link`` is the (sending, receiving) rank of the message between them, or None where nothing is sent. The message
    occupies its link for ``occupancy`` ticks and arrives ``latency`` ticks later.
    """

    source: int
    target: int
    occupancy: int = 0
    latency: int = 0
    link: tuple[int, int] | None = None


@dataclass(frozen=True)
class Streams:
    """The problem that schedulers, bounds and CP-SAT work on; all times in ticks.

    Attributes:
        problem: the same problem in seconds.
        tick_s: seconds of a tick.
        streams: F of all stages, then B or I, then W of all stages.
        arcs: precedences between streams.
        limit: activations that each rank may hold: one per virtual stage and micro-batch, from F to B or W.
    """

    problem: OrderProblem
    tick_s: float
    streams: tuple[Stream, ...]
    arcs: tuple[Arc, ...]
    limit: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of micro-batches m, which is the number of computations per stream."""
        return self.problem.num_microbatches

    @property
    def split(self) -> bool:
        """Whether the backward is split into I and W."""
        return self.problem.weight_s is not None

    @cached_property
    def on_rank(self) -> tuple[tuple[int, ...], ...]:
        """Streams of each rank."""
        return tuple(tuple(k for k, s in enumerate(self.streams) if s.rank == r) for r in range(self.problem.num_ranks))

    @cached_property
    def work(self) -> tuple[int, ...]:
        """Ticks that each rank computes."""
        return tuple(self.count * sum(self.streams[k].ticks for k in row) for row in self.on_rank)

    def backward(self, stage: int) -> int:
        """Return the index of the stream of B, or I, of ``stage``."""
        return self.problem.num_virtual_stages + stage

    def weight(self, stage: int) -> int:
        """Return the index of the stream that frees the activation: W, or B of a backward in one piece."""
        return (2 if self.split else 1) * self.problem.num_virtual_stages + stage

    def schedule(self, starts: list[list[int]]) -> PipelineSchedule:
        """Return the order of the computations that begin at ``starts[stream][micro-batch]``.

        At equal starts, computations without duration come first, and among them those that others wait for.
        """
        rows = []
        for row in self.on_rank:
            timed = sorted((starts[k][j], self.streams[k].ticks > 0, k, j) for k in row for j in range(self.count))
            rows.append(tuple(Action(self.streams[k].kind, j, self.streams[k].chunk) for _, _, k, j in timed))
        problem = self.problem
        return PipelineSchedule(
            "Optimized", problem.num_ranks, problem.num_microbatches, problem.num_chunks, tuple(rows), problem.placement
        )

    def starts_of(self, schedule: PipelineSchedule) -> list[list[int]]:
        """Return the starts in ticks if the ranks follow ``schedule``; the inverse of the method ``schedule``."""
        size = self.problem.num_virtual_stages
        ticks = [s.ticks for s in self.streams]
        forward, back = np.array(ticks[:size]), np.array(ticks[size : 2 * size])
        weight = np.array(ticks[2 * size :]) if self.split else None
        latency, occupancy = np.zeros((2, size - 1)), np.zeros((2, size - 1))
        for arc in self.arcs:
            if arc.link:
                direction = int(arc.source >= size)
                boundary = (min(arc.source, arc.target)) % size
                latency[direction, boundary], occupancy[direction, boundary] = arc.latency, arc.occupancy
        backward = back if weight is None else back + weight
        times = time_schedule(schedule, forward, backward, latency, occupancy, weight_s=weight)
        index = {(s.kind, s.rank, s.chunk): k for k, s in enumerate(self.streams)}
        starts = [[0] * self.count for _ in self.streams]
        for rank, row in enumerate(schedule.actions):
            for action, start in zip(row, times.start_s[rank].tolist(), strict=True):
                starts[index[action.kind, rank, action.chunk]][action.microbatch] = round(start)
        return starts


def make_streams(problem: OrderProblem) -> Streams:
    """Return ``problem`` in ticks."""
    backward = problem.backward_s if problem.weight_s is None else problem.backward_s - problem.weight_s
    tick_s = _tick(problem, backward)

    def ticks(seconds: Floats) -> list[int]:
        # a hair more, so that a whole number of ticks is not rounded down to the one below
        return [int(np.floor(value / tick_s * (1 + 1e-12) + 1e-9)) for value in seconds.ravel().tolist()]

    rank_of = problem.rank_of
    kinds = [(Kind.F, problem.forward_s), (Kind.B if problem.weight_s is None else Kind.I, backward)]
    if problem.weight_s is not None:
        kinds.append((Kind.W, problem.weight_s))
    streams = tuple(
        Stream(kind, x, x // problem.num_ranks, rank_of[x], length)
        for kind, seconds in kinds
        for x, length in enumerate(ticks(seconds))
    )
    most = problem.num_microbatches * problem.num_chunks
    return Streams(
        problem=problem,
        tick_s=tick_s,
        streams=streams,
        arcs=_arcs(problem, ticks(problem.latency_s), ticks(problem.occupancy_s)),
        limit=tuple(int(x) for x in np.minimum(problem.most_held, most).tolist()),
    )


def _arcs(problem: OrderProblem, latency: list[int], occupancy: list[int]) -> tuple[Arc, ...]:
    """Return the arcs: F down the stages, backward up them, and F before the backward before W on each stage."""
    size, rank_of = problem.num_virtual_stages, problem.rank_of
    arcs = []
    for x in range(size - 1):
        for direction, (source, target) in enumerate(((x, x + 1), (size + x + 1, size + x))):
            sender, receiver = rank_of[source % size], rank_of[target % size]
            at = direction * (size - 1) + x
            if sender == receiver:
                arcs.append(Arc(source, target))
            else:
                arcs.append(Arc(source, target, occupancy[at], latency[at], (sender, receiver)))
    arcs += [Arc(x, size + x) for x in range(size)]
    if problem.weight_s is not None:
        arcs += [Arc(size + x, 2 * size + x) for x in range(size)]
    return tuple(arcs)


def _tick(problem: OrderProblem, backward: Floats) -> float:
    """Return the seconds of a tick, where possible one of which all times are whole numbers."""
    weight = np.zeros(0) if problem.weight_s is None else problem.weight_s
    arrays = (problem.forward_s, backward, weight, problem.latency_s, problem.occupancy_s)
    times = np.concatenate([array.ravel() for array in arrays])
    coarse = float(problem.work_s.max()) / TICKS_PER_RANK
    whole = np.rint(times / _FINEST_S)
    if np.allclose(whole * _FINEST_S, times, rtol=1e-9, atol=0) and whole.max() < 2**53:
        common = int(np.gcd.reduce(whole.astype(np.int64)))
        # a finer common tick would make the numbers larger than TICKS_PER_RANK allows
        if common * _FINEST_S >= coarse:
            return common * _FINEST_S
    return coarse
