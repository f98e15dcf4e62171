"""The referee of a plan: among the decisions whose estimates are least, the fastest simulation is the plan.

A simulation knows what an estimate leaves out, but takes seconds; so only finalists are simulated. They are the best by estimate,
then the caller's incumbents, then what else was placed, least estimate first; each with the network chosen for it. A search
places little that is not faster than all before it, so neighbours of the best are placed for this (``fleet_blocks.place_ties``),
one of each kind. Where finalists are too few, the incumbents run on the library's defaults, too: by estimate no network is better
than the chosen one, in simulation some are. Beyond the number of finalists, an incumbent is simulated as long as its estimate is
below the fastest simulation: a plan that is better by its estimate alone does not win. So is the best in one building, whose
estimate is the surest: other buildings may not bring what estimates say. Two at most of the same degrees and schedule come before
all others. Of equal estimates only the first is a finalist: the other is the same plan under another name (axes of degree 1 in
another order, the schedule of a single stage). Bound and gap stay those of estimates.

Where nobody says how many finalists there are, ``AUTOMATIC`` are simulated: those whose estimates are within ``TIE`` of the best,
as estimates are not surer than that, or within ``PRICE_RATIO`` where the simulation of the best takes longer than its estimate by
more than ``AGREEMENT``.

The order of buildings that a pipeline runs through is in no estimate: which messages meet on which trunk. So the best by estimate
is simulated in other orders, too (``building_orders``), and so is the fastest of the others, should it not be the best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from scaleacross.api.simulating import stepped
from scaleacross.api.stated import AGREEMENT
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.simulation.steady import SteadyStep
from scaleacross.solvers.building_orders import other_orders
from scaleacross.solvers.fleet_blocks import place_ties
from scaleacross.solvers.fleets import fill_of
from scaleacross.solvers.network_of_plan import Networked, with_library_network, with_network
from scaleacross.solvers.search_state import Placed, Search, decision_of
from scaleacross.spec.plan import Finalist, Plan
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem

PRICE_RATIO: Final = 1.1
"""Estimate of a finalist over the best at most, unless it is below the fastest simulation. Of 2,066 plans of the published design
space 2,040 were estimated within 10 % of their simulation, so one with a higher estimate rarely is the faster one."""
AUTOMATIC: Final = 4
"""Finalists where nobody says how many: a choice. On DeepSeek-V3 over a region the fastest takes 1.31 s where the best by
estimate takes 1.49 s (``plan deepseek_v3_region --cpu-limit 30``)."""
TIE: Final = 1.01
"""The same where the best agrees with its simulation: a choice. Of 405B behind a trunk of 1:16 two plans 0.2 % apart by estimate
are 4 % apart when simulated (docs/results/history.md)."""
OF_A_KIND: Final = 2
"""Finalists with the same degrees and schedule before those of other kinds: a choice."""
Choice = tuple[Placed, Networked]


class Refereed(NamedTuple):
    """What the referee chose, with its simulation (None: refused), and all finalists, it first, the refused ones last; none where
    nobody asked for a referee and there was nothing to choose."""

    choice: Choice
    played: SteadyStep | None
    finalists: tuple[Finalist, ...]


def refereed(state: Search, best: Choice, number: int | None, planned: Callable[[Networked], Plan]) -> Refereed:
    """The finalist whose simulation is the fastest.

    Args:
        best: by estimate; it stays where the simulation refuses all.
        number: of finalists at most, incumbents beside; None: the simulation of the best decides.
        planned: the plan of a networked decision, for its simulation.
    """
    state.tell("simulating", 0)
    first, played = _simulated(planned(best[1]), state.problem)
    asked, won, found = number is not None, Refereed(best, played, ()), [first]
    won, found = _in_other_orders(state, won, found, planned)
    late = min(map(_simulated_s, found)) > first.price_s * (1 + AGREEMENT) and played is not None
    ratio = PRICE_RATIO if asked or late else TIE
    number = number or (1 if state.stopped() else AUTOMATIC)  # who stops a search does not wait for others
    if number > 1:
        place_ties(state, best[0], best[0].step_s * ratio)
    for choice in _challengers(state, best, number, ratio, lambda: min(map(_simulated_s, found))):
        state.tell("simulating", len(found), max(number, len(found) + 1))
        one, played = _simulated(planned(choice[1]), state.problem)
        if _simulated_s(one) < min(map(_simulated_s, found)):
            won = Refereed(choice, played, ())
        found.append(one)
    if won.choice[0].candidates is not best[0].candidates:
        won, found = _in_other_orders(state, won, found, planned)
    return won._replace(finalists=tuple(sorted(found, key=_simulated_s)) if asked or len(found) > 1 else ())


def _in_other_orders(
    state: Search, won: Refereed, found: list[Finalist], planned: Callable[[Networked], Plan]
) -> tuple[Refereed, list[Finalist]]:
    """The fastest so far, with its buildings in the order of its fastest simulation, and all finalists."""
    placed, networked = won.choice
    orders = [] if won.played is None or state.stopped() else other_orders(state.problem, networked.decision)
    for decision in orders:
        state.tell("simulating other orders of buildings", len(found), len(found) + 1)
        try:
            other = with_network(state.problem, decision, state.seed)
        except InfeasibleError:
            continue  # no network of it keeps to the budgets
        if not all(stage.fits for stage in other.cost.memory):
            continue
        one, played = _simulated(planned(other), state.problem)
        if _simulated_s(one) < min(map(_simulated_s, found)):
            placement = replace(placed.placement, fill=fill_of(other.cost.placement.fill))
            won = Refereed((replace(placed, step_s=one.price_s, placement=placement), other), played, ())
        found = [*found, one]
    return won, found


def _challengers(
    state: Search, best: Choice, number: int, ratio: float, fastest_s: Callable[[], float]
) -> Iterator[Choice]:
    """After the best: others whose estimates are within ``ratio`` of its own or, where that is ``PRICE_RATIO``, below
    ``fastest_s``, the fastest simulation so far, ``number`` with it at most; then incumbents, and the best in one building, below
    ``fastest_s``."""
    near_s = best[1].cost.cost.step_s * ratio
    alone = min((one for one in state.pool if len(one.placement.fill) == 1), key=lambda one: one.step_s, default=None)
    ideal, prices = [best[0].step_s], [best[1].cost.cost.step_s]
    for placed, problem in _in_turn(state):
        so_far_s = fastest_s()
        faster_s = so_far_s if placed.brought or math.isfinite(so_far_s) else 0.0
        beyond_s = faster_s if placed.brought or placed is alone else 0.0
        near_enough_s = max(near_s, beyond_s if ratio < PRICE_RATIO else faster_s)
        most_s = near_enough_s if len(prices) < number else beyond_s
        again = problem is not state.problem
        same = not again and _is_among(placed.step_s, ideal)  # ideal: no estimate is below its own
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
    """What may be a finalist after the best, each with the problem that chooses its network."""
    ordered = sorted(_few_of_a_kind(state.pool), key=lambda one: not one.brought)
    yield from ((one, state.problem) for one in ordered)
    request = state.problem.job.network
    if request.max_trunk_fraction is None and request.compression is None:  # which the defaults might not keep to
        library = with_library_network(state.problem)
        yield from ((one, library) for one in ordered if one.brought)


def _few_of_a_kind(pool: Sequence[Placed]) -> list[Placed]:
    """The least estimates first, but ``OF_A_KIND`` at most of the same degrees and schedule before all others: what their
    estimates leave out is about the same."""
    seen, few, others = Counter[Hashable](), list[Placed](), list[Placed]()
    for placed in sorted(pool, key=lambda one: one.step_s):
        decision = placed.candidates.decision(0)
        kind = decision.degrees, decision.pipeline
        seen[kind] += 1
        (few if seen[kind] <= OF_A_KIND else others).append(placed)
    return few + others


def _is_among(price_s: float, others_s: Sequence[float]) -> bool:
    return any(math.isclose(price_s, one, rel_tol=TOLERANCE) for one in others_s)


def _simulated_s(finalist: Finalist) -> float:
    """Its simulated step, s; inf where the simulation refused it."""
    return math.inf if finalist.replayed_s is None else finalist.replayed_s


def _simulated(plan: Plan, problem: Problem) -> tuple[Finalist, SteadyStep | None]:
    price_s = plan.cost.step_s
    try:
        played = stepped(plan, problem)
    except InputError as error:
        return Finalist(decision=plan.decision, price_s=price_s, replayed_s=None, reason=str(error)), None
    return Finalist(decision=plan.decision, price_s=price_s, replayed_s=played.step_s), played
