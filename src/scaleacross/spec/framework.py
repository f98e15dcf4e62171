"""Behaviour of the training framework: bytes per parameter, overlap with computation, and how it runs experts."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Name, Spec


class Optimizer(Spec):
    """Bytes kept and moved per parameter. The defaults are mixed-precision Adam with fp32 gradient accumulation (Megatron-LM)."""

    name: Name = "adam"
    parameter_bytes: PositiveFloat = Field(default=2.0, description="working copy of a parameter, bytes")
    gradient_bytes: PositiveFloat = Field(default=4.0, description="accumulated gradient of a parameter, bytes")
    state_bytes: float = Field(default=12.0, ge=0, description="master weight and moments of a parameter, bytes")
    reduce_bytes: PositiveFloat = Field(default=4.0, description="one gradient element on the wire, bytes")
    gathered_from_master: bool = Field(
        default=False,
        description="sharded parameters have no working copy in addition to the fp32 master, which is part of state_bytes: what "
        "is gathered is converted from it (FSDP2)",
    )
    fused_accumulation: bool = Field(
        default=True,
        description="gradients are added to those of earlier micro-batches by the product that makes them (Megatron's "
        "gradient accumulation fusion), not by a kernel of its own",
    )
    checked_gradients: bool | None = Field(
        default=None,
        description="whether every rank reads its gradients for NaN before they are reduced; null: as the target does unless "
        "told otherwise (Megatron-LM does; --no-check-for-nan-in-loss-and-grad)",
    )


KeptBy = Literal["megatron", "pytorch"]
SpmdBackend = Literal["partial_dtensor", "spmd_types"]
Compiled = Literal["model", "loss"]


class Kept(Spec):
    """Tensors that the framework keeps besides parameters and optimizer states. Targets fix ``by``."""

    by: KeptBy = Field(
        default="megatron",
        description="megatron: what Transformer Engine's layers and a fused loss keep; pytorch: what autograd keeps of "
        "torchtitan's models, FSDP2's gathered layers and gradients, and the loss operator by operator",
    )
    loss_chunks: PositiveInt = Field(
        default=1, description="pieces in which head and loss run (pytorch; torchtitan's ChunkedLossWrapper takes 8)"
    )
    compiled: tuple[Compiled, ...] = Field(
        default=(),
        description="what torch.compile compiles (pytorch; components of torchtitan's CompileConfig): dense layers of the model, "
        "which make SiLU(gate) again; a loss in one piece, which keeps 16-bit logits and no softmax",
    )
    autocast: bool = Field(
        default=False,
        description="parameters and the tensor between layers are whole and in fp32, and autocast converts what products read "
        "(pytorch without FSDP)",
    )
    spmd_backend: SpmdBackend = Field(
        default="partial_dtensor",
        description="whose collectives tp and experts have (pytorch; torchtitan's ParallelismConfig, its default is spmd_types): "
        "SelectiveAC keeps what scatters and all-to-alls of partial_dtensor return, and sends those of spmd_types again, "
        "except where layers are compiled",
    )

    @property
    def functional_collectives(self) -> bool:
        """Whether SelectiveAC keeps the results of scatters over tp and of experts' all-to-alls.

        Its list names the operators of ``_c10d_functional``. Compiled layers of spmd_types use these too, and no
        ``c10d`` calls (torchtitan/models/common/token_dispatcher.py; counted over tp and experts in the graphs that AOT
        autograd makes of llama3 and deepseek_v3).
        """
        return self.spmd_backend == "partial_dtensor" or "model" in self.compiled


MEGATRON_OVERLAP: Final = {"unchunked_messages": False}
"""Fields of ``Overlap`` that Megatron-LM fixes: p2p of its 1F1B (megatron/core/pipeline_parallel/schedules.py)."""
TORCH_OVERLAP: Final = {"reduce_within_pass": False, "unchunked_messages": False}
"""Fields of ``Overlap`` that torch's pipelines fix.

