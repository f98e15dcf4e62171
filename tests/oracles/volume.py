"""Bytes that a collective schedule moves over each level of the network: counted on its messages, not derived from a formula.

The cost model's coefficients are asserted equal to these counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from scaleacross.schedules.collective.transfer import CollectiveSchedule, Kind

Unit = Hashable


class LevelVolume(NamedTuple):
    """Traffic over one level. Bytes are those of all channels together.

    Attributes:
        entering_bytes: most bytes that enter one child of the level.
        leaving_bytes: most bytes that leave one child of the level.
        messages: messages that cross, all ranks together.
    """

    entering_bytes: float
    leaving_bytes: float
    messages: int


def volume(
    schedule: CollectiveSchedule,
    units: Sequence[Callable[[int], Unit]],
    block_bytes: Callable[[int], float],
) -> list[LevelVolume]:
    """Traffic per level, innermost first.

    Args:
        schedule: what is sent. All ranks are walked: O(messages).
        units: per level, rank -> child of the level that holds it; a message crosses the outermost level whose children differ.
        block_bytes: block -> its bytes, all channels together.
    """
    entering: list[defaultdict[Unit, float]] = [defaultdict(float) for _ in units]
    leaving: list[defaultdict[Unit, float]] = [defaultdict(float) for _ in units]
    messages = [0] * len(units)
    for rank in range(schedule.num_ranks):
        for channel in range(schedule.num_channels):
            for step in schedule.steps(rank, channel):
                for transfer in step:
                    if transfer.kind is not Kind.SEND:
                        continue
                    level = _crossed(units, rank, transfer.peer)
                    size = sum(map(block_bytes, transfer.blocks)) / schedule.num_channels
                    leaving[level][units[level](rank)] += size
                    entering[level][units[level](transfer.peer)] += size
                    messages[level] += 1
    return [
        LevelVolume(max(enters.values(), default=0.0), max(leaves.values(), default=0.0), count)
        for enters, leaves, count in zip(entering, leaving, messages, strict=True)
    ]


def _crossed(units: Sequence[Callable[[int], Unit]], source: int, destination: int) -> int:
    """Outermost level whose children differ between two ranks."""
    return max(level for level, unit in enumerate(units) if unit(source) != unit(destination))
