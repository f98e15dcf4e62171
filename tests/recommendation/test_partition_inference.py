"""Tables over inference cards: Glow's rule on its own set, and our plans, never slower and proved if possible."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from scaleacross.api.published_cards import drawn_set, inference_cards, reference_set
from scaleacross.cost_models.embedding.cards import CardHost, InferenceTable, latency_s, seconds_per_request
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.solvers import partition_inference as partition_inference_module
from scaleacross.solvers.partition_inference import glow_partitions, partition_inference


def behind_and_proved(seeds: range) -> tuple[int, int]:
    """Sets on which our plan is slower than Glow's rule with its best cores, and sets proved within 1 % of the optimum."""
    slower = proved = 0
    for seed in seeds:
        tables, host = drawn_set(seed, 12 + seed % 20)
        ours = partition_inference(tables, host, time_limit_s=10)
        slower += any(rule.seconds < ours.seconds for rule in glow_partitions(tables, host))
        proved += ours.bound_s >= 0.99 * ours.seconds
        assert seconds_per_request(tables, host, ours.cards, ours.lookup_cores) == ours.seconds
        held = [
            sum(t.memory_bytes for t, at in zip(tables, ours.cards, strict=True) if at == card) for card in range(6)
        ]
        assert max(held) <= host.memory_bytes
    return slower, proved


def test_never_behind_glow_and_mostly_proved() -> None:
    slower, proved = behind_and_proved(range(12))
    assert slower == 0
    assert proved >= 10


@pytest.mark.slow
def test_two_hundred_sets() -> None:
    slower, proved = behind_and_proved(range(200))
    assert slower == 0
    assert proved >= 180


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("uplink", [None, 6e9])
@pytest.mark.parametrize("bounded", [False, True])
def test_best_of_all_plans(split: bool, uplink: float | None, bounded: bool) -> None:
    tables, host = drawn_set(3, 6)
    host = replace(host, num_cards=2, cores=3, split=split, uplink_bytes_per_s=uplink, activation_bytes=3000.0)
    host = replace(host, hop_s=1e-6, dense_bytes=100)

    def all_plans() -> list[tuple[float, float]]:
        return [
            (seconds_per_request(tables, host, cards, cores), latency_s(tables, host, cards, cores))
            for cards in product(range(2), repeat=6)
            for cores in (1, 2)
            if all(
                sum(t.memory_bytes for t, at in zip(tables, cards, strict=True) if at == card) <= host.room_bytes
                for card in range(2)
            )
        ]

    if bounded:  # tight enough that the fastest plan violates it
        fastest = min(all_plans())
        shorter = [late for _, late in all_plans() if late < fastest[1] * (1 - 1e-6)]
        host = replace(host, latency_bound_s=sorted(shorter)[-1] if shorter else fastest[1])
    best = min(s for s, late in all_plans() if late <= host.latency_bound_s * (1 + 1e-9))
    ours = partition_inference(tables, host)
    assert ours.seconds == pytest.approx(best, rel=1e-5)
    assert ours.bound_s <= best * (1 + 1e-9)
    assert latency_s(tables, host, ours.cards, ours.lookup_cores) <= host.latency_bound_s * (1 + 1e-6)


def test_glow_balances_counts_where_costs_are_alike() -> None:
    # pytorch/glow's SparseNN tests: rows 8000, 6000, 7000, 9000, 12000 twice, 64 columns, two cards, cost 1 where it is unknown
    tables, host = reference_set()
    plans = glow_partitions(tables, host)
    assert [plan.lookup_cores for plan in plans] == [*range(1, host.cores)]
    assert all(sorted(plan.cards) == [0] * 5 + [1] * 5 for plan in plans)


def test_vectors_that_set_the_rate_are_spread_evenly_without_search() -> None:
    """Without search, vectors that limit the rate are spread evenly.

    Tables of three sizes and costs send equal amounts. No card needs more than 19 of 112 (Glow's rule: 20).
    """
    kinds = (12, 2_000_000_000, 2e-5), (40, 100_000_000, 1e-5), (60, 2_000_000, 3e-6)
    tables = [InferenceTable(f"{size}_{i}", size, cost, 16_384) for number, size, cost in kinds for i in range(number)]
    host = CardHost(6, 16_000_000_000, 12, 1e9, 0, 1e-6)
    ours = partition_inference(tables, host, time_limit_s=0)
    assert max(ours.cards.count(card) for card in range(6)) == 19
    assert ours.seconds == pytest.approx(19 * 16_384 * 5 / 6 / 1e9)
    assert min(rule.seconds for rule in glow_partitions(tables, host)) > 1.05 * ours.seconds


def test_no_search_begins_when_time_is_over_or_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, host = drawn_set(3, 12)
    proved = partition_inference(tables, host)

    def searched(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(partition_inference_module, "_solve", searched)
    unsearched = partition_inference(tables, host, time_limit_s=0)
    assert unsearched.bound_s <= proved.bound_s * (1 + 1e-9) <= unsearched.seconds * (1 + 1e-9)
    with pytest.raises(InfeasibleError, match="are missing"):
        partition_inference(tables, replace(host, memory_bytes=1000, dense_bytes=0))


def test_reproduction_is_never_behind_glow() -> None:
    study = inference_cards()
    assert [one.computed for one in study.figures] == [one.published for one in study.figures] == [5, 6]
    gains = [row[2] for row in study.tables[0].rows if row[2] != "no plan"]
    assert gains and all(float(gain[:-1]) >= 1 for gain in gains)


def test_what_cannot_be() -> None:
    tables, host = drawn_set(1, 8)
    with pytest.raises(InfeasibleError, match="bytes each next to the dense network"):
        partition_inference(tables, CardHost(6, 1000, 4, 1e9, 0, 1.0), time_limit_s=1)
    with pytest.raises(InfeasibleError, match="ms at least; make requests smaller"):
        partition_inference(tables, replace(host, latency_bound_s=1e-9), time_limit_s=1)
    with pytest.raises(InputError, match="two cores per card"):
        partition_inference(tables, CardHost(6, host.memory_bytes, 1, 1e9, 0, 1.0))
