"""Options of each communicator by kind of collective: algorithms and chunks on differently set connections.

Connections per crossed level beyond the scale-up domain, in the order in which they are preferred at equal time:

* ample      HEADROOM times B·RTT in flight, which keeps the rank's share of the level busy over a round trip. Segments
             are sprayed over SPREAD queue pairs, so that hashing does not pile flows on one link. A rank shares the
             level with all ranks of its group there (hierarchical), or in one scale-up domain (rings, trees)
* paced      B·RTT in flight, otherwise the same
* library    NCCL's defaults: a queue pair and 4 MiB per channel

On levels that neither hash flows nor are too long for the defaults, the first two are the defaults too. Each comes with
as many channels as saturate the port, and with one. Where these do not all fit the budgets of the job,
``network_between`` asks for more: paced connections with less in flight, over fewer queue pairs, on half as many
channels (``Between``). The algorithms are those of ``cost_models.network.options``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools
from scaleacross.cost_models.collectives import Group, Timed
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.codec import crosses, encodings_of, is_encodable
from scaleacross.cost_models.network.options import Way, ways
from scaleacross.cost_models.network.resources import Held, crossed_beyond, held
from scaleacross.cost_models.network.transport import channels_of
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.network_choice import (
    LIBRARY_OUTSTANDING,
    LIBRARY_SEGMENT_BYTES,
    MOVES,
    Algorithm,
    CommunicatorChoice,
    Compression,
    Connection,
    Driver,
)
from scaleacross.workloads.equal_copies import EqualCopies

HEADROOM: Final = 2.0
"""Assumed: bytes in flight per B·RTT. 1 leaves no room for jitter; 2 covers one lost round."""
SPREAD: Final = 16
"""Queue pairs that give hashing enough entropy: Llama 3 (arXiv 2407.21783, section 3.3.1) uses 16 flows between two GPUs."""
SEGMENT_BYTES: Final = 1 << 20
"""torchcomms 59426ba4: segment that ships with NCCL_CTRAN_IB_QP_CONFIG_XDC."""
SEGMENT_STEP_BYTES: Final = 64 * 1024
"""Assumed: a smaller message is dominated by per-message cost."""
MAX_QUEUE_PAIRS: Final = 128
MAX_OUTSTANDING: Final = 256
"""torchcomms 59426ba4: limits of a connection."""
WAITED_CLASS: Final = 200
HIDDEN_CLASS: Final = 212
"""Traffic classes of exposed and of overlapped traffic. Sites map them to queues; no step time depends on them.

The values are those of NCCLX's own example for pipeline and data parallelism (NCCL_CTRAN_IB_PG_TRAFFIC_CLASS).
"""


@dataclass(frozen=True)
class FlowOption:
    """One way to run one kind of collective.

    Attributes:
        time_s, busy_s: seconds of one call, and of them those in which the network is busy.
        held: channels, queue pairs and buffer bytes that it keeps open on one accelerator.
        trunk_load: its load on inter-building links in KiB (``TrunkLoads``), empty if the job does not bound that load.
        held_share: multiprocessors that its driver holds, as a share of what kernels hold.
    """

    choice: CommunicatorChoice
    time_s: float
    busy_s: float
    held: Held
    trunk_load: tuple[int, ...] = ()
    held_share: float = 1.0

    @property
    def held_s(self) -> float:
        """Seconds of its time that hold multiprocessors."""
        return self.time_s * self.held_share

    @property
    def amounts(self) -> tuple[int, ...]:
        """Resources that it keeps open, then its load on inter-building links."""
        return (*self.held, *self.trunk_load)


class Between(NamedTuple):
    """Settings to try between full rate and the library's defaults; empty settings add nothing.

    Attributes:
        windows: upper limits on the bytes in flight to one peer, on every level.
        spreads: numbers of queue pairs to spray over.
        channels: numbers of channels to try, of those below what saturates the port.
    """

    windows: tuple[float, ...] = ()
    spreads: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()


NOTHING_BETWEEN: Final = Between()
KERNELS: Final[tuple[Driver, ...]] = ("multiprocessors",)


@dataclass(frozen=True)
class Wire:
    """Inputs for the options of a flow: the group, its links, launch time (s), copies of a token, hashed levels.

    ``offers`` are the codecs to try, and ``max_relative_error`` bounds the errors of all encodings of a result
    together. ``drivers`` are tried for collectives that only move bytes. Other drivers than kernels are never faster,
    so communication that overlaps with nothing gets none. ``between`` adds connections.
    """

    shape: GroupShape
    links: Links
    launch_s: float
    equal_copies: EqualCopies
    hashed: Bools
    offers: tuple[Compression, ...] = ()
    max_relative_error: float = 0.0
    drivers: tuple[Driver, ...] = KERNELS
    between: Between = NOTHING_BETWEEN

    @cached_property
    def group(self) -> Group:
        """The group with the library's default network."""
        return Group(one_row(self.shape), self.links, self.launch_s, network="library")


