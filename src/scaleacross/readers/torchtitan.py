"""Read torchtitan settings: a config module of 0.3.0, or a TOML file of 0.2.2. Files are read, never run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from scaleacross.emitters.torchtitan import CHECKPOINTING, CONVERTERS, TORCHTITAN_ORDER
from scaleacross.errors import InputError
from scaleacross.readers.settings import Reading, data_parallel, folded
from scaleacross.readers.torchtitan_options import UNKNOWN, check, shape
from scaleacross.readers.torchtitan_stages import DEFAULT_BATCH, check_accumulation, pipeline
from scaleacross.spec.conversion import RECIPE_PRECISION
from scaleacross.spec.framework import SpmdBackend
from scaleacross.spec.parallelism import Degrees, ShardLevel
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import Recompute
from scaleacross.targets.torchtitan import ALWAYS, FULL_SHARDS

RUNS: Final[Mapping[str, Any]] = {
    "optimizer.name": "adam",
    **dict(
        zip(
            ("optimizer.parameter_bytes", "optimizer.gradient_bytes", "optimizer.state_bytes"), FULL_SHARDS, strict=True
        )
    ),
    "optimizer.reduce_bytes": 4.0,
    "conversion.narrow_parameters": False,
    "overlap.tp_fraction": 0.0,
    "overlap.bucket_parameters": "null",
    **{f"overlap.{name}": True for name in ALWAYS},
    "experts.dispatch": "copies",
    "experts.overlap_fraction": 0.0,
    "experts.shared_overlap": False,
    "experts.graphs": "none",
}
"""Fields of the job that torchtitan fixes, whatever the job states for another program."""
COMPILED: Final = ("enable", "components")
FORCED: Final = "force_recompute_mm_shapes_by_fqns"
FORCED_DEFAULT: Final = ["moe.router.gate"]
REPLACED: Final = ("model_spec", "loss", "parallelism", "training", "activation_checkpoint", "compile")
"""Parts of a Trainer.Config whose values decide the plan; they are read where they are constructed."""
LOSS_CHUNKS: Final = 8
"""Default of ChunkedLossWrapper.Config.num_chunks."""


def read(text: str, name: str, world: int, num_layers: int) -> Reading:
    """Return the settings of ``world`` processes that train a model of ``num_layers`` layers.

    Args:
        text: content of the file.
        name: name of the file; ``.toml`` means 0.2.2.
        world: number of processes.
        num_layers: layers of the model, without prediction layers.

    Raises:
        InputError: a file of neither kind, a value that is not a literal, or one that no plan can express.
    """
    parts = _toml(text, name) if name.endswith(".toml") else _module(text, name)
    notes, (model, unknown) = check(parts["settings"], name), shape(parts["settings"])
    parallel, training = (parts["settings"].get(part, {}) for part in ("parallelism", "training"))

    def of(key: str, default: int) -> int:
        return int(parallel.get(key, default))

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
    backend = _backend(parallel, parts["recompute"], degrees, name)
    shard: ShardLevel = "none" if sharded * cp == 1 else "optimizer" if pp > 1 else _without_pipeline(parallel)
    choice, layers = pipeline(parallel, training, name, pp, num_layers)
    decision = Decision(
        degrees=degrees, pipeline=choice, recompute=parts["recompute"], shard=shard,
        context_exchange="gather" if cp > 1 else "ring", layers_per_stage=layers,
    )  # fmt: skip
    job: dict[str, Any] = {
        "sequence_length": _stated(training, "seq_len", name),
        **parts["quantized"],
        **backend,
        **RUNS,
    }
    batch = training.get("global_batch_size", -1)
    batch = batch if batch > 0 else training.get("local_batch_size", DEFAULT_BATCH) * dp
    check_accumulation(training, name, pp, dp, batch)
    job["global_batch_sequences"] = batch
    return Reading(decision, job, model, TORCHTITAN_ORDER, notes=(*notes, *unknown))


def _stated(values: dict[str, Any], key: str, name: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or value < 1:
        later = "; max_context_length of later releases is not read" if "max_context_length" in values else ""
        raise InputError(
            f"{name}: training.{key} = {value!r}: a whole number ≥ 1 is needed, as torchtitan 0.3.0 has it{later}"
        )
    return value


def _without_pipeline(parallel: dict[str, Any]) -> ShardLevel:
    return "parameters_once" if parallel.get("fsdp_reshard_after_forward", "default") == "never" else "parameters"


def _recompute(kind: str, name: str) -> Recompute:
    for policy, known in CHECKPOINTING.items():
        if kind == known.partition(".")[0]:
            return policy
    raise InputError(
        f"{name}: activation checkpointing {kind} is not modelled: None, SelectiveAC and FullAC of torchtitan 0.3.0 are, and "
        "none and full of 0.2.2"
    )


def _checkpointing(calls: Sequence[ast.Call], name: str) -> Recompute:
    """Return the policy that a module states, or torchtitan's default. Raises InputError for one that is not modelled."""
    stated = [word.value for call in calls for word in call.keywords if word.arg == "activation_checkpoint"]
    policy = _recompute(ast.unparse(stated[0]).partition(".")[0].partition("(")[0] if stated else "SelectiveAC", name)
    words = stated[0].keywords if stated and isinstance(stated[0], ast.Call) else []
    for word in words:
        if word.arg == FORCED and _literal(word.value) != FORCED_DEFAULT:
            raise InputError(
                f"{name}: SelectiveAC with {FORCED} {ast.unparse(word.value)} is not modelled; leave it out"
            )
    return policy


