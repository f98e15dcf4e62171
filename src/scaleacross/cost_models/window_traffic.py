"""What every axis sends in the windows of ``overlap``: gradients and parameters, by communicator."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.collectives import Group, Timed
from scaleacross.cost_models.overlap import TRAFFIC_ROWS, WINDOW_NAMES
from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.sharding import gathered_once, pass_gathers, reduced_every_pass
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.spec.parallelism import PASS_GATHERS, REDUCED_EVERY_PASS, SHARD_LEVELS, GridAxis, ShardLevel

GRADIENT_AXES: Final[tuple[GridAxis, ...]] = ("cp", "dp_shard", "dp_replicate")
"""Axes over which gradients are reduced."""


def window_s(axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None) -> Floats:
    """What an axis adds to the windows, (TRAFFIC_ROWS, n): ``communicators`` added up."""
    first, *others = communicators(axis, volumes, group, expert_group)
    return sum(others, start=first)


def communicators(
    axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None
) -> tuple[Floats, ...]:
    """Traffic of an axis in the windows by communicator, each (TRAFFIC_ROWS, n); degrees, chunks and shard level decide it.

    cp and dp_shard: gradients and sharded states (of the experts over their own groups); dp_replicate: all-reduce of the
    (sharded) gradients.

    Raises:
        ValueError: ``dp_shard`` without its expert groups.
    """
    settings, work = volumes.settings, volumes.work
    if axis == "cp":
        experts = np.where(settings.expert_contexts == settings.cp, work.expert_parameters, 0.0)
        return (_state_windows(volumes, work.dense_parameters + experts, group),)
    if axis == "dp_shard":
        if expert_group is None:
            raise ValueError("dp_shard needs its expert groups")
        dense = _state_windows(volumes, work.dense_parameters / settings.cp, group)
        if not work.expert_parameters.any():
            return (dense,)
        parted = work.expert_parameters / settings.expert_contexts
        return dense, _state_windows(volumes, parted, expert_group, "expert ")
    out = np.zeros((3, len(WINDOW_NAMES), len(settings)))
    if axis == "dp_replicate":
        out[:, 0] = _calls_s(group.all_reduce(volumes.replica_gradient_bytes / work.buckets, "gradients"), volumes)
    return (out.reshape(TRAFFIC_ROWS, -1),)


def trunks_apart_s(
    axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None
) -> tuple[Floats, ...]:
    """Of gradients in ``communicators`` the seconds, and those in which networks are busy, each (2, n), at least, where no other
    group stands in a group's way on trunks; of relaxed shapes nowhere, as they may cross trunks in place of other links."""
    if axis not in GRADIENT_AXES:
        return ()
    own, expert = (one and replace(one, links=one.links.without_others(one.shape)) for one in (group, expert_group))
    rows = [0, len(WINDOW_NAMES)]
    return tuple(part[rows] for part in communicators(axis, volumes, own or group, expert))


def windows_of(flow: Flow, shard: ShardLevel) -> tuple[int, ...]:
    """Windows (indices of WINDOW_NAMES) that every call of a flow falls into; none for what the step waits for."""
    if not flow.what.endswith(("gradients", "parameters")) or flow.what.startswith("key"):
        return ()
    if flow.what.endswith("parameters"):
        return (2, 3)[: PASS_GATHERS.get(shard, 0)] or (1,)
    return (3,) if shard in REDUCED_EVERY_PASS and flow.shape != "dp_replicate" else (0,)


def _state_windows(volumes: Volumes, held: Floats, group: Group, of: str = "") -> Floats:
    """Traffic of a communicator over which ``held`` parameters are sharded (or only reduced), (TRAFFIC_ROWS, n)."""
    optimizer, shard, pieces = volumes.job.optimizer, volumes.settings.shard, volumes.work.buckets
    gradients, weights = held * optimizer.reduce_bytes / pieces, held * volumes.job.gathered_bytes / pieces
    whole = reduced = gathered = np.zeros((3, len(volumes.settings)))
    unsharded = shard == SHARD_LEVELS.index("none")
    if unsharded.any():
        whole = np.where(unsharded, _calls_s(group.all_reduce(gradients, f"{of}gradients"), volumes), 0.0)
    if not unsharded.all():
        reduced = _calls_s(group.gather(gradients, "reduce_scatter", f"{of}gradients"), volumes)
        reduced = np.where(unsharded, 0.0, reduced)
        gathered = _calls_s(group.gather(weights, payload=f"{of}parameters"), volumes)
    settings, every = volumes.settings, reduced_every_pass(volumes.settings)
    forward, backward = (np.where(pass_gathers(settings) >= often, gathered, 0.0) for often in (1, 2))
    by_step = whole + np.where(every, 0.0, reduced)
    back = np.where(gathered_once(settings), gathered, 0.0)
    out = np.stack([by_step, back, forward, backward + np.where(every, reduced, 0.0)], axis=1)
    return np.where(held <= 0, 0.0, out).reshape(TRAFFIC_ROWS, -1)


def _calls_s(each: Timed, volumes: Volumes) -> Floats:
    """Seconds of the calls for all buckets, those in which the network is busy, and those that hold nothing, (3, n)."""
    calls_s = volumes.work.buckets * each.time_s
    return np.stack(np.broadcast_arrays(calls_s, volumes.work.buckets * each.busy_s, calls_s * (1.0 - each.held_share)))
