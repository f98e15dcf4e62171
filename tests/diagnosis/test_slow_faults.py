"""Runs that end late: the diagnosis names the slow rank or link, although clocks of hosts differ."""

from __future__ import annotations

import pytest
from diagnosis_runs import Run

from scaleacross.diagnosis.verdict import diagnosis
from scaleacross.spec.trace import Cursor

STEPS, WORK_MS, COLLECTIVE_MS = 10, 10.0, 2.0


def with_slow_rank(slow: int | None, *, extra_ms: float = 8.0, skew_ms: float = 0.0) -> Run:
    """Four ranks that compute and reduce; ``slow`` computes longer. Clocks of rank r are ``r · skew_ms`` ahead."""
    run = Run(4)
    clock = 0.0
    for _ in range(STEPS):
        arrivals = [clock + WORK_MS + (extra_ms if rank == slow else 0.0) for rank in range(4)]
        clock = max(arrivals) + COLLECTIVE_MS
        for rank, arrival in enumerate(arrivals):
            run.issue(rank, at_ms=arrival + rank * skew_ms, took_ms=clock - arrival)
    return run


@pytest.mark.parametrize("skew_ms", [0.0, 500.0])
@pytest.mark.parametrize("slow", range(4))
def test_the_slow_rank_is_named_whatever_the_clocks_say(slow: int, skew_ms: float) -> None:
    found = diagnosis(with_slow_rank(slow, skew_ms=skew_ms).traces())
    assert found.root is not None and (found.verdict, found.root.ranks) == ("slow_rank", (slow,))
    assert found.root.lost_s == pytest.approx((STEPS - 1) * 0.008)  # the time before the first operation is unknown


def test_equal_ranks_are_good() -> None:
    assert diagnosis(with_slow_rank(None).traces()).verdict == "all_good"
    assert diagnosis(with_slow_rank(1, extra_ms=0.5).traces()).verdict == "all_good"


def test_ranks_that_are_late_because_they_waited_elsewhere_are_not_blamed() -> None:
    """Ranks that are late because they waited elsewhere are not blamed.

    Rank 0 is slow. Rank 1 waits for it in a pair and so joins the collective of all as late as rank 0.
    """
    run = Run(4)
    run.group("pair", (0, 1))
    clock = 0.0
    for _ in range(STEPS):
        for rank, work in ((0, 20.0), (1, 10.0)):
            run.issue(rank, "pair", at_ms=clock + work, took_ms=21.0 - work)
        for rank in range(4):
            arrival = clock + (22.0 if rank < 2 else 10.0) + (0.5 if rank == 1 else 0.0)
            run.issue(rank, at_ms=arrival, took_ms=clock + 24.0 - arrival)
        clock += 24.0
    found = diagnosis(run.traces())
    assert found.root is not None and (found.verdict, found.root.ranks) == ("slow_rank", (0,))


def ring_with_slow_link(
    slow: tuple[int, int] | None, *, predicted_ms: float | None, slowness: float = 5.0, all_wait_ms: float = 0.0
) -> Run:
    """A ring of six with 100 kB per link and operation in 2 ms. Receivers wait for the whole operation."""
    run = Run(6)
    for step in range(STEPS):
        sent = 2.0 * (slowness if slow else 1.0)
        took = sent + all_wait_ms
        for rank in range(6):
            to, come = (rank + 1) % 6, (rank - 1) % 6
            own = int((sent if (rank, to) == slow else 2.0) * 1e6)
            cursors = {
                to: Cursor(4, 4, sent_bytes=100_000, send_ns=own),
                come: Cursor(
                    received_chunks=4, chunks_to_receive=4, received_bytes=100_000, receive_ns=int(took * 1e6)
                ),
            }
            predicted_s = predicted_ms / 1e3 if predicted_ms else None
            run.issue(rank, at_ms=step * (took + 1), took_ms=took, cursors=cursors, predicted_s=predicted_s)
    return run


