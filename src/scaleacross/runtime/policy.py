"""Selects the schedule of a collective, as the plan (``from_launch``) or the caller (``fixed``) says."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from scaleacross.errors import InputError
from scaleacross.runtime.codecs import codec_named
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.encoding import GRAIN, Encoding
from scaleacross.runtime.launch_file import EXCHANGES, LAUNCH_VARIABLE, read_launch, require_world_size
from scaleacross.schedules.collective import (
    PHASES,
    CollectiveSchedule,
    Layout,
    Operation,
    all_to_all,
    broadcast,
    flat,
    layered,
    tree_all_reduce,
)
from scaleacross.schedules.collective.hierarchical import depth_of, ranks_of
from scaleacross.spec.launch import LaunchConfig, ProcessGroups
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.plan import PredictedCollective

CHUNK_BYTES: Final = 4 << 20
MAX_CHUNKS: Final = 8
"""Where the plan does not state the number of chunks, there is one per ``CHUNK_BYTES``, and at most this many. Chunks
follow one another through the ranks, so a late rank holds up only a part (``benchmarks/collective_overhead.py``)."""
SMALLEST_CODED_BYTES: Final = 4 * GRAIN
"""Smaller collectives travel unencoded. A plan's codec is for gradients; what holds less than one of its blocks in fp32
is a loss, a norm or a flag on the same ranks."""
MIN_WINDOW_BYTES: Final = 1 << 16
MAX_WINDOW_BYTES: Final = 1 << 26
"""Limits of a planned window: below, headers would outweigh payloads; above, it only takes buffer memory."""


@dataclass(frozen=True)
class Chosen:
    """How a collective runs.

    Attributes:
        schedule: the schedule that is executed.
        predicted_s: seconds that the plan predicts; None if it predicts nothing.
        codec: encoding of messages between ranks that are ``far``; None: nothing is encoded.
        far: (rank, peer), in the group -> whether messages between them are encoded.
    """

    schedule: CollectiveSchedule
    predicted_s: float | None = None
    codec: Encoding | None = None
    far: Callable[[int, int], bool] = lambda rank, peer: False


Choose = Callable[[Operation, int], Chosen | None]
"""(operation, bytes as ``PredictedCollective.bytes_per_rank`` counts) -> how it runs; None: the transport's own."""


@dataclass(frozen=True)
class Policy:
    """Execution policy of one process group: schedule, codec and link settings.

    Attributes:
        choose: how a collective runs.
        settings: (own rank, peer), in the group -> settings of the link.
        why: source of the choices, for messages.
        axis: parallel axis of the group, if it is one of the plan.
        planned: entry of the group in the launch file.
    """

    choose: Choose
    settings: Callable[[int, int], LinkSettings]
    why: str
    axis: str = ""
    planned: ProcessGroups | None = None


@lru_cache(maxsize=512)
def named_schedule(operation: Operation, algorithm: str, layout: Layout, num_channels: int = 1) -> CollectiveSchedule:
    """Return the schedule called ``algorithm`` for the ranks of ``layout``.

    Args:
        operation: the collective.
        algorithm: a name of ``PHASES``; ``double_tree`` (all-reduce); ``direct``, ``pairwise``, ``two_level``
            (all-to-all); ``tree``, ``chain`` (broadcast); or ``hierarchical(outermost, …, innermost)``.
        layout: ranks 0 … n−1, nested as the network nests them; if it is flat, a ring has its order.
        num_channels: number of chunks that follow one another.

    Raises:
        InputError: there is no such algorithm for this operation.
    """
    num_ranks = len(ranks_of(layout))
    if operation is Operation.BROADCAST:
        return broadcast(num_ranks, algorithm, num_channels)
    if operation is Operation.ALL_TO_ALL:
        buildings = [ranks_of(child) for child in layout] if isinstance(layout, tuple) else [[0]]
        return all_to_all(buildings if algorithm == "two_level" else [range(num_ranks)], algorithm, num_channels)
    if algorithm == "double_tree":
        if operation is not Operation.ALL_REDUCE:
            raise InputError(f"double_tree runs all_reduce, not {operation.value}")
        return tree_all_reduce(num_ranks, num_channels)
    if algorithm.startswith("hierarchical(") and algorithm.endswith(")"):
        names = [name.strip() for name in algorithm[len("hierarchical(") : -1].split(",")]
        return layered(operation, layout, names, num_channels)
    order = ranks_of(layout) if depth_of(layout) == 1 else None
    return flat(operation, algorithm, num_ranks, num_channels, order)


