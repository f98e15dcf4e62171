"""The training job: workload, topology, batch, and the choices that the user fixes or allows."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from scaleacross.spec.accelerator import Precision
from scaleacross.spec.base import Name, Spec, each_once, one_is_a_list
from scaleacross.spec.conversion import DEFAULT_RECIPES, RECIPE_BYTES, RECIPE_PRECISION, Conversion, Recipe
from scaleacross.spec.fine_tuning import FineTuning
from scaleacross.spec.framework import ExpertRuntime, Kept, Optimizer, Overlap
from scaleacross.spec.network_request import NetworkRequest
from scaleacross.spec.offloading import OffloadShare
from scaleacross.spec.parallelism import PASS_GATHERS, ContextExchange, ExpertFolding, ScheduleName, ShardLevel
from scaleacross.spec.recomputation import MODULES, PLAIN, AllowedRecompute
from scaleacross.spec.reliability import Recovery
from scaleacross.spec.slurm import Slurm
from scaleacross.units import parse_tokens

MAX_SEQUENCE_LENGTH = 2**27
MAX_BATCH_SEQUENCES = 2**22
"""Far above any batch in use: a larger one is a misprint, and a search over its divisors would take too long."""

_TOKENS: Final = ("sequence_length", "global_batch_tokens")


def _count(key: str, value: Any) -> Any:
    """Return the number that a text under a key of ``_TOKENS`` means (``8K``, ``4M``); other values pass unchanged.

    The options ``--seq`` and ``--tokens`` read their text in the same way.
    """
    if not isinstance(value, str):
        return value
    try:
        return parse_tokens(value)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


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


TargetName = Literal["any", "scaleacross", "megatron", "torchtitan"]
"""Program that runs the plan; ``any``: every program that can express it."""

ObjectiveName = Literal[
    "step_time",
    "tokens_per_s_per_megawatt",
    "tokens_per_s_per_currency_unit",
    "useful_tokens_per_s",
    "useful_tokens_per_s_per_megawatt",
    "useful_tokens_per_s_per_currency_unit",
]
OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""All objectives, in the order of ``ObjectiveName``.

``per_megawatt`` divides by the power that the job draws, ``per_currency_unit`` by its cost per second. ``useful``
counts failures.
"""


def counts_failures(name: ObjectiveName) -> bool:
    """Whether an objective counts useful tokens."""
    return name.startswith("useful_")


SpaceName = Literal["quick", "full"]

DegreeChoice = PositiveInt | tuple[PositiveInt, ...] | Range | None


class DegreeRequest(Spec):
    """Limits of the search per axis: a number, a list of numbers, ``{min, max}``, or nothing (free)."""

    tp: DegreeChoice = None
    cp: DegreeChoice = None
    pp: DegreeChoice = None
    ep: DegreeChoice = None
    expert_lanes: DegreeChoice = None
    cp_inner: DegreeChoice = None
    dp_shard: DegreeChoice = None
    dp_replicate: DegreeChoice = None

    def allows(self, axis: str, value: int) -> bool:
        """Whether the request permits ``value`` on ``axis``."""
        choice: DegreeChoice = getattr(self, axis)
        if choice is None:
            return True
        if isinstance(choice, Range):
            return choice.allows(value)
        return value == choice if isinstance(choice, int) else value in choice


class FailureDomains(Spec):
    """Upper limit on the data-parallel replicas that lose a stage when one unit (zone or building) fails."""

    level: Literal["zone", "building"] = Field(description="the unit that is lost")
    max_replicas_lost: NonNegativeInt = Field(description="replicas with an accelerator in any one unit, at most")


_LISTS: Final = (
    "micro_batch_sequences", "recompute", "context_exchange", "expert_folding", "schedules", "num_chunks", "shard",
    "activation_offload", "optimizer_offload",
)  # fmt: skip
"""Fields that allow several values; a single value may be written without brackets."""


