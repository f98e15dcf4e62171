"""Traffic of every axis in the windows of ``overlap``: gradients and parameters, by communicator.

Rows of traffic arrays are those of ``overlap.TRAFFIC_ROWS``: seconds of calls, busy seconds, and seconds that hold no
multiprocessors, each by window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.collectives import Group, Timed
from scaleacross.cost_models.crossing_shapes import near_shape
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.overlap import BUSY, CALLS, EVERY_PASS, FREE, TRAFFIC_ROWS, WINDOW_NAMES
from scaleacross.cost_models.sharding import gathered_once, pass_gathers, reduced_every_pass
from scaleacross.cost_models.traffic import Flow, Volumes
from scaleacross.spec.parallelism import PASS_GATHERS, REDUCED_EVERY_PASS, SHARD_LEVELS, GridAxis, ShardLevel

GRADIENT_AXES: Final[tuple[GridAxis, ...]] = ("cp", "dp_shard", "dp_replicate")
"""Axes over which gradients are reduced."""
SHARDED: Final[tuple[GridAxis, ...]] = ("cp", "dp_shard")
"""Axes that shard parameters or gradients."""


def window_s(axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None) -> Floats:
    """Lower bound on an axis's traffic in the windows, (TRAFFIC_ROWS, n): the sum of ``least_communicators``."""
    first, *others = least_communicators(axis, volumes, group, expert_group)
    return sum(others, start=first)


def communicators(
    axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None
) -> tuple[Floats, ...]:
    """Traffic of an axis in the windows by communicator, each (TRAFFIC_ROWS, n), as degrees and shard level decide.

    cp and dp_shard carry gradients and sharded states (those of experts over their own groups); dp_replicate carries
    the all-reduce of the (sharded) gradients.

    Raises:
        ValueError: ``dp_shard`` without its expert groups.
    """
    if axis in SHARDED:
        return tuple(_state_windows(volumes, *one) for one in _sharded(axis, volumes, group, expert_group))
    out = np.zeros((3, len(WINDOW_NAMES), len(volumes.candidates)))
    if axis == "dp_replicate":
        out[:, 0] = _replicas_s(volumes, group)
    return (out.reshape(TRAFFIC_ROWS, -1),)


def least_communicators(
    axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None
) -> tuple[Floats, ...]:
    """Lower bound on ``communicators``, as bounds need it (``least_passes``).

    Traffic of every pass is timed as if its group were alone on inter-building links. Where groups of some pipeline ranks
    stay inside one building, the bound counts all ranks as such. All groups share links in the BUSY rows, so these rows
    count only groups that cross buildings. Relaxed shapes may cross inter-building links in place of other links, so
    their BUSY rows count what these links carry.
    """
    every = communicators(axis, volumes, group, expert_group)
    if axis not in SHARDED or not _shards_travel(volumes):
        return every
    apart = communicators(axis, volumes, without_trunks(group), expert_group and without_trunks(expert_group))
    if (several := volumes.candidates.pp > 1).any():
        near = communicators(axis, volumes, inside_buildings(group), expert_group and inside_buildings(expert_group))
        apart = tuple(np.where(several, inside, alone) for inside, alone in zip(near, apart, strict=True))
    relaxed = isinstance(group.shape, RelaxedShape)
    crossing = (
        communicators(axis, volumes, on_trunks(group), expert_group and on_trunks(expert_group)) if relaxed else every
    )
    for one, alone, across, of in zip(every, apart, crossing, (group, expert_group or group), strict=False):
        for rows in (CALLS, FREE):
            one[rows][EVERY_PASS] = alone[rows][EVERY_PASS]
        if relaxed:
            one[BUSY][EVERY_PASS] = across[BUSY][EVERY_PASS]
        else:
            crosses = crosses_buildings(of.shape)
            one[BUSY][EVERY_PASS] *= crosses if of.rows is None else crosses[of.rows]
    return every


def _shards_travel(volumes: Volumes) -> bool:
    """Whether parameters or gradients of any candidate travel with every micro-batch."""
    return bool(pass_gathers(volumes.candidates).any() or reduced_every_pass(volumes.candidates).any())


def crosses_buildings(shape: GroupShape) -> Bools:
    """Which groups certainly cross buildings, (n,). No relaxed shape does: it may cross such links instead of any."""
    return np.asarray((shape.span >= CAMPUS) & (not isinstance(shape, RelaxedShape)))


def without_trunks(group: Group) -> Group:
    """The groups without other groups' traffic: only their own networks and latencies limit them beyond buildings."""
    return group.kept(("without trunks",), lambda: replace(group, links=group.links.without_others(group.shape)))


def inside_buildings(group: Group) -> Group:
    """The groups, alone on links beyond domains, as if all lay like those that stay inside one building.

    Exact shapes of which every group crosses buildings are unchanged.
    """
    return group.kept(("inside",), lambda: replace(without_trunks(group), shape=_inside(group.shape)))


def _inside(shape: GroupShape) -> GroupShape:
    stays = np.asarray((shape.nearer[..., :CAMPUS, 0, :] > 1).any(axis=(-2, -1)))
    return near_shape(shape, stays | isinstance(shape, RelaxedShape))