@pytest.mark.parametrize("predicted_ms", [2.0, None])
@pytest.mark.parametrize("slow", [(0, 1), (5, 0), (3, 4)])
def test_the_slow_link_is_named(slow: tuple[int, int], predicted_ms: float | None) -> None:
    found = diagnosis(ring_with_slow_link(slow, predicted_ms=predicted_ms).traces())
    assert found.root is not None and (found.verdict, found.root.link) == ("slow_link", slow)
    assert "(5.0x slower)" in found.root.explanation
    assert found.root.lost_s == pytest.approx(STEPS * 0.008)


def test_a_ring_as_predicted_is_good() -> None:
    assert diagnosis(ring_with_slow_link(None, predicted_ms=2.0).traces()).verdict == "all_good"
    assert diagnosis(ring_with_slow_link((0, 1), predicted_ms=2.0, slowness=1.8).traces()).verdict == "all_good"
    slow = diagnosis(ring_with_slow_link((0, 1), predicted_ms=2.0, slowness=1.8).traces(), slow_ratio=1.5)
    assert slow.verdict == "slow_link"


def test_a_link_that_the_plan_knows_to_be_slow_is_good() -> None:
    assert diagnosis(ring_with_slow_link((0, 1), predicted_ms=10.0).traces()).verdict == "all_good"


def test_a_link_that_costs_little_does_not_hide_a_group_that_is_slow() -> None:
    """A slow link with little cost does not mask a slow group.

    The link costs 2 of the 44 ms of an operation. All ranks together wait for 40.
    """
    found = diagnosis(ring_with_slow_link((0, 1), predicted_ms=4.0, slowness=2.0, all_wait_ms=40.0).traces())
    assert found.root is not None and (found.verdict, found.root.link) == ("slow_link", None)
    assert found.root.lost_s == pytest.approx(STEPS * 0.040)


def test_a_group_slower_than_predicted_without_a_link_to_blame() -> None:
    run = Run(4)
    for step in range(STEPS):
        run.everyone(at_ms=step * 10, took_ms=6.0, predicted_s=0.002)
    found = diagnosis(run.traces())
    assert found.root is not None and found.verdict == "slow_link" and found.root.link is None
    assert "world took 0.06 s where 0.02 s were predicted (3.0x) in its one group" in found.root.explanation


def sends(took_ms: dict[tuple[int, int], float]) -> Run:
    """Four ranks, two pipelines of two; receivers post their receive 100 ms before the sender sends."""
    run = Run(4)
    for sender, receiver in took_ms:
        run.group(f"pp{sender}", (sender, receiver), desc="pp")
    for step in range(STEPS):
        for (sender, receiver), took in took_ms.items():
            pair, at = (sender, receiver), step * 200.0
            run.issue(receiver, f"pp{sender}", "recv", pair=pair, at_ms=at, took_ms=100 + took, predicted_s=0.001)
            run.issue(sender, f"pp{sender}", "send", pair=pair, at_ms=at + 100, took_ms=took, predicted_s=0.001)
    return run


@pytest.mark.parametrize(
    ("took_ms", "ranks", "where"),
    [
        ({(0, 2): 80.0, (1, 3): 70.0}, (0, 1, 2, 3), "in 2 of 2 groups"),
        ({(0, 2): 1.0, (1, 3): 150.0}, (1, 3), "in 1 of 2 groups"),
    ],
)
def test_all_groups_that_are_slow_are_named_and_no_other(
    took_ms: dict[tuple[int, int], float], ranks: tuple[int, ...], where: str
) -> None:
    found = diagnosis(sends(took_ms).traces())
    assert found.root is not None and (found.verdict, found.root.ranks) == ("slow_link", ranks)
    assert where in found.root.explanation


def test_without_the_other_ends_dump_a_wait_is_no_slow_link() -> None:
    """A wait is not blamed on a link without the sender's dump.

    A receive alone does not show how long it waited for the sender.
    """
    run = sends({(0, 2): 1.0, (1, 3): 1.0})
    assert diagnosis(run.traces()).verdict == "all_good"
    found = diagnosis(run.traces(without=(1,)))
    assert (found.verdict, found.missing_ranks) == ("not_judged", (1,))
