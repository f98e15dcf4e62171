"""Candidates as arrays: one row per combination of degrees, micro-batch, schedule, recompute policy and shard level.

A single decision has one row, so every formula of this package serves one plan or a million.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.columns import column_names, columns_of, concatenated
from scaleacross.spec.offloading import MILLIONTHS, OFFLOADS, millionths
from scaleacross.spec.parallelism import (
    CONTEXT_EXCHANGES,
    SCHEDULE_NAMES,
    SHARD_LEVELS,
    Degrees,
    GridAxis,
    PipelineChoice,
)
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import BY_STAGE, RECOMPUTES

RING, GATHER, ALL_TO_ALL, ALL_TO_ALL_RING = range(len(CONTEXT_EXCHANGES))
"""Codes of CONTEXT_EXCHANGES."""
ANY_EXCHANGE: Final = len(CONTEXT_EXCHANGES)
"""Code of candidates that still have to choose an exchange that the job allows, except ALL_TO_ALL_RING. Their time is
the least."""
ANY_POLICY: Final = len(RECOMPUTES)
"""Code of candidates that still have to choose a recompute policy and offloads that the job allows. The offloads are 0
until then. Every part of their time and memory is the least of all policies, so their bounds hold for each
(``open_policies``)."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Candidates:
    """Columns of candidates, all of shape (n,). Codes index RECOMPUTES, SHARD_LEVELS, SCHEDULE_NAMES and
    CONTEXT_EXCHANGES (0 where cp is 1)."""

    tp: Ints
    cp: Ints
    dp_shard: Ints
    dp_replicate: Ints
    pp: Ints
    cp_inner: Ints  # above 1 under ALL_TO_ALL_RING alone
    ep: Ints
    expert_lanes: Ints  # tp · cp where experts are folded onto their lanes, else 1
    micro_batch: Ints  # sequences
    num_micro_batches: Ints  # per replica and step
    num_chunks: Ints
    schedule: Ints
    recompute: Ints
    shard: Ints
    context: Ints
    activation_offload: Ints  # millionths
    optimizer_offload: Ints  # millionths

    def __len__(self) -> int:
        return len(self.tp)

    @cached_property
    def dp(self) -> Ints:
        """Data-parallel replicas, shape (n,)."""
        return self.dp_shard * self.dp_replicate

    @cached_property
    def world_size(self) -> Ints:
        """Accelerators used, shape (n,)."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def policy_open(self) -> Bools:
        """Whether recompute policy and offloads are still to be chosen, (n,)."""
        return np.asarray(self.recompute == ANY_POLICY)

    @property
    def rerun_open(self) -> Bools:
        """Whether a bound knows only the least recomputation: for ``policy_open`` and for BY_STAGE, (n,)."""
        return self.policy_open | (self.recompute == RECOMPUTES.index(BY_STAGE))

    @property
    def expert_ranks(self) -> Ints:
        """Ranks that the experts are spread over, (n,): ep, or with folding tp · cp · ep."""
        return self.ep * self.expert_lanes

    @property
    def experts_over(self) -> Ints:
        """Ranks of dp_shard · cp that divide the experts, (n,). Each holds 1/tp of its part, folded or not."""
        return self.ep * np.where(self.expert_lanes > 1, self.cp, 1)

    @property
    def expert_contexts(self) -> Ints:
        """Ranks of cp that hold the same experts, (n,): all, or one where experts are folded."""
        return np.where(self.expert_lanes > 1, 1, self.cp)

    @property
    def schedule_names(self) -> NDArray[np.str_]:
        """Names of the schedules, shape (n,)."""
        return np.array(SCHEDULE_NAMES)[self.schedule]

    def take(self, rows: Ints | Bools) -> Candidates:
        """The rows selected by an index or mask array."""
        return Candidates(*[column[rows] for column in columns_of(self)])

    def decision(self, row: int) -> Decision:
        """Row ``row`` as a Decision without placement."""
        at = {name: int(column[row]) for name, column in zip(column_names(Candidates), columns_of(self), strict=True)}
        return Decision(
            degrees=Degrees(**{axis: at[axis] for axis in Degrees.model_fields}),
            pipeline=PipelineChoice(
                schedule=SCHEDULE_NAMES[at["schedule"]],
                num_chunks=at["num_chunks"],
                micro_batch_sequences=at["micro_batch"],
            ),
            recompute=RECOMPUTES[at["recompute"]],
            shard=SHARD_LEVELS[at["shard"]],
            context_exchange=CONTEXT_EXCHANGES[at["context"]],
            activation_offload=at["activation_offload"] / MILLIONTHS,
            optimizer_offload=at["optimizer_offload"] / MILLIONTHS,
        )


def candidate_of(decision: Decision, global_batch_sequences: int) -> Candidates:
    """One decision as Candidates of one row.

    Raises:
        ValueError: no batch shares are stated, and the batch does not divide by dp · micro-batch.
    """
    degrees, pipeline = decision.degrees, decision.pipeline
    per_round = degrees.dp * pipeline.micro_batch_sequences
    if global_batch_sequences % per_round and decision.batch_shares is None:
        raise ValueError(
            f"global batch of {global_batch_sequences} sequences is no multiple of dp {degrees.dp} × micro-batch "
            f"{pipeline.micro_batch_sequences} = {per_round}"
        )
    row = degrees.model_dump()
    row |= {
        "micro_batch": pipeline.micro_batch_sequences,
        "num_micro_batches": decision.mean_micro_batches(global_batch_sequences),
    }
    row |= {"num_chunks": pipeline.num_chunks, "schedule": SCHEDULE_NAMES.index(pipeline.schedule)}
    row |= {"recompute": RECOMPUTES.index(decision.recompute), "shard": SHARD_LEVELS.index(decision.shard)}
    row |= {"context": CONTEXT_EXCHANGES.index(decision.context_exchange) if degrees.cp > 1 else 0}
    row |= {name: millionths(getattr(decision, name)) for name in OFFLOADS}
    return Candidates(**{name: np.array([value], dtype=np.int64) for name, value in row.items()})


def concatenate(parts: list[Candidates]) -> Candidates:
    """All rows of ``parts`` one after another."""
    return concatenated(parts) if parts else NOTHING


NOTHING: Final = Candidates(*(np.zeros(0, dtype=np.int64) for _ in column_names(Candidates)))
"""No candidate at all."""


def stride_of(candidates: Candidates, faster: Collection[GridAxis]) -> Ints:
    """Stride of an axis that is outside the ``faster`` ones, (n,)."""
    stride = np.ones(len(candidates), dtype=np.int64)
    for axis in faster:
        stride = stride * getattr(candidates, axis)
    return stride


def keys_axis(candidates: Candidates, stride: Ints) -> tuple[Ints, Ints]:
    """Degree and stride of the ranks that exchange keys and values, (n,) each, for a stride of cp.

    These are all ranks of cp, or one of every cp_inner neighbours.
    """
    return candidates.cp // candidates.cp_inner, stride * candidates.cp_inner


def expert_axis(candidates: Candidates, stride: Ints) -> tuple[Ints, Ints]:
    """Degree and stride of the ranks that experts are spread over, (n,) each, for a stride of dp_shard.

    Folded experts begin with the lanes before dp_shard. Orders that cannot have them (``holds_folded``) count ep alone,
    which only lowers a bound over all orders.
    """
    lanes = np.where(stride % candidates.expert_lanes == 0, candidates.expert_lanes, 1)
    return candidates.ep * lanes, stride // lanes
