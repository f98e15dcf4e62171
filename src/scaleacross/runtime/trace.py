"""The flight recorder: a ring buffer of this rank's last collectives, each with the plan's prediction.

It has one record per operation, which is filled in place as the operation proceeds. So tracing costs an object and a
few clock readings per collective (``benchmarks/trace_cost.py``). A dump taken at any moment, from any thread, shows the
progress of each peer.

    recorder = FlightRecorder(rank, world_size)
    group = recorder.group("dp_shard.0", ranks, "dp_shard", launch.process_groups[0])
    record = recorder.begin(group, "all_reduce", 1024, 1024, "float32", num_bytes=4096, algorithm="ring")
    record.start()
    record.expect(peer, chunks_to_send=4, chunks_to_receive=4)
    record.sent(peer, num_bytes=1024, nanoseconds=8000)
    record.end()
    recorder.dump(directory)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scaleacross.errors import InputError
from scaleacross.spec.launch import ProcessGroups
from scaleacross.spec.trace import State

DEFAULT_CAPACITY = 2000


@dataclass(slots=True, eq=False)
class Record:
    """One operation of this rank. Times are nanoseconds of ``time.perf_counter_ns``.

    ``cursors`` maps a peer (global rank) to the counters of ``spec.trace.CURSOR_FIELDS``. ``awaited`` is True if the
    program waits for the result, and None if it may wait through a future.
    """

    group: RecordedGroup
    op: str
    num_inputs: int
    num_outputs: int
    dtype: str
    pair: tuple[int, int] | None = None
    num_bytes: int | None = None
    algorithm: str = ""
    predicted_s: float | None = None
    record_id: int = -1
    sequence: int = -1
    created_ns: int = 0
    started_ns: int | None = None
    completed_ns: int | None = None
    error: str = ""
    awaited: bool | None = False
    plain_bytes: int = 0
    coded_bytes: int = 0
    cursors: dict[int, list[int]] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """``scheduled``, ``started`` or ``completed``; an operation that failed stays where it was."""
        if self.completed_ns is not None:
            return "completed"
        return "scheduled" if self.started_ns is None else "started"

    def label(self) -> str:
        """Return a name for messages: ``send 0→2 of pp``, ``broadcast #3 of dp_replicate, ranks 0, 1``."""
        if self.pair is not None:
            return f"{self.op} {self.pair[0]}→{self.pair[1]} of {self.group.desc}"
        return f"{self.op} #{self.sequence} of {self.group.desc}, ranks {', '.join(map(str, self.group.ranks[:8]))}" + (
            f" … ({len(self.group.ranks)})" if len(self.group.ranks) > 8 else ""
        )

    def start(self) -> None:
        """Record that the operation leaves its queue: from now on peers may expect its bytes."""
        self.started_ns = time.perf_counter_ns()

    def end(self, error: object = None) -> None:
        """Record the end of the operation. With ``error`` the record stays incomplete and keeps the reason."""
        if error is None:
            self.completed_ns = time.perf_counter_ns()
        else:
            self.error = str(error) or type(error).__name__

    def await_result(self) -> None:
        """Record that the program waits from here until the operation completes. This separates stuck from waiting."""
        self.awaited = True

    def hand_out_future(self) -> None:
        """Record that somebody may wait for the result without calling ``wait``, as DDP does for its buckets."""
        self.awaited = self.awaited or None

    def expect(self, peer: int, *, chunks_to_send: int = 0, chunks_to_receive: int = 0) -> None:
        """Add the chunks that the schedule will move to and from ``peer`` (a global rank)."""
        cursor = self._cursor(peer)
        cursor[1] += chunks_to_send
        cursor[3] += chunks_to_receive

    def sent(self, peer: int, num_bytes: int, nanoseconds: int = 0) -> None:
        """Count one more chunk to ``peer``; ``nanoseconds`` are those in which no other one was under way."""
        cursor = self._cursor(peer)
        cursor[0] += 1
        cursor[4] += num_bytes
        cursor[5] += nanoseconds

    def received(self, peer: int, num_bytes: int, nanoseconds: int = 0) -> None:
        """Count one more chunk from ``peer``; ``nanoseconds`` are those in which no other one was under way."""
        cursor = self._cursor(peer)
        cursor[2] += 1
        cursor[6] += num_bytes
        cursor[7] += nanoseconds

    def coded(self, plain_bytes: int, num_bytes: int) -> None:
        """Record that one more message has left encoded, in ``num_bytes`` instead of ``plain_bytes``."""
        self.plain_bytes += plain_bytes
        self.coded_bytes += num_bytes

    @property
    def compression_ratio(self) -> float | None:
        """Unencoded over encoded bytes of the messages that this rank encoded; None if it encoded none."""
        return self.plain_bytes / self.coded_bytes if self.coded_bytes else None

    def _cursor(self, peer: int) -> list[int]:
        cursor = self.cursors.get(peer)
        if cursor is None:
            cursor = self.cursors.setdefault(peer, [0, 0, 0, 0, 0, 0, 0, 0])
        return cursor


