"""The collectives of one group, run one after the other in the order in which they were asked for, each with its record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scaleacross.runtime import operations
from scaleacross.runtime.arguments import size_bytes
from scaleacross.runtime.communicator import Communicator
from scaleacross.runtime.policy import Chosen
from scaleacross.runtime.trace import FlightRecorder, Record, RecordedGroup
from scaleacross.runtime.tracing import GroupCursor
from scaleacross.runtime.work import QueuedWork

Prepare = Callable[[int], operations.Prepared]
"""sequence number -> what runs; called when its turn has come"""


class GroupMembers(NamedTuple):
    """Who they are: name of the group, own rank in it, ranks of the job by rank in the group."""

    name: str
    rank: int
    ranks: Sequence[int]


class CollectiveQueue:
    """What waits for the thread of the group.

    Args:
        members: of the group.
        communicator: its links and its thread.
        recorder, recorded: where records go.
        timeout_s: of a collective that states none.
    """

    def __init__(
        self,
        members: GroupMembers,
        communicator: Communicator,
        recorder: FlightRecorder,
        recorded: RecordedGroup,
        timeout_s: float,
    ) -> None:
        self._members, self._communicator, self._timeout_s = members, communicator, timeout_s
        self._recorder, self._recorded = recorder, recorded
        self._sequence = 0
        self._lock = threading.Lock()

    def submit(
        self,
        chosen: Chosen,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        num_bytes: int,
        prepare: Prepare,
        timeout_s: float,
        result: list[Tensor],
        after: Callable[[], object] | None = None,
    ) -> QueuedWork:
        """Queue a collective.

        Args:
            chosen: how it runs.
            inputs, outputs: tensors, for the record.
            num_bytes: as launch.json counts them.
            prepare: makes the task.
            timeout_s: 0 for that of the group.
            result: what the future of the work holds.
            after: runs when it is done.
        """
        schedule = chosen.schedule
        limit_s = timeout_s or self._timeout_s
        work = QueuedWork(f"{schedule.operation.value} by {schedule.name} in group {self._members.name}", result)
        with self._lock:
            sequence, self._sequence = self._sequence, self._sequence + 1
            record = self._recorder.begin(
                self._recorded,
                schedule.operation.value,
                sum(tensor.numel() for tensor in inputs),
                sum(tensor.numel() for tensor in outputs),
                str(inputs[0].dtype).removeprefix("torch."),
                num_bytes=num_bytes,
                algorithm=schedule.name,
                predicted_s=chosen.predicted_s,
            )
            work.record = record
            self._communicator.submit(lambda: self._execute(work, record, prepare, sequence, limit_s, after))
        return work

    def all_counts(self, sends: list[int], timeout_s: float) -> Callable[[int, int], int]:
        """What every rank sends to every other. Gathered by a collective of its own, which is queued here; only the next one in
        the queue may ask."""
        num_ranks = len(self._members.ranks)
        mine, gathered = torch.tensor(sends), torch.empty(num_ranks**2, dtype=torch.int64)
        chosen = Chosen(operations.counts_schedule(num_ranks))

        def run(sequence: int) -> operations.Prepared:
            return operations.all_gather(chosen.schedule, self._members.rank, sequence, gathered, mine)

        self.submit(chosen, [mine], [gathered], size_bytes(gathered), run, timeout_s, [gathered])
        return lambda source, destination: int(gathered[source * num_ranks + destination])

    def _execute(
        self,
        work: QueuedWork,
        record: Record,
        prepare: Prepare,
        sequence: int,
        timeout_s: float,
        after: Callable[[], object] | None,
    ) -> None:
        """In the thread of the group."""
        record.start()
        try:
            with torch.no_grad():
                prepared = prepare(sequence)
                cursor = GroupCursor(record, self._members.ranks)
                cursor.expect(prepared.task.program)
                self._communicator.run(prepared.task, timeout_s, cursor)
                prepared.finish()
                if after is not None:
                    after()
        except Exception as error:
            record.end(error)
            work.complete(error)
        else:
            record.end()
            work.complete()
