"""Seconds of the communication of each parallel axis in a step, for given group shapes.

Sizes are those of ``traffic.Volumes``. ``Terms`` splits an axis into a serial part, which is exposed, and contributions
to the windows of ``overlap``. A serial part is *calls* times the number of waits. ``axis_calls`` gives the seconds of
one collective, which depend only on degrees, micro-batch and group shape. ``waits_of`` multiplies by how often they are
waited for. So a search computes a call once for all candidates that share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import hidden_reductions
from scaleacross.cost_models.candidates import ALL_TO_ALL, ANY_EXCHANGE, Bools, Floats, Ints
from scaleacross.cost_models.collectives import Group, Network, Timed
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.least_waits import (
    Waits,
    cp_waits,
    expert_waits,
    hidden_exchange_s,
    message_waits,
    tp_waits,
)
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.messages import Boundary
from scaleacross.cost_models.network.codec import offers
from scaleacross.cost_models.network.compression import Best
from scaleacross.cost_models.overlap import WINDOW_NAMES, occurrences
from scaleacross.cost_models.traffic import HEADS, Volumes
from scaleacross.cost_models.window_traffic import GRADIENT_AXES, least_communicators, unshared_links_s
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.plan import Decision

Networks = Literal["best", "library"] | Best | Mapping[str, Network]
"""How every communicator runs its collectives (``collectives.Network``). Those without an entry run the library's
defaults."""


def searched_network(job: Job, accelerators: Sequence[Accelerator]) -> Literal["best", "library"] | Best:
    """Network that a search assumes: the best of all options where the plan may choose, else the library's defaults."""
    if job.network.settings == "library":
        return "library"
    return best_network(job, accelerators)


def best_network(job: Job, accelerators: Sequence[Accelerator]) -> Literal["best"] | Best:
    """Best network of a job: none that it allows is faster on any of these accelerators."""
    asked, offered = job.network.compression, offers(job, accelerators)
    drivers = job.network.drivers
    if asked and offered:
        return Best(offered, asked.max_relative_error, drivers)
    return Best((), 0.0, drivers) if len(drivers) > 1 else "best"


def network_of(decision: Decision) -> Networks:
    """Network that a decision states, by communicator; the library's defaults if it states none."""
    out: dict[str, dict[tuple[str, str], CommunicatorChoice]] = {}
    for one in decision.network or ():
        out.setdefault(one.communicator, {})[one.op, one.payload] = one
    return out or "library"


@dataclass(frozen=True)
class Terms:
    """Seconds that one axis adds, for candidates at one stride, (n,), or at several, (k, n).

    Attributes:
        serial_s: exposed seconds by component. In bounds they are by accelerator type where there are several, (n,
            types). ``dp`` follows the pipeline: window traffic that the job does not overlap.
        traffic_s: traffic of each communicator in the windows, (TRAFFIC_ROWS, ..., n). Bounds know only their sum.
        alone_s, early_s, passed_s: for bounds, as of ``least_waits.Waits``.
        crosses: whether gradients cross buildings; None where that is not known.
        unshared_s: gradients of each communicator where one group has the inter-building links to itself
            (``unshared_links_s``), each (2, ..., n).
        of_experts_s: as the sum of ``traffic_s``, on the rank with most expert parameters (``mixed_passes``).
    """

    serial_s: dict[str, Floats]
    traffic_s: tuple[Floats, ...]
    alone_s: Floats | None = None
    crosses: Bools | None = None
    early_s: Floats | float = 0.0
    unshared_s: tuple[Floats, ...] = ()
    passed_s: Floats | float = 0.0
    of_experts_s: Floats | None = None

    @cached_property
    def window_s(self) -> Floats:
        """Traffic added up over all communicators, (TRAFFIC_ROWS, ..., n)."""
        return sum(self.traffic_s[1:], start=self.traffic_s[0])

    def take(self, rows: Ints) -> Terms:
        """The terms of the candidates (of the strides, if there are several) that an index array selects."""
        return Terms(
            {name: seconds[rows] for name, seconds in self.serial_s.items()},
            tuple(part[:, rows] for part in self.traffic_s),
            None if self.alone_s is None else self.alone_s[rows],
            None if self.crosses is None else self.crosses[rows],
            self.early_s if isinstance(self.early_s, float) else self.early_s[rows],
            tuple(part[:, rows] for part in self.unshared_s),
            self.passed_s if isinstance(self.passed_s, float) else self.passed_s[rows],
            None if self.of_experts_s is None else self.of_experts_s[:, rows],
        )

    @property
    def waited_s(self) -> Floats:
        """Sum of the serial components inside the pipeline."""
        waited = (seconds for name, seconds in self.serial_s.items() if name != "dp")
        return sum(waited, start=np.zeros(self.traffic_s[0].shape[1:]))

    @property
    def serial_total_s(self) -> Floats:
        """Sum of all serial components."""
        return self.waited_s + self.serial_s.get("dp", 0.0)


