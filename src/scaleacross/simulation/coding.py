"""Time and link classes of encoded messages, which carry fewer bytes on some levels; used by ``calls``.

* hierarchical   the phase of an encoded level loads its links with 1/ratio of its bytes; encoding and decoding form a
                 further phase without links, through which chunks are pipelined like through any other
* ring           hops across an encoded level carry 1/ratio; their ends encode and decode every block that passes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaleacross.simulation import patterns
from scaleacross.simulation.connections import Coding
from scaleacross.simulation.fabric import CAMPUS, RACK
from scaleacross.simulation.machine import Machine, fewest_members


def level_codec_s(
    machine: Machine, shape: str, row: int, coding: Coding, size_bytes: float, shares: Sequence[tuple[int, float]]
) -> float:
    """Return a rank's seconds of encoding and decoding in one pass; ``shares``: see ``machine.taken_in``."""
    seconds = 0.0
    for level, share in shares:
        if level in coding.levels:
            moved = share * size_bytes / fewest_members(machine, shape, row, level)
            seconds += moved * coding.s_per_byte
    return seconds


def ring_codec_s(machine: Machine, shape: str, row: int, coding: Coding) -> float:
    """Return the seconds per byte of progress in which the ends of a ring's encoded hops encode and decode."""
    groups, fabric = machine.shapes[shape], machine.fabric
    blocks = groups.members[row]
    level = fabric.hop(blocks, np.roll(blocks, -1))[0]
    inside = patterns.in_unit(fabric, groups._replace(members=blocks[None]), RACK)[0]
    ends = inside[np.isin(level, coding.levels)]
    return coding.s_per_byte / float(ends.min()) if len(ends) else 0.0


def shortened_links(machine: Machine, shape: str, row: int, coding: Coding) -> set[int]:
    """Return the link classes that only encoded hops use: inter-building links, and uplinks of an encoded level."""
    fabric, blocks = machine.fabric, machine.shapes[shape].members[row]
    ahead, found = np.roll(blocks, -1), set()
    level = fabric.hop(blocks, ahead)[0]
    for here, there, reached in zip(blocks.tolist(), ahead.tolist(), level.tolist(), strict=True):
        if reached not in coding.levels:
            continue
        if reached >= CAMPUS:
            found |= set(fabric.trunk_links[int(fabric.building[here]), int(fabric.building[there])][0])
        else:
            units = fabric.units[reached]
            found |= {int(fabric.uplinks[way, reached, units[block]]) for way, block in enumerate((here, there))}
    return {int(machine.link_class[link]) for link in found if link >= 0}
