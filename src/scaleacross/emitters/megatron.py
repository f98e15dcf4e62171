"""Target ``megatron``: Megatron-LM arguments as a bash array, and run scripts in Megatron's rank order.

Option names and checks: NVIDIA/Megatron-LM megatron/training/arguments.py (000c4ac2; core 0.20 in development, d98e8a64), rank
order: megatron/core/parallel_state.py. Megatron numbers ranks tp-cp-dp-pp, or tp-cp-pp-dp with ``--use-tp-pp-dp-mapping``, first
fastest; its dp is our dp_shard (inner) and dp_replicate (outer): ``--num-distributed-optimizer-instances`` cuts the dp·cp group
into contiguous slices. Expert groups take consecutive ranks of cp·dp.
"""

from __future__ import annotations

import shlex
from typing import Final

from scaleacross.emitters.megatron_layout import model_arguments, pipeline_arguments
from scaleacross.emitters.model import check_stages, refuse_unequal_batches, workload_of
from scaleacross.emitters.rank_order import RankOrder, plan_topology, rank_order, ranks_csv
from scaleacross.emitters.shell import Launch, launch_files, one_line
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.plan import Plan
from scaleacross.workloads.moe_transformer import MoeTransformer

PP_OUTERMOST: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
DP_OUTERMOST: Final[tuple[GridAxis, ...]] = ("tp", "cp", "pp", "dp_shard", "dp_replicate")

# Catalogue name prefixes of compute capability 10 and later, where CUDA_DEVICE_MAX_CONNECTIONS=1 is no longer asked for.
BLACKWELL_PREFIXES: Final = ("B100", "B200", "B300", "GB200", "GB300")


def render(plan: Plan) -> dict[str, str]:
    """megatron_args.sh, the run scripts and ranks.csv, in folder megatron/.

    Raises:
        EmitError: the plan uses something that Megatron-LM has no option for; the message names it.
    """
    check_stages(plan)
    refuse_unequal_batches(plan, "Megatron-LM")
    _refuse_what_is_missing(plan)
    mapping, order = megatron_order(plan)
    program = '"${MEGATRON_LM:?set MEGATRON_LM to the Megatron-LM checkout}/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" "$@"'
    launch = Launch(
        plan_name=plan.job.name,
        framework="Megatron-LM",
        torchrun_command=program,
        task_command=f'"${{PYTHON:-python}}" {program}',
        preamble='source "$here/megatron_args.sh"\n',
    )
    files = {
        **launch_files(order, launch),
        "ranks.csv": ranks_csv(order),
        "megatron_args.sh": _arguments_file(plan, mapping),
    }
    return {f"megatron/{name}": text for name, text in files.items()}


def megatron_order(plan: Plan) -> tuple[list[str], RankOrder]:
    """The mapping option (empty for the default) and the ranks that go with it.

    dp is outermost where the plan's own order has pp inside dp. Either mapping puts every process on the plan's device; the other
    one is taken when only it leaves the ranks of every host in one block.
    """
    degrees, own = plan.degrees, plan.placement.axis_order
    dp_axes: list[GridAxis] = [axis for axis in own if axis in ("dp_shard", "dp_replicate") and degrees.of(axis) > 1]
    pp_inside = degrees.pp > 1 and bool(dp_axes) and own.index("pp") < own.index(dp_axes[0])
    choices = [([], PP_OUTERMOST), (["--use-tp-pp-dp-mapping"], DP_OUTERMOST)]
    if degrees.ep > 1 and degrees.pp > 1:
        choices.pop()  # dense and expert dp sizes must be equal unless pp is outermost (parallel_state.py)
    elif pp_inside:
        choices.reverse()
    orders = [(option, rank_order(plan, axes)) for option, axes in choices]
    return next((choice for choice in orders if choice[1].split_host() is None), orders[0])


def _refuse_what_is_missing(plan: Plan) -> None:
    degrees, job = plan.degrees, plan.job
    if degrees.ep > 1 and degrees.cp > 1:
        raise EmitError(
            f"ep {degrees.ep} with cp {degrees.cp}: Megatron-LM's expert groups run over cp first, "
            "the plan's inside dp_shard; set cp 1"
        )
    if plan.decision.shard == "parameters" and degrees.pp > 1:
        raise EmitError(
            f"shard 'parameters' with pp {degrees.pp}: Megatron-FSDP builds its mesh without a "
            "pipeline axis; set shard: optimizer or pp 1"
        )
    if job.precision == "nvfp4":
        raise EmitError("precision nvfp4: the megatron target writes bf16, fp16 and fp8")
    if job.precision == "fp16" and degrees.ep > 1:
        raise EmitError("precision fp16 with ep > 1: Megatron-LM trains experts in parallel with bf16 only")
    if job.optimizer.name not in ("adam", "sgd"):
        raise EmitError(f"optimizer '{job.optimizer.name}': the megatron target writes adam and sgd")
    if job.optimizer.reduce_bytes not in (2.0, 4.0):
        raise EmitError(
            f"gradients of {job.optimizer.reduce_bytes:g} bytes on the wire: Megatron-LM reduces in fp32 or in bf16"
        )
    if degrees.cp > 1 and job.sequence_length % (2 * degrees.cp):
        raise EmitError(
            f"sequence length {job.sequence_length} is no multiple of 2 · cp = {2 * degrees.cp}, which Megatron-LM asks for"
        )


