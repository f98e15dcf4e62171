"""One group of ranks on a topology as lanes, with the same figures as the cost model's levels.

Rank r of the first group has the global rank r·stride. A message between two ranks crosses the outermost level at which
their units differ, at that level's bandwidth per accelerator and latency. It shares the sender's and the receiver's
port (one for the scale-up domain, one for everything beyond it). At every crossed level it also shares the group's part
of its unit's uplink, out and in: capacity over the groups that cross it (W_l of ``cost_models.collectives`` without the
members' own ports).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS, RACK, SCALE_UP, Levels
from scaleacross.errors import InputError
from scaleacross.solvers.collective_synthesis.lanes import Lane, Network

MAX_RANKS: Final = 24
"""Most ranks of a group: 24 ranks are 552 lanes and 13,248 routes if each rank has one chunk."""


def network_of_group(levels: Levels, shape: GroupShape, num_ranks: int, stride: int) -> Network:
    """The lanes between all pairs of the first group's ranks.

    Raises:
        InputError: the group has more than MAX_RANKS ranks.
    """
    if num_ranks > MAX_RANKS:
        raise InputError(
            f"synthesis: a group of {num_ranks:,} ranks is too large, at most {MAX_RANKS} can be routed message by message; "
            "choose fewer with --ranks and --stride (num_ranks, stride), or take a regular algorithm"
        )
    global_ranks = np.arange(num_ranks) * stride
    units = [global_ranks, *(np.searchsorted(cut, global_ranks, side="right") for cut in levels.cuts[1:])]
    capacities: list[float] = []
    known: dict[tuple[str, int, int], int] = {}

    def capacity(kind: str, level: int, unit: int, rate: float) -> int:
        key = kind, level, unit
        if key not in known:
            known[key] = len(capacities)
            capacities.append(rate)
        return known[key]

    outer = float(levels.bandwidth[RACK:].max())
    lanes = []
    for a in range(num_ranks):
        for b in range(num_ranks):
            if a == b:
                continue
            crossed = [level for level in range(NUM_LEVELS) if units[level][a] != units[level][b]]
            outermost = crossed[-1]
            port = float(levels.bandwidth[SCALE_UP]) if outermost == SCALE_UP else outer
            out = [capacity("port out", outermost > SCALE_UP, a, port)]
            into = [capacity("port in", outermost > SCALE_UP, b, port)]
            rate = min(float(levels.bandwidth[outermost]), port)
            for level in crossed[1:]:
                share = float(levels.capacity[level] / shape.crossing[level])
                if np.isfinite(share):
                    out.append(capacity("out", level, int(units[level][a]), share))
                    into.append(capacity("in", level, int(units[level][b]), share))
                    rate = min(rate, share)
            lanes.append(Lane(a, b, rate, float(levels.latency[outermost]), (*out, *reversed(into))))
    return Network(num_ranks, tuple(lanes), tuple(capacities))
