"""V3: bytes of every pipeline rank, counted layer by layer and action by action, without the cost model's memory formula.

Layers are assigned to ranks in model order. The activations in flight are counted in the schedule's own actions, not by
a closed form. Only the layer profile (parameters and kept bytes per token of a layer) and the accelerators are shared
with the cost model.

A rank stores, after ZeRO (arXiv 1910.02054) and Korthikanti et al. (2205.05198):

* a layer's parameters, their gradients and optimizer states: divided by tp, replicated ones whole, experts by tp · ep (folded:
  tp · cp · ep); tensors that the shard level names are also divided by dp_shard · cp (experts by dp_shard · cp / ep,
  folded ones by dp_shard / ep);
* kept bytes per token of every layer of a chunk in flight, where chunks of a rank count as equal; the head's for one micro-batch;
* two gathered layers where parameters are sharded (all of the rank's where they stay until the backward pass), the gradients of
  two layers where only gradients are sharded, and the bytes beyond its policy of one layer that is recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from scaleacross.cost_models.conversions import kept_weight_bytes
from scaleacross.cost_models.layout import Layout, types_of_ranks
from scaleacross.schedules.pipeline import SCHEDULES, chosen
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.parallelism import Degrees, split_layers
from scaleacross.spec.plan import Decision, StageMemory
from scaleacross.spec.recomputation import of_rerun_layer, policy_on, rerun_share
from scaleacross.units import human_bytes
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile
from scaleacross.workloads.problem import Problem


def counted_memory(problem: Problem, decision: Decision, layout: Layout) -> tuple[StageMemory, ...]:
    """Count the bytes of every pipeline rank, for the replicas with most micro-batches and the accelerator type with
    least memory.

    Args:
        layout: replica classes, counted rank by rank (``shares.counted_layout``).
    """
    dealt, ends = _dealt(problem, decision), (problem.profile.embedding, problem.profile.head)
    micro_batches = _most_micro_batches(problem, decision)
    flights = peak_in_flight(chosen(decision.pipeline, decision.degrees.pp, micro_batches))
    if (
        problem.job.experts.overlap_fraction > 0 and decision.degrees.expert_ranks > 1
    ):  # a forward of another micro-batch is concurrent with every backward
        flights = tuple(min(flight + 1, micro_batches * decision.pipeline.num_chunks) for flight in flights)
    types = {
        accelerator.name: accelerator
        for share in (decision.placement.fill if decision.placement else ())
        for accelerator in [problem.topology.building(share.building).accelerator]
    }
    out = []
    for rank, names in enumerate(types_of_ranks(layout)):
        policy = policy_on(rank, decision.recompute, decision.stage_recompute)
        own = decision.model_copy(update={"recompute": policy, "stage_recompute": None})
        tightest = min(
            (types[name] for name in names), key=lambda one: one.room_bytes(problem.job.memory_headroom_fraction)
        )
        out.append(
            StageMemory(
                stage=rank,
                num_layers=sum(not any(layer is end for end in ends) for layer in dealt[rank]),
                **_parts(problem, own, dealt[rank], flights[rank]),
                reserved_bytes=tightest.reserved_memory_bytes,
                capacity_bytes=tightest.memory_bytes,
                headroom_bytes=problem.job.memory_headroom_fraction * tightest.memory_bytes,
                **_on_host(problem, own, dealt[rank], flights[rank], [types[name] for name in names]),
            )
        )
    return tuple(out)


def v3_memory(stated: Sequence[StageMemory], counted: Sequence[StageMemory], tolerance: float) -> Iterator[str]:
    """Yield stages whose stated bytes are not those counted, and stages that do not fit."""
    if len(stated) != len(counted):
        yield f"V3: memory is stated of {len(stated)} stages, there are {len(counted)}"
    for left, right in zip(stated, counted, strict=False):
        for name, value in left.model_dump().items():
            there = getattr(right, name)
            if not math.isclose(value, there, rel_tol=tolerance, abs_tol=1e-6):
                yield f"V3: {name} of stage {right.stage} is stated as {value}, counted as {there}"
    yield from does_not_fit(counted)


def takes_headroom(memory: Sequence[StageMemory]) -> Iterator[str]:
    """V3: yield stages that fit, but leave less memory of their accelerator free than the job asks for."""
    for stage in memory:
        if stage.total_bytes <= stage.capacity_bytes and not stage.fits:
            free, wanted = (
                part / stage.capacity_bytes for part in (stage.capacity_bytes - stage.total_bytes, stage.headroom_bytes)
            )
            yield (
                f"V3: stage {stage.stage} leaves {free:.1%} of its accelerator's memory free, "
                f"memory_headroom_fraction asks for {wanted:.1%}"
            )


def does_not_fit(memory: Sequence[StageMemory]) -> Iterator[str]:
    """V3: yield stages that need more memory than their accelerator, or its share of the host, has."""
    for stage in memory:
        if stage.total_bytes > stage.capacity_bytes:
            short = f"{human_bytes(stage.total_bytes)} of {human_bytes(stage.capacity_bytes)}"
            yield f"V3: stage {stage.stage} needs {short} per accelerator"
        if stage.host_bytes > stage.host_capacity_bytes:
            short = f"{human_bytes(stage.host_bytes)} of {human_bytes(stage.host_capacity_bytes)}"
            yield f"V3: stage {stage.stage} needs {short} of host memory per accelerator"


def _dealt(problem: Problem, decision: Decision) -> list[list[LayerProfile]]:
    """Return [pipeline rank] -> its layers, with embedding and head, assigned in model order."""
    profile, pp, pipeline = problem.profile, decision.degrees.pp, decision.pipeline
    layers = iter([layer for layer, count in profile.blocks for _ in range(count)])
    places = [locate(SCHEDULES[pipeline.schedule].placement, pp, stage) for stage in range(pp * pipeline.num_chunks)]
    split = decision.layers_per_stage
    counts = (
        split_layers(profile.num_layers, len(places))
        if split is None
        else [split[rank][chunk] for rank, chunk in places]
    )
    out: list[list[LayerProfile]] = [[] for _ in range(pp)]
    out[places[0][0]].append(profile.embedding)
    for (rank, _), count in zip(places, counts, strict=True):
        out[rank] += [next(layers) for _ in range(count)]
    out[places[-1][0]].append(profile.head)
    return out


def _most_micro_batches(problem: Problem, decision: Decision) -> int:
    """Return the micro-batches of the replicas that have most."""
    if decision.batch_shares is not None:
        return max(share.num_micro_batches for share in decision.batch_shares)
    return problem.job.global_batch_sequences // (decision.degrees.dp * decision.pipeline.micro_batch_sequences)


def _parts(problem: Problem, decision: Decision, layers: Sequence[LayerProfile], flight: int) -> Mapping[str, float]:
    """Return the bytes of one rank with ``layers`` and ``flight`` chunks in flight, by field of ``StageMemory``."""
    job, degrees = problem.job, decision.degrees
    tp, group, over = degrees.tp, degrees.dp_shard * degrees.cp, _experts_over(degrees)
    dense = sum(_dense_parameters(layer, tp) for layer in layers)
    expert = sum(layer.num_expert_parameters / (tp * over) for layer in layers)
    still_dense = sum(_frozen_dense_parameters(layer, tp) for layer in layers)
    still_expert = sum(layer.num_frozen_expert_parameters / (tp * over) for layer in layers)
    if (copied := _embedding_copy(problem.profile, layers)) is not None:
        dense += _dense_parameters(copied, tp)
        still_dense += _frozen_dense_parameters(copied, tp)

    def held(dense: float, expert: float, is_sharded: bool) -> float:
        return dense / group + expert / max(1.0, group / over) if is_sharded else dense + expert

    trained = dense - still_dense, expert - still_expert
    here = held(dense, expert, decision.shard.startswith("parameters"))
    gradients = held(*trained, decision.shard not in ("none", "optimizer"))
    states = held(*trained, decision.shard != "none")

    tokens = decision.pipeline.micro_batch_sequences * job.sequence_length / degrees.cp
    head = problem.profile.head
    stays = 1.0 - decision.activation_offload
    of_chunk = sum(
        _kept(layer, decision.recompute, degrees) * (1.0 if layer is problem.profile.embedding else stays)
        for layer in layers
        if layer is not head
    )
    activations = of_chunk / decision.pipeline.num_chunks * flight
    activations += sum(_kept(layer, decision.recompute, degrees) for layer in layers if layer is head)
    narrow = sum(
        _dense_parameters(layer, tp) + layer.num_expert_parameters / (tp * over)
        for layer in layers
        if layer is not head and layer is not problem.profile.embedding
    )
    master = 4.0 if job.optimizer.gathered_from_master and decision.shard.startswith("parameters") else 0.0
    converted = 0.0
    if job.kept.autocast:  # 16-bit copies of weights; a compiled layer that is recomputed keeps none
        rerun = rerun_share(decision.recompute) if "model" in job.kept.compiled else 0.0
        converted = 2.0 * narrow * (1.0 - rerun)
        converted += 2.0 * _output_weights(problem, tp) if any(layer is head for layer in layers) else 0.0
    states_bytes = {
        "parameters_bytes": converted
        + here * (master or job.optimizer.parameter_bytes)
        + (0.0 if decision.shard.startswith("parameters") else kept_weight_bytes(job) * narrow),
        "gradients_bytes": gradients * job.optimizer.gradient_bytes,
        "optimizer_bytes": states * (job.optimizer.state_bytes - master) * (1.0 - decision.optimizer_offload),
        "activations_bytes": activations * tokens,
    }
    whole = job.optimizer.parameter_bytes * (dense + expert) if decision.shard == "parameters_once" else 0.0
    if decision.activation_offload:  # two layers on their way to the host
        whole += 2 * tokens * max(_kept(layer, decision.recompute, degrees) for layer, _ in problem.profile.blocks)
    if job.kept.by == "pytorch":
        return {**states_bytes, "buffers_bytes": _pytorch_buffers(problem, decision, layers, tokens) + whole}

    largest = max((layer for layer, _ in problem.profile.blocks), key=lambda layer: layer.total_parameters)
    of_two = 2 * (_dense_parameters(largest, tp) + largest.num_expert_parameters / (tp * over))
    again = _kept(largest, "none", degrees) - _kept(largest, of_rerun_layer(decision.recompute), degrees)
    of_two *= {"parameters": job.optimizer.parameter_bytes, "gradients": job.optimizer.gradient_bytes}.get(
        decision.shard, 0.0
    )
    return {**states_bytes, "buffers_bytes": again * tokens + of_two + whole}


def _embedding_copy(profile: ModelProfile, layers: Sequence[LayerProfile]) -> LayerProfile | None:
    """Return the embedding if a rank with ``layers`` needs a copy: for prediction layers without the first layers."""
    ends = [any(layer is end for layer in layers) for end in (profile.embedding, profile.head)]
    return profile.embedding if profile.num_prediction_layers and ends == [False, True] else None


def _experts_over(degrees: Degrees) -> int:
    """Return the ranks of dp_shard · cp among which experts are divided: ep, or ep · cp if folded over tp and cp."""
    return degrees.ep if degrees.expert_lanes == 1 else degrees.ep * degrees.cp


def _on_host(
    problem: Problem, decision: Decision, layers: Sequence[LayerProfile], flight: int, types: Sequence[Accelerator]
) -> Mapping[str, float]:
    """Return the host bytes that one accelerator of a rank with ``layers`` uses, and those that it may use."""
    if not decision.activation_offload and not decision.optimizer_offload:
        return {}
    profile, degrees, optimizer = problem.profile, decision.degrees, problem.job.optimizer
    tokens = decision.pipeline.micro_batch_sequences * problem.job.sequence_length / degrees.cp
    inner = [layer for layer in layers if layer is not profile.embedding and layer is not profile.head]
    waiting = sum(_kept(layer, decision.recompute, degrees) for layer in inner) * tokens * flight
    dense: float = sum(
        _dense_parameters(layer, degrees.tp) - _frozen_dense_parameters(layer, degrees.tp) for layer in layers
    )
    if (copied := _embedding_copy(profile, layers)) is not None:
        dense += _dense_parameters(copied, degrees.tp) - _frozen_dense_parameters(copied, degrees.tp)
    of_experts = sum(layer.num_expert_parameters - layer.num_frozen_expert_parameters for layer in layers)
    expert = of_experts / (degrees.tp * _experts_over(degrees))
    if decision.shard != "none":
        group = degrees.dp_shard * degrees.cp
        dense, expert = dense / group, expert / max(1.0, group / _experts_over(degrees))
    states = (dense + expert) * (optimizer.state_bytes + 4.0)  # with the gradient in fp32
    filled = decision.activation_offload * waiting / decision.pipeline.num_chunks + decision.optimizer_offload * states
    rooms = [one.host.memory_bytes for one in types if one.host is not None]
    return {"host_bytes": filled, "host_capacity_bytes": min(rooms, default=0.0) if filled else 0.0}


def _pytorch_buffers(problem: Problem, decision: Decision, layers: Sequence[LayerProfile], tokens: float) -> float:
    """Return the peak of PyTorch's temporary allocations: a layer's backward pass or the loss, and receive buffers."""
    job, profile, degrees = problem.job, problem.profile, decision.degrees
    pieces = job.kept.loss_chunks
    widest = max((layer for layer, _ in profile.blocks), key=lambda layer: layer.total_parameters)
    copies = [job.optimizer.parameter_bytes]  # the 16-bit gradient
    gathers = decision.shard == "parameters" and not job.kept.autocast
    if gathers:
        copies.append(job.optimizer.parameter_bytes)  # gathered
    if decision.shard not in ("none", "optimizer") or job.kept.autocast:
        copies.append(job.optimizer.gradient_bytes)  # reduced, or added to its parameter's, in fp32
    prefetched = job.optimizer.parameter_bytes if gathers else 0.0
    held = _dense_parameters(widest, degrees.tp) + widest.num_expert_parameters / (degrees.tp * _experts_over(degrees))
    recomputed = _kept(widest, "none", degrees) - _kept(widest, of_rerun_layer(decision.recompute), degrees)
    peak = (sum(copies) + prefetched) * held + recomputed * tokens
    if any(layer is profile.head for layer in layers):
        logits = profile.vocabulary_size / degrees.tp * tokens
        of_output = sum(copies) * _output_weights(problem, degrees.tp)
        compiled = "loss" in job.kept.compiled and pieces == 1
        if pieces > 1:
            loss = (18 + 4 * degrees.tp if degrees.tp > 1 else 12) * logits / pieces
            loss += of_output + 2 * profile.head.hidden_size * tokens + (2 * logits if degrees.pp > 1 else 0.0)
        elif compiled and degrees.tp == 1:
            loss = 2 * logits  # the 16-bit gradient
        else:
            loss = (14 if degrees.tp > 1 else 10) * logits + (2 * logits if compiled else 0.0)
        peak = max(loss, max(peak, of_output) - _kept(profile.head, decision.recompute, degrees) * tokens)
    if degrees.pp == 1:
        return peak
    ends = sum(any(layer is end for layer in layers) for end in (profile.embedding, profile.head))
    message = 2 * profile.head.hidden_size * tokens / degrees.tp
    return peak + (2 * decision.pipeline.num_chunks - ends) * message * _most_micro_batches(problem, decision)


def _output_weights(problem: Problem, tp: int) -> float:
    return problem.profile.vocabulary_size * problem.profile.head.hidden_size / tp


def _dense_parameters(layer: LayerProfile, tp: int) -> float:
    return (layer.num_parameters - layer.num_replicated_parameters) / tp + layer.num_replicated_parameters


def _frozen_dense_parameters(layer: LayerProfile, tp: int) -> float:
    replicated = layer.num_frozen_replicated_parameters
    return (layer.num_frozen_parameters - replicated) / tp + replicated


def _kept(layer: LayerProfile, policy: str, degrees: Degrees) -> float:
    """Return the bytes per token that a layer keeps from its forward to its backward pass."""
    kept = layer.kept(policy)
    divided = kept.sharded + kept.of_context * (degrees.cp - 1)
    divided += kept.of_tp if degrees.tp > 1 else 0.0
    divided += kept.of_experts if degrees.expert_ranks > 1 else 0.0
    divided += kept.of_divided * (degrees.tp - 1) if degrees.expert_lanes == 1 else 0.0
    return divided / degrees.tp + kept.replicated
