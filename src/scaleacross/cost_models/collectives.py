"""Alpha-beta time of one collective over the link levels, for any array of group shapes.

Symbols: d ranks in the group, S bytes of the full tensor, level l with f_l children per parent (``fanout``), α_l
latency, W_l bandwidth at which one group sends out of a child:

    W_l = min(members_l · bandwidth_l, capacity_l / crossing_l)

Every rank of a child drives its own NIC. Groups that cross share the child's uplink, because all may send at once.

Algorithms (all-gather; reduce-scatter mirrors it, all-reduce is one of each):

* ring          (d−1)/d · S / min_l R_l + Σ_l (steps over level l, the closing step included) · α_l. One ring visits all ranks
                in the order of their device indices, split over the NICs of a scale-up domain (R_l,
                ``links.ring_bandwidth``). Every level carries the whole stream, so the level with the least bandwidth sets
                the pace.
* hierarchical  Σ_l (f_l−1)/f_l · S / W_l + Σ_l (f_l−1) · α_l. Shards travel over the outermost level first, then inwards.
                This meets the cut bound (K−1)/K · S per building at K buildings and pays few long latencies.
* tree          all-reduce only: 2 · S / min_l R_l + 2 · Σ_l ⌈log2 f_l⌉ · α_l (double binary tree, pipelined).

Over several nodes a ring or tree takes no less than NCCL's protocols need (``protocol_times``).

Sources: ring and tree volumes as in the NCCL tests' performance notes (bus bandwidth factors (d−1)/d and 2(d−1)/d);
hierarchical decomposition as in Cho et al., BlueConnect (2019). Regime: messages large enough for full bandwidth; the
fixed start-up cost of a collective is ``launch_s``. Contention with the traffic of *other* axes is not modelled here.

Where the scale-up technology has measured curves (``collective_curves``), they replace the law of level 0:

* group inside one domain       the curve of its operation, launch included
* group across domains          the algorithms above over the levels from rack outwards. Hierarchical adds its inner phase by
                                the curve of f_0 ranks. No call is faster than the curve of min(d, domain) ranks, which moves
                                fewer bytes over faster links with the same software.

An operation without a curve takes the formulas above on every level.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.collective_laws import (
    ALL_LEVELS,
    OUTER_LEVELS,
    Inner,
    Laws,
    fewest_steps,
    inner_of,
    laws,
    stated_chunks,
)
from scaleacross.cost_models.connections import Connections, slowest_laws, spread_laws
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import RACK, SCALE_UP
from scaleacross.cost_models.links import Links, exchange_s_per_byte
from scaleacross.cost_models.messages import Boundary, neighbour_messages
from scaleacross.cost_models.network.codec import is_encodable, num_encodings
from scaleacross.cost_models.network.compression import Best, coded_laws, fastest_links
from scaleacross.cost_models.network.drivers import driven
from scaleacross.cost_models.network.transport import connected, connected_at_best, library_settings, stated_settings
from scaleacross.cost_models.protocol_times import ProtocolTimes, exchange_latency_s, least_tree_share
from scaleacross.cost_models.reduction_options import (
    HIERARCHICAL,
    MEASURED,
    NONE,
    PAIRWISE,
    RING,
    TREE,
    AlgorithmTime,
    Reduction,
)
from scaleacross.spec.network import CurveOp
from scaleacross.spec.network_choice import ALGORITHM_NAMES, MOVES, CommunicatorChoice, Compression, Driver
from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies

REMEMBERED: Final = 1024
"""Most collectives that one group remembers. When the group holds so many, it forgets them all."""
REMEMBERED_SIZES: Final = 256
"""Most sizes of a call that is remembered. A decision has one size, or one per pipeline rank."""
GatherOp = Literal["all_gather", "reduce_scatter"]
Known = TypeVar("Known")


class Timed(NamedTuple):
    """Seconds of a call, index into ALGORITHM_NAMES, and seconds in which networks beyond the scale-up domain are busy (no
    latencies). ``held_share``: multiprocessors that the call holds, divided by those that kernels hold."""

    time_s: Floats
    algorithm: Ints
    busy_s: Floats
    held_share: Floats | float = 1.0


Network = Literal["best", "library"] | Best | Mapping[tuple[str, str], CommunicatorChoice]
"""How a group runs its collectives. ``best``: the best of all options under ideal connections, which bounds a search;
``Best`` where gradients may travel encoded. ``library``: the library's defaults. A mapping states choices by (operation,
payload); the library's defaults apply to all others."""


