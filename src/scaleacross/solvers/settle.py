"""The decision that a finished search stands for: its best with the network of its own, and what else would have been as good.

A search compares ideal networks, and layers as equal as possible. What it found gets the best network that a plan can have, and
layers moved; then an alternative may be faster, and takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.move_layers import allowance_of, best_with_moved_layers
from scaleacross.solvers.network_of_plan import Networked
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.spec.plan import Alternative
from scaleacross.verification.figures import TOLERANCE

MAX_CLIMBS: Final = 4
"""Times that a faster alternative takes the place of the plan."""
LATE: Final = 3
"""Networks chosen beyond a limit where the best candidate's is slower than another's ideal: a choice, a second each at most."""


def settled(
    state: Search,
    best: Placed,
    networks: PlacedNetworks,
    others_of: Callable[[Search, Placed, PlanCost], tuple[Alternative, ...]],
    *,
    alone: bool,
    moves: bool = False,
) -> tuple[Placed, Networked, tuple[Alternative, ...]]:
    """The best by estimate with its network, and its alternatives. Where one of these is faster, that is the best: the time limit
    may have ended the search, and the best network that a plan can have may take longer than the ideal that the search compared.

    Args:
        others_of: the alternatives to a placed candidate with the cost of its plan.
        alone: only the incumbent gets a network, since its figure is a score (``_with_best_network``).
        moves: whether layers are moved (``move_layers``).
    """
    allowed = allowance_of(state)
    moved = partial(best_with_moved_layers, state, networks=networks, allowed=allowed, alone=alone)
    improved = moved if moves else lambda found: found
    placed, networked = improved(_with_best_network(state, best, networks, alone=alone))
    others = others_of(state, placed, networked.cost)
    for _ in range(MAX_CLIMBS):
        step_s = networked.cost.cost.step_s * (1 - TOLERANCE)
        is_slower = not alone and any(one.step_s is not None and one.step_s < step_s for one in others)
        if state.best is None or (state.best is best and not is_slower):
            break
        best = state.best
        if not alone and not is_slower and best.step_s >= step_s:
            break  # it beats what the search found, but not that with layers moved
        found = improved(_with_best_network(state, best, networks, alone=alone))
        if found[0] is placed or (not alone and found[1].cost.cost.step_s >= step_s):
            break
        placed, networked = found
        others = others_of(state, placed, networked.cost)
    return placed, networked, others


def _with_best_network(
    state: Search, best: Placed, networks: PlacedNetworks, *, alone: bool
) -> tuple[Placed, Networked]:
    """The placed candidate whose step is shortest with its own network; the search priced ideal networks.

    No candidate is faster than its ideal, so they are tried in that order until the next ideal is not below the best; once the
    limit has passed, those alone whose networks are known, and ``LATE`` others unless somebody stops.

    Args:
        alone: only the incumbent, whose figure is a score.
    """
    found: tuple[Placed, Networked] | None = None
    refused: InfeasibleError | None = None
    late = 0
    others = [] if alone else [one for one in sorted(state.pool, key=lambda one: one.step_s) if one is not best]
    for placed in (best, *others):
        if found is not None and placed.step_s >= found[1].cost.cost.step_s * (1 - TOLERANCE):
            break
        if found is not None and state.past_limit and not networks.knows(placed):
            if state.stopped() or late == LATE:
                continue
            late += 1
        try:
            other = placed, networks.of(placed)
        except InfeasibleError as error:
            refused = refused or error
            continue
        found = other if found is None else min(found, other, key=lambda one: one[1].cost.cost.step_s)
    if found is None:
        raise refused or InfeasibleError("nothing was placed")
    return found