class Calls(NamedTuple):
    """Seconds of one call of each collective that an axis waits for, (n,); None where the axis has no such call.

    Attributes:
        gather_s: half of a gather plus a scatter of activations over tp, or the cp exchange of a layer's forward pass.
        both_s: the cp exchange of a layer's backward pass.
        exchange_s: an all-to-all of tokens.
        heads_s: an all-to-all of heads inside groups of cp_inner; each pass waits for two.
        held_s: seconds of an all-to-all of tokens, weighted by the multiprocessors held over those that kernels hold.
        busy_s: (2, n) seconds in which networks beyond the scale-up domain are busy. The rows are ``gather_s`` and
            ``both_s``; of an all-to-all of tokens both rows are the same.
        message: a pipeline message.
    """

    gather_s: Floats | None = None
    both_s: Floats | None = None
    exchange_s: Floats | None = None
    heads_s: Floats | None = None
    held_s: Floats | None = None
    busy_s: Floats | None = None
    message: Boundary | None = None

    def take(self, rows: Ints | Bools) -> Calls:
        """The rows selected by an index or mask array."""
        own = Calls.of(None if part is None else part[..., rows] for part in self[:-1])
        return own._replace(message=self.message and Boundary(*(part[rows] for part in self.message)))

    @classmethod
    def of(cls, seconds: Iterable[Floats | None]) -> Calls:
        """Calls from all columns except ``message``, in their order."""
        gather, both, exchange, heads, held, busy = seconds
        return cls(gather, both, exchange, heads, held, busy)


def chosen_calls(calls: Sequence[Calls], at: Ints) -> Calls:
    """Calls whose row i is row i of ``calls[at[i]]``; none of them has messages."""
    rows = np.arange(len(at))
    columns = zip(*(one[:-1] for one in calls), strict=True)
    return Calls.of(None if parts[0] is None else np.stack(parts, axis=-2)[..., at, rows] for parts in columns)


def axis_calls(
    axis: GridAxis, volumes: Volumes, group: Group, ep_group: Group | None = None, heads: Group | None = None
) -> Calls:
    """Seconds of one call of an axis. They depend on tp, cp, ep, pp, the micro-batch and the groups of a candidate.

    cp: keys and values travel in ``group``; ``heads`` has the groups of cp_inner ranks inside it, if any.

    tp: without sequence parallelism (tp does not divide the norms) gather and scatter are one all-reduce.

    Raises:
        ValueError: ``dp_shard`` without its expert-parallel groups.
    """
    if axis == "tp":
        if volumes.all_reduced:
            pair = group.all_reduce(volumes.hidden_bytes, "activations")
            return Calls(pair.time_s / 2, busy_s=np.stack([pair.busy_s / 2] * 2))
        gather, scatter = _gather_and_scatter(group, volumes.hidden_bytes, "activations", "activations")
        both, busy = gather.time_s + scatter.time_s, gather.busy_s + scatter.busy_s
        return Calls(both / 2, busy_s=np.stack([busy / 2] * 2))
    if axis == "cp":
        calls = _context_calls(volumes, group)
        return calls if heads is None else calls._replace(heads_s=heads_s(volumes, heads))
    if axis == "dp_shard":
        if ep_group is None:
            raise ValueError("dp_shard needs its expert-parallel groups")
        timed = ep_group.all_to_all(volumes.routed_bytes, volumes.equal_copies, "tokens")
        busy = np.stack([timed.busy_s] * 2)
        return Calls(exchange_s=timed.time_s, held_s=timed.held_share * timed.time_s, busy_s=busy)
    if axis == "pp":
        one = np.ones(len(volumes.candidates))
        message = group.neighbour_messages(volumes.hidden_bytes / volumes.candidates.tp, "activations")
        return Calls(message=Boundary(*(part * one for part in message)))
    return Calls()


def _context_calls(volumes: Volumes, group: Group) -> Calls:
    """Calls over cp: a gather forward, a gather and a scatter backward; or two all-to-alls in either pass.

    The smaller of both where the exchange is still to be chosen.
    """
    gather, scatter = _gather_and_scatter(group, volumes.kv_bytes, "keys and values", "key and value gradients")
    context, allowed = volumes.candidates.context, volumes.job.context_exchange
    swapped, least = context == ALL_TO_ALL, (context == ANY_EXCHANGE) & ("all_to_all" in allowed)
    whole = np.stack([gather.time_s, gather.time_s * volumes.regathers + scatter.time_s])
    busy = np.stack([gather.busy_s, gather.busy_s * volumes.regathers + scatter.busy_s])
    if swapped.any() or least.any():
        twice = group.all_to_all(volumes.heads_bytes, payload=HEADS)
        whole, busy = (
            np.where(swapped, 2 * two, np.where(least, np.minimum(2 * two, each), each))
            for two, each in ((twice.time_s, whole), (twice.busy_s, busy))
        )
    return Calls(whole[0], whole[1], busy_s=busy)


def heads_s(volumes: Volumes, group: Group) -> Floats:
    """Seconds of an all-to-all of heads inside groups of cp_inner, (n,); 0 where there are none."""
    inside = volumes.candidates.cp_inner > 1
    return np.where(inside, group.all_to_all(volumes.heads_bytes, payload=HEADS).time_s, 0.0)


