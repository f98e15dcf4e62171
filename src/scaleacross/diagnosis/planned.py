"""Adds to a diagnosis from launch.json: predictions where dumps have none, and the places of the ranks at fault."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from scaleacross.errors import InputError
from scaleacross.spec.diagnosis import Diagnosis, Fault
from scaleacross.spec.launch import ALL_AXES, LaunchConfig, ProcessGroups
from scaleacross.spec.trace import Operation, RankTrace

_NAMES: Final = {
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_allv": "all_to_all",
}
"""PyTorch's name of a collective -> ours, where they differ"""
_BYTES: Final = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4, "half": 2, "float16": 2,
    "bfloat16": 2, "short": 2, "int16": 2, "char": 1, "int8": 1, "byte": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def add_predictions(traces: Sequence[RankTrace], config: LaunchConfig) -> int:
    """Add the plan's prediction to operations without one, by the ranks of their group; return how many got one.

    Raises:
        InputError: the dumps hold ranks, or groups of an axis, that the launch file does not have.
    """
    last = max(trace.rank for trace in traces)
    stated = max((trace.world_size or 0 for trace in traces), default=0)
    if last >= config.world_size or stated > config.world_size:
        raise InputError(
            f"dumps of a job of {max(last + 1, stated)} ranks, and a launch file of {config.plan_name} for {config.world_size}: "
            "give the one that this job ran with"
        )
    planned = {tuple(sorted(ranks)): groups for groups in config.process_groups for ranks in groups.ranks}
    added = 0
    _require_groups(traces, config)
    for trace in traces:
        for one in trace.operations:
            groups = planned.get(one.group.ranks)
            if one.predicted_s is None and groups is not None:
                one.predicted_s = _predicted_s(one, groups)
                added += one.predicted_s is not None
    return added


def _require_groups(traces: Sequence[RankTrace], config: LaunchConfig) -> None:
    """Refuse dumps of another job with as many ranks: a group that is named after an axis must have the plan's ranks.

    Our runtime names its groups after their axis; PyTorch's own groups rarely have such names.
    """
    planned = {(groups.axis, tuple(sorted(ranks))) for groups in config.process_groups for ranks in groups.ranks}
    for group in (group for trace in traces for group in trace.groups):
        if group.desc in ALL_AXES and len(group.ranks) > 1 and (group.desc, group.ranks) not in planned:
            raise InputError(
                f"dumps with a group {group.desc} of ranks {', '.join(map(str, group.ranks[:8]))}, which {config.plan_name} does "
                "not have: give the launch file that this job ran with"
            )


def in_plan(found: Diagnosis, config: LaunchConfig) -> Diagnosis:
    """Return ``found`` with the hosts of the ranks at fault, and the level that each link at fault crosses."""
    faults = [_placed(fault, config) for fault in (found.root, *found.others) if fault is not None]
    at_fault = sorted({rank for fault in faults[:16] for rank in fault.ranks[:16]})
    hosts = {rank: config.host(rank) for rank in at_fault}
    places = {rank: f"{host.name}, building {host.building}, region {host.region}" for rank, host in hosts.items()}
    root = faults[0] if faults else None
    return found.model_copy(update={"root": root, "others": tuple(faults[1:]), "places": places})


def _placed(fault: Fault, config: LaunchConfig) -> Fault:
    return fault if fault.link is None else fault.model_copy(update={"level": config.level_between(*fault.link)})


def _predicted_s(one: Operation, groups: ProcessGroups) -> float | None:
    """Return the predicted seconds for the bytes as launch.json counts them, or None.

    These are all bytes of a reduction, gather or scatter, and the bytes that a rank sends for other operations.
    """
    op = _NAMES.get(one.op, one.op)
    size = one.num_bytes
    if size is None and len(one.dtypes) == 1 and one.dtypes[0].lower() in _BYTES:
        shapes = one.output_sizes if op == "all_gather" else one.input_sizes
        size = sum(map(prod, shapes)) * _BYTES[one.dtypes[0].lower()]
    return groups.predicted_s(op, size) if size else None