def _backend(parallel: dict[str, Any], recompute: Recompute, degrees: Degrees, name: str) -> dict[str, Any]:
    """Return the job field for the SPMD backend, empty where the job has no word for it.

    Raises InputError where SelectiveAC depends on such a backend.
    """
    backend = parallel.get("spmd_backend", "partial_dtensor" if name.endswith(".toml") else "spmd_types")
    if backend in get_args(SpmdBackend):
        return {"kept.spmd_backend": backend}
    if recompute == "selective" and max(degrees.tp, degrees.expert_ranks) > 1:
        raise InputError(
            f"{name}: SelectiveAC with tp {degrees.tp} and experts over {degrees.expert_ranks} ranks under spmd_backend "
            f"{backend!r}: which collectives it repeats is not modelled; state spmd_backend "
            f"{' or '.join(get_args(SpmdBackend))}, or activation_checkpoint FullAC or None"
        )
    return {}


def _module(text: str, name: str) -> dict[str, Any]:
    """Return the configurations' literal keywords, the flavor, the converters and the kind of activation checkpointing."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"{name}: line {error.lineno}: no Python module of torchtitan 0.3.0 ({error.msg})") from error
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    settings: dict[str, dict[str, Any]] = {"model": _flavor(tree, calls)}
    for part, builder in (("parallelism", "ParallelismConfig"), ("training", "TrainingConfig")):
        mine = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == builder]
        if len(mine) > 1 or (not mine and part == "training"):
            raise InputError(_several(tree, builder, len(mine), name))
        settings[part] = _keywords(mine[0], name) if mine else {}  # without one, Trainer.Config has its defaults
    _assigned(tree, settings, name)
    quantized = _quantized(calls, name)
    quantized["kept.compiled"] = []  # the compiler is off unless the module says so
    compiled = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "CompileConfig"]
    if compiled:
        stated = _keywords(compiled[0], name)
        settings["compile"] = {key: value for key, value in stated.items() if key not in COMPILED}
        quantized["kept.compiled"] = _compiled(stated, name, converted=quantized["precision"] != "bf16")
    return {"settings": settings, "recompute": _checkpointing(calls, name), "quantized": quantized | _loss(calls, name)}


def _several(tree: ast.AST, builder: str, count: int, name: str) -> str:
    """Return the reason why a module with ``count`` calls of ``builder`` is not read, and the way out."""
    functions = [
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and f"{builder}(" in ast.unparse(node)
    ]
    inside = f" in {', '.join(functions)}" if functions else ""
    return f"{name}: {count} calls of {builder}{inside}; one is needed: give a file with the configuration that you run alone"


def _assigned(tree: ast.AST, settings: dict[str, dict[str, Any]], name: str) -> None:
    """Update ``settings`` with the module's assignments (``config.training.seq_len = 4096``).

    Raises:
        InputError: a part is replaced as a whole, or a value is assigned twice or computed from itself.
    """
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        for target in _targets(node):
            words = ast.unparse(target).split(".")
            said = f"{name}: line {target.lineno}: {ast.unparse(node)[:60]}"
            if len(words) != 3 or words[1] not in settings:
                if len(words) in (2, 3) and words[1] in REPLACED:
                    where = "in the call of Trainer.Config" if len(words) == 2 else f"where {words[1]} is made"
                    raise InputError(f"{said}: write it {where}")
                continue
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                raise InputError(f"{said}: write the value itself")
            settings[words[1]][words[2]] = _literal(node.value)
            if (first := lines.setdefault(".".join(words[1:]), target.lineno)) != target.lineno:
                raise InputError(
                    f"{said}: line {first} says it, too: give a file with the configuration that you run alone"
                )


def _targets(node: ast.AST) -> Sequence[ast.expr]:
    """Return the targets of an assignment; empty for other statements."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _compiled(stated: Mapping[str, Any], name: str, *, converted: bool) -> list[str]:
    """Return the components that the compiler is asked to compile, without layers that converters compile anyway.

    Raises:
        InputError: a value is not a literal, or a component is not modelled.
    """
    parts = stated.get("components", ["model", "loss"]) if stated.get("enable", False) else []
    if not isinstance(parts, list) or not set(parts) <= {"model", "loss"}:
        raise InputError(f"{name}: CompileConfig of components {parts}: a list of 'model' and 'loss' is needed")
    return [part for part in ("model", "loss") if part in parts and not (converted and part == "model")]


