"""The tasks of a training step while they are added: collectives and messages that several classes of ranks take part in.

A collective starts when the last class of its members has come to it, and all leave it together. Who does what when is
``performance``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from scaleacross.schedules.pipeline import PipelineSchedule
from scaleacross.simulation.calls import Calls, Op
from scaleacross.simulation.connections import Way
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.segments import Segment
from scaleacross.simulation.tasks import Task
from scaleacross.spec.framework import BUCKET_PARAMETERS_PER_REPLICA, LEAST_BUCKET_PARAMETERS
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, ShardLevel
from scaleacross.spec.step_work import ChunkWork

Key = tuple[object, ...]
STATES: Final = ("cp_states", "dp_shard", "expert", "dp_replicate")
"""Uses of the groups that gradients and parameters travel in, in the order of a reduction."""
SHAPES: Final[Mapping[str, str]] = {"cp_states": "cp"}
"""Groups of the uses that are not named after them."""


class Stream(NamedTuple):
    """How one kind of collective of the plan runs, and its bytes where they do not depend on the chunk."""

    way: Way
    size_bytes: float


class Entry(NamedTuple):
    """What a class of ranks does next: a task of a component, over when it ends (computation) or arrives (all others).

    ``gates`` are tasks that it may have waited for, with the component that their waiting belongs to.
    """

    component: str
    task: int
    label: str
    gates: tuple[tuple[int, str], ...] = ()


class Side(NamedTuple):
    """A flow that runs beside the story of its ranks: for the timeline."""

    component: str
    task: int
    label: str


class Call(NamedTuple):
    """``num_calls`` (real) calls of each of ``ops`` in a row: their first and last task."""

    first: int
    last: int
    use: str
    ops: tuple[Op, ...]
    size_bytes: float
    num_calls: float


@dataclass(frozen=True)
class Setting:
    """What a replay needs of the plan.

    Attributes:
        streams: (use, op) -> how it runs; uses are tp, cp (keys and values), ep, pp and STATES.
        reduce_whole: tp collectives are all-reduces (no sequence parallelism).
        recomputes: the forward pass runs again in the backward pass.
    """

    job: Job
    degrees: Degrees
    shard: ShardLevel
    streams: Mapping[tuple[str, Op], Stream]
    reduce_whole: bool
    recomputes: bool

    @property
    def bucket_parameters(self) -> int:
        """Parameters of a bucket of gradients, as the job states it or as Megatron-Core takes it by default."""
        replicas = self.degrees.dp * self.degrees.cp
        default = max(LEAST_BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_REPLICA * replicas)
        return self.job.overlap.bucket_parameters or default

    def state_op(self, use: str, gather: bool) -> Op:
        """What gradients (or parameters) do in the groups of a use."""
        if gather:
            return "all_gather"
        return "all_reduce" if self.shard == "none" or use == "dp_replicate" else "reduce_scatter"

    def state_bytes(self, work: ChunkWork, use: str, gather: bool) -> float:
        """Bytes of a chunk that one rank reduces (or gathers) in its group of a use."""
        each = self.job.optimizer.parameter_bytes if gather else self.job.optimizer.reduce_bytes
        if use == "cp_states":
            return (work.dense_parameters + work.expert_parameters) * each
        if use in ("dp_shard", "expert"):
            return (work.dense_parameters if use == "dp_shard" else work.expert_parameters) / self.degrees.cp * each
        group = 1 if self.shard == "none" else self.degrees.dp_shard * self.degrees.cp
        return (work.dense_parameters / group + work.expert_parameters / max(1.0, group / self.degrees.ep)) * each


@dataclass(frozen=True)
class Player:
    """One class of ranks: its schedule, its chunks, its pace.

    Attributes:
        pipeline_rank: which row of the schedule it runs.
        pace: seconds of an action over those stated, one per action: stragglers and jitter.
    """

    pipeline_rank: int
    schedule: PipelineSchedule
    chunks: tuple[ChunkWork, ...]
    optimizer_s: float
    pace: tuple[float, ...]


@dataclass
class Step:
    """The tasks of a step; ``story`` has what each class of ranks does in order, ``beside`` what runs meanwhile."""

    simulation: Simulation
    calls: Calls
    setting: Setting
    players: Mapping[int, Player]
    story: dict[int, list[Entry]] = field(default_factory=dict)
    beside: dict[int, list[Side]] = field(default_factory=dict)
    messages: dict[Key, int] = field(default_factory=dict)
    _calls: dict[Key, Call] = field(default_factory=dict)
    _groups: dict[tuple[str, int], int] = field(default_factory=dict)
    _flows: dict[Key, tuple[Task, ...]] = field(default_factory=dict)
    _lanes: dict[Key, int] = field(default_factory=dict)
    _sent: set[int] = field(default_factory=set)
    _buckets: dict[tuple[int, int], int] = field(default_factory=dict)

    @cached_property
    def calls_by_end(self) -> dict[int, Call]:
        """The calls of the whole step by their last tasks."""
        return {call.last: call for call in self._calls.values()}

    def unsent(self) -> set[Key]:
        """Messages that somebody waits for and nobody sends."""
        return {key for key, number in self.messages.items() if number not in self._sent}

    def message(self, sender: int, down: bool, cell: Key) -> int:
        """The message that ``sender`` sends to the next rank (``down``) or the previous one after ``cell``; added when first
        asked for."""
        key = (sender, down, *cell)
        number = self.messages.get(key)
        if number is None:
            if (sender, down) not in self._flows:
                stream = self.setting.streams["pp", "send"]
                segment = self.calls.message(sender, down, stream.way, stream.size_bytes)
                self._flows[sender, down] = (_flow("message", segment, 1.0, (), 0.0),)
            number = self.messages[key] = self.simulation.add(self._flows[sender, down][0])
        return number

    def sends(self, sender: int, down: bool, cell: Key, after: Iterable[int]) -> int:
        """``sender`` sends: after the computation, and after its message before in the same direction."""
        number, lane = self.message(sender, down, cell), ("message", sender, down)
        self.simulation.also_after(number, after, [self._lanes[lane]] if lane in self._lanes else [])
        self._lanes[lane] = number
        self._sent.add(number)
        return number

    def collective(
        self,
        who: int,
        use: str,
        key: Key,
        ops: tuple[Op, ...],
        size: float,
        count: float,
        after: Iterable[int],
        lane: bool = False,
        holds: bool = False,
    ) -> int | None:
        """``count`` calls of each of ``ops`` in a row among the group of ``who``; the last task, or None where nothing is sent.

        Classes that ask with the same key are members of the same call. ``lane``: after the call before on this communicator.
        ``lane`` and ``holds``: beside computation, from which it takes multiprocessors.
        """
        if (use, ops[0]) not in self.setting.streams or size <= 0 or count <= 0:
            return None
        if (use, who) not in self._groups:
            self._groups[use, who] = self.calls.machine.group_of(SHAPES.get(use, use), who)
        group = self._groups[use, who]
        full: Key = (use, ops, group, *key)
        call = self._calls.get(full)
        if call is None:
            flows = self._flows_of(use, group, ops, size, count, lane or holds)
            call = self._calls[full] = Call(*self._chain(flows, (use, group) if lane else None), use, ops, size, count)
        self.simulation.also_after(call.first, after)
        return call.last

    def _flows_of(
        self, use: str, group: int, ops: tuple[Op, ...], size: float, count: float, holds: bool
    ) -> tuple[Task, ...]:
        """The flows of calls in a row, the same objects for every micro-batch."""
        key = (use, group, ops, size, count, holds)
        if key not in self._flows:
            shape, ways = SHAPES.get(use, use), tuple(self.setting.streams[use, op].way for op in ops)
            held = self.calls.held_fraction if holds else 0.0
            devices = tuple(self.calls.machine.members(shape, group)) if held else ()
            segments = self.calls.of(shape, group, ops, ways, size)
            self._flows[key] = tuple(_flow(use, segment, count, devices, held) for segment in segments)
        return self._flows[key]

    def buckets(self, rank: int, chunk: int) -> int:
        """Parts in which the gradients and parameters of a chunk of a pipeline rank travel, the same on all its classes."""
        if (rank, chunk) not in self._buckets:
            here = [who for who, player in self.players.items() if player.pipeline_rank == rank]
            self._buckets[rank, chunk] = min(self._buckets_of(who, chunk) for who in here)
        return self._buckets[rank, chunk]

    def _buckets_of(self, who: int, chunk: int) -> int:
        work, setting = self.players[who].chunks[chunk], self.setting
        layers = max(1, work.num_layers)
        if setting.shard == "parameters":
            return layers
        if not setting.job.overlap.gradient_reduce:
            return 1
        parameters = work.dense_parameters + work.expert_parameters
        return min(layers, max(1, math.ceil(parameters / setting.bucket_parameters)))

    def _chain(self, flows: tuple[Task, ...], lane: Key | None) -> tuple[int, int]:
        """First and last of flows one after another, after what is on their lane."""
        before = [self._lanes[lane]] if lane in self._lanes and lane is not None else []
        first = last = -1
        for flow in flows:
            last = self.simulation.add(flow, before)
            first, before = (last if first < 0 else first), [last]
        if lane is not None:
            self._lanes[lane] = last
        return first, last


def _flow(name: str, segment: Segment, count: float, holds: Sequence[int], held_fraction: float) -> Task:
    """``count`` times a segment; ``holds`` are slower meanwhile."""
    amount, fixed_s = segment.amount * count, segment.fixed_s * count
    return Task(name, amount, segment.load, None, fixed_s, segment.cap_bytes_per_s, holds, held_fraction)
