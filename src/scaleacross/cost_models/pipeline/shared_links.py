"""Times actions of pipeline ranks that share inter-building links with the collectives of all ranks.

An action that lasts d seconds alone keeps the links busy for b of them. When the running actions ask for more than the
links carry, Σ b/d > 1, every one of them with b > 0 runs at 1 / Σ b/d of its pace. The reason is that an action makes
many short calls, which take turns. In warm-up and cool-down few ranks run, so each has the links to itself. Messages
travel as in ``pipeline.timing``.

Gradients and parameters that travel once in a step (``States``) use these links without a pause. So a call of a pass
waits for one turn of each of them. Where they ask for g in all, an action takes g·b longer, with the mean b/d of the
running actions. Gradients and parameters have the part of the links that passes leave.

* parameters  of all stages start with the step; a part of a stage's first forward pass waits for its part of them
* gradients   of a part of a stage start once its last backward pass has computed them

A part passes its communicators one after another. Every communicator of a rank runs calls in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.pipeline.compiled import KINDS, CompiledSchedule
from scaleacross.schedules.pipeline import Kind

Call = tuple[int, int, float, float, int, bool]
"""A row of ``sharing_loop.Calls``."""
_FORWARD: Final = KINDS[Kind.F]
_GRADIENTS: Final = (KINDS[Kind.B], KINDS[Kind.W])
_NONE: Final = -1
NO_WAY: Final = -1
"""Way of a message that stays in its building."""


class States(NamedTuple):
    """Gradients and parameters of every virtual stage, which travel once in a step.

    Attributes:
        gradients_s, parameters_s: (2, communicators, p·v), communicators in the order of a reduction. Row 0 has the
            seconds of all calls of a stage alone, row 1 those for which they keep the links busy that all ranks share.
        pieces: parts of equal size in which they travel, (p·v,).
    """

    gradients_s: Floats
    parameters_s: Floats
    pieces: Floats


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
    states: States | None = None,
    crossing: Bools | None = None,
) -> tuple[Floats, Floats, Floats, float]:
    """Start and end of actions and arrival of their messages, in the compiled order, and the end of all ``states``.

    Args:
        seconds, busy_s: d and b of every action.
        latency, occupancy: of its message, s.
        crossing: as of ``ways``; None: no messages pass these links.
    """
    from scaleacross.cost_models.pipeline import sharing_loop as loop  # late: it brings the compiler

    count = len(compiled.rank)
    parts = _Parts.of(compiled, states)
    crosses = np.full(count, NO_WAY) if crossing is None else ways(compiled, crossing)
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
        *parts[1:],
        crosses,
    )
    kinds = (np.int64, np.int64, np.float64, np.float64, np.int64, np.bool_)
    calls = loop.Calls(*(np.array([call[at] for call in parts.calls], dtype=kind) for at, kind in enumerate(kinds)))
    start, end, arrival, calls_end = *np.zeros((3, count)), np.zeros(1)
    loop.time_sharing(actions, calls, compiled.num_slots, loop.Moments(start, end, arrival, calls_end))
    return start, end, arrival, float(calls_end[0])


class _Parts(NamedTuple):
    """Calls of gradients and parameters, and the columns of ``sharing_loop.Actions`` that refer to them."""

    calls: Sequence[Call]
    number: Ints
    gated: Ints
    call: Ints
    stride: Ints

    @classmethod
    def of(cls, compiled: CompiledSchedule, states: States | None) -> _Parts:
        """Calls and columns for a schedule whose stages have ``states``."""
        gated, stride = np.zeros((2, len(compiled.rank)), dtype=np.int64)
        number, call = np.ones_like(gated), np.full_like(gated, _NONE)
        calls: list[Call] = []
        if states is None:
            return cls(calls, number, gated, call, stride)
        order = range(states.gradients_s.shape[1])
        first, last = _outermost(compiled)
        lanes: dict[tuple[int, int], int] = {}
        for (seconds, busy_s), actions, gates, communicators in (
            # parameters come first, as ``sharing_loop.Calls`` has them; gathers pass the communicators in reverse order
            (states.parameters_s, first, True, order[::-1]),
            (states.gradients_s, last, False, order),
        ):
            for stage, action in actions.items():
                own = [one for one in communicators if seconds[one, stage] > 0]
                if not own:
                    continue
                number[action], gated[action] = states.pieces[stage], gates
                call[action], stride[action] = _NONE if gates else len(calls), len(own)
                for one in own * int(states.pieces[stage]):
                    lane = lanes.setdefault((int(compiled.rank[action]), one), len(lanes))
                    each_s, asks = seconds[one, stage] / number[action], busy_s[one, stage] / seconds[one, stage]
                    following = len(calls) + 1 if one != own[-1] else _NONE
                    opens = action if gates and one == own[-1] else _NONE
                    calls.append((lane, following, each_s, asks, opens, gates and one == own[0]))
        return cls(calls, number, gated, call, stride)


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


def _outermost(compiled: CompiledSchedule) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """First forward pass of every stage, in order of time, and the last pass of every stage that computes gradients."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for action, (stage, kind) in enumerate(zip(compiled.stage.tolist(), compiled.kind.tolist(), strict=True)):
        if kind == _FORWARD:
            first.setdefault(stage, action)
        elif kind in _GRADIENTS:
            last[stage] = action
    return first, last


def _asked(seconds: Floats, busy_s: Floats) -> Floats:
    """b/d of actions, the share of the links that each asks for; 0 where d is 0."""
    return np.divide(busy_s, seconds, out=np.zeros_like(busy_s), where=seconds > 0)
