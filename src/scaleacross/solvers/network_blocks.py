"""Flows of a placed plan as blocks of ``choose_network``: which enter a step together, and what their options add to it."""

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
"""Windows of what travels once in a step; what travels with every pass is part of the pipeline."""
TOGETHER: Final = (("tp",), ("cp",))
"""Communicators whose flows that the step waits for enter it together."""
IN_NO_WINDOW: Final = (0.0,) * len(WINDOW_NAMES)
SAME_STEP: Final = 1e-12
"""Relative difference below which two prices of a step are rounding."""

Key = tuple[str, str, str]
"""Of a kind of collective: communicator, operation, payload."""


def blocks_of(sent: Sequence[Flow], decision: Decision) -> list[tuple[Flow, ...]]:
    """Flows that enter the step together, in the order in which they are sent."""
    waited = [flow for flow in sent if not once_windows(flow, decision)]
    together = [tuple(flow for flow in waited if flow.shape in names) for names in TOGETHER]
    grouped = {id(flow) for block in together for flow in block}
    alone = [(flow,) for flow in sent if id(flow) not in grouped]
    return [block for block in (*together, *alone) if block]


def once_windows(flow: Flow, decision: Decision) -> tuple[int, ...]:
    """Windows of what travels once in a step that a flow falls into; none for what the pipeline waits for."""
    return tuple(one for one in windows_of(flow, decision.shard) if one in ONCE)


@dataclass(frozen=True)
class BlockPricer:
    """Times of combinations, from the price of the step itself.

    What a step waits for is what its schedule makes of it on every rank of every kind of replicas. So a combination is priced
    with the whole step, in which all other collectives run their ``fastest`` choices.

    Attributes:
        step_s: choices of all collectives -> seconds of the step.
        priced: steps that were priced, by the times of what was chosen and how long it holds multiprocessors.
    """

    decision: Decision
    volumes: Volumes
    fastest: Mapping[Key, CommunicatorChoice]
    step_s: Callable[[tuple[CommunicatorChoice, ...]], float]
    priced: dict[tuple[tuple[Key, float, float], ...], float] = field(default_factory=dict)

    def times(self, flows: Sequence[Flow], chosen: tuple[FlowOption, ...]) -> Times:
        """Seconds that the step waits for these flows, beyond those for their fastest choices (fewer where products that run
        concurrently lose less), and those in each window."""
        inside = once_windows(flows[0], self.decision)
        if inside:
            return self._in_windows(inside, chosen[0])
        if all(one.choice == self.fastest[one.choice.key] for one in chosen):
            return Times(0.0, *(IN_NO_WINDOW,) * 3)
        step_s, least_s = self._step_s(chosen), self._step_s(())
        waited = 0.0 if math.isclose(step_s, least_s, rel_tol=SAME_STEP) else step_s - least_s
        return Times(waited, *(IN_NO_WINDOW,) * 3)

    def _step_s(self, chosen: tuple[FlowOption, ...]) -> float:
        """The step with some options in place of the fastest; those that take as long are priced once."""
        which = tuple((one.choice.key, rounded_s(one.time_s), rounded_s(one.held_s)) for one in chosen)
        if which not in self.priced:
            every = {**self.fastest, **{one.choice.key: one.choice for one in chosen}}
            self.priced[which] = self.step_s(tuple(every.values()))
        return self.priced[which]

    def _in_windows(self, inside: Sequence[int], option: FlowOption) -> Times:
        """Calls of all buckets in the windows that they fall into; waited for where the job hides nothing there."""
        hidden, calls = hidden_windows(self.volumes.job), float(self.volumes.work.buckets[0])
        often = [float(each[0]) for each in occurrences(self.volumes.candidates, self.volumes.work)]
        waited = sum(often[row] * calls * option.time_s for row in inside if not hidden[row])
        seconds, busy, free = (
            tuple(calls * each if row in inside and hidden[row] else 0.0 for row in range(len(WINDOW_NAMES)))
            for each in (option.time_s, option.busy_s, option.time_s - option.held_s)
        )
        return Times(waited, seconds, busy, free)
