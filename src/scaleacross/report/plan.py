"""Sections on the decision: the job, the degrees, the schedule, and the placement of ranks."""

from __future__ import annotations

from itertools import chain

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, percent, plural, run_lengths, section
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, Axis
from scaleacross.spec.plan import Plan
from scaleacross.spec.recomputation import PARTS, modules_of
from scaleacross.spec.topology import Topology
from scaleacross.units import human_bytes

AXIS_MEANING: dict[Axis, str] = {
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "dp_shard": "data, states sharded",
    "dp_replicate": "data, replicated",
    "ep": "experts",
}
BETWEEN_BUILDINGS = ("campus", "region")
CONTEXT_MEANING = {
    "ring": "ring: keys and values go round, overlapped with attention",
    "gather": "gather: keys and values are gathered before attention",
    "all_to_all": "all_to_all: heads are exchanged for sequence before and after attention",
    "all_to_all_ring": "all_to_all_ring: all_to_all among cp_inner neighbours, a ring between their groups",
}
SHARD_MEANING = {
    "none": "nothing (every replica keeps all states)",
    "optimizer": "optimizer states over dp_shard · cp (ZeRO-1)",
    "gradients": "gradients and optimizer states over dp_shard · cp (ZeRO-2)",
    "parameters_once": "parameters, gradients and optimizer states over dp_shard · cp, gathered once per micro-batch and kept "
    "until its backward pass (FSDP2 without reshard after forward)",
    "parameters": "parameters, gradients and optimizer states over dp_shard · cp (ZeRO-3, FSDP)",
}
RECOMPUTE_MEANING = {
    "none": "none (all activations kept)",
    "selective": "selective (the quick-to-repeat activations)",
    "full": "full (only layer inputs kept)",
}


def decision(plan: Plan) -> RenderableType:
    """The plan's choices, one fact per line, every factor of the degrees shown."""
    job, chosen = plan.job, plan.decision
    pipeline = chosen.pipeline
    described = str(job.topology.get("description", "")) if isinstance(job.topology, dict) else ""
    layers = run_lengths(chain.from_iterable(zip(*plan.layers_per_stage, strict=True)))
    return grid(
        [
            ("job", f"{_name(job.workload)} on {_name(job.topology)}"),
            *([("topology", described)] if described else ()),
            *not_read(plan),
            ("batch", _batch(job)),
            ("degrees", str(plan.degrees)),
            (
                "pipeline",
                f"{pipeline.schedule}, {plural(pipeline.num_chunks, 'chunk')} per rank, {_micro_batches(plan)} "
                f"micro-batches of {plural(pipeline.micro_batch_sequences, 'sequence')} per replica",
            ),
            (
                "layers",
                f"{layers} per {'virtual stage, in model order' if pipeline.num_chunks > 1 else 'stage'}"
                f"{', the last one a prediction layer' if job.prediction_layers else ''}",
            ),
            ("recompute", ", ".join(chosen.stage_recompute or ()) or _recompute(chosen.recompute)),
            ("shard", SHARD_MEANING[chosen.shard]),
            *([("context", CONTEXT_MEANING[chosen.context_exchange])] if plan.degrees.cp > 1 else []),
            *([("on the host", _on_host(plan))] if chosen.activation_offload or chosen.optimizer_offload else []),
            *([("target", _targets(plan))] if plan.targets else []),
        ]
    )


def not_read(plan: Plan) -> list[tuple[str, str]]:
    """Return a row on keys of the model's published file that no reader uses."""
    keys = plan.job.workload.get("unread_keys") if isinstance(plan.job.workload, dict) else None
    return [("not read", f"of the model's file: {', '.join(keys)}")] if keys else []


def _recompute(policy: str) -> str:
    if policy in PARTS:
        return f"{policy} (that share of every chunk's layers, whole)"
    return RECOMPUTE_MEANING.get(policy) or f"{', '.join(modules_of(policy))} (by module, in every layer that has it)"


