"""Proves a pipeline schedule legal (complete, ordered, within memory, free of deadlock), whatever generated it.

For each micro-batch and virtual stage, the rank that holds the stage must run exactly one F and then either one B, or
one I and after it one W. In a bidirectional schedule this holds for each micro-batch and the stages of its own copy of
the model. The orders of all ranks, together with the messages between virtual stages, must have no cycle. Receives are
posted ahead and sends never block, so a cycle is the only way to deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from scaleacross.errors import VerificationError
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule

_GRID_MARGIN = 4  # cells shown on either side of the offending one
_GRID_MARGIN_RANKS = 3  # ranks shown above and below the offending one
_MAX_STUCK_SHOWN = 8  # ranks named in a deadlock message


def check(schedule: PipelineSchedule, max_in_flight: int | Sequence[int] | None = None) -> None:
    """Prove ``schedule`` legal.

    Args:
        max_in_flight: chunk activations that a rank may hold at once, as ``peak_in_flight`` counts them; one number or one per
            rank, None for any number.

    Raises:
        VerificationError: a computation is missing, repeated, misplaced or out of order, a rank holds too much, or the schedule
            deadlocks; the message shows the grid (a row per rank, cells in execution order) around the offending cell.
    """
    if len(schedule.actions) != schedule.num_ranks:
        raise VerificationError(
            f"{schedule.name}: {len(schedule.actions)} rows of actions for {schedule.num_ranks} ranks"
        )
    copies = schedule.num_copies
    if schedule.num_chunks % copies or schedule.num_microbatches % copies:
        raise VerificationError(
            f"{schedule.name}: {schedule.num_chunks} chunks and {schedule.num_microbatches} micro-batches do not divide over "
            f"{copies} copies of the model"
        )
    for rank in range(schedule.num_ranks):
        _check_rank(schedule, rank)
        if max_in_flight is not None:
            _check_memory(schedule, rank, max_in_flight if isinstance(max_in_flight, int) else max_in_flight[rank])
    execution_order(schedule)


def execution_order(schedule: PipelineSchedule) -> list[int]:
    """Return the ranks in an order in which all actions can run one after another: each entry runs its rank's next
    action.

    It takes O(actions) and expects each rank to be complete and ordered, which ``check`` proves first.

    Raises:
        VerificationError: deadlock.
    """
    m, num_stages = schedule.num_microbatches, schedule.num_virtual_stages
    is_first = [schedule.is_first(stage) for stage in range(num_stages)]
    is_last = [schedule.is_last(stage) for stage in range(num_stages)]
    ready_forward = bytearray(b"".join(bytes([first]) * m for first in is_first))
    ready_backward = bytearray(b"".join(bytes([last]) * m for last in is_last))
    rank_of = [schedule.locate(stage)[0] for stage in range(num_stages)]
    stage_of = [[schedule.virtual_stage(r, c) for c in range(schedule.num_chunks)] for r in range(schedule.num_ranks)]
    position = [0] * schedule.num_ranks
    order: list[int] = []
    queue, queued = deque(range(schedule.num_ranks)), [True] * schedule.num_ranks
    # a rank runs until its next action is not ready; it is queued again when a message reaches it
    while queue:
        rank = queue.popleft()
        queued[rank] = False
        row, at = schedule.actions[rank], position[rank]
        while at < len(row):
            action = row[at]
            stage, kind = stage_of[rank][action.chunk], action.kind
            slot = stage * m + action.microbatch
            receiver = -1
            if kind is Kind.F:
                if not ready_forward[slot]:
                    break
                if not is_last[stage]:
                    ready_forward[slot + m] = 1
                    receiver = rank_of[stage + 1]
            elif kind is not Kind.W:
                if not ready_backward[slot]:
                    break
                if not is_first[stage]:
                    ready_backward[slot - m] = 1
                    receiver = rank_of[stage - 1]
            if receiver >= 0 and receiver != rank and not queued[receiver]:
                queue.append(receiver)
                queued[receiver] = True
            order.append(rank)
            at += 1
        position[rank] = at
    if len(order) != schedule.num_actions:
        raise VerificationError(_deadlock_message(schedule, position))
    return order


def peak_in_flight(schedule: PipelineSchedule) -> tuple[int, ...]:
    """Return the most chunk activations that each rank holds at once: from F to B, or to W in a split backward."""
    return tuple(max(held_after(row), default=0) for row in schedule.actions)


def held_after(row: Iterable[Action]) -> Iterator[int]:
    """Yield the number of chunk activations that a rank holds after each action of ``row``."""
    held = 0
    for action in row:
        held += (action.kind is Kind.F) - (action.kind in (Kind.B, Kind.W))
        yield held


def grid(schedule: PipelineSchedule, rank: int, position: int) -> str:
    """Return the cells around ``position`` of ``rank``, a row per rank, in execution order; the cell itself is in
    brackets.

    A cell is ``<chunk><kind><micro-batch>``.
    """
    first, end = max(0, position - _GRID_MARGIN), position + _GRID_MARGIN + 1
    lines = []
    for r in range(max(0, rank - _GRID_MARGIN_RANKS), min(len(schedule.actions), rank + _GRID_MARGIN_RANKS + 1)):
        cells = [str(action) for action in schedule.actions[r][first:end]]
        if r == rank:
            if position >= len(schedule.actions[r]):
                cells.append("end")
            cells[position - first] = f"[{cells[position - first]}]"
        lines.append(f"  rank {r:>3}, from action {first}: " + " ".join(f"{cell:>7}" for cell in cells))
    return "\n".join(lines)


def _check_rank(schedule: PipelineSchedule, rank: int) -> None:
    """Require exactly one F then B, or F then I then W, of every micro-batch and chunk on this rank."""
    m, v = schedule.num_microbatches, schedule.num_chunks
    allowed = [schedule.microbatches(chunk) for chunk in range(v)]
    expected = sum(len(microbatches) for microbatches in allowed)
    seen: set[Action] = set()
    finished = 0
    for position, action in enumerate(schedule.actions[rank]):
        kind, i, chunk = action.kind, action.microbatch, action.chunk
        wrong = None
        if not (0 <= i < m and 0 <= chunk < v):
            wrong = f"is outside {m} micro-batches and {v} chunks"
        elif i not in allowed[chunk]:
            runs = allowed[chunk]
            wrong = f"is of the other copy of the model: chunk {chunk} runs micro-batches {runs[0]} to {runs[-1]}"
        elif action in seen:
            wrong = "is repeated"
        elif kind is Kind.W and Action(Kind.I, i, chunk) not in seen:
            wrong = "is a weight gradient before its input gradient (I)"
        elif kind in (Kind.B, Kind.I) and Action(Kind.F, i, chunk) not in seen:
            wrong = "is a backward before its forward"
        elif kind in (Kind.B, Kind.I) and Action(Kind.I if kind is Kind.B else Kind.B, i, chunk) in seen:
            wrong = "is a second backward: either B, or I and W"
        if wrong:
            raise VerificationError(
                f"{schedule.name}: action {position} of rank {rank}, {action}, {wrong}\n{grid(schedule, rank, position)}"
            )
        seen.add(action)
        finished += kind in (Kind.B, Kind.W)
    if finished != expected:
        missing = _first_missing(seen, allowed)
        raise VerificationError(
            f"{schedule.name}: rank {rank} ends after {finished} of {expected} backward passes, {missing} never runs\n"
            f"{grid(schedule, rank, len(schedule.actions[rank]))}"
        )


def _check_memory(schedule: PipelineSchedule, rank: int, limit: int) -> None:
    """Require at most ``limit`` chunk activations at any time on this rank."""
    for position, held in enumerate(held_after(schedule.actions[rank])):
        if held > limit:
            raise VerificationError(
                f"{schedule.name}: action {position} of rank {rank}, {schedule.actions[rank][position]}, is activation {held} of "
                f"{limit} that fit at once\n{grid(schedule, rank, position)}"
            )


def _first_missing(seen: set[Action], microbatches: list[range]) -> Action:
    """Return the first computation that a rank lacks, by chunk and then by the chunk's ``microbatches``."""
    for chunk, of_chunk in enumerate(microbatches):
        for i in of_chunk:
            if Action(Kind.F, i, chunk) not in seen:
                return Action(Kind.F, i, chunk)
            last = Kind.W if Action(Kind.I, i, chunk) in seen else Kind.B
            if Action(last, i, chunk) not in seen:
                return Action(last, i, chunk)
    raise ValueError("nothing is missing")


def _deadlock_message(schedule: PipelineSchedule, position: list[int]) -> str:
    """Return a message with the waits of stuck ranks and the grid around the first of them."""
    stuck = [rank for rank, row in enumerate(schedule.actions) if position[rank] < len(row)]
    waits = []
    for rank in stuck[:_MAX_STUCK_SHOWN]:
        action = schedule.actions[rank][position[rank]]
        source, alternatives = schedule.predecessors(rank, action)[-1]
        needed = " or ".join(str(alternative) for alternative in alternatives)
        waits.append(f"rank {rank} at {action} waits for {needed} of rank {source}")
    more = f" (and {len(stuck) - _MAX_STUCK_SHOWN} more ranks)" if len(stuck) > _MAX_STUCK_SHOWN else ""
    done, total = sum(position), schedule.num_actions
    first = stuck[0]
    return (
        f"{schedule.name}: deadlock after {done} of {total} actions: {'; '.join(waits)}{more}\n"
        f"{grid(schedule, first, position[first])}"
    )
