"""Choose the plan by simulation: among the decisions with the least estimated step times, the fastest simulation wins.

`plan` calls `refereed` after the search. A simulation models what an estimate leaves out, but takes seconds, so only
finalists are simulated. Bound and gap stay those of the estimates.

Candidates come in this order: the best by estimate, then the caller's incumbents, then other placed decisions by
ascending estimate. At most two of the same degrees and schedule precede all others. The search rarely places a decision
that is slower than the best so far, so neighbours of the best are placed here (``pool_blocks.place_ties``), one of
each kind. Among equal estimates only the first is a finalist. The others are the same plan in other words: axes of
degree 1 in another order, or the schedule of a single stage.

Beyond the number of finalists, an incumbent is simulated while its estimate is below the fastest simulation. Otherwise
a plan could win by its estimate alone. The best plan in one building is treated the same: its estimate is the most
reliable. Incumbents also run with the library's default network, because the chosen network is best by estimate but not
always in simulation.

Without a stated number, up to ``AUTOMATIC`` finalists are simulated, with estimates within ``TIE`` of the best. Where
the best simulates slower than its estimate by more than ``AGREEMENT``, the range widens to ``PRICE_RATIO``.

No estimate includes the order in which a pipeline visits buildings, which decides the messages that share an
inter-building link. So the best by estimate is also simulated in other orders (``building_orders``), and so is the
winner if it is another one.

Some proofs do not cover the neighbours of the winner: where a limit ended the search, where stages have unequal layers,
and where the estimate is far from the simulation. Then decisions that differ from it in one choice are simulated too
(``near_decisions``), and those that differ from the fastest, as long as one is faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, NamedTuple

from scaleacross.api.near_decisions import as_placed, near_decisions
from scaleacross.api.simulating import stepped
from scaleacross.api.stated import AGREEMENT
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.simulation.steady import SteadyStep
from scaleacross.solvers.building_orders import other_orders
from scaleacross.solvers.network_of_plan import Networked, with_library_network, with_network
from scaleacross.solvers.pool_blocks import end_of_ties, place_ties
from scaleacross.solvers.pools import allocation_of
from scaleacross.solvers.search_state import Placed, Search, decision_of
from scaleacross.spec.plan import Finalist, Plan
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem

PRICE_RATIO: Final = 1.1
"""Largest ratio of a finalist's estimate to the best estimate, unless it is below the fastest simulation. Of 2,066
plans of the published design space 2,040 were estimated within 10 % of their simulation, so a higher estimate rarely
belongs to the faster plan.
"""
AUTOMATIC: Final = 4
"""Number of finalists where the caller states none: a choice. On DeepSeek-V3 over a region the fastest of four takes
1.32 s, as of seven, the best by estimate 1.38 s (``plan deepseek_v3_region --cpu-limit 30``).
"""
TIE: Final = 1.01
"""The same ratio where the best agrees with its simulation: a choice. For 405B with an inter-building link
oversubscribed 1:16, two plans 0.2 % apart by estimate are 4 % apart in simulation (docs/results/history.md).
"""
OF_A_KIND: Final = 2
"""Finalists with the same degrees and schedule that precede all other kinds: a choice."""
Choice = tuple[Placed, Networked]


class Refereed(NamedTuple):
    """The chosen decision, its simulated step (None: the simulator refused it) and all finalists.

    Finalists are sorted by simulated step time, refused ones last. The tuple is empty where no number was asked for and
    only one decision was simulated.
    """

    choice: Choice
    simulated: SteadyStep | None
    finalists: tuple[Finalist, ...]


def refereed(state: Search, best: Choice, number: int | None, planned: Callable[[Networked], Plan]) -> Refereed:
    """Return the finalist with the fastest simulation.

    Args:
        state: the finished search.
        best: the best decision by estimate; it is returned where the simulator refuses all finalists.
        number: finalists at most, not counting incumbents; None: the simulation of the best decides how many.
        planned: builds the plan of a networked decision, which the simulator needs.
    """
    state.tell("simulating", 0)
    first, simulated = _simulated(planned(best[1]), state.problem)
    asked, won, found = number is not None, Refereed(best, simulated, ()), [first]
    won, found = _in_other_orders(state, won, found, planned)
    late = min(map(_simulated_s, found)) > first.price_s * (1 + AGREEMENT) and simulated is not None
    ratio = PRICE_RATIO if asked or late else TIE
    number = number or (
        1 if state.stopped() else AUTOMATIC
    )  # a user who stops a search does not wait for other simulations
    if number > 1:
        place_ties(state, best[0], best[0].step_s * ratio)
    for choice in _challengers(state, best, number, ratio, lambda: min(map(_simulated_s, found))):
        state.tell("simulating", len(found), max(number, len(found) + 1))
        one, simulated = _simulated(planned(choice[1]), state.problem)
        if _simulated_s(one) < min(map(_simulated_s, found)):
            won = Refereed(choice, simulated, ())
        found.append(one)
    unproved = late or state.ended or won.choice[1].decision.layers_per_stage is not None
    if unproved and not asked and not state.stopped():
        won, found = _near(state, won, found, planned, ratio)
    if won.choice[0].candidates is not best[0].candidates:
        won, found = _in_other_orders(state, won, found, planned)
    return won._replace(finalists=tuple(sorted(found, key=_simulated_s)) if asked or len(found) > 1 else ())


def _in_other_orders(
    state: Search, won: Refereed, found: list[Finalist], planned: Callable[[Networked], Plan]
) -> tuple[Refereed, list[Finalist]]:
    """Simulate ``won`` with its buildings in other orders; return the fastest so far and all finalists."""
    placed, networked = won.choice
    orders = [] if won.simulated is None or state.stopped() else other_orders(state.problem, networked.decision)
    for decision in orders:
        state.tell("simulating other orders of buildings", len(found), len(found) + 1)
        try:
            other = with_network(state.problem, decision, state.seed)
        except InfeasibleError:
            continue  # no network of it keeps to the budgets
        if not all(stage.fits for stage in other.cost.memory):
            continue
        one, simulated = _simulated(planned(other), state.problem)
        if _simulated_s(one) < min(map(_simulated_s, found)):
            placement = replace(placed.placement, fill=allocation_of(other.cost.placement.fill))
            won = Refereed((replace(placed, step_s=one.price_s, placement=placement), other), simulated, ())
        found = [*found, one]
    return won, found


def _near(
    state: Search, won: Refereed, found: list[Finalist], planned: Callable[[Networked], Plan], ratio: float
) -> tuple[Refereed, list[Finalist]]:
    """Simulate neighbours of ``won``, then those of the fastest, as long as one is faster; return it and all finalists.

    Of every decision up to ``AUTOMATIC`` neighbours are simulated, those of least estimates within ``ratio`` of its own.
    """
    problem, late, faster = state.problem, end_of_ties(state), won.simulated is not None
    while faster and not late():
        (placed, networked), faster = won.choice, False
        state.tell("simulating neighbours", len(found), len(found) + 1)
        near = sorted(
            takewhile(lambda _: not late(), near_decisions(problem, networked.decision)), key=lambda one: one[0]
        )
        new = [one for one in near if not _is_among(one[0], [other.price_s for other in found])]
        for estimate_s, decision in new[:AUTOMATIC]:
            if estimate_s > networked.cost.cost.step_s * ratio or late():
                break
            try:
                other = with_network(problem, decision, state.seed)
            except InfeasibleError:
                continue  # no network of it keeps to the budgets
            one, simulated = _simulated(planned(other), problem)
            if _simulated_s(one) < min(map(_simulated_s, found)):
                won, faster = Refereed((as_placed(problem, placed, other), other), simulated, ()), True
            found = [*found, one]
    return won, found


def _challengers(
    state: Search, best: Choice, number: int, ratio: float, fastest_s: Callable[[], float]
) -> Iterator[Choice]:
    """Yield the decisions to simulate after the best, each with its network.

    The first ones have estimates within ``ratio`` of the best; with ``PRICE_RATIO``, a finite ``fastest_s`` raises this
    limit. Up to ``number`` decisions qualify, including the best. After them, only incumbents and the best plan in one
    building are yielded, if their estimates are below ``fastest_s``, the fastest simulation so far in seconds.
    """
    near_s = best[1].cost.cost.step_s * ratio
    alone = min(
        (one for one in state.remembered if len(one.placement.fill) == 1), key=lambda one: one.step_s, default=None
    )
    ideal, prices = [best[0].step_s], [best[1].cost.cost.step_s]
    for placed, problem in _in_turn(state):
        so_far_s = fastest_s()
        # while the simulator has refused all, this time is infinite and admits incumbents only
        faster_s = so_far_s if placed.user_supplied or math.isfinite(so_far_s) else 0.0
        beyond_s = faster_s if placed.user_supplied or placed is alone else 0.0
        near_enough_s = max(near_s, beyond_s if ratio < PRICE_RATIO else faster_s)
        most_s = near_enough_s if len(prices) < number else beyond_s
        # an incumbent that returns with the library's network has its own estimate again, so it is not a duplicate
        again = problem is not state.problem
        same = not again and _is_among(placed.step_s, ideal)  # ideal: no networked estimate is below it
        if placed.step_s > most_s or same:
            continue
        ideal.append(placed.step_s)
        try:
            networked = with_network(problem, decision_of(placed), state.seed)
        except InfeasibleError:
            continue  # no network of it keeps to the budgets
        price_s = networked.cost.cost.step_s
        if price_s <= most_s and not _is_among(price_s, prices):
            prices.append(price_s)
            yield placed, networked


def _in_turn(state: Search) -> Iterator[tuple[Placed, Problem]]:
    """Yield candidates for finalists after the best, each with the problem under which its network is chosen."""
    ordered = sorted(_few_of_a_kind(state.remembered), key=lambda one: not one.user_supplied)
    yield from ((one, state.problem) for one in ordered)
    request = state.problem.job.network
    if request.max_trunk_fraction is None and request.compression is None:  # the defaults might exceed these
        library = with_library_network(state.problem)
        yield from ((one, library) for one in ordered if one.user_supplied)


def _few_of_a_kind(remembered: Sequence[Placed]) -> list[Placed]:
    """Sort the pool by estimate, but move all beyond ``OF_A_KIND`` of the same degrees and schedule to the end.

    Decisions of one kind deviate from their estimates by about the same amount, so simulating many of them says little.
    """
    seen, few, others = Counter[Hashable](), list[Placed](), list[Placed]()
    for placed in sorted(remembered, key=lambda one: one.step_s):
        decision = placed.candidates.decision(0)
        kind = decision.degrees, decision.pipeline
        seen[kind] += 1
        (few if seen[kind] <= OF_A_KIND else others).append(placed)
    return few + others


def _is_among(price_s: float, others_s: Sequence[float]) -> bool:
    return any(math.isclose(price_s, one, rel_tol=TOLERANCE) for one in others_s)


def _simulated_s(finalist: Finalist) -> float:
    """Return the finalist's simulated step time in seconds; inf where the simulator refused it."""
    return math.inf if finalist.replayed_s is None else finalist.replayed_s


def _simulated(plan: Plan, problem: Problem) -> tuple[Finalist, SteadyStep | None]:
    price_s = plan.cost.step_s
    try:
        simulated = stepped(plan, problem)
    except InputError as error:
        return Finalist(decision=plan.decision, price_s=price_s, replayed_s=None, reason=str(error)), None
    return Finalist(decision=plan.decision, price_s=price_s, replayed_s=simulated.step_s), simulated
