"""What each parallel axis communicates in a step, as seconds for a given group shape.

Sizes are those of ``traffic.Volumes``. ``Terms`` splits an axis into a serial part (nothing hides it) and contributions
to the windows of ``overlap``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.collectives import Group, Links, all_reduce, all_to_all, neighbour_messages
from scaleacross.cost_models.compute import ATTENTION_BACKWARD_RATIO
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.overlap import WINDOW_NAMES, occurrences, rounds
from scaleacross.cost_models.pipeline import BoundaryDelays
from scaleacross.cost_models.pipeline_penalty import bound_penalty_s, timed_penalty_s
from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.traffic import Volumes
from scaleacross.spec.parallelism import SHARD_LEVELS, GridAxis


@dataclass(frozen=True)
class Terms:
    """Seconds that one axis adds: ``serial_s`` per component, each (n,), and ``window_s`` per window, (windows, n)."""

    serial_s: dict[str, Floats]
    window_s: Floats

    @property
    def serial_total_s(self) -> Floats:
        """Sum of the serial components."""
        total: Floats = sum(self.serial_s.values(), start=np.zeros(self.window_s.shape[1:]))
        return total


def tp_terms(volumes: Volumes, shape: GroupShape, links: Links) -> Terms:
    """The layer waits for its gather and its scatter, but for the share that ``job.overlap`` hides.

    Without sequence parallelism (tp does not divide the norms) the two are one all-reduce.
    """
    group = Group(shape, links, volumes.launch_s)
    if any(block.replicated_elementwise_bytes for block, _ in volumes.profile.blocks):
        one = group.all_reduce(volumes.hidden_bytes).time_s / 2
    else:
        one = _gather_and_scatter_s(group, volumes.hidden_bytes) / 2
    waited = (1 - volumes.job.overlap.tp_fraction) * one
    return _serial(volumes, "tp", rounds(volumes.settings, volumes.work) * volumes.work.tp_gathers * waited)


def cp_terms(volumes: Volumes, shape: GroupShape, links: Links) -> Terms:
    """Key/value exchange hides behind the attention of the same layer; gradients and parameters join the windows."""
    work, settings = volumes.work, volumes.settings
    group = Group(shape, links, volumes.launch_s)
    one = group.gather(volumes.kv_bytes).time_s * work.layers
    back = _gather_and_scatter_s(group, volumes.kv_bytes) * work.layers
    passes = 1 + volumes.full_recompute
    exposed = passes * np.maximum(0.0, one - work.attention_s)
    exposed = exposed + np.maximum(0.0, back - ATTENTION_BACKWARD_RATIO * work.attention_s)
    dense = work.dense_parameters + work.expert_parameters
    window = _state_windows(volumes, dense, group)
    return Terms({"cp": rounds(settings, work) * exposed}, window)


def dp_shard_terms(
    volumes: Volumes, shape: GroupShape, expert_shape: GroupShape, ep_shape: GroupShape, links: Links
) -> Terms:
    """Sharded states of dense and expert parameters in the windows; the experts' all-to-alls exposed in full."""
    settings, work = volumes.settings, volumes.work
    group, expert = (Group(each, links, volumes.launch_s) for each in (shape, expert_shape))
    window = _state_windows(volumes, work.dense_parameters / settings.cp, group)
    window = window + _state_windows(volumes, work.expert_parameters / settings.cp, expert)
    one = all_to_all(volumes.routed_bytes, ep_shape, links, volumes.launch_s, volumes.equal_copies).time_s
    each = work.moe_layers * (4 + 2 * volumes.full_recompute) * one
    return Terms({"ep": _expert_wait_s(volumes, each)}, window)


def _expert_wait_s(volumes: Volumes, each_s: Floats) -> Floats:
    """Seconds of a step in which nothing but all-to-alls of ``each_s`` per micro-batch runs.

    The stated share of those of one micro-batch runs beside the forward and backward pass of another, as far as these are
    long enough; the first forward and the last backward pass have no other, nor have fill and drain.
    """
    settings, work = volumes.settings, volumes.work
    hidden = np.minimum(volumes.job.experts.overlap_fraction * each_s, work.forward_s + work.backward_s)
    waited: Floats = rounds(settings, work) * each_s - (settings.num_micro_batches - 1) * hidden
    return waited


def dp_replicate_terms(volumes: Volumes, shape: GroupShape, links: Links) -> Terms:
    """All-reduce of the (sharded) gradients over replicas."""
    window = np.zeros((len(WINDOW_NAMES), len(volumes.settings)))
    window[0] = all_reduce(volumes.replica_gradient_bytes, shape, links, volumes.launch_s).time_s
    return Terms({}, window)


