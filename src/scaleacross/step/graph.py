"""A training step as a graph: computations, collective calls and messages, and what each of them waits for.

Ranks that do the same are one class (``setting.RankClasses``); a call has one node for all classes of its group. A node states an
amount and a lane, never a duration: seconds of a collective are a matter of the reading (simulation, step time).

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


class Course(NamedTuple):
    """The entries of a class of ranks as arrays.

    Attributes:
        names: of components.
        component, node: (entries,) number in ``names``, and node.
        gated, gate, waited: (gates,) which entry it is a gate of, its node, and the component that waiting for it belongs to.
    """

    names: Sequence[str]
    component: Ints
    node: Ints
    gated: Ints
    gate: Ints
    waited: Ints


class Side(NamedTuple):
    """A transfer that runs concurrently with the story of its ranks: for the timeline."""

    component: str
    node: int
    label: str


@dataclass
class StepGraph:
    """The nodes of a step in the order in which somebody first asked for them.

    Attributes:
        kinds: equal nodes are one of these.
        of: (nodes,) kind of each.
        waits: (waits,) n for the arrival of node n, ~n for its end alone (its last byte has left); node after node.
        first_wait: (nodes + 1,) where the waits of each begin.
        begins: class of ranks -> (actions,) first computation of each of its actions.
        keys: what tells calls and messages apart (``recording``): of a message sender, down, virtual stage, letter.
        key, micro_batch: (nodes,) number of each node's key, -1 for a computation, and its micro-batch.
        tell: class of ranks -> what it does in order, and the transfers that run meanwhile.
        course: the former as arrays, without labels.
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
        """(nodes,)"""
        return np.array([isinstance(kind, Message) for kind in self.kinds], dtype=np.bool_)[self.of]

    @cached_property
    def messages(self) -> dict[Key, int]:
        """(sender, down, virtual stage, letter, micro-batch) -> node."""
        numbers = np.flatnonzero(self.is_message)
        keys, batches = self.key[numbers].tolist(), self.micro_batch[numbers].tolist()
        found = zip(keys, batches, numbers.tolist(), strict=True)
        return {(*self.keys[key][:-1], micro_batch): number for key, micro_batch, number in found}

    def node(self, number: int) -> Node:
        """The node of a number."""
        return self.kinds[int(self.of[number])]

    def waits_of(self, number: int) -> list[int]:
        """What a node waits for."""
        found: list[int] = self.waits[self.first_wait[number] : self.first_wait[number + 1]].tolist()
        return found

    def story(self, who: int) -> list[Entry]:
        """What a class of ranks does in order."""
        return self._tale(who)[0]

    def concurrent(self, who: int) -> list[Side]:
        """Transfers that run meanwhile."""
        return self._tale(who)[1]

    def _tale(self, who: int) -> tuple[list[Entry], list[Side]]:
        if who not in self._told:
            self._told[who] = self.tell(who)
        return self._told[who]
