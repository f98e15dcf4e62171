"""A collective schedule as flows: every message of every rank over the links between the two, in the order of the
schedule.

A rank starts a step when it has received the data of the step before. If channels follow one another, it must also have
sent the same step of the previous channel.

Messages from one rank to another on one channel leave one after the other. Concurrent channels share the links.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scaleacross.schedules.collective import CollectiveSchedule, Kind, Step, Transfer
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.tasks import Path


class Route(NamedTuple):
    """How bytes travel from one rank to another."""

    path: Path
    latency_s: float = 0.0
    cap_bytes_per_s: float = float("inf")


def add_collective(
    simulation: Simulation,
    schedule: CollectiveSchedule,
    route: Callable[[int, int], Route],
    block_bytes: Callable[[int], float],
    after: Callable[[int], Iterable[int]] = lambda _: (),
    reduce_bytes_per_s: float = float("inf"),
) -> list[list[int]]:
    """Add the messages of ``schedule`` to ``simulation``.

    Args:
        route: (source, destination) -> how its messages travel.
        block_bytes: block -> its bytes, all channels together.
        after: rank -> tasks that it waits for before its first step.
        reduce_bytes_per_s: how fast a rank adds what arrives to what it holds.

    Returns:
        [rank] -> tasks after which the rank has its result.
    """
    added = _Added(simulation, schedule, route, block_bytes, after, reduce_bytes_per_s)
    return added.all_ranks()


class _Added:
    """State while ranks add their sends.

    A rank advances only as far as the sends that it waits for exist, so every task waits for earlier ones.
    """

    def __init__(
        self,
        simulation: Simulation,
        schedule: CollectiveSchedule,
        route: Callable[[int, int], Route],
        block_bytes: Callable[[int], float],
        after: Callable[[int], Iterable[int]],
        reduce_bytes_per_s: float,
    ) -> None:
        self.simulation, self.schedule, self.route, self.block_bytes = simulation, schedule, route, block_bytes
        self.reduce_bytes_per_s = reduce_bytes_per_s
        self.own = object()  # marks the lanes of this collective, which keep it, so no other gets the same mark
        self.places = [
            (rank, channel) for rank in range(schedule.num_ranks) for channel in range(schedule.num_channels)
        ]
        self.steps = {place: schedule.steps(*place) for place in self.places}
        self.gate = {place: list(after(place[0])) for place in self.places}
        self.expected: dict[tuple[int, int], deque[Transfer]] = {place: deque() for place in self.places}
        self.arrived: dict[tuple[int, int], list[int]] = {place: [] for place in self.places}
        self.sent: defaultdict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.sends: dict[tuple[int, int], list[list[int]]] = {place: [] for place in self.places}
        self.next: dict[tuple[int, int], Step | None] = {place: next(self.steps[place], None) for place in self.places}

    def all_ranks(self) -> list[list[int]]:
        ready = deque(self.places)
        while ready:
            ready.extend(self._advance(*ready.popleft()))
        results: list[list[int]] = [[] for _ in range(self.schedule.num_ranks)]
        for rank, channel in self.places:
            results[rank] += self.gate[rank, channel]
        return results

    def _advance(self, rank: int, channel: int) -> list[tuple[int, int]]:
        """Add steps of a rank until one waits for a message that does not exist yet.

        Return the ranks that can continue because of the new messages.
        """
        place = (rank, channel)
        woken: list[tuple[int, int]] = []
        while True:
            expected = self.expected[place]
            while expected:
                messages = self.sent[expected[0].peer, rank, channel]
                if not messages:
                    return woken
                self.arrived[place].append(self._receive(rank, expected.popleft(), messages.popleft()))
            if self.arrived[place]:
                self.gate[place], self.arrived[place] = self.arrived[place], []
            step = self.next[place]
            if step is None or not self._may_send(rank, channel):
                return woken
            self.next[place] = next(self.steps[place], None)
            expected.extend(transfer for transfer in step if transfer.kind is not Kind.SEND)
            sends = [transfer for transfer in step if transfer.kind is Kind.SEND]
            self.sends[place].append([self._send(rank, channel, transfer) for transfer in sends])
            woken += [(transfer.peer, channel) for transfer in sends]
            if channel + self.schedule.num_parallel < self.schedule.num_channels:
                woken.append((rank, channel + self.schedule.num_parallel))

    def _may_send(self, rank: int, channel: int) -> bool:
        """Whether the previous channel has sent this step."""
        before = channel - self.schedule.num_parallel
        return before < 0 or len(self.sends[rank, before]) > len(self.sends[rank, channel])

    def _send(self, rank: int, channel: int, transfer: Transfer) -> int:
        route = self.route(rank, transfer.peer)
        step, before = len(self.sends[rank, channel]), channel - self.schedule.num_parallel
        message = self.simulation.flow(
            f"{self.schedule.name} {rank}→{transfer.peer}",
            self._size(transfer),
            route.path,
            route.latency_s,
            after=self.gate[rank, channel],
            after_end=self.sends[rank, before][step] if before >= 0 else (),
            lane=(self.own, rank, transfer.peer, channel),
            cap_bytes_per_s=route.cap_bytes_per_s,
        )
        self.sent[rank, transfer.peer, channel].append(message)
        return message

    def _receive(self, rank: int, transfer: Transfer, message: int) -> int:
        """The task after which the message is in place."""
        seconds = self._size(transfer) / self.reduce_bytes_per_s
        if transfer.kind is not Kind.RECV_REDUCE or not seconds:
            return message
        lane = (self.own, rank, "reduce")
        return self.simulation.compute(f"reduce on {rank}", seconds, after=[message], lane=lane)

    def _size(self, transfer: Transfer) -> float:
        return sum(map(self.block_bytes, transfer.blocks)) / self.schedule.num_channels
