"""Read Megatron-LM arguments into settings: the inverse of ``emitters.megatron``, also for hand-written arguments.

The file is read, never run (``shell``, ``megatron_arguments``). Option names and defaults: NVIDIA/Megatron-LM
megatron/training/arguments.py (d98e8a64).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from scaleacross.emitters.megatron import CP_COMM_TYPES, DP_OUTERMOST, FSDP_STRATEGIES, PP_OUTERMOST, PRICED
from scaleacross.emitters.megatron_layout import GROUP_SIZE
from scaleacross.errors import InputError
from scaleacross.readers.megatron_arguments import arguments
from scaleacross.readers.megatron_model import HEADS, model_options
from scaleacross.readers.megatron_options import COMMUNICATORS
from scaleacross.readers.megatron_stages import LAYOUT, layers_of_stages
from scaleacross.readers.megatron_states import state_bytes
from scaleacross.readers.settings import Reading, data_parallel, folded
from scaleacross.schedules.pipeline.interleaved_1f1b import microbatches_per_round
from scaleacross.spec.conversion import RECIPE_PRECISION, Recipe
from scaleacross.spec.parallelism import PASS_GATHERS, ContextExchange, Degrees, PipelineChoice, ShardLevel, has_chunks
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import Recompute, spelled
from scaleacross.targets.megatron_bytes import PARAMETER_BYTES

SHARES: Final = {
    "--tp-comm-overlap": "overlap.tp_fraction",
    "--overlap-moe-expert-parallel-comm": "experts.overlap_fraction",
}
"""Options that only switch on what the job states as a fraction."""
DISPATCH: Final = {"alltoall": "copies", "flex": "deduplicated"}
MODEL: Final = {"--num-layers": "num_layers", "--hidden-size": "hidden_size", "--num-experts": "num_experts"}


def read(text: str, name: str, world: int, num_layers: int) -> Reading:
    """Return the settings of ``world`` processes that train ``num_layers`` layers, prediction layers not counted.

    ``text`` is the content of file ``name``.

    Raises:
        InputError: a value is missing, is not a number, or means something that no plan can express.
    """
    found, notes = arguments(text, name)

    def number(option: str, default: int | None = None) -> int:
        values = found.get(option)
        if values is None and default is not None:
            return default
        if not values or not values[0].isdigit() or int(values[0]) < 1:
            raise InputError(f"{name}: {option} {' '.join(values or ['is missing'])}: a whole number ≥ 1 is needed")
        return int(values[0])

    tp, pp, cp = (number(f"--{axis}-parallel-size", 1) for axis in ("tensor-model", "pipeline-model", "context"))
    dp = data_parallel(name, world, tp * pp * cp)
    if tp > 1 and "--sequence-parallel" not in found:
        raise InputError(
            f"{name}: tp {tp} without --sequence-parallel, which keeps norms and residuals whole on every rank, is not modelled: "
            "state --sequence-parallel, which computes the same with less memory"
        )
    shard = _shard(found, name)
    ep, lanes, divided = number("--expert-model-parallel-size", 1), 1, number("--expert-tensor-parallel-size", tp)
    if divided not in (1, tp):
        raise InputError(f"{name}: --expert-tensor-parallel-size {divided} is not modelled: 1 and tp {tp} are")
    if divided < tp or (ep > 1 and cp > 1):  # expert groups run over tp, unless it divides experts, and cp first
        if divided > 1:
            raise InputError(
                f"{name}: experts over cp {cp} that tp {tp} divides are not modelled; --expert-tensor-parallel-size 1 is"
            )
        ep, lanes = folded(name, ep, tp * cp, dp)
    whole = dp if ep * lanes == 1 else 1  # experts lie inside dp_shard, also where nothing else is sharded
    replicas = number("--num-distributed-optimizer-instances", 1) if shard != "none" else whole
    if dp % replicas:
        raise InputError(f"{name}: {replicas} optimizer instances do not divide dp {dp}")
    if dp // replicas % ep:
        raise InputError(
            f"{name}: --expert-model-parallel-size {ep} does not divide the {dp // replicas} replicas of a shard group"
        )
    exchange = _context(found, name) if cp > 1 else "ring"
    inner = _inner(found, name, cp) if exchange == "all_to_all_ring" else 1
    if inner in (1, cp):  # Transformer Engine falls back to the one that is left
        exchange, inner = ("ring" if inner == 1 else "all_to_all") if exchange == "all_to_all_ring" else exchange, 1
    if shard != "none" and dp // replicas * cp == 1:
        shard = "none"  # a distributed optimizer over one rank
    degrees = Degrees(
        tp=tp, cp=cp, pp=pp, dp_shard=dp // replicas, dp_replicate=replicas, ep=ep, expert_lanes=lanes, cp_inner=inner
    )
    predicted = _prediction_layers(found, name)
    counts = layers_of_stages(found, name, pp, num_layers, number, predicted)
    chunks = len(counts[0]) if counts else 1
    unequal = len({count for stage in counts for count in stage}) > 1
    schedule = "Interleaved1F1B" if has_chunks("Interleaved1F1B", chunks) else "1F1B"
    choice = PipelineChoice(schedule=schedule, num_chunks=chunks, micro_batch_sequences=number("--micro-batch-size"))
    batch = number("--global-batch-size", choice.micro_batch_sequences * dp)
    if chunks > 1 and pp > 1:
        _check_rounds(name, number(GROUP_SIZE, pp), choice, pp, batch // dp)
    decision = Decision(
        degrees=degrees, pipeline=choice, recompute=_recompute(found, name, 0 if unequal else num_layers // (pp * chunks)),
        shard=shard, **_offload(found, name, num_layers), context_exchange=exchange,
        layers_per_stage=counts if unequal or LAYOUT in found else None,
    )  # fmt: skip
    job = {
        "sequence_length": number("--seq-length"),
        "global_batch_sequences": batch,
        "prediction_layers": predicted,
        **_job(found, name),
        **_overlap(found, decision),
        **_experts(found, name, degrees.expert_ranks),
    }
    model = {label: number(option) for option, label in MODEL.items() if option in found}
    order = DP_OUTERMOST if "--use-tp-pp-dp-mapping" in found else PP_OUTERMOST
    if HEADS in found and (left := [option for option in PRICED if option not in found and not PRICED[option]]):
        notes += (f"modelled as if these were stated: {', '.join(left)}",)
    unsaid = {field: option for option, field in SHARES.items() if option in found}
    return Reading(decision, job, model, order, COMMUNICATORS in found, unsaid, notes, model_options(found))


def _prediction_layers(found: dict[str, list[str]], name: str) -> int:
    """Return the number of layers that predict further tokens. Raises InputError for a number that is not modelled."""
    stated = " ".join(found.get("--mtp-num-layers", ["0"]))
    if stated not in ("0", "1"):
        raise InputError(f"{name}: --mtp-num-layers {stated}: no or one prediction layer is modelled; state 1")
    return int(stated)


def _inner(found: dict[str, list[str]], name: str, cp: int) -> int:
    """Return the cp ranks that exchange heads inside a ring.

    Raises:
        InputError: the sizes of both levels do not multiply to cp.
    """
    sizes = found.get("--hierarchical-context-parallel-sizes", [])
    if len(sizes) != 2 or not all(size.isdigit() for size in sizes) or int(sizes[0]) * int(sizes[1]) != cp:
        raise InputError(
            f"{name}: --hierarchical-context-parallel-sizes {' '.join(sizes) or 'is missing'}: two sizes whose product "
            f"is --context-parallel-size {cp} are needed"
        )
    return int(sizes[0])


def _context(found: dict[str, list[str]], name: str) -> ContextExchange:
    kinds = found.get("--cp-comm-type") or ["p2p"]
    known = {word: exchange for exchange, word in CP_COMM_TYPES.items()}
    if len(set(kinds)) > 1 or kinds[0] not in known:
        raise InputError(
            f"{name}: --cp-comm-type {' '.join(kinds)} is not modelled: one of {', '.join(known)} for all layers is"
        )
    return known[kinds[0]]


def _shard(found: dict[str, list[str]], name: str) -> ShardLevel:
    """Return the shard level. Raises InputError for a strategy that Megatron-FSDP does not have."""
    if "--use-megatron-fsdp" in found:
        strategy = (found.get("--data-parallel-sharding-strategy") or ["optim_grads_params"])[0]
        levels: dict[ShardLevel, str] = {"none": "no_shard", "optimizer": "optim", **FSDP_STRATEGIES}
        for level, word in levels.items():
            if word == strategy:
                return level
        raise InputError(
            f"{name}: --data-parallel-sharding-strategy {strategy}: one of {', '.join(levels.values())} is needed"
        )
    return "optimizer" if "--use-distributed-optimizer" in found else "none"


def _recompute(found: dict[str, list[str]], name: str, chunk: int) -> Recompute:
    """Return the policy for chunks of ``chunk`` layers; 0: chunks are unequal."""
    stated = (found.get("--recompute-granularity") or ["none"])[0]
    granularity = "selective" if "--recompute-activations" in found else stated
    whole_moe = ["moe"] if "--moe-layer-recompute" in found else []
    if whole_moe and granularity == "full":
        raise InputError(f"{name}: --moe-layer-recompute with full recomputation: leave one of them out")
    missing = [option for option in ("--recompute-method", "--recompute-num-layers") if option not in found]
    if granularity == "full" and missing:
        raise InputError(f"{name}: full recomputation without {' and '.join(missing)}, and Megatron-LM stops")
    if granularity == "selective" and len(missing) < 2:
        raise InputError(
            f"{name}: selective recomputation with --recompute-method or --recompute-num-layers, and Megatron-LM stops"
        )
    if granularity == "selective" or whole_moe:
        modules = list(dict.fromkeys([*found.get("--recompute-modules", ["core_attn"]), *whole_moe]))
        try:
            return spelled("+".join(modules))
        except ValueError as error:
            raise InputError(f"{name}: --recompute-modules {' '.join(modules)}: {error}") from None
    method, layers = (
        (found.get("--recompute-method") or ["uniform"])[0],
        (found.get("--recompute-num-layers") or ["1"])[0],
    )
    if granularity == "full" and method == "block":
        return _block(layers, name, chunk)
    if granularity == "full" and (method, layers) != ("uniform", "1"):
        raise InputError(
            f"{name}: full recomputation by {method} of {layers} layers is not modelled: uniform of 1 and block are"
        )
    return "full" if granularity == "full" else "none"


def _block(layers: str, name: str, chunk: int) -> Recompute:
    """Return the policy that recomputes the first ``layers`` of every model chunk.

    Raises InputError where chunks are unequal, or the fraction has no name.
    """
    if not layers.isdigit() or not chunk:
        raise InputError(
            f"{name}: full recomputation by block of {layers} layers{'' if chunk else ' of unequal stages'}: a whole number of "
            "layers, in chunks that are equal, is modelled; state equal stages, or --recompute-method uniform"
        )
    share = Fraction(min(int(layers), chunk), chunk)
    try:
        return "none" if share == 0 else "full" if share == 1 else spelled(f"full:{share}")
    except ValueError as error:
        raise InputError(f"{name}: --recompute-num-layers {layers} of {chunk}: {error}") from None


def _offload(found: dict[str, list[str]], name: str, num_layers: int) -> dict[str, float]:
    """Return the fractions on the host.

    Raises InputError for an invalid number, or an optimizer update that does not overlap with its copies.
    """
    try:
        layers = int((found.get("--cpu-offloading-num-layers") or ["0"])[0])
        states = float((found.get("--optimizer-offload-fraction") or ["1"])[0])
    except ValueError as error:
        raise InputError(f"{name}: --cpu-offloading-num-layers or --optimizer-offload-fraction: {error}") from None
    if not 0 <= layers <= num_layers or not 0 <= states <= 1:
        raise InputError(
            f"{name}: {layers} of {num_layers} layers and {states:g} of the optimizer states cannot be offloaded"
        )
    if "--optimizer-cpu-offload" not in found:
        states = 0.0
    elif "--overlap-cpu-optimizer-d2h-h2d" not in found:
        raise InputError(
            f"{name}: --optimizer-cpu-offload without --overlap-cpu-optimizer-d2h-h2d is not modelled: state it"
        )
    return {"activation_offload": layers / num_layers, "optimizer_offload": states}


def _check_rounds(name: str, stated: int, choice: PipelineChoice, pp: int, sequences: int) -> None:
    """Raise InputError where rounds have other numbers of micro-batches than in the plan's schedule."""
    micro_batches = sequences // choice.micro_batch_sequences
    per_round = microbatches_per_round(pp, micro_batches) if micro_batches else stated
    if stated != per_round:
        raise InputError(
            f"{name}: rounds of {stated} micro-batches ({GROUP_SIZE}): {choice.schedule} runs {micro_batches} "
            f"micro-batches on pp {pp} in rounds of {per_round}; state {per_round}"
        )