def _keywords(call: ast.Call, name: str) -> dict[str, Any]:
    """Return the literal keywords of a call. Raises InputError where some come from elsewhere (``**``)."""
    if any(word.arg is None for word in call.keywords):
        raise InputError(f"{name}: line {call.lineno}: keywords of another place (**) are not read; write them here")
    return {str(word.arg): _literal(word.value) for word in call.keywords}


def _flavor(tree: ast.AST, calls: Sequence[ast.Call]) -> dict[str, Any]:
    """Return package, flavor and keywords: the module that model_registry comes from, and the arguments of its call."""
    found = [call for call in calls if ast.unparse(call.func) == "model_registry" and call.args]
    packages = [
        str(node.module).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(one.name == "model_registry" for one in node.names)
    ]
    if len(found) != 1:
        return {}
    stated = {str(word.arg): _literal(word.value) for word in found[0].keywords if word.arg != "converters"}
    if len(packages) != 1 or not isinstance(flavor := _literal(found[0].args[0]), str):
        return stated
    return {**stated, "name": packages[0], "flavor": flavor}


def _loss(calls: Sequence[ast.Call], name: str) -> dict[str, Any]:
    """Return the number of pieces of head and loss, where the module states a loss.

    Raises InputError where it is not a literal.
    """
    wrappers = [call for call in calls if ast.unparse(call.func) == "ChunkedLossWrapper.Config"]
    if not wrappers:
        return {"kept.loss_chunks": 1} if any(word.arg == "loss" for call in calls for word in call.keywords) else {}
    chunks = _keywords(wrappers[0], name).get("num_chunks", LOSS_CHUNKS)
    if not isinstance(chunks, int) or chunks < 1:
        raise InputError(
            f"{name}: ChunkedLossWrapper of num_chunks {ast.unparse(wrappers[0])}: a whole number is needed"
        )
    return {"kept.loss_chunks": chunks}


def _quantized(calls: Sequence[ast.Call], name: str) -> dict[str, Any]:
    """Return the fields of the job that converters of linear layers state.

    Raises InputError for several of them, or another recipe.
    """
    builders = {ast.unparse(call.func).removesuffix(".Config"): call for call in calls}
    found = [recipe for recipe, kind in CONVERTERS.items() if f"{kind}LinearConverter" in builders]
    for word in builders["Float8LinearConverter"].keywords if "Float8LinearConverter" in builders else ():
        if word.arg == "recipe_name" and _literal(word.value) != "rowwise":
            raise InputError(
                f"{name}: Float8LinearConverter of {ast.unparse(word.value)} is not modelled: 'rowwise' is"
            )
    if len(found) > 1:
        raise InputError(f"{name}: converters of {' and '.join(found)}: one recipe for all layers is modelled")
    precision = RECIPE_PRECISION[found[0]] if found else "bf16"
    return {"precision": precision, "conversion.recipe": found[0] if found else "null"}


def _literal(node: ast.expr) -> Any:
    """Return the literal value, or ``UNKNOWN``."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: {error}") from error
    if converters := data.get("model", {}).get("converters"):
        raise InputError(
            f"{name}: model.converters {', '.join(converters)}: those of torchtitan 0.3.0 are read, not of 0.2.2; leave them "
            "out, or give the module of 0.3.0"
        )
    mode = data.get("activation_checkpoint", {}).get("mode", "selective")
    settings = {part: values for part, values in data.items() if isinstance(values, dict)}
    compiled = settings.get("compile", {})
    settings["compile"] = {key: value for key, value in compiled.items() if key not in COMPILED}
    return {
        "settings": settings,
        "recompute": _recompute({"none": "None", "full": "FullAC"}.get(mode, mode), name),
        "quantized": {
            "precision": "bf16",
            "conversion.recipe": "null",
            "kept.loss_chunks": 1,
            "kept.compiled": _compiled(compiled, name, converted=False),
        },
    }
