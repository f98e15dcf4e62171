"""Hangs: the rank, link or cycle that all others wait for."""

from __future__ import annotations

import pytest
from diagnosis_runs import Run

from scaleacross.diagnosis.verdict import diagnosis
from scaleacross.spec.trace import Cursor


def hung(world: int = 4) -> Run:
    run = Run(world)
    run.everyone(at_ms=0)
    run.everyone(at_ms=5)
    return run


def test_all_good() -> None:
    found = diagnosis(hung().traces())
    assert (found.verdict, found.root, found.num_stuck_operations) == ("all_good", None, 0)
    assert (found.num_dumps, found.world_size, found.num_operations) == (4, 4, 8)


def test_a_rank_that_issues_nothing_more_is_stuck_outside() -> None:
    run = hung()
    run.everyone((0, 1, 3), state="started", at_ms=10)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.ranks, found.root.num_victims) == ("stuck_outside", (2,), 3)
    assert (found.root.group, found.root.sequence, found.root.op) == ("world", 3, "all_reduce")
    assert "its last was all_reduce #2 of world (completed, 0.004 s before" in found.root.explanation
    assert found.hosts == {2: "host-0"} and not found.others


def test_a_rank_that_went_on_has_not_joined() -> None:
    run = hung()
    run.group("own", (2,))
    run.everyone((0, 1, 3), state="started", at_ms=10)
    run.issue(2, "own", at_ms=20)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.ranks) == ("not_joined", (2,))
    assert "it went on, last with all_reduce #1 of own" in found.root.explanation


def test_a_missing_dump_is_a_dead_process() -> None:
    run = hung()
    run.everyone((0, 1, 3), state="started", at_ms=10)
    found = diagnosis(run.traces(without=[2]))
    assert found.root is not None
    assert (found.verdict, found.root.ranks, found.missing_ranks) == ("process_dead", (2,), (2,))


def test_a_missing_dump_that_nobody_waits_for_is_not_all_good() -> None:
    """A missing dump is reported even if no rank waits for it.

    torchrun ends the other ranks while they compute, so they do not wait for the killed one.
    """
    found = diagnosis(hung().traces(without=[2]))
    assert found.verdict == "not_judged" and "no readable dump of ranks 2" in found.notes[0]


def test_issued_but_not_started() -> None:
    run = hung()
    run.everyone((0, 1, 2), state="started", at_ms=10)
    run.issue(3, state="scheduled", at_ms=10)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.ranks, found.root.num_victims) == ("stuck_before", (3,), 3)


def test_issued_behind_an_earlier_operation_is_a_victim() -> None:
    run = hung()
    run.group("tp", (3, 2))
    run.issue(3, "tp", state="started", at_ms=9)
    run.issue(3, state="scheduled", at_ms=10)
    run.everyone((0, 1), state="started", at_ms=10)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.ranks, found.root.group) == ("stuck_outside", (2,), "tp")
    assert found.root.num_victims == 3 and not found.others


@pytest.mark.parametrize(
    ("odd", "verdict", "words"),
    [
        ({"op": "broadcast"}, "type_mismatch", "issued broadcast where 3 others issued all_reduce"),
        ({"size": 9}, "size_mismatch", "has sizes [[9]] → [[9]] where 3 others have [[8]] → [[8]]"),
        ({"dtype": "bfloat16"}, "dtype_mismatch", "uses bfloat16 where 3 others use float32"),
    ],
)
@pytest.mark.parametrize("culprit", [0, 2])
def test_mismatch_blames_the_minority(odd: dict[str, object], verdict: str, words: str, culprit: int) -> None:
    run = hung()
    for rank in range(4):
        run.issue(rank, state="started", at_ms=10, **(odd if rank == culprit else {}))  # type: ignore[arg-type]
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.ranks, found.root.num_victims) == (verdict, (culprit,), 3)
    assert words in found.root.explanation