def _recipe(found: dict[str, list[str]], name: str) -> Recipe:
    """Return the recipe of 8- or 4-bit products. Raises InputError for one that is not modelled."""
    option, default = ("--fp4-recipe", "nvfp4") if "--fp4-format" in found else ("--fp8-recipe", "delayed")
    word = (found.get(option) or [default])[0]
    known = next((recipe for recipe in RECIPE_PRECISION if recipe == word), None)
    if known is None:
        raise InputError(
            f"{name}: {option} {word} is not modelled: delayed, tensorwise, blockwise, mxfp8 and nvfp4 are"
        )
    return known


def _job(found: dict[str, list[str]], name: str) -> dict[str, Any]:
    """Return the fields of the job that the arguments state, or Megatron-LM's defaults.

    Raises:
        InputError: neither or both of --bf16 and --fp16, a recipe of 8-bit products that is not modelled, or a wrong
            bucket size.
    """
    if not {"--bf16", "--fp16"} & found.keys():
        raise InputError(
            f"{name}: neither --bf16 nor --fp16: Megatron-LM trains in 32 bit, which is not modelled; state one of them"
        )
    if {"--bf16", "--fp16"} <= found.keys():
        raise InputError(f"{name}: --bf16 and --fp16: Megatron-LM takes one of them; leave the other out")
    half, narrow = "--fp16" in found, "--fp8-format" in found or "--fp4-format" in found
    in_fp32 = "--accumulate-allreduce-grads-in-fp32" in found if half else "--grad-reduce-in-bf16" not in found
    in_fp32 = in_fp32 and found.get("--main-grads-dtype", ["fp32"]) == ["fp32"]
    held_in_fp32 = reduced_in_fp32 = in_fp32
    if "--use-megatron-fsdp" in found:  # as wide as parameters where nothing is stated
        held_in_fp32 = found.get("--megatron-fsdp-main-grads-dtype") == ["fp32"]
        reduced_in_fp32 = found.get("--megatron-fsdp-grad-comm-dtype") == ["fp32"]
    out: dict[str, Any] = {
        "precision": "fp16" if half else "bf16",
        "conversion.recipe": "null",
        "conversion.narrow_parameters": bool(narrow and {"--fp8-param-gather", "--fp4-param-gather"} & found.keys()),
        "optimizer.name": (found.get("--optimizer") or ["adam"])[0],
        "optimizer.parameter_bytes": PARAMETER_BYTES,
        "optimizer.gradient_bytes": 4.0 if held_in_fp32 else 2.0,
        "optimizer.reduce_bytes": 4.0 if reduced_in_fp32 else 2.0,
        "optimizer.fused_accumulation": "--no-gradient-accumulation-fusion" not in found,
        # A loss scale that moves is found too large by a NaN (training/arguments.py).
        "optimizer.checked_gradients": not {"--no-check-for-nan-in-loss-and-grad", "--use-megatron-fsdp"} & found.keys()
        and (not half or "--loss-scale" in found),
        **{field: 0.0 for option, field in SHARES.items() if option not in found},
        **state_bytes(found, name),
    }
    if narrow:
        out["conversion.recipe"] = _recipe(found, name)
        out["precision"] = RECIPE_PRECISION[out["conversion.recipe"]]
    bucket = " ".join(found.get("--ddp-bucket-size", ["null"]))
    if bucket != "null" and (not bucket.isdigit() or bucket == "0"):
        raise InputError(f"{name}: --ddp-bucket-size {bucket or 'is empty'}: a whole number ≥ 1 is needed")
    out["overlap.bucket_parameters"] = bucket
    return out


