"""Choose drivers of collectives by the whole step time, changing one block at a time.

The model of ``choose_network`` adds up the computation that drivers leave. In a real step, exchanges that one driver
shortens also overlap with gathers of another. So where a job allows several drivers, the model's choice is only the
start of a local search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scaleacross.solvers.choose_network import NetworkProblem, NetworkSolution
from scaleacross.solvers.network_blocks import SAME_STEP
from scaleacross.solvers.network_combinations import Combination


def with_best_drivers(
    problem: NetworkProblem, solution: NetworkSolution, step_s: Callable[[NetworkSolution], float]
) -> NetworkSolution:
    """``solution``, or one that no change of the driver of a single block makes faster.

    ``step_s`` gives the time of a whole step with a solution, in seconds.
    """
    best, best_s = solution, step_s(solution)
    improves = True
    while improves:
        improves = False
        for chosen in _others(problem, best.chosen):
            other = replace(best, chosen=chosen, exposed_s=problem.exposed_s(chosen), status="feasible")
            if problem.allows(chosen) and (other_s := step_s(other)) < best_s * (1 - SAME_STEP):
                best, best_s, improves = other, other_s, True
                break
    return best


def _others(problem: NetworkProblem, chosen: Sequence[Combination]) -> Iterator[tuple[Combination, ...]]:
    """Yield choices that differ only in the driver of one block."""
    for index, (mine, block) in enumerate(zip(chosen, problem.blocks, strict=True)):
        for one in block:
            if one is not mine and _undriven(one) == _undriven(mine):
                yield (*chosen[:index], one, *chosen[index + 1 :])


def _undriven(one: Combination) -> list[object]:
    return [option.choice.model_copy(update={"driver": "multiprocessors"}) for option in one.options]
