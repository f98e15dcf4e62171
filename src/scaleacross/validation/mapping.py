"""Turn one measured run into questions for the cost model: a job, a topology and the possible decisions.

Fields that a row does not state are completed by rules that never look at a measured value:

* micro-batch, chunks (``mbs``, ``vpp`` blank): every value of MICRO_BATCHES and up to MAX_CHUNKS chunks
  (MEGATRON_PAPER_CHUNKS for Megatron-LM of 2021 and 2022). Of those that fit in memory and are not much slower than the
  fastest, the middle one counts (``predict.TUNED``)
* recompute blank or unknown: none, and of selective and full, in this order, as many layers as memory requires
* experts: tokens are sent once to each accelerator if a scale-up domain is a rack, or if experts spread over several
  domains (Megatron-LM by itself: copies); in racks CUDA graphs also hold all but the experts (``_experts``)
* states: ``fsdp`` > 1 shards parameters; otherwise FRAMEWORK_STATES says what the framework of that time did
* ranks: tp fastest, then cp, dp, pp, which is both Megatron's order (tp-cp-ep-dp-pp) and torchtitan's ([pp, dp, cp,
  tp]); Meta's Llama 3 runs tp, cp, pp, dp (META_*)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import is_legal
from scaleacross.spec.accelerator import Precision
from scaleacross.spec.conversion import Conversion, Recipe
from scaleacross.spec.framework import (
    MEGATRON_OVERLAP,
    TORCH_OVERLAP,
    Compiled,
    ExpertRuntime,
    Kept,
    Optimizer,
    Overlap,
)
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import (
    EMPTY_ENDS,
    ContextExchange,
    Degrees,
    GridAxis,
    PipelineChoice,
    ScheduleName,
    ShardLevel,
)
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import MODULE_SETS, MODULES, PLAIN, Recompute
from scaleacross.spec.topology import Topology
from scaleacross.validation.machines import machine_of, topology_of
from scaleacross.validation.notes import attention_ratio, is_eager, stated_dispatch
from scaleacross.validation.runs import Run
from scaleacross.validation.workload_of import workload_of
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.problem import as_pytorch_keeps, uncompiled
from scaleacross.workloads.variants import (
    Uncompiled,
    with_attention_rate,
    with_eager_operators,
    with_lean_activations,
    with_padded_experts,
    with_pruned_recompute,
    with_separate_expert_bias,
    with_unfused_attention,
    without_sequence_parallelism,
)

MICRO_BATCHES: Final = (1, 2, 4, 8)
MAX_CHUNKS: Final = 8
MEGATRON_PAPER_CHUNKS: Final = 3  # the most that Megatron-LM's own publications state (arXiv 2205.05198, table 3)
AXIS_ORDER: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
META_AXIS_ORDER: Final[tuple[GridAxis, ...]] = ("tp", "cp", "pp", "dp_shard", "dp_replicate")  # arXiv 2407.21783, 3.3.2

# fp16 gradients accumulate and travel in 16 bit (Megatron-LM 2021/22), and bf16 ones in NeMo's performance recipes, which set
# grad_reduce_in_fp32=False. Megatron-LM itself turns accumulate_allreduce_grads_in_fp32 on with --bf16 (megatron/training/
# arguments.py, validate_args). PyTorch FSDP2 keeps one fp32 shard of the parameters and reduces in fp32.
HALF_GRADIENTS: Final = Optimizer(name="adam-half-gradients", gradient_bytes=2.0, reduce_bytes=2.0)
UNFUSED_HALF_GRADIENTS: Final = HALF_GRADIENTS.model_copy(
    update={"name": "adam-half-gradients-unfused", "fused_accumulation": False}
)
# FSDP adds gradients up by an operator of its own: FSDPParam.accumulate_unsharded_grad_if_needed of pytorch/pytorch 010ae4a.
FSDP2: Final = Optimizer(
    name="adam-fsdp2", parameter_bytes=2.0, gradient_bytes=4.0, state_bytes=10.0, fused_accumulation=False
)
# Gradients in fp32: arXiv 2407.21783, section 3.3.2.
META_FSDP: Final = Optimizer(name="adam-fsdp", fused_accumulation=False)

MODULE_WORDS: Final = {"norm": "layernorm", "act": "moe_act", "up_proj": "mla_up_proj"}
"""Short names in published tables -> Megatron-LM's names of recompute modules."""

