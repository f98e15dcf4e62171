"""Where the runtime writes its trace: one recorder per process, cursors by rank of the job."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import lru_cache

from scaleacross.runtime.messages import RankProgram
from scaleacross.runtime.trace import FlightRecorder, Record


class GroupCursor:
    """Writes the progress of a collective of one group into its record.

    Args:
        record: of the collective.
        ranks: ranks of the job, by rank in the group.
    """

    def __init__(self, record: Record, ranks: Sequence[int]) -> None:
        self._record, self._ranks = record, ranks

    def expect(self, program: RankProgram) -> None:
        """All messages of ``program``."""
        for peer, (leaving, arriving) in program.traffic.items():
            self._record.expect(self._ranks[peer], chunks_to_send=leaving, chunks_to_receive=arriving)

    def sent(self, peer: int, num_bytes: int, nanoseconds: int) -> None:
        """A message has left."""
        self._record.sent(self._ranks[peer], num_bytes, nanoseconds)

    def received(self, peer: int, num_bytes: int, nanoseconds: int) -> None:
        """A message has arrived."""
        self._record.received(self._ranks[peer], num_bytes, nanoseconds)

    def coded(self, plain_bytes: int, num_bytes: int) -> None:
        """A coded message has left."""
        self._record.coded(plain_bytes, num_bytes)


def recorded_name(name: str, ranks: Sequence[int]) -> str:
    """torch's name of a group and a mark of its ranks: torch uses names again when a process joins another job."""
    return f"{name}-{zlib.crc32(repr(list(ranks)).encode()):08x}"


def recorder_of_process(rank: int) -> FlightRecorder:
    """The recorder of this process, which is ``rank`` of the job."""
    return _recorder(os.getpid(), rank, int(os.environ.get("WORLD_SIZE", rank + 1)))


@lru_cache(maxsize=4)
def _recorder(process_id: int, rank: int, world_size: int) -> FlightRecorder:
    del process_id
    return FlightRecorder(rank, max(world_size, rank + 1))