class Job(Spec):
    """A training job as the user states it. Names and paths are resolved by ``catalogue``; a resolved job is self-contained."""

    name: Name
    workload: str | dict[str, Any] = Field(
        description="catalogue name, path of a YAML or a Hugging Face config.json, or a mapping"
    )
    topology: str | dict[str, Any] = Field(description="catalogue name, path, or a mapping")
    sequence_length: PositiveInt = Field(le=MAX_SEQUENCE_LENGTH, description="tokens per sequence")
    global_batch_sequences: PositiveInt = Field(
        le=MAX_BATCH_SEQUENCES, description="sequences per optimizer step (or state global_batch_tokens)"
    )
    target: TargetName = Field(
        default="any",
        description="what runs the plan, which keeps to what that expresses: scaleacross (launch.json, or a program of your "
        "own), megatron, torchtitan; any: no restriction, and the plan says which of them express it",
    )
    precision: Precision = Field(default="bf16", description="precision of the matrix multiplications")
    conversion: Conversion = Conversion()
    optimizer: Optimizer = Optimizer()
    overlap: Overlap = Overlap()
    experts: ExpertRuntime = ExpertRuntime()
    kept: Kept = Kept()
    network: NetworkRequest = NetworkRequest()
    fine_tuning: FineTuning | None = Field(
        default=None,
        description="start from a checkpoint, and train a part of the parameters or adapters; null: pre-training",
    )
    prediction_layers: int = Field(
        default=0,
        ge=0,
        le=1,
        description="layers that predict a further token and are trained, as layers of the last stage (multi-token prediction; "
        "Megatron: --mtp-num-layers); 0: none, whatever the published model has; more than 1 is not modelled",
    )
    eager_operators: bool = Field(
        default=False,
        description="norms, rotary embeddings and activations run operator by operator (PyTorch without compilation), not fused "
        "into a kernel each; LayerNorm and activations without a gate are one kernel anyhow. With target torchtitan all but "
        "norms do unless kept.compiled has model",
    )
    space: SpaceName = Field(
        default="quick",
        description="how wide the search is where the job does not state what is allowed: quick: the defaults below; full: also "
        "recomputation by module, every shard level, context_exchange and expert_folding, and offloads where hosts are stated",
    )
    degrees: DegreeRequest = DegreeRequest()
    micro_batch_sequences: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8), description="allowed sequences per micro-batch"
    )
    recompute: tuple[AllowedRecompute, ...] = Field(
        default=PLAIN,
        description="allowed recompute policies: none, selective (norms and activation products), full (layers), or modules "
        f"joined by +, as Megatron-LM names them: {', '.join(MODULES)}; modules: every set of them that the model has; "
        "per_stage: every pipeline stage reruns as few whole layers as its memory allows",
    )
    context_exchange: tuple[ContextExchange, ...] = Field(
        default=("ring", "all_to_all"),
        description="allowed exchanges under context parallelism. ring: keys and values go round during attention, which runs "
        "block by block (Megatron: p2p); gather: they are gathered before one attention call (Llama 3, torchtitan); "
        "all_to_all: heads for sequence, before and after attention; tp · cp divides the heads (Megatron: a2a); "
        "all_to_all_ring: all-to-alls among cp_inner neighbours, whose number times tp divides the heads, and a ring between "
        "their groups (Megatron: a2a+p2p)",
    )
    expert_folding: tuple[ExpertFolding, ...] = Field(
        default=("none",),
        description="where routed experts may lie where tp · cp > 1. none: on ep ranks of dp_shard, each expert divided by tp; "
        "tp_cp: whole experts on the lanes of tp and cp too, tp · cp · ep ranks in all (Megatron: "
        "--expert-tensor-parallel-size 1; torchtitan always); dp_shard then lies right behind tp and cp",
    )
    schedules: tuple[ScheduleName, ...] = Field(
        default=("GPipe", "1F1B", "Interleaved1F1B"),
        description="allowed pipeline schedules; every schedule but DualPipe, whose second copy of the model is not modelled",
    )
    num_chunks: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 3, 4, 5, 6, 7, 8), description="allowed model chunks per rank"
    )
    shard: tuple[ShardLevel, ...] = Field(
        default=("none", "optimizer", "parameters"),
        description="allowed shard levels: none (DDP), optimizer (ZeRO-1), gradients (and optimizer states: ZeRO-2), parameters "
        "(all of it, gathered before either pass: ZeRO-3, FSDP), parameters_once (gathered before the forward pass and kept "
        "until the backward pass is over: FSDP2 without reshard after forward; pp 1)",
    )
    activation_offload: tuple[OffloadShare, ...] = Field(
        default=(0.0,),
        description="allowed shares of every chunk's layers whose activations wait in host memory from the forward to the "
        "backward pass, copied concurrently with computation (Megatron: --cpu-offloading-num-layers, pp 1, recompute none)",
    )
    optimizer_offload: tuple[OffloadShare, ...] = Field(
        default=(0.0,),
        description="allowed shares of the optimizer states that the host holds and updates (Megatron: "
        "--optimizer-cpu-offload with --optimizer-offload-fraction, shard optimizer)",
    )
    memory_headroom_fraction: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="share of every accelerator's memory that plans keep free, for what no model counts (fragments, peaks of "
        "libraries); 0: plans may fill it; evaluate says where settings take more",
    )
    stages: Literal["auto", "equal", "any"] = Field(
        default="auto",
        description="layers of pipeline stages on one accelerator type: equally many, or also those that make the slowest stage "
        "fastest (any; for the objective step_time only); auto: any where the search has few candidates, and the report says "
        "where it has not",
    )
    num_accelerators: PositiveInt | Range | None = Field(
        default=None, description="use exactly this many, or {min, max}; default: as many as pay"
    )
    objective: ObjectiveName = Field(
        default="step_time",
        description="step_time: least; tokens_per_s_per_megawatt, tokens_per_s_per_currency_unit, useful_tokens_per_s (under "
        "failures), useful_tokens_per_s_per_megawatt, useful_tokens_per_s_per_currency_unit: most. Default: step_time; "
        "useful_tokens_per_s beyond 1,024 accelerators once reliability is stated",
    )
    spare_hosts: dict[Name, NonNegativeInt] = Field(
        default_factory=dict, description="building -> hosts held back for repairs, the last ones of the building"
    )
    failure_domains: FailureDomains | None = Field(
        default=None, description="placements that lose more replicas with one unit are not allowed"
    )
    slurm: Slurm = Field(default=Slurm(), description="how launch files submit to SLURM; nothing of it is planned")
    reliability: Recovery | None = Field(
        default=None,
        description="what the job does when something fails; None and a topology that states no failures: not asked",
    )

    @model_validator(mode="before")
    @classmethod
    def _batch_in_sequences(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: _count(key, value) if key in _TOKENS else value for key, value in data.items()}
        if "global_batch_tokens" not in data:
            return data
        tokens, length = data.pop("global_batch_tokens"), data.get("sequence_length")
        if "global_batch_sequences" in data:
            raise ValueError("state either global_batch_tokens or global_batch_sequences, not both")
        for name, value in (("global_batch_tokens", tokens), ("sequence_length", length)):
            if not isinstance(value, int) or value <= 0:
                said = "missing" if value is None else f"got {value!r:.40}"
                raise ValueError(f"{name}: a whole number above 0 is expected, e.g. 8192; {said}")
        if tokens % length:
            near = max(1, round(tokens / length)) * length
            raise ValueError(
                f"global_batch_tokens {tokens:,} is no multiple of sequence_length {length:,}; nearest: {near:,}"
            )
        return {**data, "global_batch_sequences": tokens // length}

    @model_validator(mode="after")
    def _frozen_weights_are_not_gathered(self) -> Job:
        gathered = [level for level in self.shard if level in PASS_GATHERS]
        if self.fine_tuning is not None and self.fine_tuning.partial and gathered:
            raise ValueError(
                f"fine_tuning of a part of the parameters with shard '{gathered[0]}': gathers of frozen weights are not "
                "modelled; state shard: [none, optimizer]"
            )
        return self

    @model_validator(mode="after")
    def _recipe_of_the_precision(self) -> Job:
        recipe = self.conversion.recipe
        if recipe is not None and RECIPE_PRECISION[recipe] != self.precision:
            raise ValueError(
                f"conversion.recipe {recipe} with precision {self.precision}: set precision: {RECIPE_PRECISION[recipe]}, or "
                "leave the recipe out"
            )
        if self.conversion.narrow_parameters and self.recipe is None:
            raise ValueError(
                f"conversion.narrow_parameters with precision {self.precision}: set precision: fp8 or nvfp4"
            )
        return self

    @field_validator("workload", "topology", mode="before")
    @classmethod
    def _objects_become_mappings(cls, value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else value

    _lists = field_validator(*_LISTS, mode="before")(one_is_a_list)
    _each_once = field_validator(*_LISTS)(each_once)

    def allows_accelerators(self, number: int) -> bool:
        """Whether the job permits this number of accelerators."""
        wanted = self.num_accelerators
        return wanted is None or (wanted.allows(number) if isinstance(wanted, Range) else number == wanted)

    @property
    def least_accelerators(self) -> int:
        """Least number of accelerators that the job may use."""
        wanted = self.num_accelerators
        return wanted.min if isinstance(wanted, Range) else wanted or 1

    @property
    def most_accelerators(self) -> int | None:
        """Largest number of accelerators that the job may use; None: no limit but the topology's."""
        return self.num_accelerators.max if isinstance(self.num_accelerators, Range) else self.num_accelerators

    @field_validator("schedules")
    @classmethod
    def _one_copy_of_the_model(cls, value: tuple[ScheduleName, ...]) -> tuple[ScheduleName, ...]:
        if "DualPipe" in value:
            raise ValueError("DualPipe holds a second copy of the model, which is not modelled: use DualPipeV")
        return value

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.global_batch_sequences * self.sequence_length

    @property
    def checks_gradients(self) -> bool:
        """Whether gradients are checked for NaN before they are reduced.

        By default Megatron-LM does, except in fp16, where a NaN is how it finds that the loss scale is too large. CUDA
        graphs of whole iterations never check.
        """
        stated, usual = self.optimizer.checked_gradients, self.target == "megatron" and self.precision != "fp16"
        return (usual if stated is None else stated) and self.experts.graphs != "full"

    @property
    def recipe(self) -> Recipe | None:
        """Recipe of 8- and 4-bit products; None for 16-bit products."""
        return self.conversion.recipe or DEFAULT_RECIPES.get(self.precision)

    @property
    def gathered_bytes(self) -> float:
        """Bytes per parameter that a gather of parameters transfers.

        Embeddings and head are counted like all other parameters, although they stay in 16 bit. mxfp8 gathers 16 bit,
        because neither of its layouts follows from the other (megatron/core/distributed/param_and_grad_buffer.py: the
        gradient buffer carries bf16, which is converted on arrival).
        """
        recipe = self.recipe
        if not self.conversion.narrow_parameters or recipe is None or "mxfp8" in recipe:
            return self.optimizer.parameter_bytes
        return RECIPE_BYTES[recipe]
