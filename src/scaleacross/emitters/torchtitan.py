"""Target ``torchtitan``: a config module for torchtitan 0.3.0 and run scripts in its rank order.

torchtitan 0.3.0 takes its configuration from a Python function that returns ``Trainer.Config`` (``--module M --config F``,
torchtitan/config/manager.py). Its mesh is [pp, dp_replicate, dp_shard, cp, tp], last fastest, and no option changes it
(torchtitan/distributed/parallel_dims.py): the hosts are ordered so that every process lands on the plan's device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scaleacross.emitters.model import check_stages, refuse_unequal_batches, workload_of
from scaleacross.emitters.rank_order import rank_order, ranks_csv
from scaleacross.emitters.shell import Launch, launch_files, one_line
from scaleacross.emitters.torchtitan_models import find_flavor
from scaleacross.errors import EmitError
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import Degrees, GridAxis, ScheduleName
from scaleacross.spec.plan import Plan

TORCHTITAN_ORDER: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
MODULE_NAME: Final = "scaleacross_plan"
FUNCTION_NAME: Final = "train"
TORCH_SCHEDULES: Final[tuple[ScheduleName, ...]] = (
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV",
)  # fmt: skip


def render(plan: Plan) -> dict[str, str]:
    """scaleacross_plan.py, the run scripts and ranks.csv, in folder torchtitan/.

    Raises:
        EmitError: the plan uses something that torchtitan 0.3.0 has no setting for; the message names it.
    """
    check_stages(plan)
    refuse_unequal_batches(plan, "torchtitan 0.3.0")
    order = rank_order(plan, TORCHTITAN_ORDER)
    program = f'-m torchtitan.train --module {MODULE_NAME} --config {FUNCTION_NAME} "$@"'
    launch = Launch(
        plan_name=plan.job.name,
        framework="torchtitan",
        torchrun_command=program,
        task_command=f'"${{PYTHON:-python}}" {program}',
        preamble='export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"\n',
    )
    files = {**launch_files(order, launch), "ranks.csv": ranks_csv(order), f"{MODULE_NAME}.py": config_module(plan)}
    return {f"torchtitan/{name}": text for name, text in files.items()}


def config_module(plan: Plan) -> str:
    """The text of the config module; it compiles.

    Raises:
        EmitError: the plan uses something that torchtitan 0.3.0 has no setting for.
    """
    flavor = find_flavor(workload_of(plan).profile())
    recompute = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}[
        plan.decision.recompute
    ]
    text = _MODULE.format(
        title=one_line(plan.job.name).replace("\\", " ").replace('"', "'"),
        package=flavor.package,
        flavor=flavor.name,
        notes="".join(f"\n# {note}" for note in _notes(plan)),
        recompute=recompute,
        training=_keywords(_training(plan)),
        parallelism=_keywords(_parallelism(plan)),
    )
    compile(text, f"{MODULE_NAME}.py", "exec")
    return text


def _training(plan: Plan) -> Mapping[str, Any]:
    degrees, pipeline = plan.degrees, plan.decision.pipeline
    if plan.job.precision != "bf16":
        raise EmitError(
            f"precision {plan.job.precision}: the torchtitan target writes bf16; add a quantization converter to the module"
        )
    if plan.job.optimizer.name not in ("adam", "adamw"):
        raise EmitError(f"optimizer '{plan.job.optimizer.name}': the torchtitan target writes AdamW")
    if plan.job.optimizer.reduce_bytes != 4.0:
        raise EmitError(
            f"gradients of {plan.job.optimizer.reduce_bytes:g} bytes on the wire: torchtitan 0.3.0 reduces in "
            "float32 (4 bytes) only"
        )
    divisor = degrees.tp * (2 * degrees.cp if degrees.cp > 1 else 1)
    if plan.job.sequence_length % divisor:
        raise EmitError(
            f"sequence length {plan.job.sequence_length} is no multiple of {divisor}, which torchtitan asks for "
            f"at tp {degrees.tp}, cp {degrees.cp}"
        )
    per_round = pipeline.micro_batch_sequences
    return {
        "local_batch_size": per_round * plan.num_micro_batches if degrees.pp > 1 else per_round,
        "global_batch_size": plan.job.global_batch_sequences,
        "seq_len": plan.job.sequence_length,
        "disable_cuda_graphs": degrees.pp > 1 or degrees.ep > 1,
    }


def _parallelism(plan: Plan) -> Mapping[str, Any]:
    degrees = plan.degrees
    replicate, shard, reshard = _data_parallel(plan)
    out: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": degrees.tp,
        "context_parallel_degree": degrees.cp,
        "pipeline_parallel_degree": degrees.pp,
        "expert_parallel_degree": _expert_degree(degrees),
    }
    if degrees.cp > 1:
        out["context_parallel_load_balancer"] = (
            "ptrr"  # the balancer for FlexAttention, the default of every flavor here
        )
    if degrees.pp > 1:
        _check_schedule(plan)
        out["pipeline_parallel_schedule"] = plan.decision.pipeline.schedule
        out["pipeline_parallel_microbatch_size"] = plan.decision.pipeline.micro_batch_sequences
        out["module_fqns_per_model_part"] = stage_modules(layers_in_model_order(plan))
    return out


def _data_parallel(plan: Plan) -> tuple[int, int, str]:
    """(replicate degree, shard degree, reshard policy).

    FSDP2 shards parameters, gradients and optimizer states. Keeping parameters gathered ("never") gives the traffic of an
    optimizer-only shard when gradients are reduced once per step: so it is with a pipeline, whose last micro-batch reduces, but
    not with plain gradient accumulation, which reduces every time (torchtitan/trainer.py has no no-sync path).
    """
    degrees, shard = plan.degrees, plan.decision.shard
    if shard == "parameters":
        return degrees.dp_replicate, degrees.dp_shard, "always"
    if shard == "optimizer":
        if degrees.pp == 1 and plan.num_micro_batches > 1:
            raise EmitError(
                f"shard 'optimizer' with pp 1 and {plan.num_micro_batches} micro-batches: torchtitan 0.3.0 would reduce "
                "gradients after every micro-batch; set shard: parameters, pp > 1, or one micro-batch"
            )
        return degrees.dp_replicate, degrees.dp_shard, "never"
    if degrees.cp > 1 or degrees.ep > 1:
        raise EmitError(
            f"shard 'none' with cp {degrees.cp}, ep {degrees.ep}: torchtitan 0.3.0 always shards over dp_shard · cp "
            "and needs dp_shard for experts; set shard: optimizer or parameters"
        )
    return degrees.dp, 1, "default"


def _expert_degree(degrees: Degrees) -> int:
    if degrees.ep > 1 and degrees.tp * degrees.cp > 1:
        raise EmitError(
            f"ep {degrees.ep} with tp {degrees.tp}, cp {degrees.cp}: torchtitan's expert groups run over tp and cp first, "
            "the plan's inside dp_shard; set tp 1 and cp 1"
        )
    return degrees.ep


def _check_schedule(plan: Plan) -> None:
    """What torch.distributed.pipelining (2.13) asks of the number of micro-batches."""
    schedule, pp, num = plan.decision.pipeline.schedule, plan.degrees.pp, plan.num_micro_batches
    if schedule not in TORCH_SCHEDULES or plan.decision.pipeline.order is not None:
        order = " in an order of its own" if plan.decision.pipeline.order is not None else ""
        raise EmitError(
            f"schedule {schedule}{order}: torchtitan 0.3.0 names {', '.join(TORCH_SCHEDULES)}; the target "
            "pipeline_csv writes the order itself"
        )
    if schedule == "1F1B" and num < pp:
        raise EmitError(
            f"1F1B with {num} micro-batches on {pp} stages: torch's schedule needs at least as many micro-batches as stages"
        )
    if schedule in ("Interleaved1F1B", "InterleavedZeroBubble") and num % max(1, num // pp):
        rounds = max(1, num // pp)
        raise EmitError(
            f"{schedule} with {num} micro-batches on pp {pp}: torch runs {rounds} rounds and {num} is no multiple of that"
        )


def layers_in_model_order(plan: Plan) -> list[int]:
    """Layers of every virtual stage. torchtitan places the stages as the schedule of that name does: in a loop, or in a V."""
    placement, pp = SCHEDULES[plan.decision.pipeline.schedule].placement, plan.degrees.pp
    places = (locate(placement, pp, stage) for stage in range(pp * plan.decision.pipeline.num_chunks))
    return [plan.layers_per_stage[rank][chunk] for rank, chunk in places]


def stage_modules(layers: Sequence[int]) -> list[list[str]]:
    """Module names of every virtual stage in model order, from the layers of each."""
    out: list[list[str]] = []
    first = 0
    for count in layers:
        out.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    out[0].insert(0, "tok_embeddings")
    out[-1] += ["norm", "lm_head"]
    return out


def _notes(plan: Plan) -> list[str]:
    out = ["Data set, learning rate, number of steps and the tokenizer's folder are not part of a plan: set them here."]
    if plan.decision.recompute == "selective":
        out.append(
            "SelectiveAC recomputes every second matrix product too: it holds less than the plan's policy and computes more."
        )
    return out


def _keywords(values: Mapping[str, Any]) -> str:
    return "".join(f"            {name}={_literal(value)},\n" for name, value in values.items())


def _literal(value: Any) -> str:
    """``value`` as Python source; a list of lists takes one line per inner list."""
    if isinstance(value, list):
        return "[\n" + "".join(f"                {inner!r},\n" for inner in value) + "            ]"
    return repr(value)


_MODULE: Final = '''\
"""torchtitan 0.3.0 configuration of plan {title}.

Start it with run_node.sh or slurm.sbatch beside this file; alone: ``--module scaleacross_plan --config train``.
"""

import os

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{package} import model_registry
from torchtitan.trainer import Trainer
{notes}


def train() -> Trainer.Config:
    """The plan's settings around torchtitan's {package} {flavor}."""
    model_spec = model_registry({flavor!r})
    return Trainer.Config(
        model_spec=model_spec,
        hf_assets_path=os.environ.get("HF_ASSETS_PATH", "./assets/hf"),
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        ),
        optimizer=default_adamw(lr=float(os.environ.get("LEARNING_RATE", "8e-5"))),
        dataloader=HuggingFaceTextDataLoader.Config(dataset=os.environ.get("DATASET", "c4")),
        activation_checkpoint={recompute},
        training=TrainingConfig(
            steps=int(os.environ.get("STEPS", "1000")),
{training}        ),
        parallelism=ParallelismConfig(
{parallelism}        ),
    )
'''
