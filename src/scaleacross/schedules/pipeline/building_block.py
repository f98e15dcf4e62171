"""VHalf and VMin: two chunks in a V at half and a third of the activations of 1F1B (Qi et al., arXiv 2405.15362).

A *building block* states when each rank runs the forwards and input gradients of one micro-batch, in slots of one
action. The next micro-batch follows 6 slots later, and weight gradients use free slots. The life times of a block's
activations determine the memory. The offsets are those of the paper's two blocks.

A repeated block has bubbles in warm-up and cool-down, so it is *squeezed*. In every slot each rank runs its first ready
action, weight gradients last. The rest, in the order of the block, must still fit in the block's memory. That rest can
always be run, so nothing deadlocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.check import held_after
from scaleacross.schedules.pipeline.shape import two_chunks

HALF, MIN = "VHalf", "VMin"
half_refusal, min_refusal = two_chunks(HALF), two_chunks(MIN)
_PERIOD = 6  # slots: F, I, W of two chunks
_ORDER = ((Kind.F, 0), (Kind.F, 1), (Kind.I, 1), (Kind.I, 0))  # of one micro-batch on one rank

Offsets = tuple[int, int, int, int]
"""Slot of each entry of ``_ORDER`` for micro-batch 0 on one rank."""


def generate_half(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """Return the VHalf schedule."""
    p = num_ranks
    turn = 3 * p - 1 + (3 if p % 2 == 0 else 0)  # the turn is moved so that no two actions need the same slot
    return _generate(HALF, p, num_microbatches, lambda s: (2 * s, 3 * p - 2 - s, turn + 2 * s, turn + 3 * p - 1 - s))


def generate_min(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """Return the VMin schedule."""
    p = num_ranks
    turn = 2 * p + (2 if p % 3 == 0 else 0)
    return _generate(MIN, p, num_microbatches, lambda s: (s, 2 * p - 1 - s, turn + s, turn + 2 * p - 1 - s))


def _generate(name: str, num_ranks: int, num_microbatches: int, offsets: Callable[[int], Offsets]) -> PipelineSchedule:
    blocks = [_repeat(offsets(rank), num_microbatches) for rank in range(num_ranks)]
    rows = _Squeeze(blocks).run()
    return PipelineSchedule(name, num_ranks, num_microbatches, 2, rows, "v")


def _repeat(offsets: Offsets, num_microbatches: int) -> list[Action]:
    """Repeat one rank's block per micro-batch; weight gradients use the next free slots after their input gradients."""
    taken = {
        offset + _PERIOD * i: Action(kind, i, chunk)
        for (kind, chunk), offset in zip(_ORDER, offsets, strict=True)
        for i in range(num_microbatches)
    }
    row: list[Action] = []
    waiting: deque[Action] = deque()
    for slot in range(max(taken) + 1):
        if action := taken.get(slot):
            row.append(action)
            if action.kind is Kind.I:
                waiting.append(Action(Kind.W, action.microbatch, action.chunk))
        elif waiting:
            row.append(waiting.popleft())
    return [*row, *waiting]


class _Squeeze:
    """Moves every rank's actions to the earliest slots in which they are ready; see the module."""

    def __init__(self, blocks: list[list[Action]]) -> None:
        self._left = blocks  # [rank] -> what is left, in the order of the block
        self._limit = max(max(held_after(block)) for block in blocks)
        self._held = [0] * len(blocks)
        self._done: set[tuple[int, Action]] = set()
        self._rows: list[list[Action]] = [[] for _ in blocks]

    def run(self) -> tuple[tuple[Action, ...], ...]:
        """Return the rows of all ranks."""
        while any(self._left):
            taken = [(rank, at) for rank in range(len(self._left)) if (at := self._next(rank)) is not None]
            for rank, at in taken:
                action = self._left[rank].pop(at)
                self._held[rank] += _change(action)
                self._rows[rank].append(action)
                self._done.add((rank, action))
        return tuple(tuple(row) for row in self._rows)

    def _next(self, rank: int) -> int | None:
        """Return the index in ``_left`` of the action that ``rank`` runs in this slot; None if none is ready."""
        highest = held = self._held[rank]  # most that is held on the way to the action
        weight, seen = None, set()
        for at, action in enumerate(self._left[rank]):
            queue = (action.kind, action.chunk)
            if queue not in seen:  # micro-batches stay in order
                seen.add(queue)
                fits = action.kind is not Kind.F or highest < self._limit
                if fits and self._is_ready(rank, action):
                    if action.kind is not Kind.W:
                        return at
                    weight = at if weight is None else weight
                if len(seen) == _PERIOD:
                    break
            held += _change(action)
            highest = max(highest, held)
        return weight

    def _is_ready(self, rank: int, action: Action) -> bool:
        """Return whether everything that ``action`` waits for was done in an earlier slot."""
        i, last = action.microbatch, len(self._left) - 1
        if action.kind is Kind.W:
            return (rank, Action(Kind.I, i, action.chunk)) in self._done
        # forwards of chunk 0 and input gradients of chunk 1 run down the ranks, the others up
        down = (action.kind is Kind.F) == (action.chunk == 0)
        at_end = rank == 0 if down else rank == last
        if not at_end:
            return (rank - 1 if down else rank + 1, action) in self._done
        place = _ORDER.index((action.kind, action.chunk))
        return place == 0 or (rank, Action(_ORDER[place - 1][0], i, _ORDER[place - 1][1])) in self._done


def _change(action: Action) -> int:
    """Return the change that ``action`` makes to the number of activations that its rank holds."""
    return {Kind.F: 1, Kind.W: -1}.get(action.kind, 0)
