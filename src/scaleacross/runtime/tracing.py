"""Connects the runtime to its flight recorder: one recorder per process, and progress by global rank."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from functools import lru_cache

from scaleacross.runtime.dumping import dump_at_end
from scaleacross.runtime.messages import RankProgram
from scaleacross.runtime.trace import FlightRecorder, Record


class GroupCursor:
    """Writes the progress of a collective of one group into its record.

    If several messages of one direction are under way at once, their time counts once. So bytes over time are the rate
    of the link.

    Args:
        record: record of the collective.
        ranks: global ranks, by rank in the group.
    """

    def __init__(self, record: Record, ranks: Sequence[int]) -> None:
        self._record, self._ranks = record, ranks
        self._sent_until: dict[int, int] = {}
        self._received_until: dict[int, int] = {}

    def expect(self, program: RankProgram) -> None:
        """Record how many messages ``program`` exchanges with each peer."""
        for peer, (leaving, arriving) in program.traffic.items():
            self._record.expect(self._ranks[peer], chunks_to_send=leaving, chunks_to_receive=arriving)

    def sent(self, peer: int, num_bytes: int, begun_ns: int) -> None:
        """Record that a message has left."""
        self._record.sent(self._ranks[peer], num_bytes, _not_yet_counted(self._sent_until, peer, begun_ns))

    def received(self, peer: int, num_bytes: int, begun_ns: int) -> None:
        """Record that a message has arrived."""
        self._record.received(self._ranks[peer], num_bytes, _not_yet_counted(self._received_until, peer, begun_ns))

    def coded(self, plain_bytes: int, num_bytes: int) -> None:
        """Record that an encoded message has left."""
        self._record.coded(plain_bytes, num_bytes)


def _not_yet_counted(until: dict[int, int], peer: int, begun_ns: int) -> int:
    """Return the nanoseconds of a message that ends now, less those in which another of its peer was under way."""
    now = time.perf_counter_ns()
    since = max(begun_ns, until.get(peer, 0))
    until[peer] = now
    return now - since


def short_name(name: str) -> str:
    """Return torch's name of a group; the first eight digits of one that is a hash."""
    return name[:8] if len(name) > 16 else name


def recorded_name(name: str, ranks: Sequence[int]) -> str:
    """Return torch's name of a group with a mark of its ranks: torch reuses names when a process joins another job."""
    return f"{short_name(name)}-{zlib.crc32(repr(list(ranks)).encode()):08x}"


def recorder_of_process(rank: int) -> FlightRecorder:
    """Return the recorder of this process, which has global rank ``rank``."""
    return _recorder(os.getpid(), rank, int(os.environ.get("WORLD_SIZE", rank + 1)))


@lru_cache(maxsize=4)
def _recorder(process_id: int, rank: int, world_size: int) -> FlightRecorder:
    del process_id
    recorder = FlightRecorder(rank, max(world_size, rank + 1))
    dump_at_end(recorder)
    return recorder
