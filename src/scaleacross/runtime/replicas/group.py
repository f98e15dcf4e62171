"""The ranks of one shard in one epoch: a group that forms over the coordinator's connection and ends with its epoch."""

from __future__ import annotations

import os
from collections.abc import Callable

from torch import Tensor

from scaleacross.runtime import operations
from scaleacross.runtime.arguments import size_bytes
from scaleacross.runtime.collective_queue import CollectiveQueue, GroupMembers
from scaleacross.runtime.communicator import Communicator
from scaleacross.runtime.policy import Policy
from scaleacross.runtime.replicas.control import Control
from scaleacross.runtime.replicas.membership import Epoch
from scaleacross.runtime.trace import FlightRecorder
from scaleacross.runtime.work import QueuedWork
from scaleacross.schedules.collective import Operation

RECORDS = 64


class _Meeting:
    """The store of one group: contacts come over the coordinator's connection."""

    def __init__(self, control: Control, epoch: int) -> None:
        self._control, self._epoch = control, epoch

    def set(self, key: str, value: str) -> None:
        self._control.say({"contact": [self._epoch, int(key.rpartition("/")[2]), value]})

    def get(self, key: str) -> bytes:
        return (self._control.contact(self._epoch, int(key.rpartition("/")[2])) or "").encode()

    def check(self, keys: list[str]) -> bool:
        return all(self.get(key) for key in keys)


class EpochGroup:
    """The group of one epoch. Aborting it does not affect the other groups of this process.

    Args:
        address: where this process listens.
        policy: number of members -> the policy that they run.
        ended: called in the group's thread when a collective has ended.
    """

    def __init__(
        self,
        epoch: Epoch,
        control: Control,
        address: str,
        policy: Callable[[int], Policy],
        timeout_s: float,
        ended: Callable[[], None],
    ) -> None:
        self.epoch, self._timeout_s, self._ended = epoch, timeout_s, ended
        self.rank, self.size = epoch.members.index(control.place.replica), len(epoch.members)
        if self.size == 1:
            return
        self._policy = policy(self.size)
        name, ranks = f"replicas, epoch {epoch.number}, shard {control.place.shard}", range(self.size)
        self._communicator = Communicator(
            name,
            self.rank,
            [f"replica {member}" for member in epoch.members],
            _Meeting(control, epoch.number),
            address,
            os.getpid(),
            lambda peer: self._policy.settings(self.rank, peer),
        )
        recorder = FlightRecorder(self.rank, self.size, RECORDS)
        members = GroupMembers(name, self.rank, ranks)
        self._queue = CollectiveQueue(members, self._communicator, recorder, recorder.group(name, ranks), timeout_s, {})

    def all_reduce(self, tensor: Tensor) -> QueuedWork:
        """Begin to sum ``tensor`` (flat, on the CPU) in place. Raises ValueError if the policy names no schedule."""
        num_bytes = size_bytes(tensor)
        if self.size == 1:
            work = QueuedWork("a sum of one", [tensor], self._timeout_s)
            work.complete()
            return work
        chosen = self._policy.choose(Operation.ALL_REDUCE, num_bytes)
        if chosen is None:
            raise ValueError("the policy names no all-reduce")

        def run(sequence: int) -> operations.Prepared:
            return operations.all_reduce(chosen.schedule, self.rank, sequence, tensor, "sum")

        work = self._queue.submit(chosen, [tensor], [tensor], num_bytes, run, 0.0)
        self._communicator.submit(self._ended)
        return work

    def abort(self, reason: str) -> None:
        """Make the running collective fail at once; called in any thread."""
        if self.size > 1:
            self._communicator.abort(reason)

    def drop(self) -> None:
        """Release the group, whose epoch is over."""
        if self.size > 1:
            self._communicator.drop()
