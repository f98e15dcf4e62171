"""The decision that a finished search stands for: its best candidate with its own network, and its alternatives.

A search compares candidates with ideal networks and with layers as equal as possible. Its best candidates then get the
best network that a plan can have, and layers are moved. After that an alternative may be faster and becomes the plan.
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
"""Most times that a faster alternative replaces the plan."""
LATE: Final = 3
"""Further networks chosen after a limit, if another candidate's ideal is faster than the best: a choice.

Each takes a second at most.
"""


def settled(
    state: Search,
    best: Placed,
    networks: PlacedNetworks,
    others_of: Callable[[Search, Placed, PlanCost], tuple[Alternative, ...]],
    *,
    alone: bool,
    moves: bool = False,
) -> tuple[Placed, Networked, tuple[Alternative, ...]]:
    """The best candidate by estimate, its network and its alternatives; a faster alternative replaces it.

    An alternative can be faster for two reasons. The time limit may have ended the search, and the best possible
    network may be slower than the ideal one that the search compared.

    Args:
        others_of: the alternatives to a placed candidate with the cost of its plan.
        alone: give a network only to the incumbent, because its figure is a score (``_with_best_network``).
        moves: whether to move layers (``move_layers``).
    """
    allowed = allowance_of(state)
    seen = set[float]()
    moved = partial(best_with_moved_layers, state, networks=networks, allowed=allowed, seen=seen, alone=alone)
    improved = moved if moves else lambda found: found
    placed, networked = improved(_with_best_network(state, best, networks, alone=alone))
    others = others_of(state, placed, networked.cost)
    for _ in range(MAX_CLIMBS):
        again = improved((placed, networked))  # alternatives have equal layers
        if again[1] is not networked:
            placed, networked = again
            others = others_of(state, placed, networked.cost)
        step_s = networked.cost.cost.step_s * (1 - TOLERANCE)
        is_slower = not alone and any(one.step_s is not None and one.step_s < step_s for one in others)
        if state.best is None or (state.best is best and not is_slower):
            break
        best = state.best
        if not alone and not is_slower and best.step_s >= step_s:
            break  # the new best beats what the search found, but not that with layers moved
        found = improved(_with_best_network(state, best, networks, alone=alone))
        if found[0] is placed or (not alone and found[1].cost.cost.step_s >= step_s):
            break
        placed, networked = found
        others = others_of(state, placed, networked.cost)
    return placed, networked, others


def _with_best_network(
    state: Search, best: Placed, networks: PlacedNetworks, *, alone: bool
) -> tuple[Placed, Networked]:
    """The placed candidate whose step is shortest with its own network.

    A candidate is never faster than with its ideal network. So candidates are tried in the order of their ideals, until
    the next ideal is not below the best. After the limit, only candidates with known networks are tried, and ``LATE``
    others unless the caller stops.

    Args:
        alone: try only the incumbent, because its figure is a score.
    """
    found: tuple[Placed, Networked] | None = None
    refused: InfeasibleError | None = None
    late = 0
    others = [] if alone else [one for one in sorted(state.remembered, key=lambda one: one.step_s) if one is not best]
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
