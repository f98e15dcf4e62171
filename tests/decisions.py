"""Decisions built by hand that Megatron-LM or torchtitan runs, for round trips through their files."""

from __future__ import annotations

from typing import Any, NamedTuple

from scaleacross.spec.plan import Decision

DENSE = {"workload": "llama3.1-8b", "topology": "one_building"}
LARGE = {"workload": "llama3.1-70b", "topology": "two_buildings_unequal"}
QWEN = {"workload": "qwen3-235b-a22b", "topology": "one_building"}
MIXTRAL = {"workload": "mixtral-8x22b", "topology": "one_building"}
OSS = {"workload": "gpt-oss-120b", "topology": "one_building"}
DEEPSEEK = {"workload": "deepseek-v3", "topology": "two_buildings_unequal"}


class Case(NamedTuple):
    """A job's catalogue names, a short form of a decision, and overrides of the job.

    ``degrees``: "tp2 pp4 dp8 x2" is tp 2, pp 4, dp_shard 8, dp_replicate 2. "lanes2" is expert_lanes 2, and "inner2" is
    cp_inner 2. ``pipeline``: "Interleaved1F1B v2 b4" is two chunks and micro-batches of four sequences.
    """

    job: dict[str, str]
    degrees: str
    pipeline: str = "1F1B"
    recompute: str = "none"
    shard: str = "optimizer"
    overrides: tuple[str, ...] = ()
    layers: tuple[tuple[int, ...], ...] | None = None
    exchange: str = "ring"
    on_host: tuple[float, float] = (0.0, 0.0)
    """Shares of the layers' activations and of the optimizer states on the host."""

    def __str__(self) -> str:
        words = (
            self.job["workload"],
            self.degrees,
            self.pipeline,
            self.recompute,
            self.shard,
            self.exchange,
            *(f"{share:g}" for share in self.on_host if share),
            *self.overrides,
        )
        return " ".join(words).replace(" ", "-")


def job_of(case: Case) -> dict[str, Any]:
    """The job with catalogue names and figures for this schedule; the case's overrides come last."""
    schedule = case.pipeline.split()[0]
    figures = {"sequence_length": 4096, "global_batch_sequences": 128, "schedules": [schedule]}
    figures |= {"context_exchange": [case.exchange], "recompute": [case.recompute], "shard": [case.shard]}
    figures |= {"expert_folding": ["tp_cp" if "lanes" in case.degrees else "none"]}
    figures |= dict(zip(("activation_offload", "optimizer_offload"), case.on_host, strict=True))
    return {"name": "round-trip", **case.job, **figures}


def decision_of(case: Case) -> Decision:
    """The decision, without placement."""
    axes = {"dp": "dp_shard", "x": "dp_replicate", "lanes": "expert_lanes", "inner": "cp_inner"}
    degrees = {}
    for word in case.degrees.split():
        name = word.rstrip("0123456789")
        degrees[axes.get(name, name)] = int(word[len(name) :])
    schedule, *rest = case.pipeline.split()
    sizes = {word[0]: int(word[1:]) for word in rest}
    return Decision.model_validate(
        {
            "degrees": degrees,
            "pipeline": {
                "schedule": schedule,
                "num_chunks": sizes.get("v", 1),
                "micro_batch_sequences": sizes.get("b", 1),
            },
            "recompute": case.recompute,
            "shard": case.shard,
            "context_exchange": case.exchange,
            "activation_offload": case.on_host[0],
            "optimizer_offload": case.on_host[1],
            "layers_per_stage": case.layers,
        }
    )