def _on_host(plan: Plan) -> str:
    """Describe what is offloaded, and how much host memory it takes on the fullest stage."""
    chosen, fullest = plan.decision, max(plan.memory, key=lambda stage: stage.host_bytes)
    parts = [
        f"{percent(chosen.activation_offload)} of the layers' activations" if chosen.activation_offload else "",
        f"{percent(chosen.optimizer_offload)} of the optimizer states" if chosen.optimizer_offload else "",
    ]
    room = f"{human_bytes(fullest.host_bytes)} of {human_bytes(fullest.host_capacity_bytes)} per accelerator"
    return f"{' and '.join(filter(None, parts))} ({room})"


def _targets(plan: Plan) -> str:
    """Return the job's target, or the targets that can express the plan and the reason why others cannot."""
    if plan.job.target != "any":
        return f"{plan.job.target} (it runs the plan as estimated)"
    able = ", ".join(one.target for one in plan.targets if not one.refused)
    unable = "; ".join(f"not {one.target}: {one.refused[0].partition(':')[0]}" for one in plan.targets if one.refused)
    return f"any: {able}" + (f" ({unable})" if unable else "")


def _micro_batches(plan: Plan) -> str:
    """Return the number per replica, by the replica's buildings where numbers differ."""
    shares = plan.decision.batch_shares
    if shares is None:
        return count(plan.num_micro_batches)
    return ", ".join(f"{count(share.num_micro_batches)} (in {' + '.join(share.buildings)})" for share in shares)


def placement(plan: Plan) -> RenderableType:
    """Axis order, the level that each axis crosses, and the share of every building."""
    placed, degrees = plan.placement, plan.degrees
    axes = columns(("axis", "meaning", "degree", "stride", "outermost level"), right=("degree", "stride"))
    stride = 1
    for axis in (axis for axis in placed.axis_order if degrees.of(axis) > 1):
        _axis_row(axes, plan, axis, count(stride))
        stride *= degrees.of(axis)
    if degrees.expert_ranks > 1:
        _axis_row(
            axes, plan, "ep", f"over tp, cp and ep {degrees.ep}" if degrees.expert_lanes > 1 else "inside dp_shard"
        )
    for axis in (axis for axis in placed.axis_order if degrees.of(axis) == 1):
        _axis_row(axes, plan, axis, "")
    return section(
        "Placement: fastest axis first, then buildings in the order of global ranks", axes, Text(), _buildings(plan)
    )


def _axis_row(table: Table, plan: Plan, axis: Axis, stride: str) -> None:
    """Add an axis to the table; levels between buildings are coloured."""
    level, degree = plan.placement.spans.get(axis), plan.degrees.of(axis)
    reaches = Text(level or "–", style="bold yellow" if level in BETWEEN_BUILDINGS else "")
    add(table, axis, AXIS_MEANING[axis], count(degree), stride, reaches, style="dim" if degree == 1 else "")


def _buildings(plan: Plan) -> RenderableType:
    topology = Topology.model_validate(plan.job.topology)
    heads = ("building", "global ranks", "used", "of", "idle")
    table = columns(heads, right=heads[1:])
    start = 0
    for share in plan.placement.fill:
        available = topology.building(share.building).num_accelerators
        end = start + share.num_accelerators
        idle = available - share.num_accelerators
        add(
            table,
            share.building,
            f"{count(start)}–{count(end - 1)}",
            count(share.num_accelerators),
            count(available),
            count(idle),
        )
        start = end
    used = {share.building for share in plan.placement.fill}
    for building in topology.buildings:
        if building.name not in used:
            size = count(building.num_accelerators)
            add(table, building.name, "–", "0", size, size, style="dim")
    return table


def _batch(job: Job) -> str:
    return (
        f"{count(job.global_batch_sequences)} sequences × {count(job.sequence_length)} tokens = "
        f"{count(job.tokens_per_step)} tokens per step, {job.precision}"
    )


def _name(reference: object) -> str:
    """Return the name of a workload or topology that is resolved (a mapping) or still a name."""
    return str(reference.get("name", "unnamed")) if isinstance(reference, dict) else str(reference)


def axes_in_order(present: set[str]) -> list[str]:
    """``present`` axes in the order of the placement grid, ep last."""
    return [axis for axis in (*GRID_AXES, "ep") if axis in present]