def fixed(
    algorithms: Mapping[Operation, str],
    layout: Layout,
    settings: LinkSettings,
    num_chunks: int | None = None,
    codec: Encoding | None = None,
) -> Policy:
    """Return a policy with one algorithm per operation, for every size. Other operations run on the transport.

    Args:
        num_chunks: number of chunks that follow one another; None: by size (``chunks_of``).
        codec: encoding of messages between the outermost children of ``layout``.
    """
    children = [set(ranks_of(child)) for child in layout] if isinstance(layout, tuple) else []

    def far(rank: int, peer: int) -> bool:
        return not any(rank in child and peer in child for child in children)

    def choose(operation: Operation, num_bytes: int) -> Chosen | None:
        name = algorithms.get(operation)
        if name is None:
            return None
        schedule = named_schedule(operation, name, layout, num_chunks or chunks_of(num_bytes))
        return Chosen(schedule, codec=codec, far=far)

    return Policy(choose, lambda rank, peer: settings, "the algorithms named by the caller")


def launch_policy(ranks: Sequence[int], settings: LinkSettings) -> Policy:
    """Return the launch file's policy for the group of ``ranks``; without one everything runs on the transport.

    Raises:
        InputError: the launch file cannot be read, or is for another number of processes.
    """
    path = os.environ.get(LAUNCH_VARIABLE)
    if path:
        return from_launch(_read_once(path), ranks, settings)
    return Policy(
        lambda operation, num_bytes: None, lambda rank, peer: settings, f"a plan ({LAUNCH_VARIABLE} is not set)"
    )


_read_once = lru_cache(maxsize=4)(read_launch)


def from_launch(config: LaunchConfig, ranks: Sequence[int], settings: LinkSettings) -> Policy:
    """Return the plan's policy for the group of ``ranks`` (global ranks, in the order of the group).

    Raises:
        InputError: the launch file does not have one of the ranks.
    """
    require_world_size(config)
    if max(ranks) >= config.world_size:
        raise InputError(
            f"rank {max(ranks)} of a launch file for {config.world_size} ranks: start as many processes as the plan has ranks"
        )
    found = next(
        (g for g in config.process_groups if tuple(sorted(ranks)) in {tuple(sorted(r)) for r in g.ranks}), None
    )
    windows = _windows(found)

    def link(rank: int, peer: int) -> LinkSettings:
        level = config.level_between(ranks[rank], ranks[peer])
        share = settings.share_memory and level == "scale_up"
        return LinkSettings(windows.get(level, settings.window_bytes), settings.segment_bytes, share)

    if found is None:
        why = f"{config.plan_name}, which has no group of ranks {_few(ranks)}"
        return Policy(lambda operation, num_bytes: None, link, why)
    choose = _chooser(
        found, layout_of(config, ranks), lambda rank, peer: config.level_between(ranks[rank], ranks[peer])
    )
    return Policy(choose, link, f"{config.plan_name}, axis {found.axis}", found.axis, found)


def _windows(groups: ProcessGroups | None) -> dict[LinkLevel, int]:
    """Return the largest number of bytes in flight to one peer, for each level to which the plan gives a window."""
    out: dict[LinkLevel, int] = {}
    for choice in groups.network if groups is not None else ():
        for connection in choice.connections:
            window = max(MIN_WINDOW_BYTES, min(connection.window_bytes, MAX_WINDOW_BYTES))
            out[connection.level] = max(out.get(connection.level, 0), window)
    return out


