"""The checker finds every violation of a schedule and shows the cell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.errors import VerificationError
from scaleacross.schedules.pipeline import Action, Kind, PipelineSchedule, generate
from scaleacross.schedules.pipeline.check import check, execution_order, peak_in_flight
from scaleacross.schedules.pipeline.stage_placement import StagePlacement

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741


def _schedule(
    rows: list[str], m: int, v: int = 1, placement: StagePlacement = "loop", num_copies: int = 1
) -> PipelineSchedule:
    """From cells ``<chunk><kind><micro-batch>``."""
    actions = tuple(tuple(Action(Kind(c[1]), int(c[2:]), int(c[0])) for c in row.split()) for row in rows)
    return PipelineSchedule("hand-made", len(rows), m, v, actions, placement, num_copies)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0F0 0B0 0F1", "ends after 1 of 2 backward passes, 0B1 never runs"),
        ("0F0 0B0", "0F1 never runs"),
        ("0B0 0F0 0F1 0B1", "action 0 of rank 0, 0B0, is a backward before its forward"),
        ("0F0 0F0 0B0 0F1 0B1", "action 1 of rank 0, 0F0, is repeated"),
        ("0F0 0F2 0B0 0B2", "outside 2 micro-batches and 1 chunks"),
        ("0F0 0B0 1F1 1B1", "outside 2 micro-batches and 1 chunks"),
        ("0F0 0W0 0I0 0F1 0B1", "weight gradient before its input gradient"),
        ("0F0 0I0 0B0 0F1 0B1", "second backward"),
        ("0F0 0B0 0I0 0F1 0B1", "second backward"),
        ("0F0 0I0 0F1 0B1", "0W0 never runs"),
    ],
)
def test_broken_rank(row: str, words: str) -> None:
    with pytest.raises(VerificationError) as error:
        check(_schedule([row], m=2))
    assert words in str(error.value)


def test_split_backward_is_legal() -> None:
    schedule = _schedule(["0F0 0F1 0I0 0I1 0W0 0W1", "0F0 0B0 0F1 0I1 0W1"], m=2)
    check(schedule)
    assert peak_in_flight(schedule) == (2, 1)


def test_memory_limit_shows_the_forward_too_many() -> None:
    schedule = generate("1F1B", 3, 5, 1)
    check(schedule, 3)
    check(schedule, [3, 2, 1])
    with pytest.raises(
        VerificationError, match=r"action 1 of rank 1, 0F1, is activation 2 of 1 that fit at once\n"
    ) as error:
        check(schedule, [3, 1, 1])
    assert "[0F1]" in str(error.value)
    with pytest.raises(VerificationError, match="0F0, is activation 1 of 0"):
        check(schedule, 0)
    # an input gradient frees nothing: its weight gradient still needs the activation
    with pytest.raises(VerificationError, match="action 2 of rank 0, 0F1, is activation 2 of 1"):
        check(_schedule(["0F0 0I0 0F1 0W0 0I1 0W1"], m=2), 1)


def test_missing_row() -> None:
    schedule = generate("1F1B", 3, 3, 1)
    with pytest.raises(VerificationError, match="2 rows of actions for 3 ranks"):
        check(replace(schedule, actions=schedule.actions[:2]))


def test_deadlock_names_who_waits_and_marks_the_cell() -> None:
    # rank 0 wants the gradient of micro-batch 1 first, rank 1 makes it only after forward 1, which rank 0 sends last
    with pytest.raises(VerificationError) as error:
        check(_schedule(["0F0 0B0 0F1 0B1", "0F0 0F1 0B0 0B1"], m=2))
    message = str(error.value)
    assert "deadlock after 2 of 8 actions" in message
    assert "rank 0 at 0B0 waits for 0B0 or 0I0 of rank 1; rank 1 at 0F1 waits for 0F1 of rank 0" in message
    assert "[0B0]" in message


def test_deadlock_over_the_loop_back() -> None:
    # chunk 1 before chunk 0 on the first rank
    schedule = _schedule(["1F0 0F0 1B0 0B0", "0F0 1F0 1B0 0B0"], m=1, v=2)
    with pytest.raises(VerificationError, match="rank 0 at 1F0 waits for 0F0 of rank 1"):
        check(schedule)


V_ROWS = ["0F0 1F0 1B0 0B0", "0F0 1F0 1B0 0B0"]
BIDIRECTIONAL_ROWS = ["0F0 1F1 1B1 0B0", "1F1 0F0 0B0 1B1"]


def test_v_placement_turns_on_the_last_rank() -> None:
    check(_schedule(V_ROWS, m=1, v=2, placement="v"))
    # rank 1 would need chunk 0 of rank 0 to come first in a V, and chunk 1 of rank 0 in a loop
    with pytest.raises(VerificationError, match="rank 0 at 1F0 waits for 1F0 of rank 1"):
        check(_schedule(["0F0 1F0 0B0 1B0", "0F0 0B0 1F0 1B0"], m=1, v=2, placement="v"))


def test_bidirectional_copies_do_not_meet() -> None:
    schedule = _schedule(BIDIRECTIONAL_ROWS, m=2, v=2, placement="v", num_copies=2)
    check(schedule)
    _simulate(schedule)
    assert [schedule.microbatches(chunk) for chunk in range(2)] == [range(1), range(1, 2)]
    assert schedule.predecessors(1, Action(F, 1, 1)) == ()
    with pytest.raises(VerificationError, match="0F1, is of the other copy of the model: chunk 0 runs micro-batches 0"):
        check(_schedule(["0F0 0F1 0B1 0B0", BIDIRECTIONAL_ROWS[1]], m=2, v=2, placement="v", num_copies=2))
    with pytest.raises(VerificationError, match="rank 1 ends after 1 of 2 backward passes, 1F1 never runs"):
        check(_schedule([BIDIRECTIONAL_ROWS[0], "0F0 0B0"], m=2, v=2, placement="v", num_copies=2))
    with pytest.raises(VerificationError, match="2 chunks and 3 micro-batches do not divide over 2 copies"):
        check(_schedule(BIDIRECTIONAL_ROWS, m=3, v=2, placement="v", num_copies=2))


@given(st.data())
def test_any_swap_is_found_or_harmless(data: st.DataObject) -> None:
    """Exchanging two neighbours is either refused or harmless.

    A harmless exchange leaves a schedule that runs to its end and respects every predecessor.
    """
    name, p, m, v = data.draw(st.sampled_from([("1F1B", 3, 5, 1), ("Interleaved1F1B", 2, 4, 2), ("GPipe", 3, 3, 1)]))
    schedule = generate(name, p, m, v)
    rank = data.draw(st.integers(0, p - 1))
    row = list(schedule.actions[rank])
    at = data.draw(st.integers(0, len(row) - 2))
    row[at], row[at + 1] = row[at + 1], row[at]
    swapped = replace(schedule, actions=(*schedule.actions[:rank], tuple(row), *schedule.actions[rank + 1 :]))
    try:
        check(swapped)
    except VerificationError:
        return
    _simulate(swapped)


def test_execution_order_respects_every_predecessor() -> None:
    for shape in (("GPipe", 4, 6, 1), ("1F1B", 4, 9, 1), ("Interleaved1F1B", 4, 10, 3), ("Interleaved1F1B", 5, 3, 2)):
        _simulate(generate(*shape))  # type: ignore[arg-type]


def _simulate(schedule: PipelineSchedule) -> None:
    done: set[tuple[int, Action]] = set()
    position = [0] * schedule.num_ranks
    for rank in execution_order(schedule):
        action = schedule.actions[rank][position[rank]]
        position[rank] += 1
        for source, alternatives in schedule.predecessors(rank, action):
            assert any((source, alternative) in done for alternative in alternatives)
        done.add((rank, action))
    assert len(done) == schedule.num_actions
