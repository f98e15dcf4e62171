"""Times of every computation and message of one pipeline step, as a Gantt chart or a trace shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleacross.spec.base import Spec


class TimelineRow(Spec):
    """Actions of one pipeline rank, in order."""

    actions: tuple[str, ...] = Field(description="cells <virtual stage><F|B|I|W><micro-batch>")
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    peak_in_flight: int = Field(description="chunk activations held at once, those that wait for their W included")

    @property
    def busy_s(self) -> float:
        """Seconds of computation."""
        return sum(self.end_s) - sum(self.start_s)


class TimelineMessage(Spec):
    """One message between two ranks: activations after an F, an input gradient after a B or an I."""

    source: int
    target: int
    action: str = Field(description="the cell that sent it")
    sent_s: float = Field(description="end of that cell")
    arrival_s: float


class PipelineTimeline(Spec):
    """One step of a pipeline, timed."""

    schedule: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    num_copies: int
    placement: Literal["loop", "v"]
    step_s: float
    rows: tuple[TimelineRow, ...]
    messages: tuple[TimelineMessage, ...]
    messages_per_cut: tuple[int, ...] = Field(description="per step and direction, over the cut before rank 1, 2, …")
    message_bytes: float | None = Field(default=None, description="bytes of one message where they are known")
    note: str = Field(default="", description="what the times rest on, or leave out")

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time in which they do not compute."""
        return 1 - sum(row.busy_s for row in self.rows) / (self.num_ranks * self.step_s)
