"""Target ``nccl``: nccl.env (KEY=VALUE, sourced by the run scripts) and nccl_explain.md (the number behind every value).

Sizing. A connection that is to keep a link of B bytes/s busy over a round trip of RTT seconds needs B·RTT bytes in flight. Stock
NCCL keeps at most NCCL_BUFFSIZE per channel in flight; NCCLX/CTRAN keeps queue pairs × segment × outstanding segments. Both are
set from f·B·RTT with f = HEADROOM. A variable whose default is enough is left alone, and the explanation says so.

Names, defaults and ranges: ``nccl_variables``. Which setting a peer gets: torchcomms 59426ba4,
comms/ctran/backends/ib/CtranIbVc.cc.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from scaleacross.emitters.nccl_variables import DEFAULT_IB_TIMEOUT, VARIABLES, check_variable
from scaleacross.emitters.rank_order import plan_topology
from scaleacross.spec.launch import EnvVariable
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Building, Topology
from scaleacross.units import human_bytes, human_seconds

MIB: Final = 1 << 20

# assumed: bytes in flight per B·RTT. 1 leaves no room for jitter; 2 covers one lost round.
HEADROOM: Final = 2.0
# assumed: channels that NCCL runs over one accelerator's network interface in a ring. More only helps.
CHANNELS_PER_NIC: Final = 2
# NCCL 2.31: the buffer of a channel is cut into this many steps (NCCL_STEPS); a step is the unit handed to the network.
BUFFER_STEPS: Final = 8
# Llama 3 (arXiv 2407.21783, section 3.3.1): 16 flows between two GPUs instead of one give ECMP hashing enough entropy.
ECMP_FLOWS: Final = 16
# assumed: below this a piece of a step is dominated by per-message cost.
MIN_PIECE_BYTES: Final = 64 * 1024
# assumed: largest buffer per channel; beyond it the memory of all connections outgrows the gain.
MAX_BUFFER_BYTES: Final = 64 * MIB
# torchcomms 59426ba4: shipped segment and queue pairs of the XZONE and XDC settings, and their limits.
CTRAN_SEGMENT_BYTES: Final = MIB
CTRAN_QPS: Final = 16
CTRAN_MAX_QPS: Final = 128
CTRAN_MAX_OUTSTANDING: Final = 256
# InfiniBand local ack timeout: 4.096 µs · 2^t.
ACK_TIMEOUT_UNIT_S: Final = 4.096e-6


@dataclass(frozen=True)
class LevelFigures:
    """One link level that the plan crosses, worst case over the buildings used."""

    level: LinkLevel
    axes: tuple[str, ...]
    bandwidth_bytes_per_s: float
    round_trip_s: float
    hashed: bool

    @property
    def in_flight_bytes(self) -> float:
        """Bandwidth · round trip, bytes."""
        return self.bandwidth_bytes_per_s * self.round_trip_s


def render(plan: Plan) -> dict[str, str]:
    """nccl.env and nccl_explain.md."""
    levels, settings = crossed_levels(plan), environment(plan)
    lines = [f"# NCCL settings of plan {_one_line(plan.job.name)}; the reasons are in nccl_explain.md."]
    lines += [f"{variable.name}={variable.value}" for variable in settings]
    return {"nccl.env": "\n".join(lines) + "\n", "nccl_explain.md": _explanation(plan, levels, settings)}


def environment(plan: Plan) -> tuple[EnvVariable, ...]:
    """The variables whose defaults do not fit the links that the plan crosses, each with its reason."""
    levels = [figures for figures in crossed_levels(plan) if figures.level != "scale_up"]
    out: list[EnvVariable] = []
    if levels:
        out += [*_buffer(levels), *_queue_pairs(levels), *_timeout(levels), *_ctran(levels)]
    for variable in out:
        check_variable(variable)
    return tuple(out)


def crossed_levels(plan: Plan) -> tuple[LevelFigures, ...]:
    """Figures of every link level that an axis of the plan spans, innermost first."""
    topology = plan_topology(plan)
    used = [topology.building(share.building) for share in plan.placement.fill]
    axes: dict[LinkLevel, list[str]] = defaultdict(list)
    for axis, level in plan.placement.spans.items():
        axes[level].append(axis)
    return tuple(_figures(level, tuple(axes[level]), used, topology) for level in LINK_LEVELS if level in axes)


def _figures(level: LinkLevel, axes: tuple[str, ...], used: list[Building], topology: Topology) -> LevelFigures:
    if level in ("campus", "region"):
        links = [building.links.building for building in used]
        one_way = _trunk_latency(topology, level, [building.name for building in used])
    else:
        links = [getattr(building.links, level) for building in used]
        one_way = max(link.one_way_latency_s for link in links)
    return LevelFigures(
        level,
        axes,
        bandwidth_bytes_per_s=max(link.technology.bandwidth_bytes_per_s for link in links),
        round_trip_s=2.0 * one_way,
        hashed=any("ecmp" in link.technology.load_balancing.lower() for link in links),
    )


def _trunk_latency(topology: Topology, level: LinkLevel, names: list[str]) -> float:
    """Longest of the shortest one-way latencies between two used buildings of the level's kind, s."""
    longest = 0.0
    for here in names:
        reach = _latencies_from(topology, here)
        for there in names:
            same_region = topology.region_of(here) == topology.region_of(there)
            if there != here and same_region == (level == "campus"):
                longest = max(longest, reach[there])
    return longest


