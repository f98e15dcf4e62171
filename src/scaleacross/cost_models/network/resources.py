"""Resources of a communicator on every accelerator: channels (blocks of threads), queue pairs and buffers.

Connections stay open, so a communicator holds the most that any of its collectives needs. An accelerator holds the sum
over its communicators. Peers of a rank:

* ring              2
* double tree       6: two children and a parent, twice
* halving, doubling log2 f of f children; up to twice ⌈log2 f⌉ where f is no power of two
* direct exchange   every rank outside of the scale-up domain
* pipeline          its 2 neighbours
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS, RACK
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import CommunicatorChoice, Connection, held_by


class Held(NamedTuple):
    """Resources held on one accelerator, whole numbers: blocks of threads, queue pairs, bytes."""

    channels: int
    queue_pairs: int
    buffer_bytes: int


NOTHING_HELD = Held(0, 0, 0)


def held(choice: CommunicatorChoice, shape: GroupShape) -> Held:
    """Resources that one choice needs; ``shape`` has one row or no row axis."""
    peers = peers_by_level(choice, shape)
    pairs = sum(peers[one.level] * one.queue_pairs for one in choice.connections)
    buffers = sum(peers[one.level] * one.window_bytes for one in choice.connections)
    return Held(held_by(choice.driver, choice.num_channels), pairs, buffers)


def peers_by_level(choice: CommunicatorChoice, shape: GroupShape) -> dict[str, int]:
    """Number of peers of one rank across every level that the choice has connections for."""
    fanout, members = shape.fanout.reshape(NUM_LEVELS), shape.members.reshape(NUM_LEVELS)
    degree, halving = int(shape.degree.reshape(())), {s.level for s in choice.steps if s.algorithm != "ring"}

    def peers(one: Connection) -> int:
        level = LINK_LEVELS.index(one.level)
        if choice.algorithm == "pairwise":
            beyond = members[level + 1] if level + 1 < NUM_LEVELS else degree
            return max(1, round(float(beyond - members[level])))
        if one.level in halving:
            return _peers_of_halving(int(fanout[level]))
        around = 6 if choice.algorithm == "tree" else 2
        return min(around, int(fanout[level]) - 1) if choice.algorithm == "hierarchical" else around

    return {one.level: peers(one) for one in choice.connections}


def _peers_of_halving(children: int) -> int:
    """Peers of a member over all steps of halving and doubling."""
    distances = [2**step for step in range(math.ceil(math.log2(children)))]
    if 2 * distances[-1] == children:  # both ends of a step exchange
        return len(distances)
    return len({way * far % children for far in distances for way in (1, -1)})  # Bruck: to one, from another


def held_together(choices: Iterable[CommunicatorChoice], shapes: Mapping[str, GroupShape]) -> Held:
    """Resources that all communicators of a plan hold on one accelerator."""
    most: defaultdict[str, Held] = defaultdict(lambda: NOTHING_HELD)
    for choice in choices:
        own, one = most[choice.communicator], held(choice, shapes[choice.communicator])
        most[choice.communicator] = Held(*(max(pair) for pair in zip(own, one, strict=True)))
    return Held(*(sum(column) for column in zip(*most.values(), strict=True))) if most else NOTHING_HELD


def crossed_beyond(shape: GroupShape) -> list[int]:
    """Levels beyond the scale-up domain that a group crosses, innermost first."""
    fanout = shape.fanout.reshape(NUM_LEVELS)
    return [level for level in range(RACK, NUM_LEVELS) if fanout[level] > 1]
