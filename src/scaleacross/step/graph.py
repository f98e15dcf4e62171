"""Data types of the step graph: computations, collective calls and messages, and what each of them waits for.

Equal ranks are one class (``setting.RankClasses``). A call has one node for all classes of its group. A node of
communication states bytes and a lane, never a duration: the reader of the graph determines seconds
(``simulation.lowering``).

    lane of a computation   its class of ranks: one at a time, in order
    lane of a call          its communicator (class of groups), where calls follow one another; none otherwise
    lane of a message       its sender and direction: messages leave in order
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.step.setting import Op, RankWork, Setting

Ints = NDArray[np.int64]
Key = tuple[object, ...]


class Computation(NamedTuple):
    """``seconds`` of work of one rank class at full speed; concurrent transfers may slow it down."""

    component: str
    pipeline_rank: int
    rank_class: int
    seconds: float


class Call(NamedTuple):
    """``num_calls`` (a real number) consecutive calls of each of ``ops`` in one class of groups.

    ``holds_ranks``: it is concurrent with computation, from which it takes multiprocessors.
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
    """One entry in the story of a rank class: a node of a component, done when it ends (computation) or arrives (all
    others).

    ``gates`` are nodes that it may wait for, each with the component to which that waiting is accounted.
    """

    component: str
    node: int
    label: str
    gates: tuple[tuple[int, str], ...] = ()


class Course(NamedTuple):
    """The story of a rank class as arrays.

    Attributes:
        names: names of components.
        component, node: (entries,) index in ``names``, and node.
        gated, gate, waited: (gates,) entry that has the gate, node of the gate, and component to which waiting is
            accounted.
    """

    names: Sequence[str]
    component: Ints
    node: Ints
    gated: Ints
    gate: Ints
    waited: Ints


class Side(NamedTuple):
    """A transfer that runs concurrently with the story of its ranks; only the timeline uses it."""

    component: str
    node: int
    label: str


@dataclass
class StepGraph:
    """The nodes of a step, in the order in which they were first asked for.

    Attributes:
        ranks: rank class -> its schedule and work.
        kinds: the distinct nodes.
        of: (nodes,) index in ``kinds`` of each node.
        waits: (waits,) n for the arrival of node n, ~n for its end alone (its last byte has left).
        first_wait: (nodes + 1,) index in ``waits`` at which those of each node begin.
        begins: rank class -> (actions,) first computation of each of its actions.
        keys: keys of calls and messages (``recording``); that of a message is sender, down, virtual stage, letter,
            micro-batch.
        key, micro_batch: (nodes,) number of each node's key, -1 for a computation, and its micro-batch.
        tell: rank class -> what it does in order, and its concurrent transfers.
        course: rank class -> what it does in order, as arrays without labels.
    """

    setting: Setting
    ranks: Mapping[int, RankWork]
    kinds: Sequence[Node]
    of: Ints
    waits: Ints
    first_wait: Ints
    begins: Mapping[int, Ints]
    keys: Sequence[Key]
    key: Ints
    micro_batch: Ints
    tell: Callable[[int], tuple[list[Entry], list[Side]]]
    course: Callable[[int], Course]
    _told: dict[int, tuple[list[Entry], list[Side]]] = field(default_factory=dict)

    @cached_property
    def is_message(self) -> NDArray[np.bool_]:
        """(nodes,) whether each node is a message."""
        return np.array([isinstance(kind, Message) for kind in self.kinds], dtype=np.bool_)[self.of]

    @cached_property
    def messages(self) -> dict[Key, int]:
        """(sender, down, virtual stage, letter, micro-batch) -> node."""
        numbers = np.flatnonzero(self.is_message)
        keys, batches = self.key[numbers].tolist(), self.micro_batch[numbers].tolist()
        found = zip(keys, batches, numbers.tolist(), strict=True)
        return {(*self.keys[key][:-1], micro_batch): number for key, micro_batch, number in found}

    def node(self, number: int) -> Node:
        """Return the node of a number."""
        return self.kinds[int(self.of[number])]

    def waits_of(self, number: int) -> list[int]:
        """Return what a node waits for: n for the arrival of node n, ~n for its end alone."""
        found: list[int] = self.waits[self.first_wait[number] : self.first_wait[number + 1]].tolist()
        return found

    def story(self, who: int) -> list[Entry]:
        """Return what a rank class does, in order."""
        return self._tale(who)[0]

    def concurrent(self, who: int) -> list[Side]:
        """Return the transfers that run concurrently with the story of a rank class."""
        return self._tale(who)[1]

    def _tale(self, who: int) -> tuple[list[Entry], list[Side]]:
        if who not in self._told:
            self._told[who] = self.tell(who)
        return self._told[who]