def waits_of(volumes: Volumes, calls: Calls) -> Waits:
    """Least waits of any pipeline of the candidates for the calls of an axis (``least_waits``); 0 without calls."""
    if calls.message is not None:
        return message_waits(volumes, calls.message)
    if calls.exchange_s is not None and calls.held_s is not None:
        return expert_waits(volumes, calls.exchange_s, hidden_exchange_s(volumes, calls.exchange_s, calls.held_s))
    if calls.gather_s is None:
        nothing = np.zeros(len(volumes.candidates))
        return Waits(nothing, nothing, nothing)
    if calls.both_s is None:
        return tp_waits(volumes, calls.gather_s)
    return cp_waits(volumes, calls.gather_s, calls.both_s, calls.heads_s)


def axis_terms(
    axis: GridAxis,
    volumes: Volumes,
    shape: GroupShape,
    links: Links,
    expert_shape: GroupShape | None = None,
    ep_shape: GroupShape | None = None,
    network: Networks = "best",
    least: tuple[GroupShape, Links] | None = None,
) -> Terms:
    """Terms of one grid axis; ``dp_shard`` also needs the shapes of its expert sub-groups.

    Args:
        network: how communicators run their collectives; by name where a decision states it (``network_of``).
        least: groups and links of the pipeline rank that waits least, where ranks differ; of ``dp_shard`` those of
            all-to-alls.

    Raises:
        ValueError: ``dp_shard`` without the expert shapes.
    """
    if axis == "dp_shard" and (expert_shape is None or ep_shape is None):
        raise ValueError("dp_shard needs expert_shape and ep_shape")

    def of(name: str, shape: GroupShape, links: Links) -> Group:
        return group_of(network, name, shape, links, volumes.launch_s)

    group, expert = of(axis, shape, links), None if expert_shape is None else of("expert", expert_shape, links)
    waited, exchange = group, None if ep_shape is None else of("ep", ep_shape, links)
    if least is not None:
        waited = exchange = of("ep" if axis == "dp_shard" else axis, *least)
    waits = waits_of(volumes, axis_calls(axis, volumes, waited, exchange))
    serial: dict[str, Floats] = {"ep" if axis == "dp_shard" else axis: waits.waited_s}
    if axis == "dp_replicate":
        serial = {}
    if axis == "cp" and (volumes.candidates.cp_inner > 1).any():
        nothing = np.zeros(len(volumes.candidates))  # what waits for its two levels is timed where all is placed
        serial, waits = {}, Waits(nothing, nothing, nothing)
    crosses = np.asarray(
        (axis in GRADIENT_AXES) & (shape.span >= CAMPUS) | np.zeros(len(volumes.candidates), dtype=bool)
    )
    traffic = least_communicators(axis, volumes, group, expert)
    unshared = unshared_links_s(axis, volumes, group, expert) if crosses.any() else ()
    return waiting(volumes, Terms(serial, traffic, waits.alone_s, crosses, waits.early_s, unshared, waits.passed_s))


def group_of(network: Networks, name: str, shape: GroupShape, links: Links, launch_s: float) -> Group:
    """Groups of communicator ``name`` under a network."""
    own = network if isinstance(network, str | Best) else network.get(name, "library")
    return Group(shape, links, launch_s, network=own)


def waiting(volumes: Volumes, terms: Terms) -> Terms:
    """``terms`` with traffic that ``job.overlap`` does not overlap moved from windows to ``serial_s``."""
    overlap = volumes.job.overlap
    hidden: dict[str, Bools | bool] = {
        "gradient_reduce": hidden_reductions(overlap, volumes.candidates),
        "parameter_gather": overlap.parameter_gather,
        "shard_forward": overlap.shard_prefetch,
        "shard_backward": overlap.shard_prefetch,
    }
    kept = np.array([np.broadcast_to(hidden[name], len(volumes.candidates)) for name in WINDOW_NAMES])
    if kept.all():
        return terms
    serial, whole = dict(terms.serial_s), terms.window_s
    for row, often in enumerate(occurrences(volumes.candidates, volumes.work)):
        if not kept[row].all():
            serial["dp"] = serial.get("dp", np.zeros(whole.shape[1:])) + often * whole[row] * ~kept[row]
    # traffic has three blocks of window rows: seconds of calls, busy ones, and those without multiprocessors
    rows = np.tile(kept, (3, 1))

    def in_windows(traffic: Floats) -> Floats:
        return np.asarray(traffic * rows.reshape(len(rows), *(1,) * (traffic.ndim - 2), -1))

    of_experts = None if terms.of_experts_s is None else in_windows(terms.of_experts_s)
    return replace(terms, serial_s=serial, traffic_s=tuple(map(in_windows, terms.traffic_s)), of_experts_s=of_experts)


def _gather_and_scatter(group: Group, size_bytes: Floats, gathered: str, scattered: str) -> tuple[Timed, Timed]:
    """An all-gather and a reduce-scatter of the same tensor; ``gathered`` and ``scattered`` name their payloads."""
    return group.gather(size_bytes, payload=gathered), group.gather(size_bytes, "reduce_scatter", scattered)