def test_two_operations_that_changed_places_are_an_order_mismatch() -> None:
    run = hung()
    run.everyone((0, 1, 2), state="started", at_ms=10, op="all_gather", out=32)
    run.issue(3, state="started", at_ms=10, op="broadcast")
    run.everyone((0, 1, 2), state="scheduled", at_ms=11, op="broadcast")
    run.issue(3, state="scheduled", at_ms=11, op="all_gather", out=32)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.ranks, found.root.sequence) == ("order_mismatch", (3,), 3)


def test_unequal_sizes_are_fine_where_the_operation_allows_them() -> None:
    run = hung()
    for rank in range(4):
        run.issue(rank, op="all_to_allv", state="started", size=rank, out=3 - rank, at_ms=10)
    assert diagnosis(run.traces()).verdict == "stuck_inside"


def test_all_to_all_whose_totals_disagree() -> None:
    run = hung()
    for rank in range(4):
        run.issue(rank, op="all_to_allv", state="started", size=4, out=4 + (rank == 1), at_ms=10)
    found = diagnosis(run.traces())
    assert found.root is not None and found.verdict == "size_mismatch"
    assert "all inputs of all_to_allv #3 of world hold 16 elements, all outputs 17" in found.root.explanation


def test_a_send_whose_receive_expects_less() -> None:
    run = hung()
    run.issue(0, op="send", pair=(0, 1), state="started", size=8)
    run.issue(1, op="recv", pair=(0, 1), state="started", size=6)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.link) == ("size_mismatch", (0, 1))


def test_two_groups_in_opposite_order_are_a_deadlock() -> None:
    run = Run(4)
    run.group("a", (1, 2))
    run.group("b", (1, 2))
    run.issue(1, "a", state="started", at_ms=1)
    run.issue(2, "b", state="started", at_ms=1)
    run.everyone((0, 3), state="started", at_ms=2)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, sorted(found.root.ranks), found.root.num_victims) == ("deadlock", [1, 2], 2)
    assert "rank 1 waits in all_reduce #1 of a for rank 2; rank 2 waits in all_reduce #1 of b for rank 1" in (
        found.root.explanation
    )


def test_three_ranks_in_a_circle() -> None:
    run = Run(3)
    for rank in range(3):
        run.group(f"pair{rank}", (rank, (rank + 1) % 3))
        run.issue(rank, f"pair{rank}", state="started")
    found = diagnosis(run.traces())
    assert found.root is not None and found.verdict == "deadlock" and found.root.ranks == (0, 1, 2)


def test_what_the_program_does_not_await_does_not_hold_it_up() -> None:
    """A collective that the program does not await blocks nothing.

    Rank 1 has a prefetch in progress that needs rank 0, but its program is elsewhere. There is no cycle.
    """
    run = Run(2)
    run.group("prefetch", (0, 1))
    run.issue(1, "world", awaited=True)
    run.issue(0, "world", awaited=True)
    run.issue(1, "prefetch", state="started", awaited=False, at_ms=2)
    run.issue(0, "world", state="started", awaited=True, at_ms=3)
    found = diagnosis(run.traces())
    assert found.root is not None and (found.verdict, found.root.ranks) == ("stuck_outside", (1,))
    for one in run.operations[1]:
        one.awaited = None
    assert diagnosis(run.traces()).verdict == "deadlock"  # without that knowledge it looks like a cycle


