"""The play of ``timing`` where every rank has its links to itself, compiled: one action after another."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.machine_code import compiled


@compiled
def play(
    rank: Ints,
    needs: Ints,
    fills: Ints,
    link: Ints,
    lasts_s: Floats,
    occupied_s: Floats,
    travel_s: Floats,
    num_ranks: int,
    num_slots: int,
) -> tuple[Floats, Floats]:
    """Start of every action and arrival of its message, s; columns as of ``sharing_loop.Actions``.

    Args:
        num_slots: messages, and two more (``CompiledSchedule``).
    """
    rank_free, link_free, arrived = np.zeros(num_ranks), np.zeros(num_ranks * num_ranks), np.zeros(num_slots)
    start, arrival = np.empty(len(rank)), np.empty(len(rank))
    for action in range(len(rank)):
        own, lane = rank[action], link[action]
        start[action] = max(rank_free[own], arrived[needs[action]])
        rank_free[own] = start[action] + lasts_s[action]
        link_free[lane] = max(rank_free[own], link_free[lane]) + occupied_s[action]
        arrival[action] = arrived[fills[action]] = link_free[lane] + travel_s[action]
    return start, arrival
