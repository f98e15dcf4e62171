"""Communication of a plan: bytes out of the busiest unit of every level, and time of every kind of collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import Group, Timed
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, Levels
from scaleacross.cost_models.network.compression import sent_ratio
from scaleacross.cost_models.reduction_options import POINT_TO_POINT
from scaleacross.cost_models.traffic import Flow
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import ALGORITHM_NAMES, CommunicatorChoice
from scaleacross.spec.parallelism import PipelineChoice
from scaleacross.spec.plan import LevelTraffic, PredictedCollective
from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies

NOT_ENCODED: Final = sent_ratio(None)


def level_traffic(
    sent: Sequence[Flow],
    collectives: Sequence[PredictedCollective],
    shapes: Mapping[str, GroupShape],
    levels: Levels,
    pipeline: PipelineChoice,
    step_s: float,
    network: Sequence[CommunicatorChoice] = (),
) -> tuple[LevelTraffic, ...]:
    """Bytes per step out of the busiest child of every level; for all-to-alls beyond buildings, on the fullest link.

    Args:
        collectives: the algorithm of each of ``sent``, in the same order.
        network: the choices of communicators, which say what travels encoded.
    """
    ratios = {choice.key: sent_ratio(choice.compression) for choice in network if choice.compression}
    out = []
    for level in range(NUM_LEVELS):
        by_axis: dict[str, float] = {}
        for flow, one in zip(sent, collectives, strict=True):
            shape = shapes[flow.shape]
            if shape.fanout[level] > 1:
                each = carried_bytes(flow, one.algorithm, shape, level, pipeline)
                each /= ratios.get((flow.shape, flow.op, flow.what), NOT_ENCODED)[level]
                by_axis[flow.axis] = by_axis.get(flow.axis, 0.0) + each * flow.per_step
        if by_axis:
            capacity = float(levels.capacity[level])
            out.append(
                LevelTraffic(
                    level=LINK_LEVELS[level],
                    bytes_per_step=by_axis,
                    capacity_bytes_per_s=capacity,
                    utilisation=sum(by_axis.values()) / (capacity * step_s),
                )
            )
    return tuple(out)


def carried_bytes(flow: Flow, algorithm: str, shape: GroupShape, level: int, pipeline: PipelineChoice) -> float:
    """Bytes that one collective of all groups puts on the fullest link of ``level``, per direction."""
    if flow.op == "all_to_all":
        return flow.size_bytes * float(shape.exchanged[level])
    return bytes_out(flow, algorithm, shape, level, pipeline) * float(shape.crossing[level])


def bytes_out(flow: Flow, algorithm: str, shape: GroupShape, level: int, pipeline: PipelineChoice) -> float:
    """Bytes that one group sends out of one child of ``level`` in one collective, per direction.

    A ring and a double tree carry the whole stream over every level. A hierarchical algorithm carries what the level's
    own children exchange.
    """
    fanout, members, degree = float(shape.fanout[level]), float(shape.members[level]), float(shape.degree)
    if flow.op == "send":
        return flow.size_bytes * (_leaving_share(fanout, level, pipeline) if degree > 2 else 1.0)
    if flow.op == "all_to_all":
        return flow.size_bytes * members * (degree - members) / degree
    passes = 2 if flow.op == "all_reduce" else 1
    if algorithm == "tree":
        return flow.size_bytes * passes
    if algorithm == "ring":
        return flow.size_bytes * (degree - 1) / degree * passes
    return flow.size_bytes * float(shape.taken_in(by_rank=passes == 1)[level]) * passes


def _leaving_share(fanout: float, level: int, pipeline: PipelineChoice) -> float:
    """Share of a rank's 2v messages per micro-batch that leaves one child of ``level``, for the busiest child.

    Of two children the first sends v messages on and, in a loop, v−1 more by the loop-back. Of three or more, a middle
    one sends v forwards on and v backwards back; where each leaves by a link of its own (buildings, regions), a link
    carries v.
    """
    if fanout == 2 and SCHEDULES[pipeline.schedule].placement == "loop":
        return (2 * pipeline.num_chunks - 1) / (2 * pipeline.num_chunks)
    if fanout == 2:
        return 0.5
    return 0.5 if level >= CAMPUS else 1.0


def predicted(flow: Flow, group: Group, equal_copies: EqualCopies) -> PredictedCollective:
    """Size, calls and time of one kind of collective as a plan states them, alone on the network; one row."""
    timed, shape = time_of(flow, group, equal_copies), group.shape
    return PredictedCollective(
        name=f"{flow.axis} {flow.op} of {flow.what}",
        axis=flow.axis,
        op=flow.op,
        group_size=int(shape.degree[0]),
        bytes_per_rank=flow.size_bytes,
        per_step=flow.per_step,
        phases=dict(flow.phases),
        level=LINK_LEVELS[int(shape.span[0])],
        algorithm=ALGORITHM_NAMES[int(timed.algorithm[0])],
        time_s=float(timed.time_s[0]),
    )


def time_of(flow: Flow, group: Group, equal_copies: EqualCopies) -> Timed:
    """Time and algorithm of one call of ``flow``."""
    size: Floats = np.array([flow.size_bytes])
    if flow.op == "all_to_all":
        return group.all_to_all(size, equal_copies if flow.axis == "ep" else EVERY_COPY, flow.what)
    if flow.op == "all_reduce":
        return group.all_reduce(size, flow.what)
    if flow.op == "send":
        delays = group.neighbour_messages(size, flow.what)
        return Timed(delays.slowest_s, np.array([POINT_TO_POINT]), delays.busiest_s)
    return group.gather(size, flow.op, flow.what)