def flow_options(flow: Flow, wire: Wire, *, waited: bool) -> list[FlowOption]:
    """Every option of a flow, fastest first; equal times in the order of preference, plain before encoded.

    Args:
        waited: whether the step waits for the flow, which decides its traffic class.
    """
    beyond = crossed_beyond(wire.shape)
    choices: list[CommunicatorChoice] = []
    for connections, channels in _settings(wire, beyond):
        bare = CommunicatorChoice(
            communicator=flow.shape,
            op=flow.op,
            payload=flow.what,
            algorithm="point_to_point" if flow.op == "send" else "library",
            chunk_bytes=flow.size_bytes,
            num_channels=channels,
            connections=connections,
            traffic_class=None if not beyond else WAITED_CLASS if waited else HIDDEN_CLASS,
        )
        choices += _ways(flow, bare, wire)
    timed = zip(choices, _seconds(flow, choices, wire), strict=True)
    out = [FlowOption(choice, *seconds, held(choice, wire.shape)) for choice, seconds in timed]
    if flow.op in MOVES:
        out += [by for option in out for by in _otherwise_driven(flow, option, wire)]
    return sorted(out, key=lambda option: option.time_s)


def _otherwise_driven(flow: Flow, option: FlowOption, wire: Wire) -> Iterator[FlowOption]:
    """Yield the same option with every other driver that the job allows."""
    for driver in wire.drivers:
        if driver == "multiprocessors":
            continue
        choice = option.choice.model_copy(update={"driver": driver})
        timed = choice_time(flow, choice, wire)
        seconds, busy = float(timed.time_s[0]), float(timed.busy_s[0])
        yield FlowOption(choice, seconds, busy, held(choice, wire.shape), held_share=float(timed.held_share))


def common_options(flow: Flow, wires: Sequence[Wire], *, waited: bool) -> list[FlowOption]:
    """The ``flow_options`` of any of the wires, each with the mean of its times on all of them, fastest first."""
    if len(wires) == 1:
        return flow_options(flow, wires[0], waited=waited)
    out = []
    for option, on in _on_wires(flow, wires, wires, waited):
        seconds, busy = np.mean(on, axis=0).tolist()
        out.append(replace(option, time_s=seconds, busy_s=busy))
    return sorted(out, key=lambda option: option.time_s)


def queued_options(flow: Flow, alone: Wire, shared: Wire, *, waited: bool) -> list[FlowOption]:
    """Options of a flow whose inter-building links are a queue: the fastest first.

    ``alone`` is the group that has these links to itself, ``shared`` the group in which they carry the traffic of all
    ranks. An option that keeps the shared links busy longer than the best option gets a proportionally longer time.
    Held resources, levels and encoding errors are those of ``shared``, which has the most peers. ``waited`` is the
    argument of ``flow_options``.
    """
    alike = ((alone.shape.fanout > 1) == (shared.shape.fanout > 1)).all()
    asked = replace(alone, offers=()) if alike else None
    every = list(_on_wires(flow, (asked, shared), (alone, shared), waited))
    least_s = min(time_s for _, ((time_s, _), _) in every)
    least_busy_s = min(busy_s for _, (_, (_, busy_s)) in every)
    # the best option of a lone rank sets the ratio, so only extra seconds on the shared links lengthen the others
    scale = least_s / least_busy_s if least_busy_s > 0 else 0.0
    out = [
        replace(option, time_s=max(time_s, scale * all_busy_s), busy_s=busy_s, held=held(option.choice, shared.shape))
        for option, ((time_s, busy_s), (_, all_busy_s)) in every
    ]
    return sorted(out, key=lambda option: option.time_s)