def pp_terms(volumes: Volumes, shape: GroupShape, links: Links, exact: bool = False) -> Terms:
    """Time that message delays add to the pipeline, and the bubble beyond ``rounds``.

    ``exact`` times the schedule where no closed form is exact; otherwise both are lower bounds (``pipeline``,
    ``pipeline_timed``). All ranks are taken to compute as long as the busiest one.
    """
    settings, work = volumes.settings, volumes.work
    message = neighbour_messages(volumes.hidden_bytes / settings.tp, shape, links)
    near, far = message.near_latency_s + message.near_occupancy_s, message.far_latency_s + message.far_occupancy_s
    crosses = message.num_far > 0
    slow = np.where(crosses, np.maximum(near, far), near)
    delays = BoundaryDelays(
        inner_s=near,
        slow_s=slow,
        num_slow=message.num_far.astype(np.int64),
        slow_tail=message.tail.astype(np.int64),
        slow_spacing=message.spacing.astype(np.int64),
        loop_s=slow,
        occupancy_s=np.maximum(message.near_occupancy_s, message.far_occupancy_s),
    )
    penalty = np.where(settings.pp > 1, bound_penalty_s(settings, work, delays), 0.0)
    bubble = np.zeros_like(penalty)
    if exact:
        penalty, bubble = timed_penalty_s(settings, work, message, penalty, volumes.order)
    if not volumes.job.overlap.pipeline_messages:
        # every rank waits for one message in and one out per chunk and micro-batch, forward and backward
        blocking = settings.num_micro_batches * 2 * settings.num_chunks * slow
        penalty = np.where(settings.pp > 1, penalty + blocking, 0.0)
    terms = _serial(volumes, "pp", penalty)
    return Terms(terms.serial_s | {"bubble": bubble}, terms.window_s)


def axis_terms(
    axis: GridAxis,
    volumes: Volumes,
    shape: GroupShape,
    links: Links,
    expert_shape: GroupShape | None = None,
    ep_shape: GroupShape | None = None,
    exact: bool = False,
) -> Terms:
    """Terms of one grid axis; ``dp_shard`` also needs the shapes of its expert sub-groups. ``exact``: see ``pp_terms``.

    Raises:
        ValueError: ``dp_shard`` without the expert shapes.
    """
    if axis == "dp_shard":
        if expert_shape is None or ep_shape is None:
            raise ValueError("dp_shard needs expert_shape and ep_shape")
        return _waiting(volumes, dp_shard_terms(volumes, shape, expert_shape, ep_shape, links))
    if axis == "pp":
        return pp_terms(volumes, shape, links, exact)
    terms = {"tp": tp_terms, "cp": cp_terms, "dp_replicate": dp_replicate_terms}[axis](volumes, shape, links)
    return _waiting(volumes, terms)


def _waiting(volumes: Volumes, terms: Terms) -> Terms:
    """``terms`` with what ``job.overlap`` does not run beside computation moved out of its window."""
    overlap, window, serial = volumes.job.overlap, terms.window_s.copy(), dict(terms.serial_s)
    hidden = {
        "gradient_reduce": overlap.gradient_reduce,
        "parameter_gather": overlap.parameter_gather,
        "shard_forward": overlap.shard_prefetch,
        "shard_backward": overlap.shard_prefetch,
    }
    for row, (name, often) in enumerate(zip(WINDOW_NAMES, occurrences(volumes.settings, volumes.work), strict=True)):
        if not hidden[name]:
            serial["dp"] = serial.get("dp", np.zeros(window.shape[1:])) + often * window[row]
            window[row] = 0.0
    return Terms(serial, window)


def _serial(volumes: Volumes, component: str, seconds: Floats) -> Terms:
    return Terms({component: seconds}, np.zeros((len(WINDOW_NAMES), len(volumes.settings))))


def _gather_and_scatter_s(group: Group, size_bytes: Floats) -> Floats:
    """One all-gather and one reduce-scatter of the same tensor."""
    return group.gather(size_bytes).time_s + group.gather(size_bytes, "reduce_scatter").time_s


def _state_windows(volumes: Volumes, held: Floats, group: Group) -> Floats:
    """Contributions of an axis over which ``held`` parameters are sharded (or only reduced), (windows, n)."""
    optimizer, shard = volumes.job.optimizer, volumes.settings.shard
    reduced = group.gather(held * optimizer.reduce_bytes, "reduce_scatter").time_s
    whole = group.all_reduce(held * optimizer.reduce_bytes).time_s
    gathered = group.gather(held * optimizer.parameter_bytes).time_s
    empty = held <= 0
    by_step = np.choose(shard, [whole, reduced, np.zeros_like(whole)])
    back = np.choose(shard, [np.zeros_like(whole), gathered, np.zeros_like(whole)])
    parameters = (shard == SHARD_LEVELS.index("parameters")).astype(float)
    out = np.stack([by_step, back, parameters * gathered, parameters * (gathered + reduced)])
    return np.where(empty, 0.0, out)
