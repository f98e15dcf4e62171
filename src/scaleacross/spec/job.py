"""What is to be trained, on what, and what the user has already decided."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from scaleacross.spec.accelerator import Precision
from scaleacross.spec.base import Name, Spec
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.network_choice import BLOCK_CODEC_NAMES, BlockCodecName
from scaleacross.spec.parallelism import Recompute, ScheduleName, ShardLevel


class Range(Spec):
    """Allowed values of a whole number, both ends included; without ``max`` there is no upper end."""

    min: PositiveInt = 1
    max: PositiveInt | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Range:
        if not self.model_fields_set:
            raise ValueError("an empty range says nothing: state min, max or both")
        if self.max is not None and self.min > self.max:
            raise ValueError(f"empty range: min {self.min} > max {self.max}")
        return self

    def allows(self, value: int) -> bool:
        """Whether ``value`` lies in the range."""
        return self.min <= value and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        return f"from {self.min:,}" + (f" to {self.max:,}" if self.max is not None else "")


ObjectiveName = Literal["step_time", "tokens_per_s_per_megawatt", "tokens_per_s_per_currency_unit"]
OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""Per megawatt that the job draws, and per currency unit that it costs per second."""

DegreeChoice = PositiveInt | tuple[PositiveInt, ...] | Range | None


class DegreeRequest(Spec):
    """Pins the search: a number, a list of numbers, ``{min, max}``, or nothing (free)."""

    tp: DegreeChoice = None
    cp: DegreeChoice = None
    pp: DegreeChoice = None
    ep: DegreeChoice = None
    dp_shard: DegreeChoice = None
    dp_replicate: DegreeChoice = None

    def allows(self, axis: str, value: int) -> bool:
        """Whether the user leaves ``value`` open for ``axis``."""
        choice: DegreeChoice = getattr(self, axis)
        if choice is None:
            return True
        if isinstance(choice, Range):
            return choice.allows(value)
        return value == choice if isinstance(choice, int) else value in choice


class Optimizer(Spec):
    """Bytes kept and moved per parameter. The defaults are mixed-precision Adam with fp32 gradient accumulation (Megatron-LM)."""

    name: Name = "adam"
    parameter_bytes: PositiveFloat = Field(default=2.0, description="working copy of a parameter, bytes")
    gradient_bytes: PositiveFloat = Field(default=4.0, description="accumulated gradient of a parameter, bytes")
    state_bytes: float = Field(default=12.0, ge=0, description="master weight and moments of a parameter, bytes")
    reduce_bytes: PositiveFloat = Field(default=4.0, description="one gradient element on the wire, bytes")
    fused_accumulation: bool = Field(
        default=True,
        description="gradients are added to those of earlier micro-batches by the product that makes them (Megatron's "
        "gradient accumulation fusion), not by a kernel of its own",
    )


class GatheredConversion(Spec):
    """HBM bytes per element of a tensor that is converted before tp gathers it, instead of ``Conversion``'s."""

    before_bytes: float = Field(ge=0, description="per element of a rank's own part, before it is gathered")
    after_bytes: float = Field(ge=0, description="per element of the whole, afterwards")


class Conversion(Spec):
    """HBM bytes that kernels beside the products of 8- and 4-bit recipes move, or whose time they take.

    The defaults are Transformer Engine with scales known beforehand: every input and every gradient of an output is read once
    (2) and written row-wise and transposed (1 + 1); weights are converted once per step, which is not counted.
    """

    name: Name = "transformer-engine"
    input_forward_bytes: float = Field(default=4.0, ge=0, description="per element of an input, in the forward pass")
    input_backward_bytes: float = Field(
        default=0.0, ge=0, description="per element of an input, converted again for the weight gradient"
    )
    gradient_bytes: float = Field(default=4.0, ge=0, description="per element of the gradient of an output")
    gathered: GatheredConversion | None = Field(
        default=None,
        description="inputs and gradients that tp gathers are converted before; None: after, as all others",
    )
    weight_forward_bytes: float = Field(
        default=0.0, ge=0, description="per element of a weight and micro-batch, in the forward pass"
    )
    weight_backward_bytes: float = Field(
        default=0.0, ge=0, description="per element of a weight and micro-batch, in the backward pass"
    )
    rescale_bytes: float = Field(
        default=0.0, ge=0, description="per element of a gradient product's result, scaled by a kernel of its own"
    )