def megatron_arguments(plan: Plan, mapping: list[str]) -> list[str]:
    """All arguments that the plan fixes, options and values one after another."""
    degrees, job = plan.degrees, plan.job
    return [
        *("--tensor-model-parallel-size", str(degrees.tp)),
        *("--pipeline-model-parallel-size", str(degrees.pp)),
        *("--context-parallel-size", str(degrees.cp)),
        *(["--expert-model-parallel-size", str(degrees.ep)] if degrees.ep > 1 else []),
        *(["--sequence-parallel"] if degrees.tp > 1 else []),
        *mapping,
        *pipeline_arguments(plan),
        *("--micro-batch-size", str(plan.decision.pipeline.micro_batch_sequences)),
        *("--global-batch-size", str(job.global_batch_sequences)),
        *("--seq-length", str(job.sequence_length)),
        *_precision(plan),
        *_data_parallel(plan),
        *_recompute(plan),
        *("--optimizer", job.optimizer.name),
        *model_arguments(plan),
    ]


def _precision(plan: Plan) -> list[str]:
    if plan.job.precision == "fp16":
        return ["--fp16", *(["--accumulate-allreduce-grads-in-fp32"] if plan.job.optimizer.reduce_bytes == 4.0 else [])]
    out = ["--bf16", *(["--grad-reduce-in-bf16"] if plan.job.optimizer.reduce_bytes == 2.0 else [])]
    return [*out, "--fp8-format", "hybrid"] if plan.job.precision == "fp8" else out


def _data_parallel(plan: Plan) -> list[str]:
    degrees, shard = plan.degrees, plan.decision.shard
    out = ["--overlap-grad-reduce"] if degrees.dp * degrees.cp > 1 else []
    if shard == "none":
        return out
    out += ["--use-distributed-optimizer"]
    out += ["--overlap-param-gather"] if degrees.dp * degrees.cp > 1 else []
    out += ["--num-distributed-optimizer-instances", str(degrees.dp_replicate)] if degrees.dp_replicate > 1 else []
    if shard == "parameters":
        out += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params"]
        out += [
            "--outer-dp-sharding-strategy",
            "no_shard",
            "--no-gradient-accumulation-fusion",
            "--ckpt-format",
            "fsdp_dtensor",
        ]
    return out


def _recompute(plan: Plan) -> list[str]:
    policy = plan.decision.recompute
    if policy == "full":
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if policy == "selective":
        modules = ["layernorm", "moe_act"] if isinstance(workload_of(plan), MoeTransformer) else ["layernorm", "mlp"]
        return ["--recompute-granularity", "selective", "--recompute-modules", *modules]
    return []


def _notes(plan: Plan) -> list[str]:
    out = [
        "Not part of a plan and left to you: data, tokenizer, learning rate, rotary base, checkpoints. Pass them to run_node.sh."
    ]
    if plan.decision.recompute == "selective" and not isinstance(workload_of(plan), MoeTransformer):
        out.append(
            "Selective recomputation: the plan recomputes norms and activation products; Megatron-LM recomputes the whole MLP "
            "instead (module mlp), which holds less than planned and computes more."
        )
    return out


def _max_connections(plan: Plan) -> str:
    """The shell line for CUDA_DEVICE_MAX_CONNECTIONS (arguments.py: 1 with tp or cp before Blackwell; never 1 with FSDP)."""
    if plan.decision.shard == "parameters":
        return "unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP refuses 1\n"
    topology = plan_topology(plan)
    names = [topology.building(share.building).accelerator.name for share in plan.placement.fill]
    before_blackwell = any(not name.upper().startswith(BLACKWELL_PREFIXES) for name in names)
    if before_blackwell and (plan.degrees.tp > 1 or plan.degrees.cp > 1):
        return "export CUDA_DEVICE_MAX_CONNECTIONS=1  # required with tp or cp before Blackwell\n"
    return ""


def _arguments_file(plan: Plan, mapping: list[str]) -> str:
    lines: list[str] = []
    for word in megatron_arguments(plan, mapping):
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    comments = "".join(f"# {note}\n" for note in _notes(plan))
    return (
        "#!/usr/bin/env bash\n"
        f'# Megatron-LM arguments of plan {one_line(plan.job.name)}: source this file, then use "${{MEGATRON_ARGS[@]}}".\n'
        f"{comments}set -euo pipefail\nMEGATRON_ARGS=(\n" + "\n".join(lines) + f"\n)\n{_max_connections(plan)}"
    )
