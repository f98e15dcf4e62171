"""The tasks of a training step while they are added: collectives and messages that several classes of ranks take part in.

A collective starts when the last class of its members has come to it, and all leave it together. Who does what when is
``performance``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scaleacross.schedules.pipeline import PipelineSchedule
from scaleacross.simulation.calls import Calls, Op
from scaleacross.simulation.connections import Way
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.segments import Segment
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
    calls_by_end: dict[int, Call] = field(default_factory=dict)
    _calls: dict[Key, Call] = field(default_factory=dict)
    _lanes: dict[Key, int] = field(default_factory=dict)
    _sent: set[Key] = field(default_factory=set)
    _buckets: dict[tuple[int, int], int] = field(default_factory=dict)

    def unsent(self) -> set[Key]:
        """Messages that somebody waits for and nobody sends."""
        return set(self.messages) - self._sent

    def message(self, sender: int, down: bool, cell: Key) -> int:
        """The message that ``sender`` sends to the next rank (``down``) or the previous one after ``cell``; added when first
        asked for."""
        key = (sender, down, *cell)
        if key not in self.messages:
            stream = self.setting.streams["pp", "send"]
            segment = self.calls.message(sender, down, stream.way, stream.size_bytes)
            self.messages[key] = self._flow("message", segment, ())
        return self.messages[key]

    def sends(self, sender: int, down: bool, cell: Key, after: Iterable[int]) -> int:
        """``sender`` sends: after the computation, and after its message before in the same direction."""
        number, lane = self.message(sender, down, cell), ("message", sender, down)
        self.simulation.also_after(number, after, [self._lanes[lane]] if lane in self._lanes else [])
        self._lanes[lane] = number
        self._sent.add((sender, down, *cell))
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
        shape = SHAPES.get(use, use)
        group = self.calls.machine.group_of(shape, who)
        full: Key = (use, ops, group, *key)
        if full not in self._calls:
            ways = tuple(self.setting.streams[use, op].way for op in ops)
            segments = self.calls.of(shape, group, ops, ways, size)
            held = self.calls.held_fraction if lane or holds else 0.0
            devices = self.calls.machine.members(shape, group) if held else ()
            first, last = self._chain(use, segments, count, (use, group) if lane else None, devices, held)
            self._calls[full] = self.calls_by_end[last] = Call(first, last, use, ops, size, count)
        self.simulation.also_after(self._calls[full].first, after)
        return self._calls[full].last

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

    def _chain(
        self,
        name: str,
        segments: tuple[Segment, ...],
        count: float,
        lane: Key | None,
        holds: Sequence[int],
        held_fraction: float,
    ) -> tuple[int, int]:
        """Flows one after another, after what is on their lane; ``holds`` are slower meanwhile."""
        before = [self._lanes[lane]] if lane in self._lanes and lane is not None else []
        first = last = -1
        for segment in segments:
            last = self._flow(name, segment, before, count, holds, held_fraction)
            first, before = (last if first < 0 else first), [last]
        if lane is not None:
            self._lanes[lane] = last
        return first, last

    def _flow(
        self,
        name: str,
        segment: Segment,
        after: Iterable[int],
        count: float = 1.0,
        holds: Sequence[int] = (),
        held_fraction: float = 0.0,
    ) -> int:
        return self.simulation.flow(
            name,
            segment.amount * count,
            segment.load,
            segment.fixed_s * count,
            after,
            cap_bytes_per_s=segment.cap_bytes_per_s,
            holds=holds,
            held_fraction=held_fraction,
        )