class Overlap(Spec):
    """What the framework runs beside computation. The defaults are Megatron-LM's overlap options switched on and PyTorch FSDP."""

    gradient_reduce: bool = Field(default=True, description="gradients are reduced while earlier layers run backward")
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
    tp_reduce: bool = Field(
        default=True,
        description="gradients of a layer's inputs are reduced over tp while the weight gradients of the same products are "
        "computed (Megatron-LM's asynchronous tp reduction)",
    )
    tp_fraction: float = Field(
        default=0.0, ge=0, le=1, description="share of tp collectives that the products they feed hide (userbuffers)"
    )


LEAST_BUCKET_PARAMETERS: Final = 40_000_000
BUCKET_PARAMETERS_PER_REPLICA: Final = 1_000_000
"""Megatron-Core, DistributedDataParallelConfig.bucket_size: max(40000000, 1000000 * dp_size), where dp_size counts context
parallelism; larger groups need larger buckets, or latency bounds them."""


class ExpertRuntime(Spec):
    """How the framework runs routed experts. The defaults are Megatron-Core's all-to-all dispatcher with eager kernels."""

    dispatch: Literal["copies", "deduplicated"] = Field(
        default="copies",
        description="copies: a token is sent once per expert; deduplicated: once per accelerator, and over a slower level "
        "once per child of it, and results are summed there before they return (DeepEP, HybridEP)",
    )
    overlap_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the all-to-alls of one micro-batch that the computation of another hides",
    )
    graphs: Literal["none", "partial", "full"] = Field(
        default="none",
        description="CUDA graphs: none, of all but the experts (router, attention), or of the whole iteration",
    )


class CompressionRequest(Spec):
    """Gradients may travel encoded: fewer bytes, other numerics. Stated by the job, never assumed."""

    max_relative_error: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="error of an element of a reduced gradient over the largest of its block of 256, at most: errors of all "
        "encodings that its partial sums pass through are added up (bf16 0.4 %, int8_block 0.8 %, fp8_block 6.3 %, int4_block "
        "14 % each)"
    )
    levels: tuple[LinkLevel, ...] = Field(
        default=("campus", "region"), min_length=1, description="levels on which messages may travel encoded"
    )
    codecs: tuple[BlockCodecName, ...] = Field(
        default=BLOCK_CODEC_NAMES, min_length=1, description="codecs to choose from"
    )
    min_saving_fraction: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="share of the step that a codec must save, or its communicator goes without",
    )


class NetworkRequest(Spec):
    """What the plan may do with the network. The budgets hold per accelerator, for all communicators together."""

    settings: Literal["chosen", "library"] = Field(
        default="chosen",
        description="chosen: the plan decides algorithm, chunks and connections of every communicator; library: nothing is set, "
        "and NCCL's defaults are priced",
    )
    max_channels: PositiveInt = Field(
        default=64, description="blocks of threads that may drive networks beyond the scale-up domain at once"
    )
    max_queue_pairs: PositiveInt = Field(default=16384, description="queue pairs on one network adapter")
    max_buffer_bytes: PositiveFloat = Field(
        default=8 * 2.0**30, description="bytes in flight or staged on one network adapter (buffers of all connections)"
    )
    max_trunk_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of what the trunks between buildings carry during the computation of an overlap window that all "
        "collectives of that window may take together; None: any",
    )
    compression: CompressionRequest | None = Field(
        default=None,
        description="None: gradients travel as they are; else the plan chooses where and how they are encoded",
    )

    @model_validator(mode="after")
    def _libraries_do_not_compress(self) -> NetworkRequest:
        if self.settings == "library" and self.compression is not None:
            raise ValueError(
                "compression is a choice of the plan: with settings: library nothing is chosen; use chosen"
            )
        return self


class FailureDomains(Spec):
    """How much one failure may take: at most so many data-parallel replicas lose a stage when one unit is lost."""

    level: Literal["zone", "building"] = Field(description="the unit that is lost")
    max_replicas_lost: NonNegativeInt = Field(description="replicas with an accelerator in any one unit, at most")


