"""Degrees of parallelism and the schedule choices that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, get_args

from pydantic import Field, PositiveInt, model_validator

from scaleacross.plugins import added_names
from scaleacross.spec.base import Spec

# ``ep`` is a view inside ``dp_shard``: it does not multiply the world size.
Axis = Literal["tp", "cp", "dp_shard", "dp_replicate", "pp", "ep"]
GridAxis = Literal["tp", "cp", "dp_shard", "dp_replicate", "pp"]
GRID_AXES: tuple[GridAxis, ...] = get_args(GridAxis)

# PyTorch's names where it has the schedule; ``schedules.pipeline`` describes each one
BundledSchedule = Literal[
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "Eager1F1B",
    "LoopedBFS",
    "ZBH1",
    "ZBH2",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "VHalf",
    "VMin",
    "DualPipe",
    "DualPipeV",
]
if TYPE_CHECKING:
    ScheduleName = BundledSchedule
else:  # also schedules that installed packages add
    ScheduleName = Literal[tuple(dict.fromkeys([*get_args(BundledSchedule), *added_names("schedules")]))]
SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)
ADDED_SCHEDULES: Final = SCHEDULE_NAMES[len(get_args(BundledSchedule)) :]
"""Names of the schedules that installed packages add."""

# Model chunks per pipeline rank: exactly two, any number from two, or one for the others.
TWO_CHUNKS: frozenset[ScheduleName] = frozenset({"ZBVZeroBubble", "VHalf", "VMin", "DualPipe", "DualPipeV"})
MANY_CHUNKS: frozenset[ScheduleName] = frozenset({"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"})


def has_chunks(schedule: ScheduleName, num_chunks: int) -> bool:
    """Whether ``schedule`` can hold ``num_chunks`` model chunks per rank."""
    if schedule in ADDED_SCHEDULES:
        return num_chunks >= 1  # the schedule's own check has a better message
    if schedule in TWO_CHUNKS:
        return num_chunks == 2
    return num_chunks >= 2 if schedule in MANY_CHUNKS else num_chunks == 1


# What is sharded over dp_shard · cp. none: nothing (DDP). optimizer: optimizer states (ZeRO-1). parameters: parameters
# and gradients too, gathered before either pass (ZeRO-3, FSDP). gradients: optimizer states and gradients (ZeRO-2).
# parameters_once: all three, gathered before the forward pass and kept until the backward pass is over (FSDP2 without
# reshard after forward).
ShardLevel = Literal["none", "optimizer", "parameters", "gradients", "parameters_once"]
SHARD_LEVELS: tuple[ShardLevel, ...] = get_args(ShardLevel)
REDUCED_EVERY_PASS: Final[frozenset[ShardLevel]] = frozenset({"gradients", "parameters_once", "parameters"})
"""Levels at which every micro-batch reduces its gradients into shards, layer by layer."""
PASS_GATHERS: Final[Mapping[ShardLevel, int]] = {"parameters_once": 1, "parameters": 2}
"""Shard level -> how often a micro-batch gathers the parameters of one layer; levels left out shard no parameters."""
WITHOUT_PIPELINE: Final[frozenset[ShardLevel]] = frozenset({"parameters_once"})
"""Shard levels that need pp 1.

