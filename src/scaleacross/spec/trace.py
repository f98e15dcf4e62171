"""Record of a rank's collectives: the runtime writes it, and ``diagnose`` reads it.

A dump is a file of PyTorch's flight recorder, format 2.10 (``torch/distributed/flight_recorder/components``): one file
per rank, named by a common prefix and the rank. Fields that this format lacks are stored in every entry under
``EXTRA_KEY``; PyTorch's own readers ignore unknown keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

State = Literal["scheduled", "started", "completed"]

FORMAT_VERSION: Final = "2.10"
DUMP_PREFIX: Final = "trace_rank_"
"""Files are ``trace_rank_0``, ``trace_rank_1``, ... (pickles), or ``trace_rank_0.json``."""
EXTRA_KEY: Final = "scaleacross"
CURSOR_FIELDS: Final = (
    "sent_chunks",
    "chunks_to_send",
    "received_chunks",
    "chunks_to_receive",
    "sent_bytes",
    "send_ns",
    "received_bytes",
    "receive_ns",
)


@dataclass(eq=False, slots=True)
class TraceGroup:
    """A process group as a dump names it. ``ranks`` are ranks of the job, ascending. Groups compare by identity."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Cursor:
    """Progress of one operation with one peer.

    It counts chunks sent and received and their totals (0 if the schedule did not state them), bytes, and nanoseconds
    from posting to completion of the transfers. Overlapping transfers are timed once.
    """

    sent_chunks: int = 0
    chunks_to_send: int = 0
    received_chunks: int = 0
    chunks_to_receive: int = 0
    sent_bytes: int = 0
    send_ns: int = 0
    received_bytes: int = 0
    receive_ns: int = 0


@dataclass(slots=True)
class Operation:
    """One collective, send or receive on one rank.

    Attributes:
        record_id: number of operations that the rank had recorded before.
        group: the group that it runs on.
        sequence: its number within the group, equal on all ranks; for a send or receive, its number on that ordered
            pair of ranks.
        op: ``all_reduce``, ``all_gather``, ..., ``send``, ``recv``.
        pair: (source, target) of a send or receive, ranks of the job.
        input_sizes, output_sizes: shapes of the tensors.
        dtypes: element types of inputs and outputs.
        state: ``scheduled`` (enqueued), ``started`` or ``completed``.
        created_ns, started_ns, completed_ns: wall clock of the rank's host; None if not yet, or not noted.
        num_bytes, algorithm: size and schedule, if noted.
        predicted_s: the plan's time of it alone on the network, s.
        compression_ratio: uncompressed over compressed bytes of its coded messages; None if none was coded.
        awaited: whether the program waits until it completes; None if the recorder cannot know.
        cursors: peer (rank of the job) -> progress.
    """

    record_id: int
    group: TraceGroup
    sequence: int
    op: str
    pair: tuple[int, int] | None
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: State
    created_ns: int
    started_ns: int | None = None
    completed_ns: int | None = None
    num_bytes: int | None = None
    algorithm: str = ""
    predicted_s: float | None = None
    compression_ratio: float | None = None
    awaited: bool | None = None
    cursors: dict[int, Cursor] = field(default_factory=dict)


@dataclass(slots=True)
class RankTrace:
    """The last operations of one rank, oldest first; ``complete_from_start``: none was overwritten."""

    rank: int
    source: str
    groups: tuple[TraceGroup, ...]
    operations: list[Operation]
    world_size: int | None = None
    host: str | None = None
    complete_from_start: bool = True