Seconds = tuple[float, float]
"""Seconds of one call, and of them those in which the network is busy."""


def _on_wires(
    flow: Flow, asked: Sequence[Wire | None], wires: Sequence[Wire], waited: bool
) -> Iterator[tuple[FlowOption, list[Seconds]]]:
    """Yield every option of the wires in ``asked`` with its seconds on each of ``wires``.

    Both sequences match one by one; an asked wire may offer other codecs. None skips that wire's own choices.
    """
    known = [
        {option.choice.model_dump_json(): option for option in flow_options(flow, wire, waited=waited)} if wire else {}
        for wire in asked
    ]
    every = {key: option for options in known for key, option in options.items()}
    seconds = []
    for options, wire in zip(known, wires, strict=True):
        own = {key: (option.time_s, option.busy_s) for key, option in options.items()}
        missing = [key for key in every if key not in own]
        own |= zip(missing, _seconds(flow, [every[key].choice for key in missing], wire), strict=True)
        seconds.append(own)
    for key, option in every.items():
        yield option, [own[key] for own in seconds]


def _seconds(flow: Flow, choices: Sequence[CommunicatorChoice], wire: Wire) -> list[Seconds]:
    """Seconds of every choice under the cost model of a plan; equal algorithms and codecs form one array."""
    alike: defaultdict[object, list[int]] = defaultdict(list)
    for row, choice in enumerate(choices):
        alike[choice.algorithm, choice.compression].append(row)
    out: dict[int, Seconds] = {}
    for rows in alike.values():
        timed = time_of(flow, wire.group.running(*(choices[row] for row in rows)), wire.equal_copies)
        time, busy, _ = np.broadcast_arrays(timed.time_s, timed.busy_s, rows)
        out |= zip(rows, zip(time.tolist(), busy.tolist(), strict=True), strict=True)
    return [out[row] for row in range(len(choices))]


def _ways(flow: Flow, bare: CommunicatorChoice, wire: Wire) -> Iterator[CommunicatorChoice]:
    """Yield ``bare`` with every algorithm that the flow can run, plain before encoded."""
    if flow.op == "send" or flow.op == "all_to_all":
        inside = not crossed_beyond(wire.shape)
        plain: Algorithm = "point_to_point" if flow.op == "send" else "library" if inside else "pairwise"
        yield bare.model_copy(update={"algorithm": plain})
        return
    for offer in (None, *(wire.offers if is_encodable(flow.op, flow.what) else ())):
        if offer is not None and not crosses(wire.shape, offer.levels):
            continue
        for way in ways(flow.op, flow.size_bytes, wire.shape, wire.links, offer):
            choice = _choice(bare, way)
            if offer is not None:
                choice = _encoded(choice, offer, wire.shape)
                if choice.compression and choice.compression.relative_error > wire.max_relative_error:
                    continue
            yield choice


def _encoded(choice: CommunicatorChoice, offer: Compression, shape: GroupShape) -> CommunicatorChoice:
    """The choice with a codec on its levels that the group crosses, and the error of all its encodings."""
    error = offer.relative_error * float(encodings_of(choice, shape, offer.levels))
    levels = tuple(level for level in offer.levels if crosses(shape, (level,)))
    own = offer.model_copy(update={"relative_error": error, "levels": levels})
    return choice.model_copy(update={"compression": own})


def _choice(bare: CommunicatorChoice, way: Way) -> CommunicatorChoice:
    cut = {"num_chunks": way.num_chunks, "chunk_bytes": bare.chunk_bytes / way.num_chunks}
    return bare.model_copy(update={"algorithm": way.algorithm, "steps": way.steps, **cut})


def choice_time(flow: Flow, choice: CommunicatorChoice, wire: Wire) -> Timed:
    """Time of one call under a choice, by the cost model of a plan."""
    return time_of(flow, wire.group.running(choice), wire.equal_copies)


