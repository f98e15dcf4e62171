"""Target ``torchtitan``: a config module for torchtitan 0.3.0 and run scripts in its rank order.

torchtitan 0.3.0 takes its configuration from a Python function that returns ``Trainer.Config`` (``--module M --config
F``, torchtitan/config/manager.py). Its mesh is [pp, dp_replicate, dp_shard, cp, tp], last fastest, and no option
changes it (torchtitan/distributed/parallel_dims.py). So the hosts are ordered such that every process runs on the
plan's device.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scaleacross.emitters.filling import filled
from scaleacross.emitters.launchers import launch_files
from scaleacross.emitters.libraries import require_nccl
from scaleacross.emitters.model import check_stages, refuse, workload_of
from scaleacross.emitters.rank_order import rank_order, ranks_csv
from scaleacross.emitters.settings import process_settings
from scaleacross.emitters.shell import Launch, one_line
from scaleacross.emitters.torchtitan_groups import group_lines
from scaleacross.emitters.torchtitan_identity import identity
from scaleacross.emitters.torchtitan_toml import FILE as OLDER_FILE
from scaleacross.emitters.torchtitan_toml import toml_config
from scaleacross.errors import EmitError
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.conversion import Recipe
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.plan import Plan
from scaleacross.spec.recomputation import Recompute
from scaleacross.targets.torchtitan_models import Flavor, find_flavor, missing_flavor

TORCHTITAN_ORDER: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
MODULE_NAME: Final = "scaleacross_plan"
FUNCTION_NAME: Final = "train"
CONVERTERS: Final[Mapping[Recipe, str]] = {
    "torchao_rowwise": "Float8",
    "torchao_mxfp8": "MXFP8",
    "torchao_nvfp4": "NVFP4",
}
"""Recipe -> prefix of its converters' names (torchtitan/components/quantization)."""
CHECKPOINTING: Final[Mapping[Recompute, str]] = {
    "none": "None",
    "selective": "SelectiveAC.Config()",
    "full": "FullAC.Config()",
}
"""Recompute policy -> activation_checkpoint (torchtitan/distributed/activation_checkpoint.py)."""


def render(plan: Plan) -> dict[str, str]:
    """Return scaleacross_plan.py, run scripts, ranks.csv and, if 0.2.2 can run the plan, a TOML file; in torchtitan/.

    Raises:
        EmitError: torchtitan 0.3.0 has no setting for something in the plan; the message names it.
    """
    require_nccl(plan, "torchtitan")
    module, order = config_module(plan), rank_order(plan, TORCHTITAN_ORDER)
    program = '-m torchtitan.train "${TORCHTITAN_CONFIG[@]}" "$@"'
    older, reason = toml_config(plan, _flavor(plan), _training(plan), _parallelism(plan))
    launch = Launch(
        plan_name=plan.job.name,
        slurm=plan.job.slurm,
        settings=process_settings(plan),
        framework="torchtitan",
        folder="torchtitan",
        torchrun_command=program,
        task_command=f'"${{PYTHON:-python}}" {program}',
        preamble=_PREAMBLE.format(
            module=MODULE_NAME,
            function=FUNCTION_NAME,
            older=f'--job.config_file "$here/{OLDER_FILE}"' if older else "",
            refused="" if older else f"echo {shlex.quote(reason)} >&2; exit 2",
        ),
        left_out="Data set, tokenizer, learning rate and steps are no part of a plan: `DATASET`, `HF_ASSETS_PATH`,\n"
        "`LEARNING_RATE` and `STEPS` of the environment, which SLURM and Ray hand on (SkyPilot: add them to `envs`).",
    )
    files = {**launch_files(order, launch), "ranks.csv": ranks_csv(order), f"{MODULE_NAME}.py": module}
    files |= {OLDER_FILE: older} if older else {}
    return {f"torchtitan/{name}": text for name, text in files.items()}


