"""The referee of a plan: of the decisions that a search prices best, the replay chooses.

A replay knows what a price leaves out, but takes seconds; so only finalists are replayed. They are the best by price, then
what the caller brought, then what else the search placed, least price first; each with the network chosen for it. Where these
are too few, what the caller brought runs on the library's defaults, too: by price no network is better than the chosen one, by
the replay's clock some are. Beyond their number, what the caller brought is replayed as long as its price is below the fastest
replay: a plan that only its price holds for the better one does not win. Of equal prices only the first is a finalist: the other
is the same plan under another name (axes of degree 1 in another order, the schedule of a single stage). Bound and gap stay those
of prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from scaleacross.api.simulating import replayed_step_s
from scaleacross.errors import InputError
from scaleacross.solvers.network_of_plan import Networked, with_library_network, with_network
from scaleacross.solvers.search_state import Placed, Search, decision_of
from scaleacross.spec.plan import Finalist, Plan
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem

PRICE_RATIO: Final = 1.1
"""Price of a finalist over the best price at most. Prices of 2,040 of 2,066 plans of the published design space are within 10 %
of their replays, so a dearer plan rarely is the faster one."""
Choice = tuple[Placed, Networked]


def refereed(
    state: Search, best: Choice, number: int, planned: Callable[[Networked], Plan]
) -> tuple[Choice, tuple[Finalist, ...]]:
    """The finalist whose replay is the fastest, and all finalists, it first; those that the simulator refused last.

    Args:
        best: by price; it stays where the simulator refuses all.
        number: of finalists at most, but for what the caller brought.
        planned: the plan of a networked decision, for its replay.
    """
    found: list[tuple[Finalist, Choice]] = []
    for choice in finalists(state, best, number, lambda: min(_replay_s(finalist) for finalist, _ in found)):
        state.tell("replaying", len(found), max(number, len(found) + 1))
        found.append((_replayed(planned(choice[1])), choice))
    found.sort(key=lambda one: _replay_s(one[0]))
    return found[0][1], tuple(finalist for finalist, _ in found)


def finalists(state: Search, best: Choice, number: int, fastest_s: Callable[[], float]) -> Iterator[Choice]:
    """The best and others whose prices are within ``PRICE_RATIO`` of its own, ``number`` at most; then what was brought at a
    price below ``fastest_s``, the fastest replay of those before."""
    near_s = best[1].cost.cost.step_s * PRICE_RATIO
    ideal, prices = [best[0].step_s], [best[1].cost.cost.step_s]
    yield best
    for placed, problem in _in_turn(state):
        most_s = near_s if len(prices) < number else 0.0
        most_s = max(most_s, fastest_s()) if placed.brought else most_s
        again = problem is not state.problem
        same = not again and _is_among(placed.step_s, ideal)  # ideal: no price is below its own
        if placed.step_s > most_s or same:
            continue
        ideal.append(placed.step_s)
        networked = with_network(problem, decision_of(placed), state.seed)
        price_s = networked.cost.cost.step_s
        if price_s <= most_s and not _is_among(price_s, prices):
            prices.append(price_s)
            yield placed, networked


def _in_turn(state: Search) -> Iterator[tuple[Placed, Problem]]:
    """What may be a finalist after the best, each with the problem that chooses its network."""
    ordered = sorted(state.pool, key=lambda one: (not one.brought, one.step_s))
    yield from ((one, state.problem) for one in ordered)
    request = state.problem.job.network
    if request.max_trunk_fraction is None and request.compression is None:  # which the defaults might not keep to
        library = with_library_network(state.problem)
        yield from ((one, library) for one in ordered if one.brought)


def _is_among(price_s: float, others_s: Sequence[float]) -> bool:
    return any(math.isclose(price_s, one, rel_tol=TOLERANCE) for one in others_s)


def _replay_s(finalist: Finalist) -> float:
    """Its replay, s; inf where the simulator refused it."""
    return math.inf if finalist.replayed_s is None else finalist.replayed_s


def _replayed(plan: Plan) -> Finalist:
    price_s = plan.cost.step_s
    try:
        return Finalist(decision=plan.decision, price_s=price_s, replayed_s=replayed_step_s(plan))
    except InputError as error:
        return Finalist(decision=plan.decision, price_s=price_s, replayed_s=None, reason=str(error))
