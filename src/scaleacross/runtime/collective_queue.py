"""The queue of a group's collectives, which run one after the other in the order of the calls, each with a record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scaleacross.runtime import operations
from scaleacross.runtime.arguments import size_bytes
from scaleacross.runtime.communicator import Communicator
from scaleacross.runtime.point_to_point import PointToPoint, called_now
from scaleacross.runtime.policy import Chosen
from scaleacross.runtime.trace import FlightRecorder, Record, RecordedGroup
from scaleacross.runtime.tracing import GroupCursor
from scaleacross.runtime.work import QueuedWork

Prepare = Callable[[int], operations.Prepared]
"""sequence number -> the prepared collective; called when its turn has come."""


class GroupMembers(NamedTuple):
    """Members of a group: name of the group, own rank in it, global ranks by rank in the group."""

    name: str
    rank: int
    ranks: Sequence[int]


class _Work(NamedTuple):
    """A work, the tensors that it reads and writes, and the caller's event at the call (None on a CPU)."""

    work: QueuedWork
    tensors: Sequence[Tensor]
    called: Any


class CollectiveQueue:
    """The queue of one group.

    Args:
        members: members of the group.
        communicator: links and thread of the group.
        recorder, recorded: flight recorder, and the group's entry in it.
        timeout_s: time limit of a collective that states none.
        point_to_point: device type of the tensors -> transport that replaces the communicator's links.
    """

    def __init__(
        self,
        members: GroupMembers,
        communicator: Communicator,
        recorder: FlightRecorder,
        recorded: RecordedGroup,
        timeout_s: float,
        point_to_point: Mapping[str, PointToPoint],
    ) -> None:
        self._point_to_point = point_to_point
        self._members, self._communicator, self._timeout_s = members, communicator, timeout_s
        self._recorder, self._recorded = recorder, recorded
        self._sequence = 0
        self._lock = threading.Lock()

    def submit(
        self,
        chosen: Chosen,
        inputs: Sequence[Tensor],
        outputs: list[Tensor],
        num_bytes: int,
        prepare: Prepare,
        timeout_s: float,
        after: Callable[[], object] | None = None,
        waits: bool = False,
    ) -> QueuedWork:
        """Queue a collective.

        Args:
            chosen: how it runs.
            inputs: tensors that it reads.
            outputs: tensors that it writes; the future of the work holds them.
            num_bytes: bytes as launch.json counts them.
            prepare: makes the task.
            timeout_s: time limit from now; 0 for that of the group.
            after: called when it is done.
            waits: the caller does nothing else until it is done, so its thread may run the collective.
        """
        schedule = chosen.schedule
        limit_s = timeout_s or self._timeout_s
        work = QueuedWork(
            f"{schedule.operation.value} by {schedule.name} in group {self._members.name}", outputs, limit_s
        )
        work_on = _Work(work, [*inputs, *outputs], called_now(inputs[0]))
        # sequence numbers must have the order of the queue, also if several threads submit
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
            run_now = self._communicator.submit(
                lambda: self._execute(work_on, record, prepare, sequence, after),
                here=waits and inputs[0].device.type not in self._point_to_point,
            )
        if run_now is not None:
            record.await_result()
            run_now()
        return work

    def all_counts(self, sends: list[int], timeout_s: float) -> Tensor:
        """Return the elements that every rank sends to every other, int64 (ranks²,) by source and destination.

        A collective of its own gathers them. It is queued here, so the tensor is complete when the next one in the
        queue runs.
        """
        num_ranks = len(self._members.ranks)
        mine, gathered = torch.tensor(sends), torch.empty(num_ranks**2, dtype=torch.int64)
        chosen = Chosen(operations.counts_schedule(num_ranks))

        def run(sequence: int) -> operations.Prepared:
            return operations.all_gather(chosen.schedule, self._members.rank, sequence, gathered, mine)

        self.submit(chosen, [mine], [gathered], size_bytes(gathered), run, timeout_s)
        return gathered

    def _execute(
        self,
        work_on: _Work,
        record: Record,
        prepare: Prepare,
        sequence: int,
        after: Callable[[], object] | None,
    ) -> None:
        """Run a collective in its turn, and complete its work."""
        work = work_on.work
        record.start()
        try:
            other = self._point_to_point.get(work_on.tensors[0].device.type)
            stream = nullcontext() if other is None else other.on_stream(work_on.called, work_on.tensors)
            with torch.no_grad(), stream:
                prepared = prepare(sequence)
                cursor = GroupCursor(record, self._members.ranks)
                cursor.expect(prepared.task.program)
                if other is None or prepared.programs is None:
                    self._communicator.run(prepared.task, work.deadline, cursor)
                else:
                    other.run(prepared.task, prepared.programs, work.deadline, cursor)
                prepared.finish()
                if after is not None:
                    after()
                if work_on.called is not None:
                    work.device_done = called_now(work_on.tensors[0])
        except Exception as error:
            record.end(error)
            work.complete(error)
        else:
            record.end()
            work.complete()
