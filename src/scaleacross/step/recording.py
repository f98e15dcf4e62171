"""Records what an action adds to a step graph; ``assembly`` repeats the record for every micro-batch.

``program`` and ``layers`` write the records. Nodes have *references* here, and numbers only in the graph:

    0, 1, ...       computations of the action
    KEYED + n       a call or message by its key: all who ask with the same key mean the same node
    BEFORE          everything that the previous action ended with

A key that contains ``MICRO_BATCH`` stands for another node in every micro-batch. A label may contain it in the same
way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scaleacross.step.graph import Call, Computation, Entry, Key, Message, Node, Side
from scaleacross.step.setting import SHAPES, Op, RankClasses, RankWork, Setting

BEFORE: Final = -1
KEYED: Final = 1 << 40
MICRO_BATCH: Final = "\0"
"""Stands for the micro-batch of an action."""


@dataclass
class Recorded:
    """Record of one action.

    Attributes:
        asks, kinds: reference of each node asked for, and its kind; the first to ask defines the kind.
        waits, others: reference of a node that waits, and of the node that it waits for.
        sends: messages that it sends, in order.
        story, concurrent: its entries in order, and its concurrent transfers.
        ends: references that the next action waits for.
    """

    asks: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)
    story: list[Entry] = field(default_factory=list)
    concurrent: list[Side] = field(default_factory=list)
    num_computations: int = 0
    ends: list[int] = field(default_factory=list)


@dataclass
class Recorder:
    """Keys and kinds of nodes of all rank classes, and the action that is being recorded.

    Attributes:
        keys: key -> number, in the order in which they were first recorded.
        lanes: number of a key -> (use, group) of the communicator on which the call waits for the previous one.
        kinds: distinct node -> number.
    """

    classes: RankClasses
    setting: Setting
    ranks: Mapping[int, RankWork]
    action: Recorded = field(default_factory=Recorded)
    keys: dict[Key, int] = field(default_factory=dict)
    lanes: dict[int, tuple[str, int]] = field(default_factory=dict)
    kinds: dict[Node, int] = field(default_factory=dict)
    _groups: dict[tuple[str, int], int] = field(default_factory=dict)
    _buckets: dict[tuple[int, int], int] = field(default_factory=dict)

    def begin(self) -> Recorded:
        """Start the record of a new action and return it."""
        self.action = Recorded()
        return self.action

    def compute(self, what: Computation, after: Iterable[int]) -> int:
        """Add a computation after the arrival of ``after``; returns its reference."""
        ref = self.action.num_computations
        self.action.num_computations += 1
        self._ask(ref, what)
        self._wait(ref, after)
        return ref

    def message(self, sender: int, down: bool, cell: Key) -> int:
        """Ask for the message that ``sender`` sends to the next rank (``down``) or the previous one after ``cell``."""
        ref = self._keyed((sender, down, *cell))
        self._ask(ref, Message(sender, down))
        return ref

    def sends(self, sender: int, down: bool, cell: Key, after: Iterable[int]) -> int:
        """Send a message after ``after`` and after the sender's previous message in the same direction."""
        ref = self.message(sender, down, cell)
        self._wait(ref, after)
        self.action.sends.append(ref)
        return ref

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
        """Ask for ``count`` consecutive calls of each of ``ops`` in the group of ``who``; None if nothing is sent.

        Classes that ask with the same key are members of one call, which starts when its last member is ready. With
        ``lane`` it also waits for the previous call on its communicator. With ``lane`` or ``holds`` it is concurrent
        with computation, from which it takes multiprocessors.
        """
        if (use, ops[0]) not in self.setting.size_bytes or size <= 0 or count <= 0:
            return None
        if (use, who) not in self._groups:
            self._groups[use, who] = self.classes.group_of(SHAPES.get(use, use), who)
        group = self._groups[use, who]
        ref = self._keyed((use, ops, group, *key))
        if lane:
            self.lanes[ref - KEYED] = use, group
        self._ask(ref, Call(use, group, ops, size, count, lane or holds))
        self._wait(ref, after)
        return ref

    def tell(self, entry: Entry) -> None:
        """Append an entry to the story of the action."""
        self.action.story.append(entry)

    def aside(self, side: Side) -> None:
        """Append a transfer that runs concurrently."""
        self.action.concurrent.append(side)

    def buckets(self, rank: int, chunk: int) -> int:
        """Return the parts in which a chunk's gradients and parameters travel, equal for all classes of a rank."""
        if (rank, chunk) not in self._buckets:
            here = [one.chunks[chunk] for one in self.ranks.values() if one.pipeline_rank == rank]
            self._buckets[rank, chunk] = self.setting.buckets(here)
        return self._buckets[rank, chunk]

    def _keyed(self, key: Key) -> int:
        return KEYED + self.keys.setdefault(key, len(self.keys))

    def _ask(self, ref: int, kind: Node) -> None:
        self.action.asks.append(ref)
        self.action.kinds.append(self.kinds.setdefault(kind, len(self.kinds)))

    def _wait(self, ref: int, after: Iterable[int]) -> None:
        for other in after:
            self.action.waits.append(ref)
            self.action.others.append(other)
