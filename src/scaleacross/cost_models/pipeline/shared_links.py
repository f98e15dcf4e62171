"""Times actions of pipeline ranks that share inter-building links with the collectives of all ranks.

An action that lasts d seconds alone keeps the links busy for b of them. When the running actions ask for more than the
links carry, Σ b/d > 1, every one of them with b > 0 runs at 1 / Σ b/d of its pace. The reason is that an action makes
many short calls, which take turns. In warm-up and cool-down few ranks run, so each has the links to itself. Messages
travel as in ``pipeline.timing``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.pipeline.compiled import CompiledSchedule

NO_WAY: Final = -1
"""Way of a message that stays in its building."""


def is_crowded(seconds: Floats, busy_s: Floats, rank: Ints) -> bool:
    """Whether ranks may ever ask for more than the links carry.

    Args:
        seconds, busy_s: d and b of every kind of action on every virtual stage, (kinds, p·v).
        rank: pipeline rank of every virtual stage, (p·v,).
    """
    # a rank runs one action at a time, so its most demanding one bounds its share
    most = np.zeros(int(rank.max()) + 1)
    np.maximum.at(most, rank, _asked(seconds, busy_s).max(axis=0))
    return bool(most.sum() > 1)


def run_sharing(
    compiled: CompiledSchedule,
    seconds: Floats,
    busy_s: Floats,
    latency: Floats,
    occupancy: Floats,
    crossing: Bools | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Start and end of actions and arrival of their messages, in the compiled order.

    Args:
        seconds, busy_s: d and b of every action.
        latency, occupancy: of its message, s.
        crossing: as of ``ways``; None: no messages pass these links.
    """
    from scaleacross.cost_models.pipeline import sharing_loop as loop  # late: it brings the compiler

    count = len(compiled.rank)
    actions = loop.Actions(
        compiled.rank,
        compiled.needs,
        compiled.fills,
        compiled.link,
        *compiled.by_rank,
        seconds,
        _asked(seconds, busy_s),
        latency,
        occupancy,
        np.full(count, NO_WAY) if crossing is None else ways(compiled, crossing),
    )
    moments = loop.Moments(*np.zeros((3, count)))
    loop.time_sharing(actions, compiled.num_slots, moments)
    return moments.start, moments.end, moments.arrival


def ways(compiled: CompiledSchedule, crossing: Bools) -> Ints:
    """Queue (way) on which the message of every action crosses buildings; ``NO_WAY`` where it does not.

    Between two buildings all messages in one direction share a link, those from the last rank back to the first
    included. In pipelines through more buildings every pair of ranks has its own way.

    Args:
        crossing: whether messages between consecutive virtual stages cross buildings, (p·v − 1,).
    """
    crosses = np.append(crossing, False)[compiled.boundary]
    receiver = compiled.link % compiled.schedule.num_ranks
    # one border between neighbouring ranks means two buildings, and then the direction alone names the queue
    borders = np.minimum(compiled.rank, receiver)[crosses & (np.abs(compiled.rank - receiver) == 1)]
    way = receiver < compiled.rank if len(np.unique(borders)) == 1 else np.unique(compiled.link, return_inverse=True)[1]
    return np.where(crosses, way, NO_WAY)


def _asked(seconds: Floats, busy_s: Floats) -> Floats:
    """b/d of actions, the share of the links that each asks for; 0 where d is 0."""
    return np.divide(busy_s, seconds, out=np.zeros_like(busy_s), where=seconds > 0)
