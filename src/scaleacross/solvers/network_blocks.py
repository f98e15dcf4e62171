"""Flows of a placed plan as blocks of ``choose_network``: which enter a step together, and what their options add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import axis_terms, windows_of
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.trunks import hidden_windows
from scaleacross.cost_models.overlap import WINDOW_NAMES, occurrences
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.solvers.network_combinations import Times
from scaleacross.solvers.network_options import FlowOption
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.plan import Decision

TOGETHER: Final = (("tp",), ("cp",))
"""Communicators whose flows that the step waits for enter it together."""
IN_NO_WINDOW: Final = (0.0,) * len(WINDOW_NAMES)


def blocks_of(sent: Sequence[Flow], decision: Decision) -> list[tuple[Flow, ...]]:
    """Flows that enter the step together, in the order in which they are sent."""
    waited = [flow for flow in sent if not windows_of(flow, decision.shard)]
    together = [tuple(flow for flow in waited if flow.shape in names) for names in TOGETHER]
    grouped = {id(flow) for block in together for flow in block}
    alone = [(flow,) for flow in sent if id(flow) not in grouped]
    return [block for block in (*together, *alone) if block]


@dataclass(frozen=True)
class BlockPricer:
    """Times of combinations, from the cost model of the step itself."""

    decision: Decision
    volumes: Volumes
    links: Links
    shapes: Mapping[str, GroupShape]

    def times(self, flows: Sequence[Flow], chosen: tuple[FlowOption, ...]) -> Times:
        """Seconds that the step waits for these flows, and what they add to each window."""
        inside = windows_of(flows[0], self.decision.shard)
        if inside:
            return self._in_windows(inside, chosen[0])
        axis: GridAxis = "dp_shard" if flows[0].shape == "ep" else flows[0].axis  # type: ignore[assignment]
        stated: dict[tuple[str, str], CommunicatorChoice] = {
            (flow.op, flow.what): option.choice for flow, option in zip(flows, chosen, strict=True)
        }
        rows = {name: one_row(shape) for name, shape in self.shapes.items()}
        terms = axis_terms(
            axis,
            self.volumes,
            rows[axis],
            self.links,
            rows["expert"],
            rows["ep"],
            exact=True,
            network={flows[0].shape: stated},
        )
        waited = [seconds for name, seconds in terms.serial_s.items() if name != "dp"]
        return Times(float(sum(waited, start=np.zeros(1))[0]), IN_NO_WINDOW, IN_NO_WINDOW)

    def _in_windows(self, inside: Sequence[int], option: FlowOption) -> Times:
        """Calls of all buckets in the windows that they fall into; waited for where the job hides nothing there."""
        hidden, calls = hidden_windows(self.volumes.job), float(self.volumes.work.buckets[0])
        often = [float(each[0]) for each in occurrences(self.volumes.settings, self.volumes.work)]
        waited = sum(often[row] * calls * option.time_s for row in inside if not hidden[row])
        seconds, busy = (
            tuple(calls * each if row in inside and hidden[row] else 0.0 for row in range(len(WINDOW_NAMES)))
            for each in (option.time_s, option.busy_s)
        )
        return Times(waited, seconds, busy)
