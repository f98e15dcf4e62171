"""Settings that differ by communicator: hints, traffic class, and chunks of NCCLX's hierarchical gather.

A communicator's connections serve all of its collectives. So it gets the largest setting decided for any of them, and
the traffic class of exposed collectives, if it has any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from scaleacross.emitters.nccl_variables import buffer_bytes, check_hint
from scaleacross.spec.launch import EnvVariable, ProcessGroups
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.plan import Plan
from scaleacross.targets.law import Target
from scaleacross.units import human_bytes, human_seconds

# NCCL's name of its TCP transport, as ncclConfig_t.netName takes it.
SOCKETS: Final = "Socket"
# torchcomms 59426ba4: chunks that NCCL_CTRAN_HIER_AG_OVERLAP_CHUNK_BYTES takes.
LEAST_OVERLAP_BYTES: Final = 512 * 1024
MOST_OVERLAP_BYTES: Final = 8 * 1024 * 1024


UNEQUAL: Final = "tokens"
# payload of all-to-alls with unequal parts. torch passes those to NCCL as grouped messages, which kernels run. Copy
# engines run only ncclAlltoAll, of equal parts (pytorch/pytorch#170344).


def by_engines(choice: CommunicatorChoice) -> bool:
    """Return whether copy engines were decided for a collective that NCCL can run on them."""
    return choice.driver == "copy_engines" and choice.payload != UNEQUAL


def zero_cta(plan: Plan) -> frozenset[str]:
    """Return the communicators with a collective that copy engines drive."""
    return frozenset(choice.communicator for choice in plan.decision.network or () if by_engines(choice))


def most_channels(plan: Plan) -> dict[str, int]:
    """Map each communicator to its most channels (thread blocks) over all collectives that leave a scale-up domain."""
    out: dict[str, int] = {}
    for choice in plan.decision.network or ():
        if choice.connections and choice.num_channels:
            out[choice.communicator] = max(out.get(choice.communicator, 0), choice.num_channels)
    return out


def traffic_classes(plan: Plan) -> dict[str, int]:
    """Map each communicator to the lowest traffic class of its collectives, which is that of exposed ones."""
    out: dict[str, int] = {}
    for choice in plan.decision.network or ():
        if choice.traffic_class is not None:
            out[choice.communicator] = min(out.get(choice.communicator, 255), choice.traffic_class)
    return out


def connection_hints(group: ProcessGroups, sockets: bool) -> dict[str, str]:
    """Return traffic class, thread blocks, queue pairs and buffer of a group's communicators outside a domain.

    With ``sockets`` the group crosses a TCP inter-building link. Its network is then named, and queue pairs, which TCP
    lacks, are left out.
    """
    used = [choice for choice in group.network if choice.connections]
    named = {"netName": SOCKETS} if sockets else {}
    if not used:
        return named
    channels = max(choice.num_channels for choice in used)
    pairs = max(one.queue_pairs for choice in used for one in choice.connections)
    window = max(one.window_bytes / max(1, choice.num_channels) for choice in used for one in choice.connections)
    stated = traffic_class(group)
    hints = {
        **({} if stated is None else {"trafficClass": str(stated)}),
        "minCTAs": str(channels),
        "maxCTAs": str(channels),
        **({} if sockets else {"ncclx::ibQpsPerConnection": str(pairs)}),
        "ncclx::ncclBuffSize": str(buffer_bytes(window)),
    }
    for name, value in hints.items():
        check_hint(name, value)
    return hints | named | {"splitShare": "0"}  # a separate buffer size needs separate resources


def traffic_class(group: ProcessGroups) -> int | None:
    """Return the class of exposed collectives, else that of overlapped ones; None where nothing is decided.

    The plan gives exposed collectives the lower number.
    """
    return min((choice.traffic_class for choice in group.network if choice.traffic_class is not None), default=None)


def class_variable(groups: Sequence[ProcessGroups], target: Target) -> list[EnvVariable]:
    """Return NCCLX's variable of traffic classes, by the names that the target gives process groups."""
    classes = {group.axis: traffic_class(group) for group in groups}
    stated = {axis: number for axis, number in classes.items() if number is not None}
    if not stated:
        return []
    return [
        EnvVariable(
            name="NCCL_CTRAN_IB_PG_TRAFFIC_CLASS",
            value=",".join(f"{name}:{number}" for axis, number in stated.items() for name in target.group_names(axis)),
            why="classes as decided: exposed traffic apart from overlapped traffic; map them to queues of your "
            "switches, or they mean nothing",
        )
    ]


def overlap_variables(plan: Plan) -> list[EnvVariable]:
    """Return NCCLX's variables for chunks pipelined through the levels of a hierarchical gather; one value per process."""
    cut = [
        (choice, one)
        for choice in plan.decision.network or ()
        for one in plan.collectives
        if choice.op == "all_gather" == one.op and choice.algorithm == "hierarchical" and choice.num_chunks > 1
        if (choice.communicator, choice.payload) == (one.axis, one.name.partition(" of ")[2])
    ]
    if not cut:
        return []
    choice, one = max(cut, key=lambda pair: pair[1].time_s * pair[1].per_step)
    size = min(max(math.ceil(choice.chunk_bytes), LEAST_OVERLAP_BYTES), MOST_OVERLAP_BYTES)
    limited = "" if size == math.ceil(choice.chunk_bytes) else f", which NCCLX limits to {human_bytes(size)}"
    return [
        EnvVariable(
            name="NCCL_CTRAN_HIER_AG_OVERLAP_ENABLE",
            value="true",
            why=f"{choice.num_chunks} chunks of {one.name} follow one another through {choice.label}",
        ),
        EnvVariable(
            name="NCCL_CTRAN_HIER_AG_OVERLAP_CHUNK_BYTES",
            value=str(size),
            why=f"{one.name}, the longest of its kind, in chunks of {human_bytes(choice.chunk_bytes)}{limited}",
        ),
    ]


def not_expressed(choices: Sequence[CommunicatorChoice], plan: Plan) -> list[str]:
    """Return decisions that no file of NCCL or NCCLX can state, with their consequences."""
    terms = {(t.communicator, t.op, t.payload): t for t in (plan.network.terms if plan.network else ())}
    out = []
    for choice in choices:
        name = f"{choice.communicator} {choice.op} of {choice.payload}"
        own = choice.compression
        if own is not None:
            reason = terms[choice.key].compression if choice.key in terms else None
            slower = ""
            if reason is not None and reason.plain_s is not None and reason.encoded_s is not None:
                slower = f": {human_seconds(reason.plain_s)} each instead of the {human_seconds(reason.encoded_s)} of the plan"
            out.append(
                f"{name}: {own.codec} across {', '.join(own.levels)}. NCCL reduces what it is given and encodes nothing, so "
                f"under it these messages travel as they are{slower}; backend scaleacross runs the codec from launch.json."
            )
        if choice.driver == "host":
            out.append(
                f"{name}: driven by the host. No setting of NCCL or NCCLX says so, so kernels run it and take multiprocessors; "
                "backend scaleacross moves bytes by the host in any case."
            )
        if choice.driver == "copy_engines" and not by_engines(choice):
            out.append(
                f"{name}: driven by copy engines. Its parts are unequal, so torch sends them as grouped messages, which kernels "
                "of NCCL and NCCLX run and which take multiprocessors."
            )
        if any(step.algorithm == "halving_doubling" for step in choice.steps):
            out.append(f"{name}: {choice.label}. No setting names what single levels run.")
    return out