def test_a_cascade_of_300_stuck_operations_has_one_root() -> None:
    """A cascade of 300 stuck operations has one root.

    Rank 7 of 100 never starts. Its victims block others through rows and columns of a grid.
    """
    run = Run(100)
    for index in range(10):
        run.group(f"row{index}", range(10 * index, 10 * index + 10))
        run.group(f"column{index}", range(index, 100, 10))
    for rank in range(100):
        if rank == 7:
            continue
        row, column = divmod(rank, 10)
        first = f"column{column}" if column == 7 else f"row{row}"
        if row == 0 or column == 7:  # direct neighbours of 7 wait for it
            run.issue(rank, first if column == 7 else "row0", state="started", at_ms=1)
        else:
            run.issue(rank, f"row{row}", state="started", at_ms=2)
        run.issue(rank, "world", state="scheduled", at_ms=3)
        run.issue(rank, "world", state="scheduled", at_ms=4)
    run.issue(13, "world", state="scheduled", at_ms=5)
    run.issue(14, "world", state="scheduled", at_ms=5)
    run.issue(15, "world", state="scheduled", at_ms=5)
    found = diagnosis(run.traces())
    assert found.root is not None and found.num_stuck_operations == 300
    assert (found.verdict, found.root.ranks, found.root.num_victims) == ("stuck_outside", (7,), 99)
    assert found.others == ()


def test_two_independent_faults_are_both_named_the_larger_first() -> None:
    run = Run(10)
    run.group("left", range(7))
    run.group("right", range(7, 10))
    run.everyone(range(6), group="left", state="started", at_ms=2)
    run.everyone((7, 8), group="right", state="started", at_ms=1)
    found = diagnosis(run.traces())
    assert found.root is not None
    assert found.root.ranks == (6,) and [fault.ranks for fault in found.others] == [(9,)]


def test_what_a_ring_forgot_is_not_missing() -> None:
    run = hung()
    run.everyone(state="started", at_ms=10)
    traces = run.traces()
    traces[1].operations = traces[1].operations[2:]
    traces[1].complete_from_start = False
    found = diagnosis(traces)
    assert found.verdict == "stuck_inside" and "1 traces have lost their oldest" in found.notes[0]


def ring_cursors(rank: int, world: int, sent: int, received: int, chunks: int = 8) -> dict[int, Cursor]:
    following, before = (rank + 1) % world, (rank - 1) % world
    return {
        following: Cursor(sent_chunks=sent, chunks_to_send=chunks),
        before: Cursor(received_chunks=received, chunks_to_receive=chunks),
    }


def test_chunks_that_left_and_did_not_arrive_name_the_link() -> None:
    run = hung()
    progress = {0: (5, 4), 1: (4, 3), 2: (4, 4), 3: (4, 4)}  # link 0→1: five sent, three arrived
    for rank, (sent, received) in progress.items():
        run.issue(rank, state="started", at_ms=10, cursors=ring_cursors(rank, 4, sent, received))
    found = diagnosis(run.traces())
    assert found.root is not None
    assert (found.verdict, found.root.link) == ("stuck_link", (0, 1))
    assert "chunk 3 of 8 left rank 0 and did not arrive at rank 1 (2 under way)" in found.root.explanation


def test_a_rank_that_keeps_its_chunks_is_stuck_inside() -> None:
    run = hung()
    progress = {0: (5, 4), 1: (5, 5), 2: (4, 5), 3: (4, 4)}  # rank 2 has five and passed on four
    for rank, (sent, received) in progress.items():
        run.issue(rank, state="started", at_ms=10, cursors=ring_cursors(rank, 4, sent, received))
    found = diagnosis(run.traces())
    assert found.root is not None and (found.verdict, found.root.ranks) == ("stuck_inside", (2,))


def test_without_cursors_the_ranks_that_did_not_end_are_named() -> None:
    run = hung()
    run.everyone((0, 1, 3), at_ms=10)
    run.issue(2, state="started", at_ms=10)
    found = diagnosis(run.traces())
    assert found.root is not None and (found.verdict, found.root.ranks) == ("stuck_inside", (2,))


def test_a_send_that_never_arrives_names_the_link() -> None:
    run = hung()
    run.issue(0, op="send", pair=(0, 1), state="started")
    run.issue(1, op="recv", pair=(0, 1), state="started")
    run.everyone((2, 3), state="started", at_ms=20)
    found = diagnosis(run.traces())
    assert found.root is not None and found.verdict == "stuck_link"
    assert (found.root.link, found.root.num_victims) == ((0, 1), 2)