# Recipes of rows that state one. "fp8" alone is delayed scaling in NVIDIA's software, Megatron's default and NeMo's
# bf16_with_fp8_mixed; torchtitan's guide of that time sets one scale per tensor, found anew, and gathers parameters in 8 bit, as
# its report of H200 does (docs/float8.md, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md); that of June 2025 does not.
RECIPES: Final[Mapping[str, Recipe]] = {"fp8-cs": "tensorwise", "mxfp8": "mxfp8", "fp8-mx": "mxfp8", "nvfp4": "nvfp4"}
TORCHAO_RECIPES: Final[Mapping[str, Recipe]] = {
    "fp8": "torchao_tensorwise",
    "fp8-tensorwise": "torchao_tensorwise",
    "fp8-rowwise": "torchao_rowwise",
}
# Presets of delayed, tensorwise and mxfp8 scaling in Megatron Bridge set fp8_param_gather, that of nvfp4 does not (src/megatron/
# bridge/training/mixed_precision.py, bf16_with_*_mixed); NeMo's bf16_with_fp8_mixed sets fp8_params.
NARROW_PARAMETERS: Final[tuple[Recipe, ...]] = ("delayed", "tensorwise", "mxfp8")

# Share of the tensor-parallel collectives that userbuffers hide. Assumed: a free fit on the H100 rows gave 0.36 to 0.5.
USERBUFFERS_TP_FRACTION: Final = 0.5

# (substring of the ``framework`` column, shard level over data parallel, optimizer bytes); the first match counts
FRAMEWORK_STATES: Final[tuple[tuple[str, ShardLevel, Optimizer], ...]] = (
    ("torchtitan", "parameters", FSDP2),
    ("Meta in-house", "optimizer", META_FSDP),
    ("DeepSpeed", "none", UNFUSED_HALF_GRADIENTS),
    ("Megatron-LM 2021", "none", UNFUSED_HALF_GRADIENTS),  # before the distributed optimizer and fused accumulation
    ("Megatron-LM 202", "none", HALF_GRADIENTS),
    ("Megatron-Bridge", "optimizer", HALF_GRADIENTS),
    ("NeMo", "optimizer", HALF_GRADIENTS),
    ("Megatron", "optimizer", Optimizer()),
    ("", "optimizer", HALF_GRADIENTS),
)


@dataclass(frozen=True)
class Case:
    """Questions of one row.

    ``decisions`` are alternatives if the row omits fields; ``filled`` names the fields that rules completed.
    """

    run: Run
    job: Job
    profile: ModelProfile
    topology: Topology
    decisions: tuple[Decision, ...]
    filled: tuple[str, ...]


def case_of(run: Run) -> Case:
    """Return the questions of one row.

    Raises:
        InputError: the row cannot be expressed; the message is the reason.
    """
    if run.exclude_from_fit:
        raise InputError("excluded by the file (exclude_from_fit = 1)")
    workload = workload_of(run)
    profile = workload.profile()
    run = run if run.arch else replace(run, arch="moe" if profile.num_experts else "dense")
    profile = _as_run(run, profile, uncompiled(workload))
    if profile.num_experts and _precision(run) in ("fp8", "nvfp4"):
        profile = with_padded_experts(profile)
    degrees = _degrees(run)
    states, optimizer = _states(run)
    exchange: ContextExchange = "gather" if "Meta" in run.framework else "ring"  # all-gather: arXiv 2407.21783, 3.3.2
    topology = topology_of(machine_of(run), run.n_gpus)
    job = Job(
        name=run.id,
        workload=run.model,
        topology="validation",
        sequence_length=run.seq,
        global_batch_sequences=run.gbs,
        precision=_precision(run),
        conversion=_conversion(run),
        optimizer=optimizer,
        overlap=_overlap(run),
        experts=_experts(run, degrees, topology),
        kept=_kept(run),
        context_exchange=(exchange,),
        eager_operators=is_eager(run),
    )
    accelerator = topology.buildings[0].accelerator
    if job.precision not in accelerator.peak_flop_per_s:
        raise InputError(f"{accelerator.name} states no {job.precision} peak")
    placement = Placement(
        axis_order=META_AXIS_ORDER if "Meta" in run.framework else AXIS_ORDER,
        fill=(BuildingShare(building="building", num_accelerators=run.n_gpus),),
    )
    recomputes = _recomputes(run, profile)
    decisions = tuple(
        Decision(
            degrees=degrees,
            pipeline=pipeline,
            recompute=recompute,
            shard=states,
            context_exchange=exchange,
            placement=placement,
        )
        for pipeline in _pipelines(run, degrees, profile.num_layers)
        for recompute in recomputes
    )
    filled = [name for name in ("mbs", "vpp") if getattr(run, name) is None and (name == "mbs" or degrees.pp > 1)]
    return Case(run, job, profile, topology, decisions, (*filled, *(["recompute"] if len(recomputes) > 1 else [])))