MEGATRON = (
    Case(DENSE, "dp16"),
    Case(DENSE, "tp2 dp8 x2", "1F1B b2"),
    Case(DENSE, "tp4 pp2 dp4", recompute="full"),
    Case(DENSE, "tp4 pp2 dp4", recompute="full:3/8"),
    Case(DENSE, "tp2 pp4 dp8", "Interleaved1F1B v2", recompute="full:1/4"),
    Case(DENSE, "tp2 pp4 dp8", "Interleaved1F1B v2"),
    Case(DENSE, "tp1 pp4 dp4 x2", "Interleaved1F1B v4 b2", "full"),
    Case(DENSE, "tp4 pp2 dp4", recompute="core_attn+mlp"),
    Case(DENSE, "x32", shard="none"),
    Case(DENSE, "tp8 x4", shard="none", overrides=("optimizer.reduce_bytes=2",)),
    Case(DENSE, "tp2 dp16", overrides=(
        "optimizer.gradient_bytes=2", "optimizer.reduce_bytes=2", "optimizer.state_bytes=8")),
    Case(DENSE, "dp32", shard="parameters"),
    Case(DENSE, "tp2 dp8 x2", "1F1B b2", "full", "parameters"),
    Case(DENSE, "tp2 dp8 x2", "1F1B b2", shard="gradients"),
    Case(DENSE, "tp2 dp16", on_host=(0.25, 0.0)),
    Case(DENSE, "tp2 dp8 x2", "1F1B b2", on_host=(0.75, 1.0)),
    Case(DENSE, "tp4 pp2 dp4", recompute="full", on_host=(0.0, 0.5)),
    Case(DENSE, "cp4 dp8", exchange="gather"),
    Case(DENSE, "cp2 tp2 pp2 dp4", exchange="ring"),
    Case(DENSE, "cp2 tp4 dp8", recompute="full", exchange="all_to_all"),
    Case(DENSE, "cp4 inner2 tp2 dp4", exchange="all_to_all_ring"),
    Case(DENSE, "cp8 inner4 pp2 dp2", exchange="all_to_all_ring", overrides=("sequence_length=32768",)),
    Case(DENSE, "pp5 dp2 x4", overrides=("global_batch_sequences=160",)),
    Case(DENSE, "pp4 dp8", layers=((7,), (9,), (9,), (7,))),
    Case(DENSE, "pp2 dp8", "Interleaved1F1B v3", layers=((4, 6, 6), (6, 6, 4))),
    Case(DENSE, "tp2 dp16", overrides=("overlap.gradient_reduce=false", "overlap.parameter_gather=false")),
    Case(DENSE, "dp32", overrides=("overlap.bucket_parameters=200000000",)),
    Case(DENSE, "tp4 dp8", overrides=("overlap.tp_fraction=0.6",)),
    Case(DENSE, "tp2 dp8", overrides=("optimizer.name=sgd", "optimizer.state_bytes=8")),
    Case(DENSE, "tp2 dp16", overrides=("precision=fp8",)),
    Case(DENSE, "tp4 dp8", overrides=("precision=fp8", "conversion.recipe=mxfp8", "conversion.narrow_parameters=true")),
    Case(DENSE, "tp2 dp16", shard="parameters", overrides=("precision=fp8", "conversion.recipe=blockwise")),
    Case(DENSE, "tp2 dp16", overrides=("precision=fp8", "conversion.recipe=blockwise", "optimizer.state_bytes=8")),
    Case(DENSE, "tp1 dp16", overrides=("sequence_length=32768", "experts.graphs=partial")),
    Case(DENSE, "pp4 dp8", "Interleaved1F1B v2", overrides=("overlap.pipeline_messages=false",)),
    Case(DENSE, "tp2 dp16", overrides=("optimizer.fused_accumulation=false",)),
    Case(DENSE, "tp2 dp16", overrides=("optimizer.checked_gradients=false",)),
    Case(LARGE, "tp8 pp4 dp16 x2", "Interleaved1F1B v4", overrides=("global_batch_sequences=512",)),
    Case(LARGE, "tp4 pp8 dp32", overrides=("global_batch_sequences=2048",)),
    Case(LARGE, "tp8 pp2 dp8 x4", "1F1B b2", "full"),
    Case(QWEN, "tp4 pp4 dp16 ep16", "Interleaved1F1B v2", overrides=("global_batch_sequences=512",),
         layers=((12, 12), (12, 12), (12, 11), (12, 11))),
    Case(QWEN, "pp2 dp64 ep32", recompute="full", overrides=("experts.dispatch=deduplicated", "global_batch_sequences=512")),
    Case(MIXTRAL, "tp4 pp7 dp8 ep8", "Interleaved1F1B v2"),
    Case(MIXTRAL, "tp2 pp7 dp8 ep4", "Interleaved1F1B v4", overrides=("experts.overlap_fraction=0.5",)),
    Case(MIXTRAL, "tp4 pp4 dp8 x2 ep8", overrides=("experts.graphs=partial",)),
    Case(MIXTRAL, "tp2 pp7 dp8 ep4 lanes2", "Interleaved1F1B v2"),
    Case(MIXTRAL, "tp4 pp2 dp8 x2 ep2 lanes4", "1F1B b2", "full"),
    Case(QWEN, "tp4 pp2 dp32 ep16 lanes4", recompute="full",
         overrides=("experts.dispatch=deduplicated", "global_batch_sequences=512")),
    Case(QWEN, "cp2 tp4 pp2 dp16 ep8 lanes8", recompute="full", overrides=("global_batch_sequences=512",)),
    Case(DEEPSEEK, "tp1 pp16 dp64 ep64", "1F1B", "full", overrides=("global_batch_sequences=4096",)),
    Case(DEEPSEEK, "tp2 pp16 dp64 ep64", "1F1B", "moe_act+layernorm",
         overrides=("global_batch_sequences=4096", "experts.shared_overlap=true", "experts.dispatch=deduplicated")),
    Case(DEEPSEEK, "tp2 pp16 dp64 ep64", "Interleaved1F1B v2", "mlp", overrides=(
        "global_batch_sequences=4096", "experts.overlap_fraction=0.8", "experts.fused_permutation=false",
        "experts.graphs=partial")),
    Case(DEEPSEEK, "tp2 pp16 dp64 ep64", "1F1B", "moe_act+layernorm+mla_up_proj+mlp+shared_experts",
         overrides=("global_batch_sequences=4096",)),
    Case(DEEPSEEK, "pp16 dp64 ep64", "1F1B", "layernorm+mla_up_proj+moe", overrides=("global_batch_sequences=4096",)),
    Case(DEEPSEEK, "tp1 pp16 dp64 ep64", "1F1B", "full", layers=((5,), *((4,),) * 14, (1,)),
         overrides=("global_batch_sequences=4096", "prediction_layers=1")),
    Case(DENSE, "tp2 dp16", overrides=("prediction_layers=1",)),
    Case(DENSE, "pp4 dp8", layers=((8,), (8,), (8,), (9,)), overrides=("prediction_layers=1",)),
    Case(DENSE, "tp2 pp4 dp8", "Interleaved1F1B v2", overrides=("prediction_layers=1",)),
)  # fmt: skip

