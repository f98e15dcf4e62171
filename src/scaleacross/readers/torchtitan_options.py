"""Lists of torchtitan settings: read, allowed with some values only, or without effect on time and memory.

Names and defaults: torchtitan/config/configs.py of 0.3.0 and job_config.py of 0.2.2. Any setting outside these lists is
named in a note, whether torchtitan knows it or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.targets.torchtitan_models import FLAVORS

UNKNOWN: Final = object()
"""Value of an expression that only a run could evaluate: a name, or a variable of the environment."""

_READ: Final[Mapping[str, str]] = {
    "parallelism": """
        data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward tensor_parallel_degree
        context_parallel_degree pipeline_parallel_degree expert_parallel_degree pipeline_parallel_schedule
        pipeline_parallel_microbatch_size module_fqns_per_model_part pipeline_parallel_first_stage_less_layers
        pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage spmd_backend
    """,
    "training": "local_batch_size global_batch_size seq_len",
    "activation_checkpoint": "mode",
    "model": "name flavor converters",
}
READ: Final = frozenset((part, key) for part, keys in _READ.items() for key in keys.split())
"""Settings whose values must be plain."""

HARMLESS: Final[Mapping[tuple[str, str], tuple[tuple[Any, ...], str]]] = {
    ("parallelism", "pipeline_parallel_schedule_csv"): (
        ("", None), "an order of another file is not read; state pipeline_parallel_schedule"
    ),
    ("parallelism", "pipeline_parallel_split_points"): (([],), "state module_fqns_per_model_part"),
    ("parallelism", "context_parallel_rotate_method"): (
        ("allgather",), "keys and values that go round are not modelled here; state allgather"
    ),
    ("parallelism", "enable_async_tensor_parallel"): (
        (False,), "collectives of tp that overlap with the products they feed are not modelled here; leave it out"
    ),
    ("parallelism", "enable_sequence_parallel"): ((True,), "norms and residuals whole on every rank of tp are not modelled"),
    ("parallelism", "disable_loss_parallel"): ((False,), "logits whole on every rank of tp are not modelled; leave it out"),
    ("parallelism", "expert_tensor_parallel_degree"): ((1,), "experts that tp divides are not modelled here; state 1"),
    **dict.fromkeys(
        (("model", "moe_comm_backend"), ("parallelism", "expert_parallel_comm_backend")),
        (("standard", None), "other ways of tokens to experts are not modelled here; state standard"),
    ),
    ("training", "enable_cpu_offload"): (
        (False,), "parameters, gradients and states on the host are not modelled; leave it out"
    ),
    ("training", "dtype"): (("float32",), "parameters and states of 16 bit are not modelled here; leave it out"),
    ("training", "mixed_precision_param"): (("bfloat16",), "products in 32 bit are not modelled; leave it out"),
    ("training", "mixed_precision_reduce"): (("float32",), "gradients are reduced in 32 bit; leave it out"),
    ("optimizer", "name"): (("Adam", "AdamW"), "Adam and AdamW are modelled"),
    ("optimizer", "early_step_in_backward"): ((False,), "updates inside the backward pass are not modelled; leave it out"),
    ("fault_tolerance", "enable"): ((False,), "replicas that come and go are not modelled; leave it out"),
}  # fmt: skip
"""Setting -> values that need no field of a plan, and the way out of all others."""

WORDS: Final = (
    "fsdp_reshard_after_forward", "pipeline_parallel_schedule", "module_fqns_per_model_part", "spmd_backend",
)  # fmt: skip
"""Settings that are read and are not numbers."""
LEFT: Final = {"data_parallel_shard_degree": "all that is left", "global_batch_size": "one local batch each"}
"""Numbers for which -1 leaves the choice to torchtitan, with that choice."""
RESHARD: Final = ("parallelism", "fsdp_reshard_after_forward")
SILENT: Final = ("job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "memory_estimation", "validation",
                 "experimental", "debug", "quantize")  # fmt: skip
"""Tables of data, checkpoints and logs. ``quantize`` acts with model.converters, which are refused."""
_SILENT: Final[Mapping[str, str]] = {
    "parallelism": "full_dtensor context_parallel_load_balancer",
    "training": "dataset dataset_path max_norm steps gc_freq gc_debug seed deterministic disable_cuda_graphs",
    "activation_checkpoint": "selective_ac_option per_op_sac_force_recompute_mm_shapes_by_fqns early_stop memory_budget",
    "model": "hf_assets_path tokenizer_path print_after_conversion",
    "optimizer": "lr beta1 beta2 eps weight_decay implementation",
    "float8": "enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp recipe_name filter_fqns emulate",
}
"""Single keys without effect. ``float8`` acts with model.converters, which are refused."""
_SILENT_KEYS: Final = frozenset((part, key) for part, keys in _SILENT.items() for key in keys.split())


def check(parts: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, ...]:
    """Check settings; return notes on those that were not read.

    Raises:
        InputError: a value that only a run could evaluate, or one that no plan can express.
    """
    stated = {(part, key): value for part, values in parts.items() for key, value in values.items()}
    for (part, key), value in stated.items():
        if value is UNKNOWN and ((part, key) in READ or (part, key) in HARMLESS):
            raise InputError(f"{name}: {part}.{key} is no literal; write the value itself")
        if (part, key) in READ and part in ("parallelism", "training") and key not in WORDS:
            least = 0 if key.endswith("_less_layers") else 1
            if not isinstance(value, int) or (value < least and (key not in LEFT or value != -1)):
                or_left = f", or -1 for {LEFT[key]}," if key in LEFT else ""
                raise InputError(f"{name}: {part}.{key} = {value!r}: a whole number ≥ {least}{or_left} is needed")
        able, why = HARMLESS.get((part, key), ((value,), ""))
        if value not in able:
            raise InputError(f"{name}: {part}.{key} = {value!r}: {why}")
    if stated.get(("parallelism", "pipeline_parallel_degree"), 1) != 1 and stated.get(RESHARD) == "always":
        raise InputError(
            f"{name}: fsdp_reshard_after_forward 'always' in a pipeline gathers weights in every micro-batch, which is not "
            "modelled; state default or never"
        )
    return tuple(_notes(stated))


def _notes(stated: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    known = READ | HARMLESS.keys() | _SILENT_KEYS
    rest = [f"{part}.{key}" for part, key in stated if part not in SILENT and (part, key) not in known]
    if rest:
        yield f"settings that were not read, and may change time or memory: {', '.join(rest)}"


def shape(parts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the flavor's figures by the names of ``layer_profile``, and a note where it is not a flavor of 0.3.0."""
    package, flavor = (parts.get("model", {}).get(key) for key in ("name", "flavor"))
    if not isinstance(flavor, str):
        return {}, ()
    known = next((one for one in FLAVORS if (one.package, one.name) == (package, flavor)), None)
    if known is None:
        return {}, (f"the flavor {package} {flavor} is not known, and was not compared with the job's model",)
    return {
        "num_layers": known.num_layers,
        "hidden_size": known.hidden_size,
        "vocabulary_size": known.vocabulary_size,
    }, ()
