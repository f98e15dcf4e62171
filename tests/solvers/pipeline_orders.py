"""Return the optimal order of a tiny pipeline by enumeration.

Every order of every rank is timed and checked for memory, one by one. The code is independent of the solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from scaleacross.errors import VerificationError
from scaleacross.schedules.pipeline import Action, Kind, PipelineSchedule
from scaleacross.solvers.pipeline_order.problem import OrderProblem, step_s


def rows(kinds: tuple[Kind, ...], num_microbatches: int, num_chunks: int) -> Iterator[tuple[Action, ...]]:
    """All orders of one rank, each a list of actions.

    The computations of a micro-batch on a chunk stay in sequence. Micro-batches come in any order.
    """

    def extend(row: tuple[Action, ...], stage_of: dict[tuple[int, int], int]) -> Iterator[tuple[Action, ...]]:
        if len(row) == len(kinds) * num_microbatches * num_chunks:
            yield row
        for (i, chunk), done in stage_of.items():
            if done < len(kinds):
                action = Action(kinds[done], i, chunk)
                yield from extend((*row, action), {**stage_of, (i, chunk): done + 1})

    yield from extend((), {(i, c): 0 for i in range(num_microbatches) for c in range(num_chunks)})


def peak_held(schedule: PipelineSchedule, rank: int) -> int:
    """Largest number of activations that ``rank`` holds at once."""
    held = peak = 0
    for action in schedule.actions[rank]:
        held += {Kind.F: 1, Kind.B: -1, Kind.I: 0, Kind.W: -1}[action.kind]
        peak = max(peak, held)
    return peak


def fits(problem: OrderProblem, schedule: PipelineSchedule) -> bool:
    """Whether every rank stays within its memory."""
    return all(peak_held(schedule, rank) <= problem.most_held[rank] for rank in range(problem.num_ranks))


def least_step_s(problem: OrderProblem) -> float:
    """The optimum by enumeration."""
    kinds = (Kind.F, Kind.B) if problem.weight_s is None else (Kind.F, Kind.I, Kind.W)
    p, m, v = problem.num_ranks, problem.num_microbatches, problem.num_chunks
    best = float("inf")
    for actions in product(list(rows(kinds, m, v)), repeat=p):
        schedule = PipelineSchedule("enumerated", p, m, v, actions, problem.placement)
        if not fits(problem, schedule):
            continue
        try:
            best = min(best, step_s(problem, schedule))
        except VerificationError:  # a deadlock
            continue
    return best
