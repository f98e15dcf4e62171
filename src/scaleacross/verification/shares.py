"""V2 of heterogeneous plans: layers per stage and batch shares, against replica classes counted rank by rank (V4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from scaleacross.cost_models.layout import Layout, ReplicaClass
from scaleacross.errors import InputError, VerificationError
from scaleacross.schedules.pipeline import SCHEDULES, chosen, refusal
from scaleacross.schedules.pipeline.check import check
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import GRID_AXES, PipelineChoice
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem


def refused(pipeline: PipelineChoice, pp: int, m: int) -> str | None:
    """Return why the named schedule has no such shape, or why the plan's own order is illegal; None if it is fine."""
    if pipeline.order is None:
        return refusal(pipeline.schedule, pp, m, pipeline.num_chunks)
    try:
        check(chosen(pipeline, pp, m))
    except (InputError, VerificationError) as error:
        return str(error)
    return None


def v2_layers(problem: Problem, decision: Decision) -> Iterator[str]:
    """Yield contradictions of stated layers with the stages and the model."""
    split, pp, num_chunks = decision.layers_per_stage, decision.degrees.pp, decision.pipeline.num_chunks
    if split is None:
        return
    if [len(stage) for stage in split] != [num_chunks] * pp:
        yield f"V2: layers_per_stage has {[len(stage) for stage in split]} entries, pp {pp} × {num_chunks} chunks need as many"
        return
    places = [locate(SCHEDULES[decision.pipeline.schedule].placement, pp, stage) for stage in range(pp * num_chunks)]
    for rank, chunk in places[1:-1]:
        if split[rank][chunk] == 0:
            yield f"V2: chunk {chunk} of stage {rank} holds no layer; only the model's first and last chunk may be empty"
    rank, chunk = places[-1]
    if split[rank][chunk] < problem.profile.num_prediction_layers:
        yield f"V2: the model's last chunk, of stage {rank}, holds no layer; prediction layers run next to the head"
    if sum(map(sum, split)) != problem.profile.num_layers:
        yield f"V2: layers_per_stage holds {sum(map(sum, split))} layers, the model has {problem.profile.num_layers}"


def v2_batch_shares(problem: Problem, decision: Decision) -> Iterator[str]:
    """Yield contradictions of batch shares with the replicas of a legal placement, the batch, and the schedule."""
    pipeline, pp = decision.pipeline, decision.degrees.pp
    shares = decision.batch_shares or ()
    stated = Counter({share.buildings: share.num_replicas for share in shares})
    there = {one.buildings: one.num_replicas for one in counted_layout(problem.topology, decision)}
    if len(stated) != len(shares) or stated != there:
        has = ", ".join(f"{count} in {'+'.join(names)}" for names, count in there.items())
        yield f"V2: batch_shares do not match the replicas of the placement: {has}"
    sequences = pipeline.micro_batch_sequences * sum(share.num_replicas * share.num_micro_batches for share in shares)
    if sequences != problem.job.global_batch_sequences:
        yield f"V2: batch_shares hold {sequences} sequences, the batch has {problem.job.global_batch_sequences}"
    for share in shares:
        reason = refused(pipeline, pp, share.num_micro_batches)
        if reason and pp > 1:
            yield f"V2: replicas in {'+'.join(share.buildings)}: {reason}"


def counted_layout(topology: Topology, decision: Decision) -> Layout:
    """Return replica classes and the accelerator types of their stages, counted rank by rank, by their first replica.

    Raises:
        ValueError: the decision has no placement.
    """
    degrees, fill = decision.degrees, decision.placed.fill
    stride = strides(degrees, decision.placed.axis_order)
    order = [share.building for share in fill]
    building = np.repeat(np.arange(len(order)), [share.num_accelerators for share in fill])
    at = {axis: np.arange(len(building)) // stride[axis] % degrees.of(axis) for axis in GRID_AXES}
    replica = at["dp_replicate"] * degrees.dp_shard + at["dp_shard"]
    seen = [[set[str]() for _ in range(degrees.pp)] for _ in range(degrees.dp)]
    # distinct (replica, stage, building) triples, packed into one number each
    for place in np.unique((replica * degrees.pp + at["pp"]) * len(order) + building).tolist():
        seen[place // len(order) // degrees.pp][place // len(order) % degrees.pp].add(order[place % len(order)])
    classes: dict[tuple[str, ...], list[list[set[str]]]] = {}
    for stages in seen:
        touched = set().union(*stages)
        classes.setdefault(tuple(name for name in order if name in touched), []).append(stages)
    kind = {name: topology.building(name).accelerator.name for name in order}
    return tuple(
        ReplicaClass(
            buildings,
            len(replicas),
            tuple(
                frozenset(kind[name] for stage in stages for name in stage) for stages in zip(*replicas, strict=True)
            ),
        )
        for buildings, replicas in classes.items()
    )
