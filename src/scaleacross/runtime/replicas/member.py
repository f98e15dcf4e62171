"""A replica in training that continues when others are lost.

    replicas = Replicas("10.0.0.1:29400", replica="3", state=TrainingState(model, optimizer))
    replicas.join()
    while replicas.step < steps:
        loss_of(model, batch(replicas.step)).backward()   # the mean over this replica's samples
        replicas.take_step(samples=len(batch))            # instead of optimizer.step()

Gradients are weighted by samples, summed over the replicas of the epoch and divided by the samples of all that
contributed. They are kept unchanged until the step is committed. If a replica is lost before, the others form an epoch
without it and sum again.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.endpoint import Caller, Member, endpoint_of_process, listen_address
from scaleacross.runtime.faults import CollectiveError
from scaleacross.runtime.policy import Policy, fixed, name_of
from scaleacross.runtime.replicas.control import Control
from scaleacross.runtime.replicas.coordinator import TOKEN_VARIABLE
from scaleacross.runtime.replicas.donation import Donation, receive
from scaleacross.runtime.replicas.group import EpochGroup
from scaleacross.runtime.replicas.membership import SILENT_S, Epoch, Place
from scaleacross.runtime.replicas.state import TrainingState, gradients_of
from scaleacross.runtime.work import QueuedWork
from scaleacross.schedules.collective import Operation

TIMEOUT_S: Final = 600.0
MAX_WHY: Final = 1000


class Committed(NamedTuple):
    """A step that all members have taken: its number, its epoch, the members, and the sum of their samples."""

    step: int
    epoch: int
    members: tuple[str, ...]
    samples: int


class _Part(NamedTuple):
    """Some of the gradients while they are summed: their sum, its work, and the parameters that they belong to."""

    sums: Tensor
    work: QueuedWork
    parameters: list[Tensor]


class Replicas:
    """This rank of a replica.

    Args:
        coordinator: ``host:port`` of ``scaleacross coordinate``.
        replica: its name; a process that replaces a lost one may take its name.
        state: the state that it trains.
        step: the step that ``state`` is about to take: 0, or that of a checkpoint.
        shard: index of this rank among the replica's ranks.
        policy: number of members -> policy; None: rings.
        inside: group of the replica's ranks, within which DDP averages (``ddp``).
        near: its location, e.g. a building: donors of the same location are preferred.
        donor_bytes_per_s: share of this rank's link for the state of a joiner; None: all of it.
        silent_s: as the coordinator's.
        timeout_s: time limit of a sum among members that are all alive.

    Raises:
        CollectiveError: there is no coordinator.
    """

    def __init__(
        self,
        coordinator: str,
        replica: str,
        state: TrainingState,
        *,
        step: int = 0,
        shard: int = 0,
        policy: Callable[[int], Policy] | None = None,
        inside: dist.ProcessGroup | None = None,
        near: str = "",
        donor_bytes_per_s: float | None = None,
        silent_s: float = SILENT_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if ":" not in coordinator:
            raise InputError(f"coordinator {coordinator!r}: host:port is expected")
        self.state, self.step, self.inside = state, step, inside
        self._policy, self._timeout_s, self._donor_bytes_per_s = policy or rings, timeout_s, donor_bytes_per_s
        self._group: EpochGroup | None = None
        self._early: list[_Part] = []
        self._samples: int | None = None
        self._wanted: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._donations: list[Donation] = []
        self._donors: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        self._address = listen_address(coordinator.rpartition(":")[0])
        self._endpoint = endpoint_of_process(self._address, os.getpid())
        self._contact = self._endpoint.register(Member(self._donor_called))
        hello = {
            "token": os.environ.get(TOKEN_VARIABLE, ""),
            "replica": replica,
            "shard": shard,
            "step": step,
            "near": near,
            "contact": self._contact.to_json(),
        }
        self._formed = threading.Lock()
        self._control = Control(
            coordinator, Place(replica, shard), silent_s, self._voided, lambda *want: self._wanted.put(want)
        )
        self._control.begin(hello)  # a donor may call at once

    def join(self) -> int:
        """Wait for the first epoch, or catch up with the others. Return the step that comes next.

        Raises:
            CollectiveError: the coordinator is lost.
            InputError: the donor trains another model.
        """
        while self._control.epoch_at(self.step) is None:
            self._control.wait(lambda: self._control.epoch_at(self.step) is not None or not self._donors.empty())
            if not self._donors.empty() and not self._caught_up(self._donors.get()):
                self._control.say({"donor_lost": 1})
        self._endpoint.unregister(self._contact)
        return self.step

    def take_step(self, samples: int) -> Committed:
        """Sum the gradients, divide them by the samples of all members, and update. Return when all have the sum.

        Args:
            samples: samples of this replica, over which its gradients are the mean; 0 if it had none.

        Raises:
            LeftBehindError: the others have gone on without this replica.
            CollectiveError: the coordinator is lost, or the members cannot reach each other.
            InputError: nobody had a sample.
        """
        if samples < 0:
            raise InputError(f"{samples} samples: 0 or more are expected")
        self._give_state()
        while True:
            epoch = self._await_epoch()
            parts = self._parts(self._group_of(epoch), samples)
            if self._agreed(parts, epoch, samples):
                return self._finish(parts, epoch, self._control.committed[1])

    def leave(self) -> None:
        """Leave: the others go on without this replica from the next step on."""
        self._control.say({"leave": 1})
        self._control.close()
        if self._group is not None:
            self._group.drop()

    # --- while backward runs ------------------------------------------------------------------------------------------

    def expect(self, samples: int) -> None:
        """State the samples that this replica will contribute, before a backward with ``ddp``'s hook."""
        self._samples = samples

    def begin(self, gradient: Tensor, parameters: list[Tensor]) -> None:
        """Begin to sum a part of the gradients, flat: those of ``parameters``, in this order. ``take_step`` ends it.

        Nothing begins early in the first step of an epoch, because a replica that has just joined may divide its
        gradients otherwise.
        """
        epoch = self._control.epoch_at(self.step)
        if self._samples is None:
            raise InputError("call expect(samples) before backward: gradients are weighted by samples")
        group = self._group
        if epoch is None or group is None or group.epoch != epoch or epoch.begins >= self.step:
            return
        sums = gradient.detach().to("cpu", copy=True).mul_(self._samples)
        self._early.append(_Part(sums, group.all_reduce(sums), parameters))

    # --- parts of a step ----------------------------------------------------------------------------------------------

    def _await_epoch(self) -> Epoch:
        self._control.wait(lambda: self._control.epoch_at(self.step) is not None)
        epoch = self._control.epoch_at(self.step)
        if epoch is None:
            raise CollectiveError("this replica is no member: call join()")
        return epoch

    def _group_of(self, epoch: Epoch) -> EpochGroup:
        with self._formed:
            old = self._group
            if old is not None and old.epoch == epoch:
                return old
            if old is not None:
                old.drop()
            self._early = []
            new = self._group = EpochGroup(
                epoch, self._control, self._address, self._policy, self._timeout_s, self._notify
            )
        if self._control.epoch_at(self.step) != epoch:  # it came while the group was made
            new.abort("another epoch has begun")
        return new

    def _parts(self, group: EpochGroup, samples: int) -> list[_Part]:
        """Return the sums begun during backward, or begin one of all gradients per type."""
        parts, self._early = self._early, []
        if parts:
            if samples != self._samples:
                raise InputError(f"{samples} samples, and {self._samples} were expected before backward")
            return parts
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in self.state.parameters:
            by_type.setdefault(parameter.dtype, []).append(parameter)
        for parameters in by_type.values():
            sums = torch.cat([gradient.cpu() for gradient in gradients_of(parameters)]).mul_(samples)
            parts.append(_Part(sums, group.all_reduce(sums), parameters))
        return parts

    def _agreed(self, parts: list[_Part], epoch: Epoch, samples: int) -> bool:
        """Return whether the step is committed with these sums. False means that another epoch repeats it."""

        def replaced() -> bool:
            return self._control.epoch_at(self.step) != epoch

        try:
            self._await_sums(parts, replaced)
        except CollectiveError as error:
            self._control.say({"failed": [epoch.number, self.step, str(error)[:MAX_WHY]]})
            self._control.wait(replaced)
            return False
        self._control.say({"done": [epoch.number, self.step, samples]})
        self._control.wait(lambda: self._control.committed[0] >= self.step or replaced())
        return self._control.committed[0] >= self.step

    def _await_sums(self, parts: list[_Part], replaced: Callable[[], bool]) -> None:
        """Wait until all sums are there. Raises CollectiveError if one has failed, or another epoch has begun."""
        self._control.wait(lambda: all(part.work.is_completed() for part in parts) or replaced())
        for part in parts:
            if not part.work.is_completed():
                raise CollectiveError("another epoch has begun")
            part.work.wait()

    def _finish(self, parts: list[_Part], epoch: Epoch, samples: int) -> Committed:
        if samples == 0:
            raise InputError(f"step {self.step}: no replica had a sample")
        for part in parts:
            part.sums.div_(samples)
            targets = gradients_of(part.parameters)
            for target, value in zip(targets, part.sums.split([t.numel() for t in targets]), strict=True):
                target.copy_(value)
        committed = Committed(self.step, epoch.number, epoch.members, samples)
        if self._donations:
            gradients = [gradient.cpu() for gradient in gradients_of(self.state.parameters)]
            for donation in self._donations:
                donation.add(self.step, gradients)
        self.state.update()
        self.step, self._samples = self.step + 1, None
        following = self._control.epoch_at(self.step)
        for donation in self._donations:
            if following is not None and donation.joiner in following.members:
                donation.end()
        self._donations = [donation for donation in self._donations if not donation.ended]
        return committed

    # --- giving and taking state --------------------------------------------------------------------------------------

    def _give_state(self) -> None:
        """Send the joiners that have asked this rank its present state, before the step."""
        state = None
        while not self._wanted.empty():
            joiner, contact = self._wanted.get()
            state = state or self.state.save()
            self._donations.append(Donation(joiner, contact, self.step, state, self._donor_bytes_per_s))

    def _caught_up(self, donor: Caller) -> bool:
        def load(step: int, data: bytes) -> None:
            self.state.load(data)
            self.step = step

        def apply(step: int, parts: list[bytes]) -> None:
            if step != self.step:
                raise CollectiveError(f"the donor sends the sums of step {step}, and this replica is at {self.step}")
            for gradient, part in zip(gradients_of(self.state.parameters), parts, strict=True):
                gradient.copy_(torch.frombuffer(bytearray(part), dtype=gradient.dtype))
            self.state.update()
            self.step = step + 1

        return receive(
            donor.connection,
            load,
            apply,
            lambda: self._control.say({"level": self.step}),
            lambda: self._control.epoch_at(self.step) is not None,
        )

    # --- in other threads ---------------------------------------------------------------------------------------------

    def _donor_called(self, caller: Caller) -> None:
        self._donors.put(caller)
        self._notify()

    def _notify(self) -> None:
        with self._control.news:
            self._control.news.notify_all()

    def _voided(self, epoch: Epoch) -> None:
        """Abort the group if a newer epoch begins no later than the present step; a lost coordinator counts as one."""
        group = self._group
        if group is not None and epoch.number > group.epoch.number and epoch.begins <= self.step:
            group.abort("another epoch has begun")


def rings(num_members: int) -> Policy:
    """Return a policy of rings, whatever the plan."""
    return fixed({Operation.ALL_REDUCE: "ring"}, tuple(range(num_members)), LinkSettings())


def policy_of_plan(launch: Any) -> Callable[[int], Policy]:
    """Return members -> the plan's policy among replicas (axis ``dp_replicate``); schedules are proved first."""
    from scaleacross.schedules.collective.check import check

    found = next((groups for groups in launch.process_groups if groups.axis == "dp_replicate"), None)
    names = [] if found is None else [one.algorithm for one in found.collectives if one.op == "all_reduce"]
    algorithm = (name_of(names[0], Operation.ALL_REDUCE) if names else None) or "ring"

    def policy(num_members: int) -> Policy:
        chosen = fixed({Operation.ALL_REDUCE: algorithm}, tuple(range(num_members)), LinkSettings())
        proved = chosen.choose(Operation.ALL_REDUCE, 1)
        if proved is not None:
            check(proved.schedule)
        return chosen

    return policy
