"""Destinations of a token's copies: the law agrees with an enumeration of all choices and with routers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies
from scaleacross.workloads.identity import Router
from scaleacross.workloads.layer_kinds import Experts


def _hit_mean(outcomes: list[set[int]]) -> float:
    return sum(map(len, outcomes)) / len(outcomes)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("places", [1, 2, 5])
def test_every_choice_of_places_is_counted(copies: int, places: int) -> None:
    every = [set(choice) for choice in itertools.product(range(places), repeat=copies)]
    assert copies * EqualCopies(copies).distinct_share(float(places)) == pytest.approx(_hit_mean(every))


@pytest.mark.parametrize(("groups", "chosen"), [(4, 1), (4, 2), (6, 2), (6, 3)])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_every_choice_in_every_set_of_groups_is_counted(groups: int, chosen: int, each: int) -> None:
    """Every choice in every set of groups is counted.

    Every chosen group has two experts. There are ``each`` places per group, or ``each`` groups per place.
    """
    inside = [
        {group * each + at for group, pair in zip(own, choice, strict=True) for at in pair}
        for own in itertools.combinations(range(groups), chosen)
        for choice in itertools.product(itertools.product(range(each), repeat=2), repeat=chosen)
    ]
    copies = EqualCopies(2.0 * chosen, groups, chosen)
    assert copies.number * copies.distinct_share(float(groups * each)) == pytest.approx(_hit_mean(inside))
    if groups % each == 0:
        together = [{group // each for group in own} for own in itertools.combinations(range(groups), chosen)]
        assert copies.number * copies.distinct_share(groups / each) == pytest.approx(_hit_mean(together))


def _routed(experts: int, top_k: int, groups: int, chosen: int, places: int) -> float:
    """Mean number of places that a router of independent scores uses (Megatron-Core, ``group_limited_topk``)."""
    scores = np.random.default_rng(0).random((4000, groups, experts // groups))
    best = np.sort(scores, axis=2)[:, :, -max(1, top_k // chosen) :].sum(axis=2)
    away = np.argsort(-best, axis=1)[:, chosen:]
    np.put_along_axis(scores, away[:, :, None], -1.0, axis=1)
    taken = np.argsort(-scores.reshape(len(scores), experts), axis=1)[:, :top_k]
    where = np.sort(taken * places // experts, axis=1)
    return float((1 + (np.diff(where, axis=1) > 0).sum(axis=1)).mean())


@pytest.mark.parametrize(
    ("experts", "top_k", "groups", "chosen"),
    [(256, 8, 1, 1), (256, 8, 8, 8), (256, 8, 8, 4), (160, 6, 8, 3), (256, 8, 8, 6), (256, 8, 8, 2), (128, 2, 8, 2)],
)
def test_a_router_hits_as_many(experts: int, top_k: int, groups: int, chosen: int) -> None:
    """The law agrees with a router on 2 to 32 places.

    Cases are DeepSeek-V3 (8 of 256 experts in 4 of 8 groups), DeepSeek-V2 (6 of 160 in 3 of 8) and other limits.
    """
    for places in (2, 4, 8, 32):
        law = top_k * EqualCopies(float(top_k), groups, chosen).distinct_share(float(places))
        assert law == pytest.approx(_routed(experts, top_k, groups, chosen, places), rel=0.03), places


def test_fewer_places_or_groups_are_never_more_hits() -> None:
    places = np.linspace(1.0, 64.0, 400)
    for groups, chosen in ((1, 1), (2, 1), (8, 2), (8, 4), (8, 7), (8, 8)):
        hit = EqualCopies(8.0, groups, chosen).distinct_share(places)
        assert (np.diff(hit) >= -1e-12).all()
        assert (hit <= EqualCopies(8.0).distinct_share(places) + 1e-12).all()
        assert hit[0] == pytest.approx(1 / 8)


def test_copies_that_are_all_sent_know_no_groups() -> None:
    assert EVERY_COPY.distinct_share(np.array([1.0, 4.0])).tolist() == [1.0, 1.0]


def test_the_chosen_groups_must_hold_enough_experts() -> None:
    router = Router(num_groups=8, group_top_k=1)
    with pytest.raises(ValidationError, match="top_k 5 exceeds the experts of 1 of 8 groups"):
        Experts(num_experts=32, top_k=5, width=8, router=router)
    assert Experts(num_experts=32, top_k=4, width=8, router=router).groups == (8, 1)