@dataclass(frozen=True)
class Group:
    """Process groups on their links: times of every collective. Figures that do not depend on a size are computed once.

    ``rows`` (n,), if given, is the row of ``shape`` for each of n sizes, because many candidates share few groups.
    ``by_type`` has the groups inside buildings on the links of each accelerator type. It is empty where the types do not
    matter or groups cross buildings. ``choices`` (n,), if given, are n ways to run one collective, a row each, in place of
    the single one of ``network``.
    """

    shape: GroupShape
    links: Links
    launch_s: float
    rows: Ints | None = None
    network: Network = "best"
    by_type: Mapping[str, Group] = field(default_factory=dict)
    choices: tuple[CommunicatorChoice, ...] = ()
    _connections: dict[Hashable, Connections] = field(default_factory=dict, init=False, repr=False, compare=False)
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _reduced: dict[Hashable, Timed] = field(default_factory=dict, init=False, repr=False, compare=False)

    def kept(self, key: Hashable, make: Callable[[], Known]) -> Known:
        """Return ``make()``, called once per key. Groups belong to one allocation, so a key names only axis and pipeline."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast("Known", self._kept[key])

    def running(self, choice: CommunicatorChoice, *others: CommunicatorChoice) -> Group:
        """The groups under one choice, or a row under each of several that differ only in connections, steps and chunks. The
        result shares the connections that are already known."""
        several = (choice, *others) if others else ()
        out = replace(self, network={(choice.op, choice.payload): choice}, choices=several)
        object.__setattr__(out, "_connections", self._connections)
        return out

    def on(self, accelerator: str) -> Group:
        """The groups on accelerators of one type."""
        return self.by_type.get(accelerator, self)

    @cached_property
    def degree(self) -> Floats:
        """Ranks of the group for each size."""
        return self._each(self.shape.degree)

    def _each(self, values: Floats) -> Floats:
        """Spread ``values`` of the shapes over all sizes."""
        return values if self.rows is None else values[self.rows]

    def gather(self, size_bytes: Floats, op: GatherOp = "all_gather", payload: str = "") -> Timed:
        """Time an all-gather of a full tensor of ``size_bytes``, or a reduce-scatter (``op`` chooses the curve)."""
        return self._reduction(op, np.asarray(size_bytes), 1, payload)

    def all_reduce(self, size_bytes: Floats, payload: str = "") -> Timed:
        """Time an all-reduce of ``size_bytes``."""
        return self._reduction("all_reduce", np.asarray(size_bytes), 2, payload)

    def _reduction(self, op: CurveOp, size: Floats, passes: int, payload: str) -> Timed:
        """``_reduce``, remembered for the groups of one decision: a search asks for the same few sizes repeatedly."""
        if self.rows is not None or size.size > REMEMBERED_SIZES:
            return self._reduce(op, size, passes, payload)
        key = op, payload, size.shape, size.tobytes()
        if key not in self._reduced:
            if len(self._reduced) >= REMEMBERED:
                self._reduced.clear()
            self._reduced[key] = self._reduce(op, size, passes, payload)
        return self._reduced[key]

    def _reduce(self, op: CurveOp, size: Floats, passes: int, payload: str) -> Timed:
        choice = self._choice(op, payload)
        if isinstance(self.network, Best) and self.network.offers and is_encodable(op, payload):
            return self._best_encoded(op, size, passes, self.network)
        found = self._way(op, size, passes, choice, _allowed(self.network if choice is None else choice))
        return self._driven(op, choice, found, lambda group: group._reduction(op, size, passes, payload))

    def _driven(
        self, op: CurveOp, choice: CommunicatorChoice | None, kernels: Timed, again: Callable[[Group], Timed]
    ) -> Timed:
        """Time under the driver of ``choice``; never less than ``kernels``, the time by kernels (``network.drivers``)."""
        drives = self.links.drives
        if isinstance(self.network, Best) and drives is not None and op in MOVES:
            return kernels._replace(held_share=min(map(drives.held_share, self.network.drivers)))
        if choice is None or choice.driver == "multiprocessors" or drives is None:
            return kernels
        network: dict[tuple[str, str], CommunicatorChoice] = {}
        network[choice.op, choice.payload] = choice.model_copy(update={"driver": "multiprocessors"})
        other = again(replace(self.by(choice.driver), network=network))
        time, busy = (np.maximum(getattr(kernels, name), getattr(other, name)) for name in ("time_s", "busy_s"))
        return Timed(time, kernels.algorithm, busy, drives.held_share(choice.driver))

    def by(self, driver: Driver) -> Group:
        """The groups as ``driver`` runs them, which is never faster than kernels (``network.drivers``).

        Raises:
            InputError: the driver is the host, and the accelerator states no figures of it.
        """
        drives = self.links.drives
        if driver == "multiprocessors" or drives is None:
            return self
        return replace(self, links=driven(self.links, driver), launch_s=self.launch_s + drives.start_s(driver))

    def _way(
        self,
        op: CurveOp,
        size: Floats,
        passes: int,
        choice: CommunicatorChoice | None,
        allowed: Collection[int],
        by: Callable[[Bools], tuple[Laws, ...]] | None = None,
    ) -> Timed:
        """Time of the fastest among ``allowed`` algorithms; ``by`` supplies laws in place of the group's own."""
        connections = self._connected(choice)
        chunks = None if choice is None else stated_chunks(size, *(self.choices or (choice,)))

        def across(counted: Bools) -> Timed:
            library = None if by or counted is ALL_LEVELS else connections.protocols
            inner = self._inner(op) if counted is OUTER_LEVELS and HIERARCHICAL in allowed else None
            share = self._tree_share(library, counted) if TREE in allowed and op == "all_reduce" else None
            asked = Reduction(op, size, passes, allowed, self.launch_s, library, chunks, inner, share)
            return self._best(asked.options(by(counted) if by else connections.laws(counted, by_rank=passes == 1)))

        return self._timed(op, size, across)

    def _tree_share(self, library: ProtocolTimes | None, counted: Bools) -> Floats | None:
        """``Reduction.tree_share``. Bounds assume the least share that reduction in switches leaves."""
        if counted is ALL_LEVELS or not (library or self._bounds):
            return None
        return library.share if library else self._each(least_tree_share(self.shape))

    def _best_encoded(self, op: CurveOp, size: Floats, passes: int, best: Best) -> Timed:
        """Time of the best way, of encoded ones within the error limit; a lower bound for a relaxed shape."""
        out = self._way(op, size, passes, None, _allowed("best"))
        if isinstance(self.shape, RelaxedShape):
            fast = fastest_links(self.links, best.offers)

            def least(counted: Bools) -> tuple[Laws, ...]:
                return (spread_laws(laws(self.shape, fast, counted), self._each),)

            bound = self._way(op, size, passes, None, _allowed("best"), least)
            return Timed(np.minimum(out.time_s, bound.time_s), out.algorithm, np.minimum(out.busy_s, bound.busy_s))
        for offer in best.offers:
            for code, steps in ((RING, None), (HIERARCHICAL, fewest_steps(self.shape.fanout))):
                error = offer.relative_error * num_encodings(op, self.shape, offer.levels, steps)
                allowed = (error > 0) & (error <= best.max_relative_error)
                kept = allowed if self.rows is None else allowed[self.rows]
                if not kept.any():
                    continue

                def by(counted: Bools, offer: Compression = offer) -> tuple[Laws, ...]:
                    kinds, by_rank = self.shape.kinds, passes == 1
                    return slowest_laws(coded_laws(kinds, self.links, counted, offer, by_rank=by_rank), self._each)

                coded = self._way(op, size, passes, None, (code,), by)
                faster = kept & (coded.time_s < out.time_s)
                out = Timed(*(np.where(faster, new, old) for new, old in zip(coded, out, strict=True)))
        return out

    def all_to_all(self, sent_bytes: Floats, copies: EqualCopies = EVERY_COPY, payload: str = "") -> Timed:
        """Time an all-to-all in which every rank sends ``sent_bytes`` in all, evenly to the d ranks, itself included.

        The share (d − members_l)/d of a rank's bytes leaves its child of level l over its own adapter. Uplinks and
        inter-building links carry what all groups send over them (``GroupShape.exchanged``). Connection settings do not
        reduce these: a rank has a connection to every peer, each for 1/d of its bytes, and the slowest takes
        S / (d · rate_l). With equal ``copies`` a token is sent once to each child that needs it (``distinct_share``, from the
        fewest members in a child).
        """
        shape, size, degree = self.shape, np.asarray(sent_bytes), self.shape.degree[..., None]
        choice = self._choice("all_to_all", payload)
        links = self._connected(choice).links
        ports = links if links.adapter is None else links._replace(bandwidth=links.adapter)
        each = exchange_s_per_byte(shape, ports) * copies.distinct_share(degree / shape.members)
        latency = np.where(shape.fanout > 1, links.latency, 0.0)
        if links.adapter is not None:
            each = np.maximum(each, np.where(shape.fanout > 1, 1 / (degree * links.bandwidth), 0.0))
        inside = size * copies.distinct_share(shape.degree)

        def across(counted: Bools) -> Timed:
            s_per_byte, fixed_s = ((counted * figures).max(axis=-1) for figures in (each, latency))
            moving, waiting = size * self._each(s_per_byte), self._each(fixed_s)
            if counted is OUTER_LEVELS and not copies.number:
                waiting = np.maximum(waiting, self._each(exchange_latency_s(shape, links)) - self.launch_s)
            return self._best([(PAIRWISE, moving + waiting, moving)])

        found = self._timed("all_to_all", inside, across)
        return self._driven("all_to_all", choice, found, lambda group: group.all_to_all(sent_bytes, copies, payload))

    def neighbour_messages(self, size_bytes: Floats, payload: str = "") -> Boundary:
        """Delay of a message of ``size_bytes`` to the next rank (``messages.neighbour_messages``)."""
        return neighbour_messages(size_bytes, self.shape, self._connected(self._choice("send", payload)).links)

    def attained(self, op: str, algorithm: int, payload: str = "") -> Floats:
        """Bytes/s that flows of a call attain on the uplink of a child of every level, (n, NUM_LEVELS), under hashing."""
        links = self._connected(self._choice(op, payload)).links
        if op == "all_to_all" and links.egress is not None:
            return np.atleast_2d(links.egress)
        share = links.ring_share if algorithm in (RING, TREE) and links.ring_share is not None else 1.0
        return np.atleast_2d(links.capacity * share)

    def _choice(self, op: str, payload: str) -> CommunicatorChoice | None:
        return None if isinstance(self.network, str | Best) else self.network.get((op, payload))

    def _timed(self, op: CurveOp, size: Floats, across: Callable[[Bools], Timed]) -> Timed:
        """Time by the curve of ``op`` inside a domain and by ``across`` beyond it; without a curve all by ``across``."""
        links, degree = self.links, self.degree
        if (self.shape.degree <= 1).all():  # ranks that send nothing
            nothing = np.zeros(np.broadcast_shapes(size.shape, degree.shape))
            return Timed(nothing, np.full(nothing.shape, NONE), nothing)
        if links.curves is None:
            return across(ALL_LEVELS)
        time = inside = curve_s(links.curves, links.curve, op, degree, size)
        algorithm, busy = np.broadcast_to(np.where(degree > 1, MEASURED, NONE), inside.shape), np.zeros(inside.shape)
        if self._crosses.any():
            outside = across(OUTER_LEVELS)
            time = np.where(self._crosses, np.maximum(outside.time_s, inside), inside)
            algorithm = np.where(self._crosses, outside.algorithm, algorithm)
            busy = np.where(self._crosses, outside.busy_s, busy)
        unknown = np.isnan(inside)
        if unknown.any():
            plain = across(ALL_LEVELS)
            time = np.where(unknown, plain.time_s, time)
            algorithm = np.where(unknown, plain.algorithm, algorithm)
            busy = np.where(unknown, plain.busy_s, busy)
        return Timed(time, algorithm, busy)

    def _inner(self, op: CurveOp) -> Inner | None:
        """Inner phases of a hierarchical collective, by the curves of f_0 ranks. A relaxed shape does not know f_0."""
        links = self.links
        if links.curves is None or isinstance(self.shape, RelaxedShape) or not self._moves_inside:
            return None
        return inner_of(op, self._each(self.shape.fanout[..., SCALE_UP]), links.curves, links.curve)

    def _best(self, options: list[AlgorithmTime]) -> Timed:
        """The fastest option (algorithm code, seconds, busy seconds); in a bound ``busy_s`` is the least of all."""
        code, time, busy = options[0]
        winner = np.asarray(code)
        for code, other, moving in options[1:]:
            faster = other < time
            busy = np.minimum(busy, moving) if self._bounds else np.where(faster, moving, busy)
            winner, time = np.where(faster, code, winner), np.minimum(time, other)
        alone = self.degree <= 1
        return Timed(
            np.where(alone, 0.0, time + self.launch_s), np.where(alone, NONE, winner), np.where(alone, 0.0, busy)
        )

    @property
    def _bounds(self) -> bool:
        """Whether times are lower bounds over all choices of a plan, or over all groups of a relaxed shape."""
        return self.network == "best" or isinstance(self.network, Best) or isinstance(self.shape, RelaxedShape)

    @cached_property
    def _crosses(self) -> Bools:
        crosses = np.any(self.shape.fanout[..., RACK:] > 1, axis=-1)
        return crosses if self.rows is None else crosses[self.rows]

    @cached_property
    def _moves_inside(self) -> bool:
        """Whether some group that leaves its scale-up domain has several ranks there."""
        inside, beyond = self.shape.fanout[..., SCALE_UP] > 1, np.any(self.shape.fanout[..., RACK:] > 1, axis=-1)
        return bool(np.any(inside & beyond))

    def _connected(self, choice: CommunicatorChoice | None) -> Connections:
        """The groups on their links under the connection settings of ``choice``."""
        if choice is None:
            return self._default_connections
        every = self.choices or (choice,)
        key = choice.compression, *((one.connections, one.num_channels, one.steps) for one in every)
        if key not in self._connections:
            links, steps = connected(self.links, self.shape, stated_settings(*every)), [one.steps for one in every]
            self._connections[key] = Connections(self.shape, links, self._each, steps, choice.compression)
        return self._connections[key]

    @cached_property
    def _default_connections(self) -> Connections:
        links, best = self.links, self.network == "best" or isinstance(self.network, Best)
        if not best and isinstance(self.shape, RelaxedShape):
            links = connected_at_best(links, library_settings(links))
        elif not best:
            links = connected(links, self.shape, library_settings(links))
        return Connections(self.shape, links, self._each)


def _allowed(network: Network | CommunicatorChoice) -> frozenset[int]:
    """Codes of the algorithms that reductions may run."""
    if isinstance(network, CommunicatorChoice) and network.algorithm != "library":
        return frozenset({ALGORITHM_NAMES.index(network.algorithm)})
    best = network == "best" or isinstance(network, Best)
    return frozenset({RING, TREE, HIERARCHICAL}) if best else frozenset({RING, TREE})
