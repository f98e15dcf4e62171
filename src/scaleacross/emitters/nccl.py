"""Target ``nccl``: nccl.env (KEY=VALUE; launchers pass on the same values) and nccl_explain.md (the figures behind
every value).

The values translate the plan's network decision (``Decision.network``). For NCCLX/CTRAN, the bytes that a communicator
keeps in flight to a peer are queue pairs × segment × outstanding segments. For stock NCCL they are NCCL_BUFFSIZE for
each of its channels. A process has one value for all of its communicators, so the largest holds. A plan without a
network decision was estimated with the library's defaults, so only what its round trips require is set.

Names, defaults and ranges: ``nccl_variables``. Which setting a peer gets: torchcomms 59426ba4,
comms/ctran/backends/ib/CtranIbVc.cc.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from scaleacross.emitters.crossed_levels import LevelFigures, crossed_levels
from scaleacross.emitters.group_settings import by_engines, not_expressed
from scaleacross.emitters.libraries import reads_nccl, require_nccl
from scaleacross.emitters.nccl_variables import (
    DEFAULT_IB_TIMEOUT,
    MAX_BUFFER_BYTES,
    VARIABLES,
    ZERO_CTA,
    buffer_bytes,
    check_variable,
)
from scaleacross.spec.launch import EnvVariable
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.network_choice import MOVES, CommunicatorChoice, Connection
from scaleacross.spec.plan import Plan
from scaleacross.units import human_bytes, human_seconds

# NCCL 2.31: the buffer of a channel is cut into this many steps (NCCL_STEPS); a step is the unit handed to the network.
BUFFER_STEPS: Final = 8
# assumed: below this a piece of a step is dominated by per-message cost.
MIN_PIECE_BYTES: Final = 64 * 1024
# NCCL 2.31, docs "Environment Variables": threads × sockets of a connection are at most 64.
MAX_SOCKETS: Final = 64
# assumed: sockets of one thread, as NCCL chooses on AWS (same page); elsewhere it opens one.
SOCKETS_PER_THREAD: Final = 8
# Linux ip-sysctl: tcp_wmem, max 4 MiB by default; a socket has no more in flight.
TCP_WINDOW_BYTES: Final = 4 * 2**20
# InfiniBand local ack timeout: 4.096 µs · 2^t.
ACK_TIMEOUT_UNIT_S: Final = 4.096e-6


def render(plan: Plan) -> dict[str, str]:
    """Return the text of nccl.env and nccl_explain.md.

    Raises:
        EmitError: the plan's accelerators do not run NCCL.
    """
    require_nccl(plan, "nccl")
    levels, settings = crossed_levels(plan), environment(plan)
    lines = [
        f"# NCCL settings of plan {_one_line(plan.job.name)}; the reasons are in nccl_explain.md.",
        "# settings.env of every launcher's folder holds the same.",
    ]
    lines += [f"{variable.name}={variable.value}" for variable in settings]
    return {"nccl.env": "\n".join(lines) + "\n", "nccl_explain.md": _explanation(plan, levels, settings)}


def environment(plan: Plan) -> tuple[EnvVariable, ...]:
    """Return the variables whose defaults do not suit the plan's decision, each with its reason; none without NCCL."""
    if not reads_nccl(plan):
        return ()
    levels = [figures for figures in crossed_levels(plan) if figures.level != "scale_up"]
    sets = [used for choice in plan.decision.network or () for used in _used(choice)]
    out: list[EnvVariable] = []
    if levels:
        over_tcp = {figures.level for figures in levels if figures.transport == "tcp"}
        rdma = [figures for figures in levels if figures.level not in over_tcp]
        paired = [used for used in sets if used.connection.level not in over_tcp]
        out += [*_buffer(sets, levels), *_queue_pairs(paired, rdma), *_timeout(rdma), *_ctran(paired, rdma)]
        out += _sockets(sets, [figures for figures in levels if figures.level in over_tcp])
        out += _traffic_class(plan)
    out += _cta_policy(plan)
    for variable in out:
        check_variable(variable)
    return tuple(out)


class Used(NamedTuple):
    """A connection that the plan decided, with its communicator and number of channels."""

    of: str
    num_channels: int
    connection: Connection

    @property
    def channel_bytes(self) -> int:
        """Bytes in flight on each channel."""
        return math.ceil(self.connection.window_bytes / max(1, self.num_channels))

    @property
    def is_spread(self) -> bool:
        """Whether the connection needs settings: the library's defaults neither pace nor spray."""
        return self.connection.load_balancing == "spray"


def _used(choice: CommunicatorChoice) -> list[Used]:
    return [Used(f"{choice.communicator} {choice.payload}", choice.num_channels, one) for one in choice.connections]