def _latencies_from(topology: Topology, start: str) -> dict[str, float]:
    """Dijkstra over the trunks: building -> shortest one-way latency from ``start``, s."""
    edges: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for trunk in topology.trunks:
        one, other = trunk.between
        edges[one].append((other, trunk.one_way_latency_s))
        edges[other].append((one, trunk.one_way_latency_s))
    found: dict[str, float] = {}
    frontier = [(0.0, start)]
    while frontier:
        latency, here = heapq.heappop(frontier)
        if here in found:
            continue
        found[here] = latency
        for there, more in edges[here]:
            heapq.heappush(frontier, (latency + more, there))
    return found


def buffer_bytes(in_flight_bytes: float) -> int:
    """NCCL_BUFFSIZE for HEADROOM · in_flight_bytes over CHANNELS_PER_NIC channels: a power of two in [4, 64] MiB."""
    need = HEADROOM * in_flight_bytes / CHANNELS_PER_NIC
    size = 1 << max(0, math.ceil(need) - 1).bit_length()
    return min(max(size, int(VARIABLES["NCCL_BUFFSIZE"].default)), MAX_BUFFER_BYTES)


def ctran_outstanding(in_flight_bytes: float) -> tuple[int, int]:
    """(queue pairs, outstanding segments per queue pair) for HEADROOM · in_flight_bytes.

    outstanding = clamp(⌈f·B·RTT / (queue pairs · segment)⌉, 1, 256); queue pairs grow beyond the shipped 16 only when 256
    segments on each do not reach the need.
    """
    need = HEADROOM * in_flight_bytes
    qps = min(max(CTRAN_QPS, math.ceil(need / (CTRAN_MAX_OUTSTANDING * CTRAN_SEGMENT_BYTES))), CTRAN_MAX_QPS)
    outstanding = math.ceil(need / (qps * CTRAN_SEGMENT_BYTES))
    return qps, min(max(outstanding, 1), CTRAN_MAX_OUTSTANDING)


def _buffer(levels: list[LevelFigures]) -> list[EnvVariable]:
    worst = max(levels, key=lambda figures: figures.in_flight_bytes)
    size = buffer_bytes(worst.in_flight_bytes)
    if size == int(VARIABLES["NCCL_BUFFSIZE"].default):
        return []
    reachable = CHANNELS_PER_NIC * size / worst.round_trip_s
    why = (
        f"{worst.level}: {_product(worst)}; ×{HEADROOM:g} over {CHANNELS_PER_NIC} channels needs "
        f"{human_bytes(HEADROOM * worst.in_flight_bytes / CHANNELS_PER_NIC)} per channel, the default is 4 MiB"
    )
    if reachable < worst.bandwidth_bytes_per_s:
        why += (
            f"; capped at {human_bytes(MAX_BUFFER_BYTES)}, so {CHANNELS_PER_NIC} channels reach {reachable / 1e9:.1f} of "
            f"{worst.bandwidth_bytes_per_s / 1e9:.1f} GB/s: raise NCCL_MIN_CTAS if memory allows"
        )
    return [EnvVariable(name="NCCL_BUFFSIZE", value=str(size), why=why)]