class Job(Spec):
    """A training job as the user states it. Names and paths are resolved by ``catalogue``; a resolved job is self-contained."""

    name: Name
    workload: str | dict[str, Any] = Field(
        description="catalogue name, path of a YAML or a Hugging Face config.json, or a mapping"
    )
    topology: str | dict[str, Any] = Field(description="catalogue name, path, or a mapping")
    sequence_length: PositiveInt = Field(description="tokens per sequence")
    global_batch_sequences: PositiveInt = Field(
        description="sequences per optimizer step (or state global_batch_tokens)"
    )
    precision: Precision = Field(default="bf16", description="precision of the matrix multiplications")
    conversion: Conversion = Conversion()
    optimizer: Optimizer = Optimizer()
    overlap: Overlap = Overlap()
    experts: ExpertRuntime = ExpertRuntime()
    network: NetworkRequest = NetworkRequest()
    context_exchange: Literal["ring", "gather"] = Field(
        default="ring",
        description="context parallelism: keys and values go round a ring and attention runs block by block (Megatron's "
        "cp_comm_type p2p, torchtitan), or are gathered before one attention call (Llama 3)",
    )
    eager_operators: bool = Field(
        default=False,
        description="norms, rotary embeddings and activations run operator by operator (PyTorch without compilation), not fused "
        "into a kernel each; for blocks with RMSNorm and a gated MLP",
    )
    degrees: DegreeRequest = DegreeRequest()
    micro_batch_sequences: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8), description="allowed sequences per micro-batch"
    )
    recompute: tuple[Recompute, ...] = Field(
        default=("none", "selective", "full"), description="allowed recompute policies"
    )
    schedules: tuple[ScheduleName, ...] = Field(
        default=("GPipe", "1F1B", "Interleaved1F1B"),
        description="allowed pipeline schedules; every schedule but DualPipe, whose second copy of the model is not priced",
    )
    num_chunks: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 3, 4, 5, 6, 7, 8), description="allowed model chunks per rank"
    )
    shard: tuple[ShardLevel, ...] = Field(
        default=("none", "optimizer", "parameters"), description="allowed shard levels"
    )
    num_accelerators: PositiveInt | Range | None = Field(
        default=None, description="use exactly this many, or {min, max}; default: as many as pay"
    )
    objective: ObjectiveName = Field(
        default="step_time",
        description="step_time: least; tokens_per_s_per_megawatt and tokens_per_s_per_currency_unit: most",
    )
    spare_hosts: dict[Name, NonNegativeInt] = Field(
        default_factory=dict, description="building -> hosts held back for repairs, the last ones of the building"
    )
    failure_domains: FailureDomains | None = Field(
        default=None, description="placements that lose more replicas with one unit are not allowed"
    )

    @model_validator(mode="before")
    @classmethod
    def _batch_in_sequences(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "global_batch_tokens" not in data:
            return data
        data = dict(data)
        tokens, length = data.pop("global_batch_tokens"), data.get("sequence_length")
        if "global_batch_sequences" in data:
            raise ValueError("state either global_batch_tokens or global_batch_sequences, not both")
        if not isinstance(tokens, int) or not isinstance(length, int) or length <= 0:
            raise ValueError("global_batch_tokens and sequence_length must be whole numbers")
        if tokens % length:
            near = max(1, round(tokens / length)) * length
            raise ValueError(
                f"global_batch_tokens {tokens:,} is no multiple of sequence_length {length:,}; nearest: {near:,}"
            )
        return {**data, "global_batch_sequences": tokens // length}

    @field_validator("workload", "topology", mode="before")
    @classmethod
    def _objects_become_mappings(cls, value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else value

    @field_validator("micro_batch_sequences", "recompute", "schedules", "num_chunks", "shard", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | int) else value

    @field_validator("micro_batch_sequences", "recompute", "schedules", "num_chunks", "shard")
    @classmethod
    def _not_empty(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError("an empty list allows nothing: leave the key out to allow everything")
        return value

    def allows_accelerators(self, number: int) -> bool:
        """Whether the user leaves this number of accelerators open."""
        wanted = self.num_accelerators
        return wanted is None or (wanted.allows(number) if isinstance(wanted, Range) else number == wanted)

    @field_validator("schedules")
    @classmethod
    def _one_copy_of_the_model(cls, value: tuple[ScheduleName, ...]) -> tuple[ScheduleName, ...]:
        if "DualPipe" in value:
            raise ValueError("DualPipe holds a second copy of the model, which is not priced: use DualPipeV")
        return value

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.global_batch_sequences * self.sequence_length
