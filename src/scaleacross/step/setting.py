"""Inputs of a step graph: the facts of a decision (``Setting``), and the work of each rank class (``RankWork``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from scaleacross.schedules.pipeline import PipelineSchedule
from scaleacross.spec.framework import default_bucket
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import REDUCED_EVERY_PASS, ContextExchange, Degrees, ShardLevel
from scaleacross.spec.step_work import ChunkWork

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
STATES: Final = ("cp_states", "dp_shard", "expert", "dp_replicate")
"""Uses of the groups that reduce gradients and gather parameters, in the order of a reduction."""
SHAPES: Final[Mapping[str, str]] = {"cp_states": "cp"}
"""Use -> shape of its groups, where the names differ."""


class RankClasses(Protocol):
    """Classes of equal ranks and of their process groups; ``simulation.machine`` derives them from a placement."""

    def neighbour(self, block_class: int, forward: bool) -> int:
        """Return the class of the next (``forward``) or previous pipeline rank."""

    def group_of(self, shape: str, block_class: int) -> int:
        """Return the class of the process group of ``shape`` that contains the ranks of a class."""


@dataclass(frozen=True)
class Setting:
    """Facts of a decision that a step graph needs.

    Attributes:
        size_bytes: (use, op) -> bytes of one call where they do not depend on the chunk; uses are tp, cp (keys and values;
            cp_inner and cp_outer where it has two levels), ep, pp and STATES. A use that is missing communicates nothing.
        reduce_whole: whether tp collectives are all-reduces (no sequence parallelism).
        keys_again, tokens_again: share of the exchanges of keys and values, and of tokens, that a backward pass repeats, by
            pipeline rank.
        regathers: whether a backward pass gathers keys and values for its own attention, by pipeline rank.
        replicated_share: bytes that replicas reduce among each other, over those of all their gradients.
    """

    job: Job
    degrees: Degrees
    shard: ShardLevel
    context_exchange: ContextExchange
    size_bytes: Mapping[tuple[str, Op], float]
    reduce_whole: bool
    keys_again: tuple[float, ...]
    tokens_again: tuple[float, ...]
    regathers: tuple[bool, ...]
    replicated_share: float = 1.0

    @property
    def bucket_parameters(self) -> int:
        """Parameters of a gradient bucket: the job's figure, or Megatron-Core's default."""
        return self.job.overlap.bucket_parameters or default_bucket(self.degrees.dp * self.degrees.cp)

    def state_op(self, use: str, gather: bool) -> Op:
        """Return the operation of gradients (or parameters, ``gather``) in the groups of a use."""
        if gather:
            return "all_gather"
        return "all_reduce" if self.shard == "none" or use == "dp_replicate" else "reduce_scatter"

    def state_bytes(self, work: ChunkWork, use: str, gather: bool) -> float:
        """Return the bytes of a chunk that one rank reduces (or gathers) in its group of a use."""
        each = self.job.gathered_bytes if gather else self.job.optimizer.reduce_bytes
        folded = self.degrees.expert_lanes > 1
        if use == "cp_states":
            return (work.dense_parameters + (0.0 if folded else work.expert_parameters)) * each
        if use == "expert":
            return work.expert_parameters / (1 if folded else self.degrees.cp) * each
        if use == "dp_shard":
            return work.dense_parameters / self.degrees.cp * each
        # replicas reduce only the shard of a rank: its part of dense parameters, and of the experts that it holds
        group = 1 if self.shard == "none" else self.degrees.dp_shard * self.degrees.cp
        over = self.degrees.ep * (self.degrees.cp if folded else 1)
        held = work.dense_parameters / group + work.expert_parameters / max(1.0, group / over)
        return held * each * self.replicated_share

    def buckets(self, chunks: Sequence[ChunkWork]) -> int:
        """Return the parts in which gradients and parameters of a chunk travel: the fewest of any rank class."""
        return min(map(self._buckets, chunks))

    def _buckets(self, work: ChunkWork) -> int:
        layers = max(1, work.num_layers)
        if self.shard in REDUCED_EVERY_PASS:
            return layers
        if not self.job.overlap.gradient_reduce:
            return 1
        parameters = work.dense_parameters + work.expert_parameters
        return min(layers, max(1, math.ceil(parameters / self.bucket_parameters)))


@dataclass(frozen=True)
class RankWork:
    """One class of ranks: its schedule, its chunks, its pace.

    Attributes:
        pipeline_rank: row of the schedule that it runs.
        pace: seconds of every action over those stated: stragglers and jitter.
    """

    pipeline_rank: int
    schedule: PipelineSchedule
    chunks: tuple[ChunkWork, ...]
    optimizer_s: float
    pace: tuple[float, ...]