TORCHTITAN = (
    Case(DENSE, "dp16", shard="parameters"),
    Case(DENSE, "dp16 x2", "1F1B b2", "full", "parameters"),
    Case(DENSE, "tp2 dp16", "1F1B b4", shard="parameters"),
    Case(DENSE, "tp4 x4", "1F1B b32", shard="none"),
    Case(DENSE, "tp8 dp8", "1F1B b16", shard="parameters_once"),
    Case(DENSE, "tp2 dp8 x2", "1F1B b2", "full", "parameters_once"),
    Case(DENSE, "tp2 dp16", "1F1B b4", "selective", "parameters"),
    Case(DENSE, "cp2 dp16", recompute="selective", shard="parameters", exchange="gather"),
    Case(DENSE, "tp2 dp16", "1F1B b4", "selective", "parameters", ("kept.spmd_backend=spmd_types",)),
    Case(DENSE, "tp4 dp8", recompute="selective", shard="parameters",
         overrides=("kept.spmd_backend=spmd_types", "kept.compiled=[model]")),
    Case(QWEN, "tp4 pp2 dp32 ep8 lanes4", recompute="selective",
         overrides=("global_batch_sequences=512", "kept.spmd_backend=spmd_types")),
    Case(QWEN, "tp4 pp2 dp32 ep8 lanes4", recompute="selective", overrides=("global_batch_sequences=512",)),
    Case(DENSE, "cp2 dp16", shard="parameters", exchange="gather"),
    Case(DENSE, "cp4 tp2 dp4", "1F1B b2", "full", "parameters", ("sequence_length=32768",), exchange="gather"),
    Case(DENSE, "cp2 pp2 dp8", exchange="gather"),
    Case(DENSE, "pp4 dp8"),
    Case(DENSE, "pp4 dp4 x2", "GPipe b2"),
    Case(DENSE, "pp4 x8", "1F1B", shard="none"),
    Case(DENSE, "tp2 pp4 dp4", "Interleaved1F1B v2", "full"),
    Case(DENSE, "pp2 dp8", "LoopedBFS v4"),
    Case(DENSE, "pp4 dp4", "InterleavedZeroBubble v2"),
    Case(DENSE, "pp4 dp8", "ZBVZeroBubble v2"),
    Case(DENSE, "tp2 pp2 dp8", "DualPipeV v2"),
    Case(DENSE, "pp4 dp8", layers=((7,), (9,), (9,), (7,))),
    Case(DENSE, "pp4 dp8", "ZBVZeroBubble v2", layers=((3, 3), (4, 4), (5, 4), (4, 5))),
    Case(DENSE, "dp16", shard="parameters", overrides=("precision=fp8", "conversion.recipe=torchao_rowwise")),
    Case(QWEN, "dp64 ep32", "1F1B b2", "full", "parameters", ("precision=fp8", "conversion.recipe=torchao_mxfp8")),
    Case(LARGE, "tp8 pp4 dp16 x2", "Interleaved1F1B v4", overrides=("global_batch_sequences=512",)),
    Case(LARGE, "tp8 dp32", recompute="full", shard="parameters"),
    Case(LARGE, "tp4 pp8 dp32", overrides=("global_batch_sequences=2048",)),
    Case(QWEN, "dp64 ep32", "1F1B b2", "full", "parameters"),
    Case(QWEN, "pp2 dp64 ep16", recompute="full", overrides=("global_batch_sequences=512",)),
    Case(QWEN, "tp4 pp2 dp32 ep8 lanes4", recompute="full", overrides=("global_batch_sequences=512",)),
    Case(QWEN, "cp2 tp4 dp32 ep4 lanes8", "1F1B", "full", "parameters", ("sequence_length=8192",), exchange="gather"),
    Case(DEEPSEEK, "pp16 dp64 ep64", "Interleaved1F1B v2", "full", overrides=("global_batch_sequences=4096",)),
    Case(OSS, "dp64 ep8", "1F1B", "full", "parameters"),
    Case(OSS, "pp2 dp32 ep8", recompute="selective"),
)  # fmt: skip
CASES = tuple(("megatron", case) for case in MEGATRON) + tuple(("torchtitan", case) for case in TORCHTITAN)
