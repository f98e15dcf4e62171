"""Data types of a pipeline schedule: for each rank, the order of its computations, without times and messages.

Symbols: p pipeline ranks, v model chunks per rank, m micro-batches. A model is cut into p·v virtual stages, which the
schedule's ``placement`` assigns to ranks (``stage_placement``). Messages follow from the order: an F sends its
activations to the next virtual stage, a B or an I sends its input gradient to the previous one, a W sends nothing.

A *bidirectional* schedule (DualPipe) holds ``num_copies`` = 2 copies of the model, each cut into p·v/2 virtual stages.
Copy 0 has the first half of the chunks and of the micro-batches, copy 1 the second half. No message passes between
them. With the ``v`` placement copy 1 runs up the ranks while copy 0 runs down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from scaleacross.schedules.pipeline import stage_placement
from scaleacross.schedules.pipeline.stage_placement import StagePlacement


class Kind(Enum):
    """Kind of computation, with the letter that PyTorch's pipelining uses for it."""

    F = "F"
    """forward"""
    B = "B"
    """full backward: input gradient and weight gradient in one"""
    I = "I"  # noqa: E741
    """input gradient only"""
    W = "W"
    """weight gradient only"""

    __hash__ = object.__hash__  # members are equal only to themselves; Enum's own hashes the name, in Python


@dataclass(frozen=True, slots=True)
class Action:
    """One computation of one micro-batch on one model chunk of the rank that lists it."""

    kind: Kind
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """Actions of every rank in execution order: ``actions[rank][position]``.

    Attributes:
        name: name of the schedule, PyTorch's where it has one.
        num_ranks: p.
        num_microbatches: m.
        num_chunks: v.
        actions: one tuple of actions per rank. ``check.check`` proves that they form a legal schedule; nothing is checked here.
        placement: which rank holds which virtual stage.
        num_copies: copies of the model, which divide the chunks and the micro-batches evenly.
    """

    name: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    actions: tuple[tuple[Action, ...], ...]
    placement: StagePlacement = "loop"
    num_copies: int = 1

    @property
    def num_virtual_stages(self) -> int:
        """Virtual stages of all copies of the model, p·v."""
        return self.num_ranks * self.num_chunks

    @cached_property
    def num_actions(self) -> int:
        """Number of actions of all ranks."""
        return sum(len(row) for row in self.actions)

    @property
    def stages_per_copy(self) -> int:
        """Virtual stages of one copy of the model: stages k·this … (k+1)·this − 1 are copy k."""
        return self.num_virtual_stages // self.num_copies

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """Return the virtual stage, 0 … p·v−1, of ``chunk`` on ``rank``."""
        return stage_placement.virtual_stage(self.placement, self.num_ranks, rank, chunk)

    def locate(self, virtual_stage: int) -> tuple[int, int]:
        """Return the (rank, chunk) that holds ``virtual_stage``; the inverse of the method ``virtual_stage``."""
        return stage_placement.locate(self.placement, self.num_ranks, virtual_stage)

    def is_first(self, virtual_stage: int) -> bool:
        """Return whether forwards begin at ``virtual_stage``."""
        return virtual_stage % self.stages_per_copy == 0

    def is_last(self, virtual_stage: int) -> bool:
        """Return whether backwards begin at ``virtual_stage``."""
        return (virtual_stage + 1) % self.stages_per_copy == 0

    def microbatches(self, chunk: int) -> range:
        """Return the micro-batches that run through ``chunk``: those of the copy of the model to which it belongs."""
        copy, each = chunk * self.num_copies // self.num_chunks, self.num_microbatches // self.num_copies
        return range(copy * each, (copy + 1) * each)

    def predecessors(self, rank: int, action: Action) -> tuple[tuple[int, tuple[Action, ...]], ...]:
        """Return the dependencies of ``action`` on ``rank``, apart from the order of that rank.

        Returns:
            (rank, alternatives) pairs: one of the alternatives on that rank satisfies the dependency. A gradient from the next
            virtual stage comes from its B or its I, whichever the schedule has.
        """
        kind, microbatch, chunk = action.kind, action.microbatch, action.chunk
        if kind is Kind.W:
            return ((rank, (Action(Kind.I, microbatch, chunk),)),)
        stage = self.virtual_stage(rank, chunk)
        if kind is Kind.F:
            if self.is_first(stage):
                return ()
            source, source_chunk = self.locate(stage - 1)
            return ((source, (Action(Kind.F, microbatch, source_chunk),)),)
        own_forward = (rank, (Action(Kind.F, microbatch, chunk),))
        if self.is_last(stage):
            return (own_forward,)
        source, source_chunk = self.locate(stage + 1)
        gradient = tuple(Action(kind, microbatch, source_chunk) for kind in (Kind.B, Kind.I))
        return (own_forward, (source, gradient))