def _overlap(found: dict[str, list[str]], decision: Decision) -> dict[str, Any]:
    """Return the overlap options that have something to overlap; arguments state no others."""
    degrees = decision.degrees
    out: dict[str, Any] = {}
    if degrees.dp * degrees.cp > 1:
        gathered = "shard_prefetch" if decision.shard in PASS_GATHERS else "parameter_gather"
        early = {"gradient_reduce": "--overlap-grad-reduce", gathered: "--overlap-param-gather"}
        early |= {} if gathered == "parameter_gather" else {"parameter_gather": "--overlap-param-gather"}
        out = {f"overlap.{field}": option in found for field, option in early.items()}
    if decision.shard == "none":
        out["overlap.parameter_gather"] = "--overlap-grad-reduce" in found  # nothing is gathered
    if decision.pipeline.num_chunks > 1:
        out["overlap.pipeline_messages"] = "--no-overlap-p2p-communication" not in found
    return out


def _experts(found: dict[str, list[str]], name: str, ep: int) -> dict[str, Any]:
    """Return the fields for the dispatcher and CUDA graphs.

    Raises:
        InputError: a dispatcher or graphs that no plan can express.
    """
    out: dict[str, Any] = {"experts.graphs": _graphs(found, name)}
    if "--num-experts" in found:
        out["experts.fused_permutation"] = "--moe-permute-fusion" in found
    if ep == 1:
        return out
    if "--moe-shared-expert-intermediate-size" in found:
        out["experts.shared_overlap"] = "--moe-shared-expert-overlap" in found
    dispatcher = (found.get("--moe-token-dispatcher-type") or ["allgather"])[0]
    if dispatcher == "allgather":
        raise InputError(
            f"{name}: --moe-token-dispatcher-type allgather (the default) gathers all tokens, which is not modelled: alltoall "
            "and flex are"
        )
    if dispatcher not in DISPATCH:
        raise InputError(
            f"{name}: --moe-token-dispatcher-type {dispatcher} is not modelled: {' and '.join(DISPATCH)} are; state one of them"
        )
    return {**out, "experts.dispatch": DISPATCH[dispatcher]}


def _graphs(found: dict[str, list[str]], name: str) -> str:
    implementation = (found.get("--cuda-graph-impl") or ["none"])[0]
    modules = (
        found.get("--cuda-graph-modules") or found.get("--cuda-graph-scope") or []
    )  # the older name, which still holds
    if implementation == "none":
        return "none"
    if implementation == "full_iteration" or (implementation, modules) == ("local", ["full_iteration"]):
        return "full"
    if "attn" not in modules or "moe" in modules:
        raise InputError(
            f"{name}: --cuda-graph-modules {' '.join(modules) or '(whole layers)'} is not modelled: attn with mlp, moe_router "
            "or both is"
        )
    return "partial"