def _as_run(run: Run, profile: ModelProfile, operators: Uncompiled) -> ModelProfile:
    """Profile of the model as the row's framework runs it.

    Megatron before 2023 and Megatron-DeepSpeed have no fused attention; they and DeepSpeed have sequence parallelism
    only if ``sp`` is 1. torchtitan's selective checkpointing works per operator. Its query, key and value, and its gate
    and up, are separate products (pytorch/torchtitan 6404b93, torchtitan/models/llama3/model/model.py). Each converts
    the common input on its own (its pull request 1319: 10 to 15 % from key and value in 16 bit).
    """
    if _is_early(run):
        profile = with_unfused_attention(profile)
        if not run.sp:
            profile = without_sequence_parallelism(profile)
    if "NeMo" in run.framework or "Megatron" in run.framework:
        profile = with_separate_expert_bias(profile)
    if "NeMo" in run.framework or "Megatron-Bridge" in run.framework:
        profile = with_lean_activations(profile, narrow=_precision(run) in ("fp8", "nvfp4"))
    if "torchtitan" in run.framework or "MaxText" in run.framework:
        profile = with_pruned_recompute(profile)
    if is_eager(run):
        profile = with_eager_operators(profile, operators)
    if "torchtitan" in run.framework:
        profile = as_pytorch_keeps(profile, _kept(run), separate=True)
    return with_attention_rate(profile, attention_ratio(run))


def _kept(run: Run) -> Kept:
    """Tensors that torchtitan's rows keep, as its target has them; Megatron's rule for all others.

    Its layers are compiled unless a row says ``eager``. Its loss is compiled if the column ``loss`` says so, as not
    every release compiled it. One GPU has no FSDP and trains under autocast.
    """
    if "torchtitan" not in run.framework:
        return Kept()
    model, loss = not is_eager(run), run.loss == "compiled"
    compiled: tuple[Compiled, ...] = (*(("model",) if model else ()), *(("loss",) if loss else ()))
    return Kept(by="pytorch", compiled=compiled, autocast=run.n_gpus == 1)