def config_module(plan: Plan) -> str:
    """Return the text of the config module. It is compiled here to check its syntax.

    Raises:
        EmitError: torchtitan 0.3.0 has no setting for something in the plan.
    """
    check_stages(plan)
    refuse(plan, "torchtitan")
    flavor = _flavor(plan)
    checkpoint = _starting_point(plan)
    group_imports, groups = group_lines(plan)
    stated = identity(workload_of(plan).decoder(), flavor.package)
    chunks = plan.job.kept.loss_chunks
    converters = _converters(plan)
    parts = {*plan.job.kept.compiled, *(["model"] if converters else [])}  # converters ask for compiled layers
    compiled = [part for part in ("model", "loss") if part in parts]
    text = filled(
        "scaleacross_plan.py.txt",
        title=one_line(plan.job.name).replace("\\", " ").replace('"', "'"),
        package=flavor.package,
        flavor=flavor.name,
        quoted_flavor=repr(flavor.name),
        recompute=CHECKPOINTING[plan.decision.recompute],
        policies=", ".join(sorted(name.partition(".")[0] for name in CHECKPOINTING.values() if name != "None")),
        stated="".join(f"    {name!r}: {values!r},\n" for name, values in stated.items()),
        checkpoint=checkpoint,
        imports=group_imports
        + (
            f"from torchtitan.components.quantization import {', '.join(_converter_names(plan))}\n"
            if converters
            else ""
        )
        + ("from torchtitan.components.checkpointer import CheckpointManager\n" if checkpoint else ""),
        groups=groups,
        compile_import="CompileConfig, " if compiled else "",
        compiled=f"        compile=CompileConfig(enable=True, components={json.dumps(compiled)}),\n"
        if compiled
        else "",
        converters=converters and f", converters=[{converters}\n    ]",
        losses="CrossEntropyLoss" if chunks == 1 else "ChunkedLossWrapper, CrossEntropyLoss",
        loss=_WHOLE_LOSS if chunks == 1 else _CHUNKED_LOSS.format(chunks=chunks),
        training=_keywords(_training(plan)),
        parallelism=_keywords(_parallelism(plan)),
    )
    compile(text, f"{MODULE_NAME}.py", "exec")
    return text


def _flavor(plan: Plan) -> Flavor:
    profile = workload_of(plan).profile()
    flavor = find_flavor(profile)
    if flavor is None:
        raise EmitError(missing_flavor(profile))
    return flavor


def _converter_names(plan: Plan) -> list[str]:
    kind = CONVERTERS[plan.job.recipe] if plan.job.recipe else ""
    experts = workload_of(plan).profile().num_experts > 1
    return [f"{kind}LinearConverter", *([f"{kind}GroupedExpertsConverter"] if experts else [])] if kind else []


def _converters(plan: Plan) -> str:
    """Return converters of layers and experts as lines of a list, empty for 16 bit.

    Output projection and routers stay in 16 bit.
    """
    names = _converter_names(plan)
    kept = "filter_fqns=['lm_head', 'router.gate']"
    stated = (
        kept if names[:1] == ["Float8LinearConverter"] else "fqns=['attention', 'shared_experts', 'feed_forward']",
        "pad_multiple=128" if "MXFP8GroupedExpertsConverter" in names else "",
    )
    return "".join(
        f"\n        {name}.Config({', '.join(filter(None, ('model_compile_enabled=True', words)))}),"
        for name, words in zip(names, stated, strict=False)
    )


def _starting_point(plan: Plan) -> str:
    """Return the line that loads the job's checkpoint, if it names one."""
    path = plan.job.fine_tuning.checkpoint if plan.job.fine_tuning else None
    if path is None:
        return ""
    return (
        "        # Hugging Face safetensors; initial_load_in_hf=False for a checkpoint of torchtitan's own.\n"
        f"        checkpoint=CheckpointManager.Config(enable=True, initial_load_path={path!r}, initial_load_in_hf=True),\n"
    )


