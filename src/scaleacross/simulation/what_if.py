"""What-if options of ``simulate``, parsed into a ``Disturbance``: what is slower or lost than the plan states.

* ``jitter=0.02``                   every action's seconds vary, standard deviation 2 % (of the logarithm); ``seed=1`` draws
                                    others, and other links for hashed flows
* ``host-jitter=0.03``              every host has its own pace for the step, standard deviation 3 % (of the logarithm)
* ``straggler=RANK:1.3``            the accelerator of this global rank computes 1.3 times as long (with its equivalent
                                    neighbours)
* ``slow=zone:0.5``                 a link level keeps half of its capacity; ``slow=building-a/building-b:0.5`` an
                                    inter-building link
* ``lost-plane=building``           one of the planes that the topology states for a level is lost
* ``lost-rack=building-a:3``        fault units with an accelerator in the rack (from 0) stop, the others take over their
                                    micro-batches; with several racks, all of their units stop
* ``sync-every=50:4``               replicas average their parameters once in 50 steps, a part in each step, in 4 bits a
                                    parameter (without ``:4`` in as many bits as gradients): DiLoCo, not synchronous
                                    training

Options combine: a level that is slow and lacks a plane gets the product of both shares. An option stated twice is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import is_legal
from scaleacross.simulation.fabric import Slowdown
from scaleacross.simulation.step_run import Disturbance
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology
from scaleacross.units import human_bytes

Ints = npt.NDArray[np.int_]

SYNC: Final = "sync-every"
OPTIONS: Final = ("jitter", "host-jitter", "seed", "straggler", "slow", "lost-plane", "lost-rack", SYNC)
OUTER_BYTES: Final = 8
"""Bytes per parameter beyond the optimizer's: last synchronized value and momentum of the outer step, in fp32."""
OF_TABLES: Final = ("straggler", "slow", "lost-plane")


def disturbance_of(options: Sequence[str], plan: Plan | None, topology: Topology) -> Disturbance:
    """Parse ``options``; ``plan`` is None for a recommendation plan, which accepts those of ``OF_TABLES`` only.

    Raises:
        InputError: an unknown option, or one that the plan or its topology does not have.
    """
    jitter, by_host, stragglers = 0.0, 0.0, {}
    seed: int | None = None
    levels: dict[int, float] = {}
    trunks: dict[frozenset[str], float] = {}
    lost: list[Ints] = []
    replicated = 1.0
    _refuse_repeated(options)
    for option in options:
        name, _, value = option.partition("=")
        if plan is None and name in ("jitter", "host-jitter", "seed"):
            raise InputError(f"what-if '{option}' is of language models; of tables there are {', '.join(OF_TABLES)}")
        if name == "jitter":
            jitter = _number(option, value, 0.0, 1.0)
        elif name == "host-jitter":
            by_host = _number(option, value, 0.0, 1.0)
        elif name == "seed":
            seed = _whole(option, value, 2**32)
        elif name == "straggler":
            where, _, factor = value.partition(":")
            stragglers[_whole(option, where)] = _number(option, factor, 1.0, 1e6)
        elif name == "slow":
            where, _, left = value.rpartition(":")
            share = _number(option, left, 1e-6, 1.0)
            if where in LINK_LEVELS:
                level = LINK_LEVELS.index(where)
                levels[level] = levels.get(level, 1.0) * share
            else:
                trunks[_trunk(where, topology)] = share
        elif name == "lost-plane":
            level, share = _lost_plane(value, topology)
            levels[level] = levels.get(level, 1.0) * share
        elif name == "lost-rack" and plan is not None:
            lost.append(_units_of_rack(option, value, plan, topology))
        elif name == SYNC and plan is not None:
            replicated = _replicated_share(option, value, plan)
        else:
            known = OPTIONS if plan is not None else OF_TABLES
            raise InputError(f"no what-if '{option}': choose from {', '.join(f'{one}=…' for one in known)}")
    micro_batches = _left_with(lost, plan) if plan is not None and lost else None
    return Disturbance(jitter, seed, stragglers, Slowdown(levels, trunks), micro_batches, by_host, replicated)


