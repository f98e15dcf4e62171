"""Load that the collectives of an overlap window put on inter-building links together, and the budget that a job sets.

In a window of L_w seconds of computation, inter-building links of capacity C (per direction, out of the busiest unit)
could carry C·L_w bytes. The window's own collectives share it with those that the step waits for in the same passes
(mainly pipeline messages):

    Σ calls in the window · bytes of all groups on the fullest link  ≤  fraction · C · L_w

An exposed call occurs as often in a window as passes of a micro-batch fit into the window's computation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, REGION, Levels
from scaleacross.cost_models.network.compression import sent_ratio
from scaleacross.cost_models.overlap import WINDOW_NAMES, windows
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.plan_traffic import carried_bytes
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.cost_models.window_traffic import windows_of
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import Compression
from scaleacross.spec.parallelism import PipelineChoice, ShardLevel
from scaleacross.spec.plan import Decision

TRUNKS: Final = (CAMPUS, REGION)
PASSES: Final = ("backward", "forward", "forward", "backward")
"""Pass whose computation makes up each of WINDOW_NAMES."""


def calls_in_windows(flow: Flow, volumes: Volumes, shard: ShardLevel) -> Floats:
    """Calls of one rank in one occurrence of each window, (windows,)."""
    own = windows_of(flow, shard)
    if own:
        return np.array([float(volumes.work.buckets[0]) * (row in own) for row in range(len(WINDOW_NAMES))])
    work, count = volumes.work, float(volumes.candidates.num_micro_batches[0])
    seconds = {"forward": float(work.forward_s[0]), "backward": float(work.backward_s[0])}
    # messages go with forward and backward passes alike, half of them with each
    each = {name: (flow.phases.get(name, 0.0) + flow.phases.get("message", 0.0) / 2) / count for name in seconds}  # type: ignore[call-overload]
    lengths = [float(one.length_s[0]) for one in windows(volumes.candidates, work)]
    return np.array([each[name] * length / seconds[name] for name, length in zip(PASSES, lengths, strict=True)])


def call_bytes(
    flow: Flow, algorithm: str, compression: Compression | None, shape: GroupShape, pipeline: PipelineChoice
) -> Floats:
    """Bytes that one call of all groups puts on the busiest link of each level of TRUNKS; ``shape`` has no rows."""
    ratio = sent_ratio(compression)
    return np.array(
        [
            carried_bytes(flow, algorithm, shape, level, pipeline) / ratio[level] if shape.fanout[level] > 1 else 0.0
            for level in TRUNKS
        ]
    )


def budgets_bytes(fraction: float, volumes: Volumes, levels: Levels) -> Floats:
    """Bytes that collectives may send in each window, (windows, inter-building levels)."""
    lengths = np.array([float(one.length_s[0]) for one in windows(volumes.candidates, volumes.work)])
    capacity = levels.capacity[list(TRUNKS)]
    return np.asarray(fraction * lengths[:, None] * np.where(np.isfinite(capacity), capacity, 0.0))


def hidden_windows(job: Job) -> tuple[bool, ...]:
    """Whether the job overlaps each window's collectives with computation."""
    overlap = job.overlap
    return overlap.gradient_reduce, overlap.parameter_gather, overlap.shard_prefetch, overlap.shard_prefetch


def loads_bytes(decision: Decision, cost: PlanCost, shapes: Mapping[str, GroupShape]) -> Floats:
    """Bytes that a plan with known cost puts on inter-building links in each window, (windows, levels)."""
    coded = {choice.key: choice.compression for choice in decision.network or ()}
    out = np.zeros((len(WINDOW_NAMES), len(TRUNKS)))
    for flow, one in zip(cost.sent, cost.collectives, strict=True):
        own = coded.get((flow.shape, flow.op, flow.what))
        each = call_bytes(flow, one.algorithm, own, shapes[flow.shape], decision.pipeline)
        out += calls_in_windows(flow, cost.volumes, decision.shard)[:, None] * each
    return out


def over(loads: Floats, budgets: Floats, only: Sequence[bool]) -> list[str]:
    """Descriptions of the windows in ``only`` whose load exceeds its budget."""
    return [
        f"{name}: {loads[row, at] / 1e9:.4g} GB over the inter-building links of {LINK_LEVELS[level]}, "
        f"{budgets[row, at] / 1e9:.4g} GB allowed"
        for row, name in enumerate(WINDOW_NAMES)
        for at, level in enumerate(TRUNKS)
        if only[row] and loads[row, at] > budgets[row, at] * (1 + 1e-9)
    ]
