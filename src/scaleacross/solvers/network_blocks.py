"""Flows of a placed plan as blocks of ``choose_network``, and the time that their options add to a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scaleacross.cost_models.network.trunks import hidden_windows
from scaleacross.cost_models.overlap import EVERY_PASS, WINDOW_NAMES, occurrences
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.cost_models.window_traffic import windows_of
from scaleacross.solvers.network_combinations import Times, rounded_s
from scaleacross.solvers.network_options import FlowOption
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.plan import Decision

ONCE: Final = frozenset(range(EVERY_PASS.start))
"""Windows of traffic that occurs once in a step. Traffic of every pass is part of the pipeline instead."""
TOGETHER: Final = (("tp",), ("cp",))
"""Communicators whose flows form one block if the step waits for them."""
IN_NO_WINDOW: Final = (0.0,) * len(WINDOW_NAMES)
SAME_STEP: Final = 1e-12
"""Relative difference up to which two step times are equal but for rounding."""

Key = tuple[str, str, str]
"""Communicator, operation and payload, which name a kind of collective."""


def blocks_of(sent: Sequence[Flow], decision: Decision) -> list[tuple[Flow, ...]]:
    """Blocks of flows whose times enter the step together, in the order in which they are sent."""
    waited = [flow for flow in sent if not once_windows(flow, decision)]
    together = [tuple(flow for flow in waited if flow.shape in names) for names in TOGETHER]
    grouped = {id(flow) for block in together for flow in block}
    alone = [(flow,) for flow in sent if id(flow) not in grouped]
    return [block for block in (*together, *alone) if block]


def once_windows(flow: Flow, decision: Decision) -> tuple[int, ...]:
    """Windows of once-a-step traffic that a flow falls into; empty if the pipeline waits for the flow."""
    return tuple(one for one in windows_of(flow, decision.shard) if one in ONCE)


@dataclass(frozen=True)
class BlockEstimator:
    """Times of combinations, derived from the step time itself.

    The schedule decides on every rank of every kind of replica how long the step waits. So a combination is evaluated
    within the whole step, in which all other collectives run their ``fastest`` choices.

    Attributes:
        step_s: choices of all collectives -> seconds of the step.
        estimated: known step times, by the times of the chosen options and the seconds that they hold multiprocessors.
    """

    decision: Decision
    volumes: Volumes
    fastest: Mapping[Key, CommunicatorChoice]
    step_s: Callable[[tuple[CommunicatorChoice, ...]], float]
    estimated: dict[tuple[tuple[Key, float, float], ...], float] = field(default_factory=dict)

    def times(self, flows: Sequence[Flow], chosen: tuple[FlowOption, ...]) -> Times:
        """Seconds that a combination adds to the step, and its seconds in each window.

        Seconds that the step waits are counted relative to the flows' fastest choices. They are negative where
        concurrent products lose less speed.
        """
        inside = once_windows(flows[0], self.decision)
        if inside:
            return self._in_windows(inside, chosen[0])
        if all(one.choice == self.fastest[one.choice.key] for one in chosen):
            return Times(0.0, *(IN_NO_WINDOW,) * 3)
        step_s, least_s = self._step_s(chosen), self._step_s(())
        # rounding alone must not make one option look better than another
        waited = 0.0 if math.isclose(step_s, least_s, rel_tol=SAME_STEP) else step_s - least_s
        return Times(waited, *(IN_NO_WINDOW,) * 3)

    def _step_s(self, chosen: tuple[FlowOption, ...]) -> float:
        """Step time with some options in place of the fastest; options with equal times are evaluated once."""
        which = tuple((one.choice.key, rounded_s(one.time_s), rounded_s(one.held_s)) for one in chosen)
        if which not in self.estimated:
            every = {**self.fastest, **{one.choice.key: one.choice for one in chosen}}
            self.estimated[which] = self.step_s(tuple(every.values()))
        return self.estimated[which]

    def _in_windows(self, inside: Sequence[int], option: FlowOption) -> Times:
        """Seconds of the calls of all buckets in their windows; exposed where the job overlaps nothing there."""
        hidden, calls = hidden_windows(self.volumes.job), float(self.volumes.work.buckets[0])
        often = [float(each[0]) for each in occurrences(self.volumes.candidates, self.volumes.work)]
        waited = sum(often[row] * calls * option.time_s for row in inside if not hidden[row])
        seconds, busy, free = (
            tuple(calls * each if row in inside and hidden[row] else 0.0 for row in range(len(WINDOW_NAMES)))
            for each in (option.time_s, option.busy_s, option.time_s - option.held_s)
        )
        return Times(waited, seconds, busy, free)