def _buffer(sets: list[Used], levels: list[LevelFigures]) -> list[EnvVariable]:
    if not sets:
        return []
    worst = max(sets, key=lambda used: used.channel_bytes)
    size = buffer_bytes(worst.channel_bytes)
    if size == int(VARIABLES["NCCL_BUFFSIZE"].default):
        return []
    far = worst.connection
    why = (
        f"{far.level}: {worst.of} keeps {human_bytes(far.window_bytes)} in flight over {worst.num_channels} channels, "
        f"{human_bytes(worst.channel_bytes)} each ({_at(far.level, levels)}); the default is 4 MiB"
    )
    if size < worst.channel_bytes:
        more = -(-worst.channel_bytes // size)
        why += f"; capped at {human_bytes(MAX_BUFFER_BYTES)}, so stock NCCL needs {more} times the channels"
    return [EnvVariable(name="NCCL_BUFFSIZE", value=str(size), why=why)]


def _queue_pairs(sets: list[Used], levels: list[LevelFigures]) -> list[EnvVariable]:
    hashed = {figures.level for figures in levels if figures.hashed}
    spread = [used for used in sets if used.is_spread and used.connection.level in hashed]
    if not spread:
        return []
    step = buffer_bytes(max(used.channel_bytes for used in sets)) // BUFFER_STEPS
    # every queue pair carries a piece of each step, so more pairs than such pieces would cost more than they spread
    qps = min(max(used.connection.queue_pairs for used in spread), max(1, step // MIN_PIECE_BYTES))
    where = ", ".join(level for level in LINK_LEVELS if level in {used.connection.level for used in spread})
    return [
        EnvVariable(
            name="NCCL_IB_QPS_PER_CONNECTION",
            value=str(qps),
            why=f"flows over {where} are hashed (ECMP): {qps} queue pairs spread one connection over as many paths "
            f"(as decided, limited so that a piece of a {human_bytes(step)} step keeps {human_bytes(MIN_PIECE_BYTES)})",
        ),
        EnvVariable(
            name="NCCL_IB_SPLIT_DATA_ON_QPS",
            value="1",
            why=f"every {human_bytes(step)} step uses all {qps} paths, so that no step waits for one congested path",
        ),
    ]


def _sockets(sets: list[Used], levels: list[LevelFigures]) -> list[EnvVariable]:
    """Return threads and sockets of a TCP connection, enough windows for the bytes that a channel keeps in flight."""
    if not levels:
        return []
    here = {figures.level: figures.in_flight_bytes for figures in levels}
    flying = [(used.channel_bytes, used.of) for used in sets if used.connection.level in here]
    most, whose = max(flying, default=(max(here.values()), "one accelerator on one channel"))
    number = min(MAX_SOCKETS, max(1, math.ceil(most / TCP_WINDOW_BYTES)))
    if number == 1:
        return []
    threads = min(math.ceil(number / SOCKETS_PER_THREAD), int(VARIABLES["NCCL_SOCKET_NTHREADS"].high))
    each = min(math.ceil(number / threads), MAX_SOCKETS // threads)
    why = (
        f"{', '.join(here)} over tcp: {whose} keeps {human_bytes(most)} in flight, a socket {human_bytes(TCP_WINDOW_BYTES)} "
        f"at Linux's default tcp_wmem; {threads} × {each} sockets of at most {MAX_SOCKETS}"
    )
    return [
        EnvVariable(name="NCCL_SOCKET_NTHREADS", value=str(threads), why=why),
        EnvVariable(name="NCCL_NSOCKS_PERTHREAD", value=str(each), why=why),
    ]


def _timeout(levels: list[LevelFigures]) -> list[EnvVariable]:
    if not levels:
        return []
    longest = max(levels, key=lambda figures: figures.round_trip_s)
    value = ack_timeout(longest.round_trip_s)
    if value <= DEFAULT_IB_TIMEOUT:
        return []
    why = f"{longest.level}: four round trips of {human_seconds(longest.round_trip_s)} exceed 4.096 µs · 2^{DEFAULT_IB_TIMEOUT}"
    return [EnvVariable(name="NCCL_IB_TIMEOUT", value=str(value), why=why)]


def ack_timeout(round_trip_s: float) -> int:
    """Return the smallest t ≥ 1 with 4.096 µs · 2^t ≥ 4 round trips (the acknowledgement may queue both ways)."""
    return max(1, math.ceil(math.log2(max(4.0 * round_trip_s, ACK_TIMEOUT_UNIT_S) / ACK_TIMEOUT_UNIT_S)))


def _ctran(sets: list[Used], levels: list[LevelFigures]) -> list[EnvVariable]:
    out = []
    for name, classes in (("XZONE", ("building",)), ("XDC", ("campus", "region"))):
        mine = [used for used in sets if used.connection.level in classes]
        if not mine:
            continue
        worst = max(mine, key=lambda used: used.connection.window_bytes)
        far = worst.connection
        why = (
            f"NCCLX only, peers across {far.level}: as decided for {worst.of}, {far.queue_pairs} queue pairs × "
            f"{far.outstanding} × {human_bytes(far.segment_bytes)} outstanding = {human_bytes(far.window_bytes)} "
            f"({_at(far.level, levels)}; the shipped 16 × 128 × 1 MiB = 2 GiB does not pace)"
        )
        value = f"{far.segment_bytes},{far.queue_pairs},spray,{far.outstanding}"
        out.append(EnvVariable(name=f"NCCL_CTRAN_IB_QP_CONFIG_{name}", value=value, why=why))
    return out


def _traffic_class(plan: Plan) -> list[EnvVariable]:
    """Return the traffic class where all communicators have the same one: a process has one value."""
    classes = {choice.traffic_class for choice in plan.decision.network or () if choice.connections}
    if len(classes) != 1 or None in classes:
        return []
    why = "the class that was decided for every communicator; map it to a queue of your switches, or it means nothing"
    return [EnvVariable(name="NCCL_IB_TC", value=str(classes.pop()), why=why)]


def _cta_policy(plan: Plan) -> list[EnvVariable]:
    """Return the zero-CTA policy where copy engines were decided for some collective."""
    engines, kernels = (
        [f"{one.communicator} {one.op} of {one.payload}" for one in plan.decision.network or () if wanted(one)]
        for wanted in (by_engines, lambda one: one.op in MOVES and not by_engines(one))
    )
    if not engines:
        return []
    others = f"; leave those of {', '.join(kernels)} out of them, which were decided for kernels" if kernels else ""
    why = (
        f"copy engines for {', '.join(engines)}: acts on buffers that the framework registers in symmetric windows "
        f"(NCCL_WIN_COLL_SYMMETRIC), and on no others{others}"
    )
    return [EnvVariable(name="NCCL_CTA_POLICY", value=str(ZERO_CTA), why=why)]


def _at(level: LinkLevel, levels: list[LevelFigures]) -> str:
    """Describe line rate · round trip of a level, for comparison."""
    return next((_product(figures) for figures in levels if figures.level == level), f"across {level}")


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
    lines += [f"* {line}" for line in _carried(levels)]
    names, decided = {variable.name for variable in settings}, plan.decision.network is not None
    lines += [f"* {line}" for line in _left_alone(levels, names, decided)]
    mixed = {c.traffic_class for c in plan.decision.network or () if c.traffic_class is not None}
    if len(mixed) > 1:
        lines.append(
            f"* NCCL_IB_TC: communicators have different classes ({', '.join(map(str, sorted(mixed)))}) and a process has one; "
            "set ncclConfig_t.trafficClass of each as in ncclx/comm_hints.json (target ncclx)."
        )
    cannot = not_expressed(plan.decision.network or (), plan)
    if cannot:
        lines += ["", "## Decided, and beyond what NCCL's settings can say", "", *(f"* {line}" for line in cannot)]
    return "\n".join(lines) + "\n"


def _carried(levels: tuple[LevelFigures, ...]) -> list[str]:
    """Return notes on the assumed transport of inter-building links, and on settings that only the site knows."""
    out = []
    for figures in levels:
        if figures.level in ("campus", "region") and figures.transport is None:
            out.append(
                f"Transport across {figures.level}: not stated (trunks: transport: roce or tcp), so RDMA is taken, as inside "
                "buildings. Over TCP every group that crosses it needs the network Socket by name."
            )
        if figures.transport == "tcp":
            out.append(
                f"NCCL_NET: a process has one, so Socket there would slow groups inside buildings. Groups across {figures.level} "
                "name it themselves: megatron/nccl_communicators.yaml, torchtitan/scaleacross_plan.py, ncclx/comm_hints.json."
            )
            out.append("NCCL_SOCKET_IFNAME: your interface to the other site; NCCL takes the first one that it finds.")
    return out


def _enough(most: float, decided: bool) -> str:
    if not decided:
        return "the plan decides no network, so NCCL's defaults hold, which its step time assumes."
    return f"no channel keeps more than 4 MiB in flight; B·RTT is {human_bytes(most)} at most."


def _left_alone(levels: tuple[LevelFigures, ...], names: set[str], decided: bool) -> list[str]:
    outside = [figures for figures in levels if figures.level != "scale_up"]
    most = max((figures.in_flight_bytes for figures in outside), default=0.0)
    longest = max((figures.round_trip_s for figures in outside), default=0.0)
    out = []
    if "NCCL_BUFFSIZE" not in names:
        out.append(f"NCCL_BUFFSIZE: {_enough(most, decided)}")
    if "NCCL_IB_TIMEOUT" not in names:
        out.append(
            f"NCCL_IB_TIMEOUT: 4.096 µs · 2^20 = 4.3 s (default since 2.23) is far above {human_seconds(longest)} round trip."
        )
    if "NCCL_IB_QPS_PER_CONNECTION" not in names:
        out.append(
            "NCCL_IB_QPS_PER_CONNECTION: nothing decided for levels that hash flows; one queue pair keeps messages in order."
        )
    out.append("NCCL_CROSS_NIC: the topology states no rails, so NCCL's own choice (2) stands.")
    out.append(
        "NCCL_MIN_CTAS, NCCL_MAX_CTAS: the channels decided are those that fill the port, as NCCL's own choice does."
    )
    return out
