"""What a pipeline schedule is: for each rank, the order of its computations. No seconds, no messages.

Symbols: p pipeline ranks, v model chunks per rank, m micro-batches. A model is cut into p·v virtual stages; the *loop* placement
puts virtual stage ``chunk·p + rank`` on ``rank``. Messages follow from the order: an F sends its activations to the next virtual
stage, a B or an I sends its input gradient to the previous one, a W sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property


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
    """

    name: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    actions: tuple[tuple[Action, ...], ...]

    @property
    def num_virtual_stages(self) -> int:
        """p·v."""
        return self.num_ranks * self.num_chunks

    @cached_property
    def num_actions(self) -> int:
        """Actions of all ranks together."""
        return sum(len(row) for row in self.actions)

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """Position in the model, 0 … p·v−1, of ``chunk`` on ``rank``."""
        return chunk * self.num_ranks + rank

    def locate(self, virtual_stage: int) -> tuple[int, int]:
        """(rank, chunk) that holds ``virtual_stage``; the inverse of ``virtual_stage``."""
        chunk, rank = divmod(virtual_stage, self.num_ranks)
        return rank, chunk

    def predecessors(self, rank: int, action: Action) -> tuple[tuple[int, tuple[Action, ...]], ...]:
        """What must have ended before ``action`` of ``rank`` may start, the order on its own rank apart.

        Returns:
            (rank, alternatives) pairs: one of the alternatives on that rank satisfies the dependency. A gradient from the next
            virtual stage comes from its B or its I, whichever the schedule has.
        """
        kind, microbatch, chunk = action.kind, action.microbatch, action.chunk
        if kind is Kind.W:
            return ((rank, (Action(Kind.I, microbatch, chunk),)),)
        stage = self.virtual_stage(rank, chunk)
        if kind is Kind.F:
            if stage == 0:
                return ()
            source, source_chunk = self.locate(stage - 1)
            return ((source, (Action(Kind.F, microbatch, source_chunk),)),)
        own_forward = (rank, (Action(Kind.F, microbatch, chunk),))
        if stage == self.num_virtual_stages - 1:
            return (own_forward,)
        source, source_chunk = self.locate(stage + 1)
        gradient = tuple(Action(kind, microbatch, source_chunk) for kind in (Kind.B, Kind.I))
        return (own_forward, (source, gradient))
