"""The fastest all-gather, reduce-scatter or all-reduce on a small irregular network, with lower bounds.

Schedules are made message by message:

1. Bounds: cuts of the network, for any schedule and for whole chunks (``collective_synthesis.bounds``).
2. List scheduling with a little noise (``routes``). Reaching the bound of a chunking ends its search: proof.
3. CP-SAT on routes and start times (``model``: sets, variables, C1–C5), started from the best list schedule.

A reduce-scatter is the gather on the reversed network, backwards in time. An all-reduce is one of each in sequence,
with an equal share of the tensor for every rank. Where buildings differ, a hierarchical all-reduce can share the tensor
better; the bound holds for both. ``schedules.collective.check`` proves every schedule before it is returned. Chunks are
sent whole. More chunks come closer to the bound for any schedule but make the problem larger. So 1, 2, 4, … per rank
are tried in turn unless the caller says how many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Final, Literal

from scaleacross.errors import InputError
from scaleacross.schedules.collective.check import check
from scaleacross.schedules.collective.routed import Message, backwards, routed
from scaleacross.schedules.collective.transfer import CollectiveSchedule, Operation
from scaleacross.solvers.collective_synthesis.bounds import (
    all_reduce_bound_s,
    chunked_bound_ticks,
    gather_bound_s,
    instance_of,
)
from scaleacross.solvers.collective_synthesis.lanes import Instance, Network
from scaleacross.solvers.collective_synthesis.model import GatherModel
from scaleacross.solvers.collective_synthesis.routes import Hops, list_schedule, makespan
from scaleacross.spec.progress import Progress

MAX_ROUTES: Final = 30_000
"""Most chunks × lanes of a problem: each is one interval in the model."""
MAX_CHUNKS: Final = 16
"""Most chunks per rank that are tried if the caller states no number."""
PROVED_RATIO: Final = 1e-5
"""A gap up to this counts as optimal: rounding up to ticks adds less."""
CLOSE_RATIO: Final = 2e-3
"""More chunks are not tried once the time is this close to the bound for any schedule."""
_LIST_SCHEDULES: Final = 24
_NOISE: Final = 0.5

SynthesizedOperation = Literal["all_reduce", "all_gather", "reduce_scatter"]


@dataclass(frozen=True)
class Phase:
    """One gather or reduce-scatter. ``status`` is ``optimal`` for whole chunks of this size, or ``time_limit``."""

    messages: tuple[Message, ...]
    tick_s: float
    time_s: float
    bound_s: float
    status: Literal["optimal", "time_limit"]


@dataclass(frozen=True)
class Synthesis:
    """The fastest schedule found.

    Attributes:
        schedule: the schedule, proved by ``check``.
        phases: reduce-scatter, all-gather, or both.
        num_chunks: chunks per rank.
        time_s: seconds of all phases.
        bound_s: lower bound on any schedule of any chunking on this network.
        elapsed_s: seconds that the search took.
    """

    schedule: CollectiveSchedule
    phases: tuple[Phase, ...]
    num_chunks: int
    time_s: float
    bound_s: float
    elapsed_s: float

    @property
    def gap(self) -> float:
        """(time − bound) / time."""
        return (self.time_s - self.bound_s) / self.time_s


def synthesize_collective(
    operation: SynthesizedOperation,
    network: Network,
    size_bytes: float,
    *,
    num_chunks: int | None = None,
    time_limit_s: float = 30.0,
    seed: int = 0,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Synthesis:
    """The fastest schedule found within ``time_limit_s``.

    Args:
        size_bytes: size of the full tensor.
        num_chunks: chunks per rank; None tries 1, 2, 4, …
        report: called at every improvement, and when a chunking begins.

    Raises:
        InputError: ranks that cannot reach each other, no positive size, or a problem larger than MAX_ROUTES.
    """
    network.require_connected()
    if not 0 < size_bytes < float("inf"):
        raise InputError(f"size: {size_bytes:g} bytes; state a positive, finite size")
    search = _Search(Operation(operation), network, size_bytes, time_limit_s, seed, report)
    tried = list(_chunkings(network, num_chunks))
    for number, chunks in enumerate(tried):
        if number and (search.left_s <= 0 or search.is_close):
            break
        search.attempt(chunks, search.left_s / (len(tried) - number))
    return search.result()


def _chunkings(network: Network, num_chunks: int | None) -> Iterable[int]:
    routes = network.num_ranks * len(network.lanes)
    if routes * (num_chunks or 1) > MAX_ROUTES:
        most = MAX_ROUTES // routes
        way = (
            f"at most {most} chunks per rank fit" if most else "synthesis is for small groups; use a regular algorithm"
        )
        raise InputError(
            f"synthesis: {network.num_ranks} ranks × {num_chunks or 1} chunks × {len(network.lanes):,} direct ways are "
            f"{routes * (num_chunks or 1):,} routes, more than {MAX_ROUTES:,}: {way}"
        )
    if num_chunks is not None:
        return [num_chunks]
    doubled = (2**power for power in count())
    return list(takewhile(lambda chunks: chunks <= MAX_CHUNKS and routes * chunks <= MAX_ROUTES, doubled))


@dataclass
class _Search:
    """State of one search."""

    operation: Operation
    network: Network
    size_bytes: float
    time_limit_s: float
    seed: int
    report: Callable[[Progress], None]
    began: float = field(default_factory=time.perf_counter)
    best: tuple[int, tuple[Phase, ...]] | None = None
    improvements: int = 0

    def __post_init__(self) -> None:
        turned = self.network.reversed
        self.networks = {
            Operation.ALL_GATHER: [self.network],
            Operation.REDUCE_SCATTER: [turned],
            Operation.ALL_REDUCE: [turned, self.network],
        }[self.operation]
        self.phases_s = sum(gather_bound_s(network, self.size_bytes) for network in self.networks)
        both = self.operation is Operation.ALL_REDUCE
        self.bound_s = all_reduce_bound_s(self.network, self.size_bytes) if both else self.phases_s

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.began + self.time_limit_s - time.perf_counter()

    @property
    def time_s(self) -> float:
        """Seconds of the best schedule so far."""
        return sum(phase.time_s for phase in self.best[1]) if self.best else float("inf")

    @property
    def is_close(self) -> bool:
        """Whether the phases are so near their bound that more chunks could hardly help."""
        return self.time_s <= self.phases_s * (1 + CLOSE_RATIO)

    def attempt(self, num_chunks: int, limit_s: float) -> None:
        """Solve all phases with one number of chunks per rank."""
        self._tell()
        # both phases of an all-reduce are then the same problem, so it is solved once
        if len(self.networks) == 2 and self.network.mirrored:
            gather = self._phase(self.network, num_chunks, limit_s)
            phases = [gather, gather]
        else:
            phases = [self._phase(network, num_chunks, limit_s / len(self.networks)) for network in self.networks]
        if sum(phase.time_s for phase in phases) < self.time_s:
            self.best = num_chunks, tuple(phases)
            self._tell()

    def result(self) -> Synthesis:
        """The best schedule, proved by ``check``."""
        if self.best is None:
            raise ValueError("attempt runs first")
        num_chunks, phases = self.best
        reduces = self.operation is not Operation.ALL_GATHER
        messages = [backwards(p.messages) if reduces and not i else list(p.messages) for i, p in enumerate(phases)]
        n = self.network.num_ranks
        schedule = routed("synthesized", self.operation, n, n * num_chunks, messages)
        check(schedule)
        done = tuple(
            Phase(tuple(sent), phase.tick_s, phase.time_s, phase.bound_s, phase.status)
            for sent, phase in zip(messages, phases, strict=True)
        )
        elapsed_s = time.perf_counter() - self.began
        return Synthesis(schedule, done, num_chunks, self.time_s, min(self.bound_s, self.time_s), elapsed_s)

    def _phase(self, network: Network, num_chunks: int, limit_s: float) -> Phase:
        """Solve the all-gather on ``network`` within ``limit_s`` seconds."""
        deadline = min(time.perf_counter() + limit_s, self.began + self.time_limit_s)
        instance = instance_of(network, self.size_bytes / network.num_ranks / num_chunks, num_chunks)
        lower = chunked_bound_ticks(instance)
        proved = lower * (1 + PROVED_RATIO)
        hops = list_schedule(instance, 0.0, self.seed)
        for number in range(1, _LIST_SCHEDULES):
            if makespan(instance, hops) <= proved or time.perf_counter() > deadline:
                break
            other = list_schedule(instance, _NOISE, self.seed + number)
            hops = min(hops, other, key=lambda one: makespan(instance, one))
        if makespan(instance, hops) > proved and time.perf_counter() < deadline:
            model = GatherModel(instance, lower, hops)
            found = model.solve(deadline - time.perf_counter(), self.seed, PROVED_RATIO, self._tell)
            lower, hops = max(lower, found.bound), found.hops or hops
        ticks = makespan(instance, hops)
        return Phase(
            messages=_messages(instance, hops),
            tick_s=instance.tick_s,
            time_s=ticks * instance.tick_s,
            bound_s=min(lower, ticks) * instance.tick_s,
            status="optimal" if ticks <= lower * (1 + PROVED_RATIO) else "time_limit",
        )

    def _tell(self) -> None:
        self.improvements += 1
        incumbent = self.time_s if self.best else None
        elapsed_s = time.perf_counter() - self.began
        self.report(Progress("routing", self.improvements, None, incumbent, self.bound_s, elapsed_s))


def _messages(instance: Instance, hops: Hops) -> tuple[Message, ...]:
    lanes = instance.network.lanes
    return tuple(
        Message(
            hop.start,
            hop.start + instance.delay[hop.lane],
            lanes[hop.lane].source,
            lanes[hop.lane].destination,
            hop.chunk,
        )
        for hop in sorted(hops)
    )
