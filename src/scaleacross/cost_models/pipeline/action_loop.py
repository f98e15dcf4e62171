"""Compiled loops of ``timing`` and ``own_traffic`` over actions whose links carry no collectives of other ranks."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.machine_code import compiled


@compiled
def time_actions(
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
    """Start of every action and arrival of its message where every rank has its links to itself, s.

    Args:
        rank, needs, fills, link, lasts_s, occupied_s, travel_s: columns as of ``sharing_loop.Actions``.
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


@compiled
def time_with_traffic(
    rank: Ints,
    needs: Ints,
    fills: Ints,
    link: Ints,
    lasts_s: Floats,
    occupied_s: Floats,
    travel_s: Floats,
    due_s: Floats,
    within: Floats,
    begins_s: Floats,
    ends_s: Floats,
    loss: Floats,
    left: Floats,
    num_slots: int,
) -> tuple[Floats, Floats, Floats, Floats]:
    """``time_actions`` with each rank's own traffic (``own_traffic``); also returns ends of actions and of all traffic.

    Args:
        due_s: N, seconds of gradients that an action releases.
        within: 1 − 1/n, the part of an action after its first bucket of gradients, or before its last one of
            parameters.
        begins_s, ends_s: seconds of parameters that may be left when an action begins, and before its last 1/n.
        loss: ρ.
        left: seconds left of every rank's traffic; changed in place.
    """
    ranks = len(left)
    rank_free, link_free, arrived = np.zeros(ranks), np.zeros(ranks * ranks), np.zeros(num_slots)
    start, end, arrival = np.empty(len(rank)), np.empty(len(rank)), np.empty(len(rank))
    for action in range(len(rank)):
        own, lane, alone_s, due = rank[action], link[action], lasts_s[action], due_s[action]
        ready = max(rank_free[own], arrived[needs[action]])
        start[action] = max(ready, rank_free[own] + left[own] - begins_s[action])
        left[own] = max(0.0, left[own] - (start[action] - rank_free[own]))
        hidden = min(alone_s, left[own] + within[action] * min(due, alone_s))
        waited = max(0.0, left[own] - ends_s[action] - within[action] * alone_s)
        left[own] = max(0.0, left[own] + due - hidden - waited)
        rank_free[own] = end[action] = start[action] + alone_s + loss[action] * hidden + waited
        link_free[lane] = max(end[action], link_free[lane]) + occupied_s[action]
        arrival[action] = arrived[fills[action]] = link_free[lane] + travel_s[action]
    return start, end, arrival, rank_free + left


@compiled
def time_queued(
    rank: Ints,
    needs: Ints,
    fills: Ints,
    lane: Ints,
    lasts_s: Floats,
    occupied_s: Floats,
    travel_s: Floats,
    row: Ints,
    first: Ints,
    num_lanes: int,
    num_slots: int,
) -> tuple[Floats, Floats]:
    """``time_actions`` with messages of several ranks on one ``lane``, in the order in which they are ready.

    Of the next actions of all ranks, the one that ends first is final: actions that wait for its message end later.

    Args:
        row, first: as of ``sharing_loop.Actions``.
    """
    ranks = len(first) - 1
    at, rank_free, ends = first[:-1].copy(), np.zeros(ranks), np.full(ranks, np.inf)
    lane_free, arrived = np.zeros(num_lanes), np.zeros(num_slots)
    start, arrival = np.empty(len(rank)), np.empty(len(rank))
    # messages that are not sent yet hold back the actions that need them
    for slot in fills:
        arrived[slot] = np.inf
    for own in range(ranks):
        ends[own] = arrived[needs[row[at[own]]]] + lasts_s[row[at[own]]]
    for _ in range(len(rank)):
        own = 0
        for other in range(1, ranks):
            if ends[other] < ends[own]:
                own = other
        action, end = row[at[own]], ends[own]
        start[action] = max(rank_free[own], arrived[needs[action]])
        rank_free[own] = end
        lane_free[lane[action]] = max(end, lane_free[lane[action]]) + occupied_s[action]
        arrival[action] = arrived[fills[action]] = lane_free[lane[action]] + travel_s[action]
        at[own] += 1
        for other in range(ranks):
            if at[other] == first[other + 1]:
                ends[other] = np.inf
            elif other == own or needs[row[at[other]]] == fills[action]:
                following = row[at[other]]
                ends[other] = max(rank_free[other], arrived[needs[following]]) + lasts_s[following]
    return start, arrival
