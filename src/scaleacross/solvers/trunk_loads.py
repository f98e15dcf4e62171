"""Loads of options on inter-building links by overlap window, in whole KiB for ``choose_network`` (u, U)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.network.trunks import TRUNKS, budgets_bytes, call_bytes, calls_in_windows, hidden_windows
from scaleacross.cost_models.overlap import WINDOW_NAMES
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.solvers.network_options import FlowOption
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision

KIB: Final = 1024
"""Unit of link loads, counted in whole numbers so that the model rounds nothing."""


@dataclass(frozen=True)
class TrunkLoads:
    """Loads and budgets in KiB, rounded so that the model stays conservative: loads up, budgets down.

    Both have one entry per inter-building level for every window in which the job overlaps communication.
    """

    decision: Decision
    volumes: Volumes
    shapes: Mapping[str, GroupShape]
    hidden: tuple[bool, ...]
    budgets: tuple[int, ...]

    @classmethod
    def of(
        cls, job: Job, decision: Decision, volumes: Volumes, shapes: Mapping[str, GroupShape], levels: Levels
    ) -> TrunkLoads | None:
        """The loads and budgets of a placed decision; None where the job sets no limit."""
        fraction, hidden = job.network.max_trunk_fraction, hidden_windows(job)
        if fraction is None:
            return None
        allowed = budgets_bytes(fraction, volumes, levels)
        budgets = (int(one / KIB) for row, own in zip(allowed, hidden, strict=True) if own for one in row)
        return cls(decision, volumes, shapes, hidden, tuple(budgets))

    def loaded(self, flow: Flow, option: FlowOption) -> FlowOption:
        """The option with the load that one call of all groups puts on the links, KiB by level."""
        own = option.choice
        each = call_bytes(flow, own.algorithm, own.compression, self.shapes[flow.shape], self.decision.pipeline)
        return replace(option, trunk_load=tuple(math.ceil(size / KIB) for size in each))

    def combined_load(self, flows: Sequence[Flow], chosen: tuple[FlowOption, ...]) -> tuple[int, ...]:
        """Load of a combination of options, KiB by window and level."""
        total = np.zeros((len(WINDOW_NAMES), len(TRUNKS)))
        for flow, option in zip(flows, chosen, strict=True):
            calls = calls_in_windows(flow, self.volumes, self.decision.shard)
            total += calls[:, None] * np.array(option.trunk_load)
        return tuple(math.ceil(load) for row, own in zip(total, self.hidden, strict=True) if own for load in row)