def on_trunks(group: Group) -> Group:
    """The groups limited by inter-building links only."""
    return group.kept(("on trunks",), lambda: replace(group, links=group.links.only_trunks()))


def unshared_links_s(
    axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None = None
) -> tuple[Floats, ...]:
    """Lower bound on gradients that are reduced once in a step, for a group that is alone on inter-building links.

    Each communicator of ``communicators`` has the seconds of its calls and those in which networks are busy, (2, n). An
    axis that reduces no gradients has none. A relaxed shape may cross such links in place of other links, so its group
    counts as alone on all links. Raises ValueError as ``communicators`` does.
    """
    if axis not in GRADIENT_AXES:
        return ()
    group = without_trunks(group)
    if axis == "dp_replicate":
        return (_replicas_s(volumes, group)[:2],)
    every = _sharded(axis, volumes, group, expert_group and without_trunks(expert_group))
    # communicators without parameters on a rank send nothing, whatever the latency of a call
    return tuple(np.where(one[0] <= 0, 0.0, _reductions_s(volumes, *one)[0][:2]) for one in every)


def windows_of(flow: Flow, shard: ShardLevel) -> tuple[int, ...]:
    """Windows (indices of WINDOW_NAMES) that a flow's calls fall into; empty for calls that the step waits for."""
    if not flow.what.endswith(("gradients", "parameters")) or flow.what.startswith("key"):
        return ()
    if flow.what.endswith("parameters"):
        return (2, 3)[: PASS_GATHERS.get(shard, 0)] or (1,)
    return (3,) if shard in REDUCED_EVERY_PASS and flow.shape != "dp_replicate" else (0,)


def _sharded(
    axis: GridAxis, volumes: Volumes, group: Group, expert_group: Group | None
) -> list[tuple[Floats, Group, str]]:
    """Communicators of cp or dp_shard: parameters that each shards or reduces, (n,), group, and prefix of payloads."""
    candidates, work = volumes.candidates, volumes.work
    if axis == "cp":
        experts = np.where(candidates.expert_contexts == candidates.cp, work.expert_parameters, 0.0)
        return [(work.dense_parameters + experts, group, "")]
    if expert_group is None:
        raise ValueError("dp_shard needs its expert groups")
    dense = (work.dense_parameters / candidates.cp, group, "")
    if not work.expert_parameters.any():
        return [dense]
    return [dense, (work.expert_parameters / candidates.expert_contexts, expert_group, "expert ")]


def _replicas_s(volumes: Volumes, group: Group) -> Floats:
    """Seconds of the gradients over dp_replicate, as ``_calls_s``."""
    return _calls_s(group.all_reduce(volumes.replica_gradient_bytes / volumes.work.buckets, "gradients"), volumes)


def _state_windows(volumes: Volumes, held: Floats, group: Group, of: str) -> Floats:
    """Traffic of a communicator over which ``held`` parameters are sharded (or only reduced), (TRAFFIC_ROWS, n)."""
    candidates, gathered = volumes.candidates, np.zeros((3, len(volumes.candidates)))
    once, every = _reductions_s(volumes, held, group, of)
    if not (candidates.shard == SHARD_LEVELS.index("none")).all():
        weights = held * volumes.job.gathered_bytes / volumes.work.buckets
        gathered = _calls_s(group.gather(weights, payload=f"{of}parameters"), volumes)
    forward, backward = (np.where(pass_gathers(candidates) >= often, gathered, 0.0) for often in (1, 2))
    back = np.where(gathered_once(candidates), gathered, 0.0)
    out = np.stack([once, back, forward, backward + every], axis=1)
    return np.where(held <= 0, 0.0, out).reshape(TRAFFIC_ROWS, -1)


def _reductions_s(volumes: Volumes, held: Floats, group: Group, of: str) -> tuple[Floats, Floats]:
    """Seconds of gradients reduced once in a step, and of those reduced with every pass, each as ``_calls_s``."""
    gradients = held * volumes.job.optimizer.reduce_bytes / volumes.work.buckets
    whole = reduced = np.zeros((3, len(volumes.candidates)))
    unsharded, every = volumes.candidates.shard == SHARD_LEVELS.index("none"), reduced_every_pass(volumes.candidates)
    if unsharded.any():
        whole = np.where(unsharded, _calls_s(group.all_reduce(gradients, f"{of}gradients"), volumes), 0.0)
    if not unsharded.all():
        reduced = _calls_s(group.gather(gradients, "reduce_scatter", f"{of}gradients"), volumes)
        reduced = np.where(unsharded, 0.0, reduced)
    return whole + np.where(every, 0.0, reduced), np.where(every, reduced, 0.0)


def _calls_s(each: Timed, volumes: Volumes) -> Floats:
    """Seconds of all buckets' calls, those with a busy network, and those that hold no multiprocessors, (3, n)."""
    calls_s = volumes.work.buckets * each.time_s
    return np.stack(np.broadcast_arrays(calls_s, volumes.work.buckets * each.busy_s, calls_s * (1.0 - each.held_share)))