def notes_on(options: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """Return notes for a reader of a step that was simulated with these options."""
    if not any(option.startswith(SYNC) for option in options):
        return ()
    note = (
        "between synchronizations replicas drift apart (DiLoCo): not the training that the plan describes, nor its loss"
    )
    held, each = max(stage.optimizer_bytes for stage in plan.memory), plan.job.optimizer.state_bytes
    if held and each:  # states on the host do not say how many parameters an accelerator updates
        more = held / each * OUTER_BYTES
        note += f"; accelerators keep up to {human_bytes(more)} more ({OUTER_BYTES} bytes a parameter, not in the plan's memory)"
    return (note,)


def _number(option: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InputError(f"what-if '{option}': a number from {least:g} to {most:g} is expected, got '{text}'")
    return value


def _whole(option: str, text: str, most: float = 1e9) -> int:
    value = _number(option, text, 0, most)
    if value != int(value):
        raise InputError(f"what-if '{option}': a whole number is expected, got '{text}'")
    return int(value)


def _refuse_repeated(options: Sequence[str]) -> None:
    """Refuse two options for the same thing, of which one would be dropped."""
    seen: dict[tuple[str, str], str] = {}
    for option in options:
        name, _, value = option.partition("=")
        where = value.rpartition(":")[0] if name in ("straggler", "slow") else value if name.startswith("lost-") else ""
        if name == "slow":
            where = "/".join(sorted(where.split("/")))
        elif name == "straggler":  # 3, 03 and 3.0 are one global rank
            where = str(_whole(option, where))
        if (name, where) in seen:
            raise InputError(f"what-if '{option}': '{seen[name, where]}' says it already: state it once")
        seen[name, where] = option


def _trunk(where: str, topology: Topology) -> frozenset[str]:
    ends = frozenset(where.split("/"))
    known = {frozenset(trunk.between): "/".join(trunk.between) for trunk in topology.trunks}
    if ends not in known:
        trunks = ", ".join(known.values()) or "none"
        raise InputError(f"no link '{where}': levels are {', '.join(LINK_LEVELS)}; trunks are {trunks}")
    return ends


def _lost_plane(level: str, topology: Topology) -> tuple[int, float]:
    if level not in LINK_LEVELS:
        raise InputError(f"no link level '{level}': choose from {', '.join(LINK_LEVELS)}")
    index = LINK_LEVELS.index(level)
    if level in ("campus", "region"):
        planes = [trunk.num_planes for trunk in topology.trunks]
    else:
        planes = [getattr(building.links, level).num_planes for building in topology.buildings]
    stated = [number for number in planes if number]
    if not stated:
        raise InputError(f"the topology states no num_planes for level {level}: nothing can be lost of it")
    return index, 1 - 1 / min(stated)


def _units_of_rack(option: str, value: str, plan: Plan, topology: Topology) -> Ints:
    """Return the fault unit (``dp_replicate`` group) of every accelerator in a rack."""
    name, _, number = value.partition(":")
    base, rack = 0, _whole(option, number)
    for share in plan.placement.fill:
        if share.building == name:
            break
        base += share.num_accelerators
    else:
        used = ", ".join(share.building for share in plan.placement.fill)
        raise InputError(f"what-if '{option}': the plan uses no building '{name}'; it uses {used}")
    size, degrees = topology.building(name).accelerators_per("rack"), plan.degrees
    if rack * size >= share.num_accelerators:
        held = math.ceil(share.num_accelerators / size)
        raise InputError(f"what-if '{option}': the plan uses racks 0 to {held - 1} of '{name}'")
    global_ranks = base + np.arange(rack * size, min((rack + 1) * size, share.num_accelerators))
    units: Ints = global_ranks // strides(degrees, plan.placement.axis_order)["dp_replicate"] % degrees.dp_replicate
    if len(np.unique(units)) == degrees.dp_replicate:
        raise InputError(
            f"what-if '{option}': all fault units (dp_replicate {degrees.dp_replicate}) have an accelerator in that rack, so the "
            "job stops"
        )
    return units


def _replicated_share(option: str, value: str, plan: Plan) -> float:
    """Return the bytes that replicas send per step over those of their gradients.

    All parameters travel once per period, a part in each step (Streaming DiLoCo, arXiv 2501.18512).
    """
    if plan.degrees.dp_replicate == 1:
        raise InputError(
            f"what-if '{option}': the plan has one replica, and shards of one replica cannot drift apart; plan with "
            "--set degrees.dp_replicate=2, or as many as there are sites"
        )
    steps, _, bits = value.partition(":")
    wide = 8 * plan.job.optimizer.reduce_bytes
    if bits and any(one.communicator == "dp_replicate" and one.compression for one in plan.decision.network or ()):
        raise InputError(f"what-if '{option}': the plan compresses what replicas send already: leave out ':{bits}'")
    every = _number(option, steps, 1, 1e6)
    return (_number(option, bits, 1, wide) if bits else wide) / wide / every


def _left_with(lost: Sequence[Ints], plan: Plan) -> int:
    """Return the micro-batches of each remaining fault unit; states are complete only in whole units.

    Raises:
        InputError: none is left.
    """
    degrees = plan.degrees
    left = degrees.dp_replicate - len(np.unique(np.concatenate(lost)))
    if left <= 0:
        raise InputError(
            f"what-if lost-rack: all fault units (dp_replicate {degrees.dp_replicate}) have an accelerator in one of these "
            "racks, so the job stops"
        )
    needed = math.ceil(plan.num_micro_batches * degrees.dp_replicate / left)
    pipeline = plan.decision.pipeline
    while not is_legal(pipeline.schedule, degrees.pp, needed, pipeline.num_chunks):
        needed += 1
    return needed