def _degrees(run: Run) -> Degrees:
    tp, cp, pp, ep = run.tp or 1, run.cp or 1, run.pp or 1, run.ep or 1
    dp, rest = divmod(run.n_gpus, tp * cp * pp)
    if rest or not dp or (run.dp is not None and run.dp != dp):
        stated = "" if run.dp is None else f" · dp {run.dp}"
        raise InputError(f"tp {tp} · cp {cp} · pp {pp}{stated} does not make {run.n_gpus} GPUs")
    lanes = 1
    if _whole_experts(run):
        if ep % tp or dp % (ep // tp) or cp > 1:
            raise InputError(f"ep {ep} over tp {tp} · dp {dp} (expert tp 1, cp {cp}): tp must divide it, cp must be 1")
        # a row's ep counts the ranks of tp, ``Degrees.ep`` does not
        ep, lanes = ep // tp, tp
    elif ep > 1 and dp % ep:
        raise InputError(f"ep {ep} does not divide dp {dp}")
    # an fsdp above dp counts the ranks of cp, too
    shard = run.fsdp // cp if run.fsdp and run.fsdp > dp else run.fsdp or dp
    if dp % max(1, shard):
        raise InputError(f"fsdp {run.fsdp} does not divide dp {dp}")
    if shard % ep:
        raise InputError(f"ep {ep} does not divide the shard group of {shard}")
    try:
        return Degrees(tp=tp, cp=cp, pp=pp, ep=ep, expert_lanes=lanes, dp_shard=shard, dp_replicate=dp // shard)
    except ValidationError as error:
        raise InputError("; ".join(item["msg"] for item in error.errors())) from None


def _experts(run: Run, degrees: Degrees, topology: Topology) -> ExpertRuntime:
    """Dispatcher of a row: what the notes state, else NVIDIA's advice for the machine.

    The advice is that of Megatron Bridge ("MoE Hardware Configuration Reference", platform playbook). Megatron-LM by
    itself sends copies: its flex dispatcher is an option. Racks that are one scale-up domain run HybridEP, which sends
    a token once, and CUDA graphs of all but the experts, because the host's launches limit them. Megatron Bridge's
    ``flex_dispatcher_backend`` allows HybridEP there alone. Other machines run the all-to-all, unless experts spread
    over several domains: then Megatron-Core's guide to experts asks for its flex dispatcher
    (megatron/core/transformer/moe/README.md).
    """
    (building,) = topology.buildings
    rack = building.scale_up_domain == "rack"
    domain = building.accelerators_per_host * (building.hosts_per_rack if rack else 1)
    own = (
        re.search("Megatron-(LM|Core)", run.framework) and "NeMo" not in run.framework and "Bridge" not in run.framework
    )
    once = rack or (degrees.ep * degrees.tp * degrees.cp > domain and not own)
    dispatch = stated_dispatch(run) or ("deduplicated" if once else "copies")
    return ExpertRuntime(dispatch=dispatch, graphs="partial" if rack else "none")


def _whole_experts(run: Run) -> bool:
    """Whether experts are spread over tp too: stated (etp 1), or Megatron-Bridge, whose recipes all do so."""
    spread = run.etp == 1 or (run.etp is None and "Megatron-Bridge" in run.framework)
    return run.arch == "moe" and spread and (run.tp or 1) > 1


def _states(run: Run) -> tuple[ShardLevel, Optimizer]:
    level, optimizer = next((level, opt) for name, level, opt in FRAMEWORK_STATES if name in run.framework)
    return ("parameters" if (run.fsdp or 0) > 1 and "Meta" not in run.framework else level), optimizer


def _overlap(run: Run) -> Overlap:
    """Overlap of communication with computation in the row's framework.

    Megatron before the distributed optimizer, and DeepSpeed, reduce gradients after the backward pass and wait for
    pipeline messages. Megatron overlaps reductions over tp with weight gradients. It did not yet in 2021, nor does the
    fork with DeepSpeed whose layers the repository of vTrain carries (src/model/layers.py: megatron/mpu/layers.py as it
    was before).

    The column ``overlap`` or the framework's recipes switch overlap of tp collectives on. Pipeline messages are exposed
    if the column states "no p2p overlap".
    """
    if _is_early(run):
        waiting = {"gradient_reduce": False, "parameter_gather": False, "pipeline_messages": False}
        later = "Megatron-LM 2022" in run.framework
        return Overlap.model_validate(waiting | {"shard_prefetch": False, "tp_reduce": later})
    stated = run.overlap.lower()
    hidden = ("tp userbuffers" in stated and "no tp userbuffers" not in stated) or "tp-comm-overlap" in stated
    hidden |= "async" in stated and "tp" in stated  # torchtitan: a product starts on the pieces that have arrived
    hidden |= "Megatron-Bridge" in run.framework and run.arch == "dense"  # its recipes switch tp_comm_overlap on
    return Overlap(
        tp_fraction=USERBUFFERS_TP_FRACTION if hidden else 0.0,
        tp_reduce="Mega" in run.framework or "NeMo" in run.framework,
        pipeline_messages="no p2p overlap" not in stated,
        **_pipeline_overlap(run),
    )


def _pipeline_overlap(run: Run) -> dict[str, bool]:
    """Overlap options that the row's framework fixes for its pipeline, as the target of its name has them."""
    if "torchtitan" in run.framework:
        return TORCH_OVERLAP
    return MEGATRON_OVERLAP if "Mega" in run.framework or "NeMo" in run.framework else {}


def _is_early(run: Run) -> bool:
    return "Megatron-LM 202" in run.framework or "DeepSpeed" in run.framework


def _precision(run: Run) -> Precision:
    text = run.precision.lower()
    if "fp4" in text:
        return "nvfp4"
    if "fp8" in text:
        return "fp8"
    if text == "bf16":
        return "bf16"
    if text == "fp16":
        return "fp16"
    raise InputError(f"precision '{run.precision}' is not known: fp16, bf16, an fp8 or an fp4 recipe")


def _conversion(run: Run) -> Conversion:
    if _precision(run) in ("fp16", "bf16"):
        return Conversion()
    stated = run.precision.lower()
    if "torchtitan" in run.framework:
        return Conversion(recipe=TORCHAO_RECIPES[stated], narrow_parameters=stated == "fp8")
    recipe = RECIPES.get(stated, "delayed")
    preset = "NeMo" in run.framework or "Megatron-Bridge" in run.framework
    return Conversion(recipe=recipe, narrow_parameters=preset and recipe in NARROW_PARAMETERS)


def _recomputes(run: Run, profile: ModelProfile) -> tuple[Recompute, ...]:
    stated = run.recompute.split("(")[0].strip()
    words = {MODULE_WORDS.get(word, word) for word in re.findall("[a-z_]+", run.recompute.lower())}
    modules = tuple(module for module in MODULES if module in words)
    if modules in MODULE_SETS and words <= {*modules, "modules", "selective"}:
        return (profile.acting("+".join(modules)),)
    if "Meta" in run.framework:  # "none" is recalled, and the paper frees tensors early instead (section 3.3.2)
        return PLAIN
    if stated == "selective" and ("Megatron-LM" in run.framework or "NeMo" in run.framework):
        return (
            "core_attn",
        )  # the module that selective granularity reruns by default (core/transformer/transformer_config.py)
    return (stated,) if stated in PLAIN else PLAIN


def _pipelines(run: Run, degrees: Degrees, num_layers: int) -> tuple[PipelineChoice, ...]:
    """Pipeline choices, smallest micro-batch and fewest chunks first. Raises InputError if none is legal."""
    pp, out = degrees.pp, []
    chunks = (run.vpp,) if run.vpp else _chunk_counts(run, pp, num_layers)
    for micro_batch in (run.mbs,) if run.mbs else MICRO_BATCHES:
        if run.gbs % (degrees.dp * micro_batch):
            continue
        m = run.gbs // (degrees.dp * micro_batch)
        for v in chunks:
            name: ScheduleName = "Interleaved1F1B" if v > 1 and pp > 1 else "1F1B"
            v = v if name == "Interleaved1F1B" else 1
            if pp == 1 or (pp * v <= num_layers + EMPTY_ENDS and is_legal(name, pp, m, v)):
                out.append(PipelineChoice(schedule=name, num_chunks=v, micro_batch_sequences=micro_batch))
    if not out:
        raise InputError(
            f"no pipeline of {pp} stages × {run.vpp or 'any'} chunks for {num_layers} layers and a batch of {run.gbs} "
            f"in dp {degrees.dp} × micro-batch {run.mbs or 'any'}"
        )
    return tuple(dict.fromkeys(out))


def _chunk_counts(run: Run, pp: int, num_layers: int) -> tuple[int, ...]:
    if pp == 1 or "DeepSpeed" in run.framework:  # DeepSpeed's pipeline does not interleave
        return (1,)
    if "Meta" in run.framework:  # a layer a chunk, the first with the embedding alone, the last with the head (3.3.2)
        return (-(-num_layers // pp),)
    most = MEGATRON_PAPER_CHUNKS if "Megatron-LM 202" in run.framework else MAX_CHUNKS
    return tuple(range(1, min(most, num_layers // pp) + 1))