def _queue_pairs(levels: list[LevelFigures]) -> list[EnvVariable]:
    hashed = [
        figures
        for figures in levels
        if figures.hashed and LINK_LEVELS.index(figures.level) >= LINK_LEVELS.index("zone")
    ]
    if not hashed:
        return []
    step = buffer_bytes(max(figures.in_flight_bytes for figures in levels)) // BUFFER_STEPS
    qps = min(ECMP_FLOWS, max(1, step // MIN_PIECE_BYTES))
    where = ", ".join(figures.level for figures in hashed)
    return [
        EnvVariable(
            name="NCCL_IB_QPS_PER_CONNECTION",
            value=str(qps),
            why=f"flows over {where} are hashed (ECMP): {qps} queue pairs spread one connection over as many paths "
            f"(16 in arXiv 2407.21783 §3.3.1; limited so that a piece of a {human_bytes(step)} step keeps "
            f"{human_bytes(MIN_PIECE_BYTES)})",
        ),
        EnvVariable(
            name="NCCL_IB_SPLIT_DATA_ON_QPS",
            value="1",
            why=f"every {human_bytes(step)} step uses all {qps} paths, so that no step waits for one congested path",
        ),
    ]


def _timeout(levels: list[LevelFigures]) -> list[EnvVariable]:
    longest = max(levels, key=lambda figures: figures.round_trip_s)
    value = ack_timeout(longest.round_trip_s)
    if value <= DEFAULT_IB_TIMEOUT:
        return []
    why = f"{longest.level}: four round trips of {human_seconds(longest.round_trip_s)} exceed 4.096 µs · 2^{DEFAULT_IB_TIMEOUT}"
    return [EnvVariable(name="NCCL_IB_TIMEOUT", value=str(value), why=why)]


def ack_timeout(round_trip_s: float) -> int:
    """Smallest t ≥ 1 with 4.096 µs · 2^t ≥ 4 round trips (the acknowledgement may queue behind data both ways)."""
    return max(1, math.ceil(math.log2(max(4.0 * round_trip_s, ACK_TIMEOUT_UNIT_S) / ACK_TIMEOUT_UNIT_S)))


def _ctran(levels: list[LevelFigures]) -> list[EnvVariable]:
    out = []
    for name, classes in (("XZONE", ("building",)), ("XDC", ("campus", "region"))):
        mine = [figures for figures in levels if figures.level in classes]
        if not mine:
            continue
        worst = max(mine, key=lambda figures: figures.in_flight_bytes)
        qps, outstanding = ctran_outstanding(worst.in_flight_bytes)
        why = (
            f"NCCLX only, peers across {worst.level}: {_product(worst)}; ×{HEADROOM:g}, in {qps} queue pairs × "
            f"{outstanding} × {human_bytes(CTRAN_SEGMENT_BYTES)} outstanding (the shipped 16 × 128 × 1 MiB = 2 GiB does not pace)"
        )
        if qps * outstanding * CTRAN_SEGMENT_BYTES < worst.in_flight_bytes:
            why += "; the limits 128 × 256 leave the link partly idle"
        value = f"{CTRAN_SEGMENT_BYTES},{qps},spray,{outstanding}"
        out.append(EnvVariable(name=f"NCCL_CTRAN_IB_QP_CONFIG_{name}", value=value, why=why))
    return out


def _product(figures: LevelFigures) -> str:
    return (
        f"{figures.bandwidth_bytes_per_s / 1e9:.1f} GB/s × {human_seconds(figures.round_trip_s)} round trip = "
        f"{human_bytes(figures.in_flight_bytes)} in flight"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _explanation(plan: Plan, levels: tuple[LevelFigures, ...], settings: tuple[EnvVariable, ...]) -> str:
    lines = [f"# NCCL settings of plan {_one_line(plan.job.name)}", "", "## Links that the plan crosses", ""]
    lines += [
        "| level | axes | rate of one accelerator | round trip | in flight | hashed |",
        "|---|---|---|---|---|---|",
    ]
    for figures in levels:
        lines.append(
            f"| {figures.level} | {', '.join(figures.axes)} | {figures.bandwidth_bytes_per_s / 1e9:.1f} GB/s "
            f"| {human_seconds(figures.round_trip_s)} | {human_bytes(figures.in_flight_bytes)} "
            f"| {'yes' if figures.hashed else 'no'} |"
        )
    lines += ["", "## Set", "", "| variable | value | default | why |", "|---|---|---|---|"]
    for variable in settings:
        lines.append(
            f"| {variable.name} | `{variable.value}` | `{VARIABLES[variable.name].default}` | {variable.why} |"
        )
    if not settings:
        lines.append("| none | | | the defaults carry every link above |")
    lines += ["", "## Looked at and left alone", ""]
    lines += [f"* {line}" for line in _left_alone(levels, {variable.name for variable in settings})]
    return "\n".join(lines) + "\n"


def _left_alone(levels: tuple[LevelFigures, ...], names: set[str]) -> list[str]:
    outside = [figures for figures in levels if figures.level != "scale_up"]
    most = max((figures.in_flight_bytes for figures in outside), default=0.0)
    longest = max((figures.round_trip_s for figures in outside), default=0.0)
    out = []
    if "NCCL_BUFFSIZE" not in names:
        out.append(f"NCCL_BUFFSIZE: {CHANNELS_PER_NIC} channels × 4 MiB cover {HEADROOM:g} × {human_bytes(most)}.")
    if "NCCL_IB_TIMEOUT" not in names:
        out.append(
            f"NCCL_IB_TIMEOUT: 4.096 µs · 2^20 = 4.3 s (default since 2.23) is far above {human_seconds(longest)} round trip."
        )
    if "NCCL_IB_QPS_PER_CONNECTION" not in names:
        out.append(
            "NCCL_IB_QPS_PER_CONNECTION: no crossed link balances by hashing flows; one queue pair keeps messages in order."
        )
    out.append("NCCL_CROSS_NIC: the topology states no rails, so NCCL's own choice (2) stands.")
    out.append(
        "NCCL_MIN_CTAS, NCCL_MAX_CTAS: the plan charges communication no multiprocessors, so it gives no number to set."
    )
    return out
