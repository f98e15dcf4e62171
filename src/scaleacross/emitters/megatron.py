"""Target ``megatron``: Megatron-LM arguments as a bash array, and run scripts in Megatron's rank order.

Option names and checks: NVIDIA/Megatron-LM megatron/training/arguments.py (000c4ac2; core 0.20 in development,
d98e8a64), rank order: megatron/core/parallel_state.py. Megatron numbers ranks tp-cp-dp-pp, or tp-cp-pp-dp with
``--use-tp-pp-dp-mapping``, first fastest. Its dp combines our dp_shard (inner) and dp_replicate (outer):
``--num-distributed-optimizer-instances`` cuts the dp·cp group into contiguous slices. Expert groups take consecutive
ranks of cp·dp.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from scaleacross.emitters.launchers import launch_files
from scaleacross.emitters.libraries import require_nccl
from scaleacross.emitters.megatron_bridge import FILE as BRIDGE
from scaleacross.emitters.megatron_bridge import bridge_recipe
from scaleacross.emitters.megatron_communicators import FILE as COMMUNICATORS
from scaleacross.emitters.megatron_communicators import communicators_file
from scaleacross.emitters.megatron_experts import expert_runtime
from scaleacross.emitters.megatron_layout import pipeline_arguments
from scaleacross.emitters.megatron_model import model_arguments, model_notes, starting_point
from scaleacross.emitters.model import check_stages, refuse, workload_of
from scaleacross.emitters.rank_order import RankOrder, plan_topology, rank_order, ranks_csv
from scaleacross.emitters.settings import process_settings
from scaleacross.emitters.shell import Launch, one_line
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import PASS_GATHERS, ContextExchange, GridAxis, ShardLevel
from scaleacross.spec.plan import Plan
from scaleacross.spec.recomputation import PARTS, modules_of
from scaleacross.targets.megatron_bytes import narrow_moments

CP_COMM_TYPES: Final[Mapping[ContextExchange, str]] = {
    "ring": "p2p",
    "gather": "all_gather",
    "all_to_all": "a2a",
    "all_to_all_ring": "a2a+p2p",
}
FSDP_STRATEGIES: Final[Mapping[ShardLevel, str]] = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
"""Shard levels that Megatron-FSDP runs. From ``optim_grads`` on, every micro-batch reduces its gradients into shards.
"""
PRICED: Final[Mapping[str, Sequence[str]]] = {
    "--cross-entropy-loss-fusion": (),
    "--cross-entropy-fusion-impl": ("native",),
    "--no-create-attention-mask-in-dataloader": (),
}
"""Options that every estimate assumes and that are not Megatron-LM's default. By default it converts, shifts,
exponentiates and divides logits kernel by kernel. Its data loader also sends a causal mask of length² bytes per
sequence, which no kernel reads.
"""
PP_OUTERMOST: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
DP_OUTERMOST: Final[tuple[GridAxis, ...]] = ("tp", "cp", "pp", "dp_shard", "dp_replicate")

# Catalogue name prefixes of compute capability 10 and later, where CUDA_DEVICE_MAX_CONNECTIONS=1 is no longer asked for.
BLACKWELL_PREFIXES: Final = ("B100", "B200", "B300", "GB200", "GB300")

_LEFT_TO_YOU: Final = (
    "Not part of a plan and left to you: data, tokenizer, learning rate, checkpoints. Pass them to run_node.sh."
)
_ARGUMENTS_LEFT: Final = (
    "Data, tokenizer, learning rate and checkpoints are no part of a plan and follow as arguments, by any launcher:\n"
    "`./submit.sh --data-path … --tokenizer-type … --lr 1e-4 --train-iters 1000 --save …`."
)


def render(plan: Plan) -> dict[str, str]:
    """Return megatron_args.sh, the run scripts and ranks.csv, in folder megatron/.

    Raises:
        EmitError: Megatron-LM has no option for something in the plan; the message names it.
    """
    require_nccl(plan, "megatron")
    check_stages(plan)
    refuse(plan, "megatron")
    mapping, order = megatron_order(plan)
    program = '"${MEGATRON_LM:?set MEGATRON_LM to the Megatron-LM checkout}/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" "$@"'
    launch = Launch(
        plan_name=plan.job.name,
        slurm=plan.job.slurm,
        settings=process_settings(plan),
        framework="Megatron-LM",
        folder="megatron",
        torchrun_command=program,
        task_command=f'"${{PYTHON:-python}}" {program}',
        preamble='source "$here/megatron_args.sh"\n',
        required=(("MEGATRON_LM", "the Megatron-LM checkout"),),
        left_out=_ARGUMENTS_LEFT,
    )
    files = {**launch_files(order, launch), "ranks.csv": ranks_csv(order)}
    left_out: tuple[str, ...] = ()
    try:
        files[BRIDGE] = bridge_recipe(plan, run_arguments(plan, mapping))
    except EmitError as error:  # Megatron-LM itself runs the plan
        left_out = (f"{BRIDGE} is left out: {error}.",)
    files["megatron_args.sh"] = _arguments_file(plan, mapping, left_out)
    if text := communicators_file(plan):
        files[COMMUNICATORS] = text
    return {f"megatron/{name}": text for name, text in files.items()}


def megatron_order(plan: Plan) -> tuple[list[str], RankOrder]:
    """Return the mapping option (empty for the default) and the rank order that goes with it.

    dp is outermost where the plan's own order has pp inside dp. Either mapping puts every process on the plan's device.
    The other one is chosen when only it keeps the ranks of every host in one block.
    """
    degrees, own = plan.degrees, plan.placement.axis_order
    dp_axes: list[GridAxis] = [axis for axis in own if axis in ("dp_shard", "dp_replicate") and degrees.of(axis) > 1]
    pp_inside = degrees.pp > 1 and bool(dp_axes) and own.index("pp") < own.index(dp_axes[0])
    choices = [([], PP_OUTERMOST), (["--use-tp-pp-dp-mapping"], DP_OUTERMOST)]
    if degrees.expert_ranks > 1 and degrees.pp > 1:
        choices.pop()  # dense and expert dp sizes must be equal unless pp is outermost (parallel_state.py)
    elif pp_inside:
        choices.reverse()
    orders = [(option, rank_order(plan, axes)) for option, axes in choices]
    return next((choice for choice in orders if choice[1].split_host() is None), orders[0])


def megatron_arguments(plan: Plan, mapping: list[str]) -> list[str]:
    """Return all arguments that the plan fixes, as a flat list of options and values."""
    return [*run_arguments(plan, mapping), *starting_point(plan), *model_arguments(plan)]


def run_arguments(plan: Plan, mapping: list[str]) -> list[str]:
    """Return the arguments that state how the model runs, without those that state what it is."""
    degrees, job = plan.degrees, plan.job
    return [
        *("--tensor-model-parallel-size", str(degrees.tp)),
        *("--pipeline-model-parallel-size", str(degrees.pp)),
        *("--context-parallel-size", str(degrees.cp)),
        *(["--expert-model-parallel-size", str(degrees.expert_ranks)] if degrees.expert_ranks > 1 else []),
        *(["--expert-tensor-parallel-size", "1"] if degrees.expert_lanes > 1 else []),
        *(["--sequence-parallel"] if degrees.tp > 1 else []),
        *mapping,
        *pipeline_arguments(plan),
        *(["--mtp-num-layers", str(job.prediction_layers)] if job.prediction_layers else []),
        *("--micro-batch-size", str(plan.decision.pipeline.micro_batch_sequences)),
        *("--global-batch-size", str(job.global_batch_sequences)),
        *("--seq-length", str(job.sequence_length)),
        *(word for option, values in PRICED.items() for word in (option, *values)),
        *_precision(plan),
        *_data_parallel(plan),
        *_recompute(plan),
        *_states(plan),
        *_context(plan),
        *_overlap(plan),
        *expert_runtime(plan),
        *("--optimizer", job.optimizer.name),
    ]


def _precision(plan: Plan) -> list[str]:
    if plan.job.precision == "fp16":
        return ["--fp16", *(["--accumulate-allreduce-grads-in-fp32"] if plan.job.optimizer.reduce_bytes == 4.0 else [])]
    out = ["--bf16", *(["--grad-reduce-in-bf16"] if plan.job.optimizer.reduce_bytes == 2.0 else [])]
    recipe, narrow = plan.job.recipe, plan.job.conversion.narrow_parameters
    if recipe == "nvfp4":
        return [*out, "--fp4-format", "e2m1", *(["--fp4-param-gather"] if narrow else [])]
    if recipe is None:
        return out
    out += ["--fp8-format", "e4m3" if recipe == "mxfp8" else "hybrid", "--fp8-recipe", recipe]
    out += ["--fp8-param-gather"] if narrow else []
    # Megatron-FSDP has buffers of its own (training/arguments.py).
    reused = narrow and recipe == "mxfp8" and plan.decision.shard not in FSDP_STRATEGIES
    return [*out, *(["--reuse-grad-buf-for-mxfp8-param-ag"] if reused else [])]


def _data_parallel(plan: Plan) -> list[str]:
    degrees, shard, overlap = plan.degrees, plan.decision.shard, plan.job.overlap
    several = degrees.dp * degrees.cp > 1
    out = ["--overlap-grad-reduce"] if several and overlap.gradient_reduce else []
    if overlap.bucket_parameters is not None:
        out += ["--ddp-bucket-size", str(overlap.bucket_parameters)]
    if shard == "none":
        return out
    gathered_early = overlap.shard_prefetch if shard in PASS_GATHERS else overlap.parameter_gather
    out += ["--use-distributed-optimizer"]
    out += ["--overlap-param-gather"] if several and gathered_early else []
    out += ["--num-distributed-optimizer-instances", str(degrees.dp_replicate)] if degrees.dp_replicate > 1 else []
    if shard in FSDP_STRATEGIES:
        out += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", FSDP_STRATEGIES[shard]]
        out += ["--outer-dp-sharding-strategy", "no_shard", "--ckpt-format", "fsdp_dtensor"]
        # Its gradients are as wide as parameters unless it is told; --grad-reduce-in-bf16 is not read.
        half, optimizer = "fp16" if plan.job.precision == "fp16" else "bf16", plan.job.optimizer
        out += ["--megatron-fsdp-main-grads-dtype", "fp32" if optimizer.gradient_bytes == 4.0 else half]
        out += ["--megatron-fsdp-grad-comm-dtype", "fp32" if optimizer.reduce_bytes == 4.0 else half]
    return out


def _recompute(plan: Plan) -> list[str]:
    if plan.decision.recompute == "full":
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if plan.decision.recompute in PARTS:
        chunk = max(map(max, plan.layers_per_stage))
        layers = str(PARTS[plan.decision.recompute] * chunk)
        return ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", layers]
    modules = modules_of(plan.decision.recompute)
    return ["--recompute-granularity", "selective", "--recompute-modules", *modules] if modules else []


def _states(plan: Plan) -> list[str]:
    """Return options for types of moments and gradients, and for states on the host."""
    decision, out = plan.decision, list[str]()
    if (moments := narrow_moments(plan.job)) is not None:
        out += ["--use-precision-aware-optimizer", "--exp-avg-dtype", moments[0], "--exp-avg-sq-dtype", moments[1]]
        out += ["--main-grads-dtype", "bf16"] if plan.job.optimizer.reduce_bytes == 2.0 else []
    if decision.activation_offload:
        layers = sum(map(sum, plan.layers_per_stage))
        out += ["--cpu-offloading-num-layers", str(round(decision.activation_offload * layers))]
    if decision.optimizer_offload:
        out += ["--use-precision-aware-optimizer", "--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d"]
        out += ["--optimizer-offload-fraction", f"{decision.optimizer_offload:g}"]
    return out


def _context(plan: Plan) -> list[str]:
    """Return options of context parallelism.

    The word is ``all_gather``; that of the help text raises in Transformer Engine.
    """
    if plan.degrees.cp == 1:
        return []
    degrees = plan.degrees
    levels = [str(degrees.cp_inner), str(degrees.cp // degrees.cp_inner)] if degrees.cp_inner > 1 else []
    hierarchical = ["--hierarchical-context-parallel-sizes", *levels] if levels else []
    return ["--cp-comm-type", CP_COMM_TYPES[plan.decision.context_exchange], *hierarchical]


def _overlap(plan: Plan) -> list[str]:
    """Return options for the overlaps that the job states; ``targets.megatron`` refuses what no option can state."""
    overlap, degrees = plan.job.overlap, plan.degrees
    out = ["--tp-comm-overlap"] if degrees.tp > 1 and overlap.tp_fraction > 0 else []
    waits = plan.decision.pipeline.num_chunks > 1 and not overlap.pipeline_messages
    out += ["--no-overlap-p2p-communication"] if waits else []
    out += [] if plan.job.optimizer.fused_accumulation else ["--no-gradient-accumulation-fusion"]
    unchecked = plan.job.optimizer.checked_gradients is False or plan.job.experts.graphs == "full"
    return out + (["--no-check-for-nan-in-loss-and-grad"] if unchecked else [])


def _max_connections(plan: Plan) -> str:
    """Return the line for CUDA_DEVICE_MAX_CONNECTIONS: 1 with tp or cp before Blackwell, never 1 with FSDP
    (arguments.py).
    """
    if plan.decision.shard in FSDP_STRATEGIES:
        return "unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP refuses 1\n"
    if "--overlap-moe-expert-parallel-comm" in expert_runtime(plan):
        return "export CUDA_DEVICE_MAX_CONNECTIONS=32  # experts' all-to-alls overlap with computation\n"
    topology = plan_topology(plan)
    names = [topology.building(share.building).accelerator.name for share in plan.placement.fill]
    before_blackwell = any(not name.upper().startswith(BLACKWELL_PREFIXES) for name in names)
    if before_blackwell and (plan.degrees.tp > 1 or plan.degrees.cp > 1):
        return "export CUDA_DEVICE_MAX_CONNECTIONS=1  # required with tp or cp before Blackwell\n"
    return ""


def _communicators(plan: Plan) -> str:
    """Return the shell line that passes the communicator file by its absolute path."""
    if not communicators_file(plan):
        return ""
    folder = '"$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/' + COMMUNICATORS + '"'
    return f"MEGATRON_ARGS+=(--nccl-communicator-config-path {folder})\n"


def _arguments_file(plan: Plan, mapping: list[str], left_out: Sequence[str] = ()) -> str:
    lines: list[str] = []
    for word in megatron_arguments(plan, mapping):
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    notes = [_LEFT_TO_YOU, *left_out, *model_notes(workload_of(plan).decoder(), plan.job.prediction_layers)]
    if plan.decision.shard in FSDP_STRATEGIES and plan.job.optimizer.fused_accumulation:
        notes.append("Megatron-FSDP with fused gradient accumulation needs Transformer Engine 2.10 or later.")
    if narrow_moments(plan.job) is not None:
        notes.append(
            "States of so few bytes need Transformer Engine 2.1 or later (half of the master weights next to bf16 parameters)."
        )
    if plan.job.fine_tuning is not None and plan.job.fine_tuning.checkpoint:
        notes.append("--pretrained-checkpoint takes Megatron-LM's own format: convert other weights first.")
    comments = "".join(f"# {note}\n" for note in notes)
    return (
        "#!/usr/bin/env bash\n"
        f'# Megatron-LM arguments of plan {one_line(plan.job.name)}: source this file, then use "${{MEGATRON_ARGS[@]}}".\n'
        f"{comments}set -euo pipefail\nMEGATRON_ARGS=(\n"
        + "\n".join(lines)
        + f"\n)\n{_communicators(plan)}{_max_connections(plan)}"
    )
