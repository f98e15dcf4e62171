"""Helpers of schedule families: refusals of p ranks, m micro-batches and v chunks, and rows built cell by cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

from scaleacross.schedules.pipeline.action import Action, Kind

Refusal = Callable[[int, int, int], str | None]
"""(p, m, v) -> why a schedule cannot run this shape, or None."""


def too_small(name: str, num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Return the reason to refuse a shape without ranks, micro-batches or chunks, or None."""
    if min(num_ranks, num_microbatches, num_chunks) < 1:
        return f"{name} needs at least 1 rank, micro-batch and chunk, got {num_ranks}, {num_microbatches}, {num_chunks}"
    return None


def needs_microbatches(name: str, least: int, num_ranks: int, num_microbatches: int) -> str | None:
    """Return the reason to refuse fewer than ``least`` micro-batches, or None."""
    if num_microbatches >= least:
        return None
    rule = "at least as many micro-batches as ranks" if least == num_ranks else f"at least {least} micro-batches"
    return (
        f"{name} needs {rule}, got {num_microbatches} on {num_ranks} ranks: raise the global batch, shrink the micro-batch, or "
        "use fewer ranks"
    )


def one_chunk(name: str, instead: str, least: Callable[[int], int] = lambda num_ranks: 1) -> Refusal:
    """Return a refusal of several chunks (``instead`` runs them) and of fewer micro-batches than ``least``."""

    def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
        if num_chunks != 1:
            return f"{name} holds 1 model chunk per rank, got {num_chunks}: use {instead} for more"
        return needs_microbatches(name, least(num_ranks), num_ranks, num_microbatches)

    return refusal


def needs_several_chunks(name: str, num_chunks: int, instead: str) -> str | None:
    """Return the reason to refuse a single chunk, which schedule ``instead`` runs, or None."""
    if num_chunks >= 2:
        return None
    return f"{name} holds at least 2 model chunks per rank, got {num_chunks}: use {instead} for one"


def two_chunks(name: str, least: Callable[[int], int] = lambda num_ranks: 1) -> Refusal:
    """Return a refusal of any number of chunks but 2, and of fewer micro-batches than ``least``."""

    def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
        if num_chunks != 2:
            return f"{name} holds exactly 2 model chunks per rank, got {num_chunks}"
        return needs_microbatches(name, least(num_ranks), num_ranks, num_microbatches)

    return refusal


class Row:
    """Builder of one rank's actions. Every call appends the next micro-batch of its kind and chunk."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._done: Counter[tuple[Kind, int]] = Counter()
        self._pending: dict[tuple[int, int], None] = {}  # chunk and micro-batch, oldest first

    def done(self, kind: Kind, chunk: int) -> int:
        """Return how many micro-batches of ``chunk`` have run ``kind``; a B counts as I and as W."""
        return self._done[kind, chunk]

    def run(self, cells: str, times: int = 1) -> None:
        """Append ``cells``, each a kind and a chunk such as ``F0 I1 W1``, ``times`` over."""
        for kind, chunk in _parsed(cells) * times:
            self._append(kind, chunk)

    def run_oldest_weight(self) -> None:
        """Append the W that belongs to the oldest I without one, if any."""
        if self._pending:
            chunk, microbatch = oldest = next(iter(self._pending))
            del self._pending[oldest]
            self._done[Kind.W, chunk] += 1
            self.actions.append(Action(Kind.W, microbatch, chunk))

    def _append(self, kind: Kind, chunk: int) -> None:
        counted = Kind.I if kind is Kind.B else kind
        microbatch = self._done[counted, chunk]
        self._done[counted, chunk] += 1
        if kind is Kind.B:
            self._done[Kind.W, chunk] += 1
        elif kind is Kind.I:
            self._pending[chunk, microbatch] = None
        elif kind is Kind.W:
            del self._pending[chunk, microbatch]
        self.actions.append(Action(kind, microbatch, chunk))


@cache
def _parsed(cells: str) -> tuple[tuple[Kind, int], ...]:
    return tuple((Kind(cell[0]), int(cell[1:])) for cell in cells.split())