def _training(plan: Plan) -> Mapping[str, Any]:
    degrees, pipeline = plan.degrees, plan.decision.pipeline
    per_round = pipeline.micro_batch_sequences
    return {
        "local_batch_size": per_round * plan.num_micro_batches if degrees.pp > 1 else per_round,
        "global_batch_size": plan.job.global_batch_sequences,
        "seq_len": plan.job.sequence_length,
        "disable_cuda_graphs": degrees.pp > 1 or degrees.expert_ranks > 1,
    }


def _parallelism(plan: Plan) -> Mapping[str, Any]:
    degrees = plan.degrees
    replicate, shard, reshard = _data_parallel(plan)
    out: dict[str, Any] = {
        "spmd_backend": plan.job.kept.spmd_backend,
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": degrees.tp,
        "context_parallel_degree": degrees.cp,
        "pipeline_parallel_degree": degrees.pp,
        "expert_parallel_degree": degrees.expert_ranks,
    }
    if degrees.cp > 1:
        out["context_parallel_load_balancer"] = (
            "ptrr"  # the balancer for FlexAttention, the default of every flavor here
        )
    if degrees.pp > 1:
        out["pipeline_parallel_schedule"] = plan.decision.pipeline.schedule
        out["pipeline_parallel_microbatch_size"] = plan.decision.pipeline.micro_batch_sequences
        out["module_fqns_per_model_part"] = stage_modules(layers_in_model_order(plan))
    return out


def _data_parallel(plan: Plan) -> tuple[int, int, str]:
    """Return (replicate degree, shard degree, reshard policy).

    FSDP2 shards parameters, gradients and optimizer states. Keeping parameters gathered ("never") is
    ``parameters_once``. It has the traffic of an optimizer-only shard where gradients are reduced once per step
    (``targets.torchtitan`` refuses the rest).
    """
    degrees, shard = plan.degrees, plan.decision.shard
    if shard == "none":
        return degrees.dp, 1, "default"
    return degrees.dp_replicate, degrees.dp_shard, "always" if shard == "parameters" else "never"


def layers_in_model_order(plan: Plan) -> list[int]:
    """Return the layers of every virtual stage in model order. torchtitan places the stages as the schedule does: in a
    loop or a V.
    """
    placement, pp = SCHEDULES[plan.decision.pipeline.schedule].placement, plan.degrees.pp
    places = (locate(placement, pp, stage) for stage in range(pp * plan.decision.pipeline.num_chunks))
    return [plan.layers_per_stage[rank][chunk] for rank, chunk in places]


def stage_modules(layers: Sequence[int]) -> list[list[str]]:
    """Return module names of every virtual stage in model order, given the layers of each."""
    out: list[list[str]] = []
    first = 0
    for count in layers:
        out.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    out[0].insert(0, "tok_embeddings")
    out[-1] += ["norm", "lm_head"]
    return out


def _keywords(values: Mapping[str, Any]) -> str:
    return "".join(f"            {name}={_literal(value)},\n" for name, value in values.items())


def _literal(value: Any) -> str:
    """Return ``value`` as Python source; a list of lists takes one line per inner list."""
    if isinstance(value, list):
        return "[\n" + "".join(f"                {inner!r},\n" for inner in value) + "            ]"
    return repr(value)


_WHOLE_LOSS: Final = """\
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),  # whole logits, as the plan counts
"""
_CHUNKED_LOSS: Final = """\
        loss=ChunkedLossWrapper.Config(
            num_chunks={chunks},
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        ),
"""

_PREAMBLE: Final = """\
TORCHTITAN_CONFIG=(--module {module} --config {function})
if [[ "${{TORCHTITAN_VERSION:-0.3.0}}" == 0.2.* ]]; then TORCHTITAN_CONFIG=({older}); {refused}
fi
export PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}"
"""
