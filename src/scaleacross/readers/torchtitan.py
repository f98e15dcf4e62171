"""torchtitan settings -> settings: a config module of 0.3.0, or a TOML file of 0.2.2. Files are read, never run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from scaleacross.emitters.torchtitan import CONVERTERS, TORCHTITAN_ORDER
from scaleacross.errors import InputError
from scaleacross.readers.settings import Reading, data_parallel, folded
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.conversion import RECIPE_PRECISION
from scaleacross.spec.parallelism import Degrees, PipelineChoice, ShardLevel
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import Recompute

RUNS: Final[Mapping[str, Any]] = {
    "overlap.tp_fraction": 0.0,
    "overlap.bucket_parameters": "null",
    "experts.dispatch": "copies",
    "experts.overlap_fraction": 0.0,
    "experts.shared_overlap": False,
    "experts.graphs": "none",
}
"""Fields of the job that torchtitan runs in one way, whatever the job says of another program."""


def read(text: str, name: str, world: int, num_layers: int) -> Reading:
    """Settings of ``world`` processes that train a model of ``num_layers`` layers.

    Raises:
        InputError: a file of neither kind, a value that is no literal, or one that no plan can say.
    """
    parts = _toml(text, name) if name.endswith(".toml") else _module(text, name)
    parallel, training = parts["parallelism"], parts["training"]

    def of(key: str, default: int) -> int:
        value = parallel.get(key, default)
        if not isinstance(value, int):
            raise InputError(f"{name}: {key} = {value!r}: a whole number is needed")
        return value

    tp, cp, pp = (of(f"{axis}_parallel_degree", 1) for axis in ("tensor", "context", "pipeline"))
    dp = data_parallel(name, world, tp * cp * pp)
    replicate, sharded = of("data_parallel_replicate_degree", 1), of("data_parallel_shard_degree", -1)
    sharded = dp // replicate if sharded == -1 else sharded
    if replicate * sharded != dp:
        raise InputError(
            f"{name}: data_parallel_replicate {replicate} · shard {sharded} is not the {dp} that {world} processes leave"
        )
    ep, lanes = of("expert_parallel_degree", 1), 1
    if ep > 1:  # its experts lie on all axes but pp, none of them divided
        ep, lanes = folded(name, ep, tp * cp, sharded)
    degrees = Degrees(tp=tp, cp=cp, pp=pp, dp_shard=sharded, dp_replicate=replicate, ep=ep, expert_lanes=lanes)
    shard: ShardLevel = "none" if sharded * cp == 1 else "optimizer" if pp > 1 else _without_pipeline(parallel)
    decision = Decision(
        degrees=degrees, pipeline=_pipeline(parallel, training, pp), recompute=parts["recompute"], shard=shard,
        context_exchange="gather" if cp > 1 else "ring", layers_per_stage=_stages(parallel, name, pp, num_layers),
    )  # fmt: skip
    job: dict[str, Any] = {"sequence_length": _stated(training, "seq_len", name), **parts["quantized"], **RUNS}
    batch = training.get("global_batch_size", -1)
    job["global_batch_sequences"] = batch if batch > 0 else _stated(training, "local_batch_size", name) * dp
    return Reading(decision, job, {}, TORCHTITAN_ORDER)


def _stated(values: dict[str, Any], key: str, name: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name}: training.{key} = {value!r}: a whole number ≥ 1 is needed")
    return value


def _without_pipeline(parallel: dict[str, Any]) -> ShardLevel:
    return "parameters_once" if parallel.get("fsdp_reshard_after_forward", "default") == "never" else "parameters"


def _pipeline(parallel: dict[str, Any], training: dict[str, Any], pp: int) -> PipelineChoice:
    if pp == 1:
        return PipelineChoice(schedule="1F1B", micro_batch_sequences=training.get("local_batch_size", 1))
    parts = parallel.get("module_fqns_per_model_part")
    schedule = parallel.get("pipeline_parallel_schedule", "1F1B")
    if schedule not in SCHEDULES:
        raise InputError(f"pipeline_parallel_schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    return PipelineChoice(
        schedule=schedule,
        num_chunks=len(parts) // pp if parts else 1,
        micro_batch_sequences=parallel.get("pipeline_parallel_microbatch_size", 1),
    )


def _stages(parallel: dict[str, Any], name: str, pp: int, num_layers: int) -> tuple[tuple[int, ...], ...] | None:
    """[rank][chunk] -> layers, from the modules of each virtual stage, which lie where the schedule has them."""
    parts = parallel.get("module_fqns_per_model_part")
    if pp == 1 or not parts:
        return None
    counts = [sum(module.startswith("layers.") for module in part) for part in parts]
    if len(counts) % pp or sum(counts) != num_layers:
        raise InputError(
            f"{name}: {len(counts)} parts with {sum(counts)} layers on pp {pp}; the job's model has {num_layers} layers"
        )
    placement = SCHEDULES[parallel.get("pipeline_parallel_schedule", "1F1B")].placement
    table = [[0] * (len(counts) // pp) for _ in range(pp)]
    for stage, count in enumerate(counts):
        rank, chunk = locate(placement, pp, stage)
        table[rank][chunk] = count
    return tuple(map(tuple, table))


def _recompute(kind: str, name: str) -> Recompute:
    if kind in ("none", "None"):
        return "none"
    if kind in ("full", "FullAC"):
        return "full"
    raise InputError(f"{name}: activation checkpointing {kind} is not modelled: none (None) and full (FullAC) are")


def _module(text: str, name: str) -> dict[str, Any]:
    """The literal keywords of ParallelismConfig and TrainingConfig, and the kind of activation checkpointing."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"{name}: line {error.lineno}: no Python module of torchtitan 0.3.0 ({error.msg})") from error
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    out: dict[str, Any] = {}
    for key, builder in (("parallelism", "ParallelismConfig"), ("training", "TrainingConfig")):
        mine = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == builder]
        if len(mine) != 1:
            raise InputError(f"{name}: {len(mine)} calls of {builder}; one is needed")
        out[key] = {word.arg: _literal(word.value) for word in mine[0].keywords if word.arg}
    stated = [word.value for call in calls for word in call.keywords if word.arg == "activation_checkpoint"]
    kind = ast.unparse(stated[0]).partition(".")[0].partition("(")[0] if stated else "SelectiveAC (the default)"
    names = {ast.unparse(call.func).removesuffix(".Config") for call in calls}
    return {**out, "recompute": _recompute(kind, name), "quantized": _quantized(names, name)}


def _quantized(calls: set[str], name: str) -> dict[str, Any]:
    """Fields of the job that converters of linear layers state. Raises InputError: several of them."""
    found = [recipe for recipe, kind in CONVERTERS.items() if f"{kind}LinearConverter" in calls]
    if len(found) > 1:
        raise InputError(f"{name}: converters of {' and '.join(found)}: one recipe for all layers is modelled")
    precision = RECIPE_PRECISION[found[0]] if found else "bf16"
    return {"precision": precision, "conversion.recipe": found[0] if found else "null"}


def _literal(node: ast.expr) -> Any:
    """The value, or None of what only a run could tell (environment variables)."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: {error}") from error
    if converters := data.get("model", {}).get("converters"):
        raise InputError(
            f"{name}: model.converters {', '.join(converters)}: those of torchtitan 0.3.0 are read, not of 0.2.2"
        )
    mode = data.get("activation_checkpoint", {}).get("mode", "selective")
    return {
        **{key: data.get(key, {}) for key in ("parallelism", "training")},
        "recompute": _recompute(mode, name),
        "quantized": {},
    }
