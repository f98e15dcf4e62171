"""A training step as a graph: computations, collective calls and messages, and what each of them waits for.

Ranks that do the same are one class (``setting.RankClasses``); a call has one node for all classes of its group. A node states an
amount and a lane, never a duration: seconds of a collective are a matter of the reading (simulation, step time).

    lane of a computation   its class of ranks: one at a time, in order
    lane of a call          its communicator (class of groups), where calls follow one another; none otherwise
    lane of a message       its sender and direction: messages leave in order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.step.setting import SHAPES, Op, RankClasses, RankWork, Setting

Ints = NDArray[np.int64]
Key = tuple[object, ...]


class Computation(NamedTuple):
    """``seconds`` of work of one class of ranks, without what concurrent transfers take from it."""

    component: str
    pipeline_rank: int
    rank_class: int
    seconds: float


class Call(NamedTuple):
    """``num_calls`` (real) calls of each of ``ops`` in a row in one class of groups.

    ``holds_ranks``: it runs concurrently with computation, from which it takes multiprocessors.
    """

    use: str
    group: int
    ops: tuple[Op, ...]
    size_bytes: float
    num_calls: float
    holds_ranks: bool


class Message(NamedTuple):
    """Activations or their gradients from class ``sender`` to the next pipeline rank (``down``) or the previous one."""

    sender: int
    down: bool


Node = Computation | Call | Message


class Entry(NamedTuple):
    """What a class of ranks does next: a node of a component, over when it ends (computation) or arrives (all others).

    ``gates`` are nodes that it may have waited for, with the component that their waiting belongs to.
    """

    component: str
    node: int
    label: str
    gates: tuple[tuple[int, str], ...] = ()


class Side(NamedTuple):
    """A transfer that runs concurrently with the story of its ranks: for the timeline."""

    component: str
    node: int
    label: str


@dataclass
class StepGraph:
    """The nodes of a step while they are added, and who does what in which order.

    Attributes:
        nodes: equal nodes are one object.
        waits_for: per node, what it waits for: n for the arrival of node n, ~n for its end alone (its last byte has left).
        story: class of ranks -> what it does in order.
        concurrent: class of ranks -> transfers that run meanwhile.
        messages: (sender, down, virtual stage, letter, micro-batch) -> node.
    """

    classes: RankClasses
    setting: Setting
    ranks: Mapping[int, RankWork]
    nodes: list[Node] = field(default_factory=list)
    waits_for: list[list[int]] = field(default_factory=list)
    story: dict[int, list[Entry]] = field(default_factory=dict)
    concurrent: dict[int, list[Side]] = field(default_factory=dict)
    messages: dict[Key, int] = field(default_factory=dict)
    _calls: dict[Key, int] = field(default_factory=dict)
    _groups: dict[tuple[str, int], int] = field(default_factory=dict)
    _known: dict[Node, Node] = field(default_factory=dict)
    _lanes: dict[Key, int] = field(default_factory=dict)
    _sent: set[int] = field(default_factory=set)
    _buckets: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def waits(self) -> tuple[Ints, Ints]:
        """``waits_for`` as flat arrays: (waits,) node or ~node, and (nodes + 1,) where the waits of each node begin."""
        first = np.concatenate([[0], np.cumsum([len(one) for one in self.waits_for], dtype=np.int64)])
        return np.array([other for one in self.waits_for for other in one], dtype=np.int64), first

    def unsent(self) -> set[Key]:
        """Messages that somebody waits for and nobody sends."""
        return {key for key, number in self.messages.items() if number not in self._sent}

    def compute(self, what: Computation, after: Iterable[int]) -> int:
        """Add a computation after the arrival of ``after``; returns its node."""
        return self._add(what, list(after))

    def message(self, sender: int, down: bool, cell: Key) -> int:
        """The message that ``sender`` sends to the next rank (``down``) or the previous one after ``cell``; added when first
        asked for."""
        key = (sender, down, *cell)
        number = self.messages.get(key)
        if number is None:
            number = self.messages[key] = self._add(Message(sender, down), [])
        return number

    def sends(self, sender: int, down: bool, cell: Key, after: Iterable[int]) -> int:
        """``sender`` sends: after the computation, and after its message before in the same direction."""
        number, lane = self.message(sender, down, cell), ("message", sender, down)
        self.waits_for[number] += after
        if lane in self._lanes:
            self.waits_for[number].append(~self._lanes[lane])
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
        """``count`` calls of each of ``ops`` in a row in the group of ``who``; their node, or None where nothing is sent.

        Classes that ask with the same key are members of the same call: it starts when the last of them has come, and all leave
        it together. ``lane``: after the call before on this communicator. ``lane`` and ``holds``: concurrent with computation,
        from which it takes multiprocessors.
        """
        if (use, ops[0]) not in self.setting.size_bytes or size <= 0 or count <= 0:
            return None
        if (use, who) not in self._groups:
            self._groups[use, who] = self.classes.group_of(SHAPES.get(use, use), who)
        group = self._groups[use, who]
        full: Key = (use, ops, group, *key)
        number = self._calls.get(full)
        if number is None:
            before = [self._lanes[use, group]] if lane and (use, group) in self._lanes else []
            number = self._calls[full] = self._add(Call(use, group, ops, size, count, lane or holds), before)
            if lane:
                self._lanes[use, group] = number
        self.waits_for[number] += after
        return number

    def buckets(self, rank: int, chunk: int) -> int:
        """Parts in which the gradients and parameters of a chunk of a pipeline rank travel, the same on all its classes."""
        if (rank, chunk) not in self._buckets:
            here = [one.chunks[chunk] for one in self.ranks.values() if one.pipeline_rank == rank]
            self._buckets[rank, chunk] = self.setting.buckets(here)
        return self._buckets[rank, chunk]

    def _add(self, node: Node, waits: list[int]) -> int:
        self.nodes.append(self._known.setdefault(node, node))
        self.waits_for.append(waits)
        return len(self.nodes) - 1