Sources: perform_reduce_grad of torch/distributed/pipelining/stage.py; Schedule1F1B of schedules.py there, which waits
for its sends.
"""


class Overlap(Spec):
    """Communication that overlaps with computation; by default Megatron-LM's with all overlap options, and FSDP's."""

    gradient_reduce: bool = Field(default=True, description="gradients are reduced while earlier layers run backward")
    reduce_within_pass: bool = Field(
        default=True,
        description="so are those of pipeline stages, while their last pass runs; torch's pipelines reduce a stage's gradients "
        "after its last pass, concurrent with other chunks' passes alone (target: torchtitan)",
    )
    parameter_gather: bool = Field(default=True, description="updated parameters are gathered during the next forward")
    bucket_parameters: PositiveInt | None = Field(
        default=None,
        description="gradients are reduced, and updated parameters gathered, in buckets of whole layers with about so many "
        "parameters, one per model chunk at least; None: max(40 million, 1 million per data-parallel rank), Megatron-Core's "
        "default. Sharded parameters travel layer by layer (FSDP)",
    )
    shard_prefetch: bool = Field(
        default=True,
        description="sharded parameters are gathered one layer ahead and their gradients reduced one behind",
    )
    pipeline_messages: bool = Field(
        default=True, description="pipeline messages travel while the sender and the receiver compute"
    )
    unchunked_messages: bool = Field(
        default=True,
        description="so do those of schedules with one chunk per rank; Megatron-LM's 1F1B waits for each (target: megatron)",
    )
    tp_reduce: bool = Field(
        default=True,
        description="gradients of a layer's inputs are reduced over tp while the weight gradients of the same products are "
        "computed (Megatron-LM's asynchronous tp reduction)",
    )
    tp_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of tp collectives that overlap with the products they feed (userbuffers)",
    )

    def reduces_within(self, *, pipelined: bool) -> bool:
        """Whether gradients are reduced during the last pass that computes them.

        ``pipelined`` selects the rule of ranks in a pipeline.
        """
        return self.gradient_reduce and (self.reduce_within_pass or not pipelined)

    def messages(self, *, chunked: bool) -> bool:
        """Whether pipeline messages overlap with computation; ``chunked``: the schedule has several chunks per rank."""
        return self.pipeline_messages and (chunked or self.unchunked_messages)


LEAST_BUCKET_PARAMETERS: Final = 40_000_000
BUCKET_PARAMETERS_PER_REPLICA: Final = 1_000_000
"""Source: Megatron-Core, DistributedDataParallelConfig.bucket_size = max(40000000, 1000000 * dp_size).

dp_size includes context parallelism. Larger groups need larger buckets, or latency bounds them.
"""


def default_bucket(replicas: int) -> int:
    """Parameters per bucket if the job states none; ``replicas`` = dp · cp."""
    return max(LEAST_BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_REPLICA * replicas)


Dispatch = Literal["copies", "deduplicated"]


class ExpertRuntime(Spec):
    """How the framework runs routed experts. The defaults are Megatron-Core's all-to-all dispatcher with eager kernels."""

    dispatch: Dispatch = Field(
        default="copies",
        description="copies: a token is sent once per expert; deduplicated: once per accelerator, and over a slower level "
        "once per child of it, and results are summed there before they return (DeepEP, HybridEP)",
    )
    overlap_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the all-to-alls of one micro-batch that overlaps with the computation of another",
    )
    shared_overlap: bool = Field(
        default=False,
        description="shared experts compute while tokens of their layer travel, the up-projection during dispatch, the "
        "down-projection during combine (Megatron-LM's --moe-shared-expert-overlap); not with overlap_fraction",
    )
    fused_permutation: bool = Field(
        default=True,
        description="one kernel orders a token's copies by expert and one adds them up (Transformer Engine; Megatron-LM's "
        "--moe-permute-fusion), not a sort, a gather by index and an addition in memory (target: torchtitan)",
    )
    graphs: Literal["none", "partial", "full"] = Field(
        default="none",
        description="CUDA graphs: none, of all but the experts (router, attention), or of the whole iteration",
    )
    load_spread: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="standard deviation of an expert's tokens over their mean; every layer waits for the rank whose experts get "
        "most: 0 is balanced, as benchmarks force it",
    )

    @model_validator(mode="after")
    def _hidden_once(self) -> ExpertRuntime:
        if self.shared_overlap and self.overlap_fraction > 0:
            raise ValueError(
                "shared_overlap with overlap_fraction: all-to-alls overlap with shared experts or with another micro-batch; "
                "state one of them"
            )
        return self