def layout_of(config: LaunchConfig, ranks: Sequence[int]) -> Layout:
    """Return members 0 … n−1 of the group, nested by region, building, zone, rack and host.

    A level that does not divide the group further is left out.
    """
    keys = [config.place(rank) for rank in ranks]
    units = [len({key[: depth + 1] for key in keys}) for depth in range(len(keys[0]))]
    outer = [1, *units[:-1]]
    # a level whose units are single ranks needs no nesting: its parent already lists the ranks
    levels = [depth for depth, count in enumerate(units) if outer[depth] < count < len(ranks)]
    return _nested(tuple(range(len(ranks))), keys, levels)


def _nested(members: tuple[int, ...], keys: Sequence[tuple[object, ...]], levels: Sequence[int]) -> Layout:
    """Return ``members`` with one level of nesting per entry of ``levels``, the same everywhere."""
    if not levels:
        return members
    children: dict[object, list[int]] = {}
    for member in members:
        children.setdefault(keys[member][: levels[0] + 1], []).append(member)
    return tuple(_nested(tuple(child), keys, levels[1:]) for child in children.values())


def _chooser(groups: ProcessGroups, layout: Layout, level: Callable[[int, int], LinkLevel]) -> Choose:
    def choose(operation: Operation, num_bytes: int) -> Chosen | None:
        stated = [entry for entry in groups.collectives if entry.op == operation.value]
        if not stated:
            return None
        # sizes differ by orders of magnitude, so the nearest prediction is the one with the smallest ratio
        nearest = min(stated, key=lambda entry: abs(math.log((entry.bytes_per_rank + 1) / (num_bytes + 1))))
        choice = _choice_for(groups.network, nearest)
        steps = tuple(step.algorithm for step in choice.steps) if choice else ()
        num_chunks = choice.num_chunks if steps and choice else chunks_of(num_bytes)
        schedule = _schedule_of(nearest, operation, layout, num_chunks, steps)
        if schedule is None:
            return None
        predicted_s = nearest.time_s if nearest.bytes_per_rank == num_bytes else None
        if choice is None or choice.compression is None or num_bytes < SMALLEST_CODED_BYTES:
            return Chosen(schedule, predicted_s)
        coded = choice.compression
        codec = codec_named(coded.codec, coded.error_bound)
        return Chosen(schedule, predicted_s, codec, lambda rank, peer: level(rank, peer) in coded.levels)

    return choose


def chunks_of(num_bytes: int) -> int:
    """Return the number of chunks of a collective of ``num_bytes`` if the plan states none."""
    return min(max(num_bytes // CHUNK_BYTES, 1), MAX_CHUNKS)


def _schedule_of(
    entry: PredictedCollective, operation: Operation, layout: Layout, num_chunks: int, steps: tuple[str, ...]
) -> CollectiveSchedule | None:
    name = name_of(entry.algorithm, operation, depth_of(layout), steps)
    return None if name is None else named_schedule(operation, name, layout, num_chunks)


def name_of(algorithm: str, operation: Operation, depth: int = 1, steps: tuple[str, ...] = ()) -> str | None:
    """Return what ``named_schedule`` calls the cost model's algorithm; None for a curve measured on a library's own.

    Args:
        depth: levels of the layout.
        steps: algorithms of a hierarchical schedule, outermost level first; levels that the plan does not name run a
            ring.
    """
    if operation is Operation.ALL_TO_ALL:
        return algorithm if algorithm in EXCHANGES else None
    if algorithm == "hierarchical":
        names = [*steps, *["ring"] * depth][:depth]
        return names[0] if depth <= 1 else f"hierarchical({', '.join(names)})"
    if algorithm == "tree":
        return "double_tree"
    return algorithm if algorithm in PHASES else None


def _choice_for(network: Sequence[CommunicatorChoice], entry: PredictedCollective) -> CommunicatorChoice | None:
    """Return the plan's choice for the collective that ``entry`` predicts: its name ends in the payload."""
    same = [choice for choice in network if choice.op == entry.op]
    return next((choice for choice in same if entry.name.endswith(choice.payload)), None)


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown + (f" … ({len(ranks)})" if len(ranks) > 8 else "")