With several micro-batches in flight, the backward pass of one would drop parameters that another still needs.
"""

# How attention sees the whole sequence under cp. ring: keys and values pass round a ring during attention. gather: they
# are gathered before it. all_to_all: all-to-alls before and after it exchange heads for sequence (Ulysses, arXiv
# 2309.14509). all_to_all_ring: all-to-alls inside groups of cp_inner neighbours, a ring between these (USP, arXiv
# 2405.07719; Transformer Engine's a2a+p2p).
ContextExchange = Literal["ring", "gather", "all_to_all", "all_to_all_ring"]
CONTEXT_EXCHANGES: tuple[ContextExchange, ...] = get_args(ContextExchange)

# How ranks of tp and cp share experts. none: each expert is divided by tp and copied over cp. tp_cp: every rank of tp
# and cp holds whole experts (Megatron-Core's parallel folding, expert tensor parallel size 1, arXiv 2504.14960;
# torchtitan's ep).
ExpertFolding = Literal["none", "tp_cp"]
EXPERT_FOLDINGS: tuple[ExpertFolding, ...] = get_args(ExpertFolding)


class Degrees(Spec):
    """Sizes of the parallel axes. ``tp·cp·dp_shard·dp_replicate·pp`` accelerators are used; ``ep`` divides ``dp_shard``."""

    tp: PositiveInt = Field(default=1, description="tensor parallel")
    cp: PositiveInt = Field(default=1, description="context parallel")
    dp_shard: PositiveInt = Field(default=1, description="data parallel, states sharded inside the group")
    dp_replicate: PositiveInt = Field(default=1, description="data parallel, shard groups replicated")
    pp: PositiveInt = Field(default=1, description="pipeline parallel (ranks, not chunks)")
    cp_inner: PositiveInt = Field(
        default=1,
        description="of cp, neighbours that exchange heads for sequence (context_exchange all_to_all_ring); else 1",
    )
    ep: PositiveInt = Field(default=1, description="expert parallel, inside dp_shard")
    expert_lanes: PositiveInt = Field(
        default=1,
        description="lanes of tp and cp with whole experts of their own (folding): tp · cp, so that experts are spread over "
        "tp · cp · ep ranks, or 1, where tp divides each expert",
    )

    @model_validator(mode="after")
    def _experts_fit_in_shard_group(self) -> Degrees:
        if self.cp % self.cp_inner or 1 < self.cp_inner == self.cp:
            raise ValueError(f"cp_inner {self.cp_inner} must be a proper divisor of cp {self.cp}, or 1")
        if self.dp_shard % self.ep:
            raise ValueError(f"ep {self.ep} must divide dp_shard {self.dp_shard} ({self})")
        if self.expert_lanes not in (1, self.tp * self.cp):
            raise ValueError(f"expert_lanes {self.expert_lanes} must be 1 or tp · cp = {self.tp * self.cp}")
        if self.expert_lanes > 1 and self.dp_shard == 1:
            raise ValueError(f"expert_lanes {self.expert_lanes} with dp_shard 1: experts on lanes ask for dp_shard > 1")
        return self

    @property
    def expert_folding(self) -> ExpertFolding:
        """Whether experts are spread over ranks of tp and cp (``tp_cp``) or over ep alone (``none``)."""
        return "tp_cp" if self.expert_lanes > 1 else "none"

    @property
    def expert_ranks(self) -> int:
        """Ranks that experts are spread over: ep, or with folding tp · cp · ep."""
        return self.ep * self.expert_lanes

    @property
    def dp(self) -> int:
        """All data-parallel replicas: dp_shard · dp_replicate."""
        return self.dp_shard * self.dp_replicate

    @property
    def world_size(self) -> int:
        """Accelerators used."""
        return self.tp * self.cp * self.dp * self.pp

    def of(self, axis: Axis) -> int:
        """Ranks in one group of ``axis``: its degree; for ``ep`` all ranks that experts are spread over."""
        return self.expert_ranks if axis == "ep" else int(getattr(self, axis))

    def __str__(self) -> str:
        ep = f" (ep {self.ep} inside dp_shard)" if self.ep > 1 else ""
        if self.expert_lanes > 1:
            ep = f" (experts over {self.expert_ranks} ranks: tp · cp · ep {self.ep})"
        inner = f" ({self.cp_inner} × {self.cp // self.cp_inner})" if self.cp_inner > 1 else ""
        return (
            f"tp {self.tp} · cp {self.cp}{inner} · pp {self.pp} · dp_shard {self.dp_shard} · dp_replicate {self.dp_replicate}"
            f"{ep} = {self.world_size}"
        )


class PipelineChoice(Spec):
    """How micro-batches run through the stages."""

    schedule: ScheduleName = Field(description="PyTorch's name of the schedule")
    num_chunks: PositiveInt = Field(default=1, description="model chunks (virtual stages) per pipeline rank, v")
    micro_batch_sequences: PositiveInt = Field(
        default=1, description="sequences per micro-batch and data-parallel replica"
    )
    order: tuple[str, ...] | None = Field(
        default=None,
        description="an order of the schedule's own, which keeps its stage placement: a line per rank of cells "
        "<virtual stage><F|B|I|W><micro-batch>, separated by commas; None: the order that the name stands for",
    )

    @model_validator(mode="after")
    def _chunks_suit_the_schedule(self) -> PipelineChoice:
        if not has_chunks(self.schedule, self.num_chunks):
            raise ValueError(
                f"{self.schedule} with {self.num_chunks} chunk(s): {', '.join(sorted(MANY_CHUNKS))} have ≥ 2 chunks, "
                f"{', '.join(sorted(TWO_CHUNKS))} exactly 2, the others 1"
            )
        return self


EMPTY_ENDS = 2
"""Number of virtual stages that may have no layers: the first (embedding) and the last (head)."""


def split_layers(num_layers: int, num_parts: int) -> tuple[int, ...]:
    """Layers per virtual stage, in model order: as equal as possible, with the fewest at the ends (embedding and head).

    The remainder goes to the middle parts first, so 126 layers on 16 parts are 7, 8 × 14, 7, and on 128 parts 0, 1 ×
    126, 0 (Llama 3 405B, arXiv 2407.21783, section 3.3.2).

    Raises:
        ValueError: so many parts that others than the ends would be empty.
    """
    if num_parts > num_layers + EMPTY_ENDS:
        raise ValueError(f"{num_layers} layers cannot fill {num_parts} virtual stages, even with both ends empty")
    base, remainder = divmod(num_layers, num_parts)
    # the ends also hold embedding and head, so they get an extra layer last
    takers = [*range(1, num_parts - 1), 0, num_parts - 1][:remainder] if num_parts > 1 else []
    extra = set(takers)
    return tuple(base + (part in extra) for part in range(num_parts))