@dataclass(slots=True, eq=False)
class RecordedGroup:
    """A process group with its sequence numbers; ``FlightRecorder.group`` makes it."""

    number: int
    name: str
    ranks: tuple[int, ...]
    desc: str
    planned: ProcessGroups | None
    next_collective: int = 0
    next_on_pair: dict[tuple[int, int], int] = field(default_factory=dict)
    _predicted: dict[tuple[str, int], float | None] = field(default_factory=dict)

    def predicted_s(self, op: str, num_bytes: int) -> float | None:
        """Return the seconds that launch.json predicts, looked up once per operation and size."""
        key = (op, num_bytes)
        if key not in self._predicted and self.planned is not None:
            self._predicted[key] = self.planned.predicted_s(op, num_bytes)
        return self._predicted.get(key)


class FlightRecorder:
    """The last ``capacity`` operations of one rank. All methods may be called from any thread.

    Raises:
        InputError: the capacity is below 1, or the rank is not within the world size.
    """

    def __init__(self, rank: int, world_size: int, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1 or not 0 <= rank < world_size:
            raise InputError(f"a trace of {capacity} operations for rank {rank} of {world_size}: no such thing")
        self.rank, self.world_size, self.capacity = rank, world_size, capacity
        self._ring: list[Record | None] = [None] * capacity
        self._next = 0
        self._groups: list[RecordedGroup] = []
        self._lock = threading.Lock()
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def group(
        self, name: str, ranks: Sequence[int], desc: str = "", planned: ProcessGroups | None = None
    ) -> RecordedGroup:
        """Add a group of ``ranks``; ``planned`` is its entry in launch.json, which holds predictions.

        A job that destroys its groups and makes them again reuses names. A reused name gets the number of its use
        (``0#2``), so that sequence numbers of the two groups never mix.

        Raises:
            InputError: this rank is not among ``ranks``.
        """
        members = tuple(sorted(ranks))
        if self.rank not in members:
            raise InputError(f"rank {self.rank} is not in group {name!r} of {len(members)} ranks: nothing to record")
        with self._lock:
            use = sum(group.name.partition("#")[0] == name for group in self._groups) + 1
            group = RecordedGroup(
                len(self._groups), name if use == 1 else f"{name}#{use}", members, desc or name, planned
            )
            self._groups.append(group)
        return group

    def begin(
        self,
        group: RecordedGroup,
        op: str,
        num_inputs: int,
        num_outputs: int,
        dtype: str,
        *,
        num_bytes: int | None = None,
        algorithm: str = "",
        predicted_s: float | None = None,
        pair: tuple[int, int] | None = None,
    ) -> Record:
        """Add a record, which is ``scheduled`` now.

        Args:
            group: the group of the operation.
            op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``all_to_all``, ``send``, ...
            num_inputs, num_outputs: elements that go in and come out on this rank.
            dtype: element type as torch names it.
            num_bytes: bytes as launch.json counts: the full tensor of gathers, scatters and reductions, the bytes sent
                of all_to_all and send.
            algorithm: name of the schedule.
            predicted_s: seconds that the plan predicts; None takes them from the group's entry in launch.json.
            pair: source and target of a send or recv, global ranks.
        """
        record = Record(group, op, num_inputs, num_outputs, dtype, pair, num_bytes, algorithm, predicted_s)
        if predicted_s is None and num_bytes and group.planned is not None:
            record.predicted_s = group.predicted_s(op, num_bytes)
        with self._lock:
            if pair is None:
                group.next_collective += 1
                record.sequence = group.next_collective
            else:
                record.sequence = group.next_on_pair[pair] = group.next_on_pair.get(pair, 0) + 1
            record.record_id = self._next
            record.created_ns = time.perf_counter_ns()
            self._ring[self._next % self.capacity] = record
            self._next += 1
        return record

    def records(self) -> list[Record]:
        """Return the records in the buffer, oldest first."""
        with self._lock:
            end = self._next
            held = self._ring[end % self.capacity :] + self._ring[: end % self.capacity]
        return [record for record in held if record is not None]

    def wall_ns(self, perf_ns: int | None) -> int | None:
        """Return the wall clock of a time stamp. The offset is read once, so that durations never jump."""
        return None if perf_ns is None else perf_ns + self._epoch_ns

    def dump(self, directory: str | Path) -> Path:
        """Write this rank's file into ``directory``, all or nothing; return its path."""
        from scaleacross.runtime.trace_dump import write_dump

        return write_dump(self, Path(directory))