def _settings(wire: Wire, beyond: list[int]) -> Iterator[tuple[tuple[Connection, ...], int]]:
    """Yield the connections and the number of channels to try; inside a scale-up domain there is nothing to set."""
    if not beyond:
        yield (), 0
        return
    full = int(max(channels_of(wire.links.bandwidth)[level] for level in beyond))
    everybody = wire.shape.members
    # in rings and trees only the ranks of one scale-up domain share the level
    few = np.minimum(everybody, everybody[RACK])
    windows = ((HEADROOM, everybody), (HEADROOM, few), (1.0, everybody), (1.0, few), (0.0, everybody))
    tried = [
        (channels, headroom, lanes, math.inf, SPREAD)
        for headroom, lanes in windows
        for channels in sorted({full, 1}, reverse=True)
    ]
    if wire.between != NOTHING_BETWEEN:
        several = sorted({full, 1, *(each for each in wire.between.channels if each < full)}, reverse=True)
        spreads, most_bytes = (SPREAD, *wire.between.spreads), (math.inf, *wire.between.windows)
        tried += [
            (channels, 1.0, few, most, spread) for spread, most, channels in product(spreads, most_bytes, several)
        ]
    yield from dict.fromkeys(
        (tuple(_connection(wire, level, channels, headroom, lanes[level], most, spread) for level in beyond), channels)
        for channels, headroom, lanes, most, spread in tried
    )


def _connection(
    wire: Wire,
    level: int,
    channels: int,
    headroom: float,
    lanes: float,
    most_bytes: float,
    spread: int,
) -> Connection:
    """The connection across ``level`` with ``headroom`` times B·RTT in flight, where ``lanes`` ranks share the level.

    A headroom of 0 gives the library's connection. ``most_bytes`` caps the bytes in flight, and ``spread`` is the least
    number of queue pairs.
    """
    links, shape = wire.links, wire.shape
    rate = min(float(links.bandwidth[level]), float(links.capacity[level] / (shape.crossing[level] * lanes)))
    full = headroom * rate * 2 * float(links.latency[level])
    needed = min(full, most_bytes)
    library = _library(LINK_LEVELS[level], channels)
    if not headroom or (not wire.hashed[level] and full <= library.window_bytes):
        return library
    whole = math.ceil if needed == full else math.floor  # a window that keeps to a budget is no wider than asked for
    piece = whole(needed / spread / SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
    segment = min(SEGMENT_BYTES, max(SEGMENT_STEP_BYTES, piece))
    pairs = min(max(spread, math.ceil(needed / (MAX_OUTSTANDING * segment))), MAX_QUEUE_PAIRS)
    outstanding = min(max(1, whole(needed / (pairs * segment))), MAX_OUTSTANDING)
    return Connection(
        level=LINK_LEVELS[level],
        queue_pairs=pairs,
        segment_bytes=segment,
        outstanding=outstanding,
        load_balancing="spray",
    )


def library_option(options: Sequence[FlowOption], algorithm: str) -> FlowOption:
    """The option with the library's defaults, whose algorithm is ``algorithm`` (the name in a plan's collectives)."""
    defaults = (
        one
        for one in options
        if one.choice.algorithm in (algorithm, "library")
        and one.choice.driver == "multiprocessors"
        and one.choice.compression is None
        and all(each == _library(each.level, one.choice.num_channels) for each in one.choice.connections)
    )
    return max(defaults, key=lambda one: one.choice.num_channels)


def _library(level: LinkLevel, channels: int) -> Connection:
    """The library's default connection across a level."""
    return Connection(
        level=level,
        queue_pairs=channels,
        segment_bytes=LIBRARY_SEGMENT_BYTES,
        outstanding=LIBRARY_OUTSTANDING,
        load_balancing="ecmp",
    )


def hashed_levels(load_balancing: list[list[str]]) -> Bools:
    """Levels on which some building used hashes flows, (NUM_LEVELS,), from the names of its load balancing by level.

    Inter-building levels repeat the last level inside a building.
    """
    out = np.zeros(NUM_LEVELS, dtype=bool)
    for names in load_balancing:
        for level, name in enumerate(names):
            out[level] |= "ecmp" in name.lower()
    out[CAMPUS:] = out[CAMPUS - 1]
    return out
