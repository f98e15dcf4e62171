"""Rounds in which senders wait for their receivers: every schedule ends, and pairs of ranks agree on the order."""

from __future__ import annotations

from collections import defaultdict

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from scaleacross.errors import InputError
from scaleacross.runtime.lockstep import Round, rounds_of
from scaleacross.runtime.messages import COPY, WORK, Message, Piece, RankProgram, RankStep, block_major, rank_program
from scaleacross.runtime.policy import named_schedule
from scaleacross.schedules.collective import PHASES, Kind, Operation

REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
NESTED = (((0, 1), (2, 3, 4)), "hierarchical(ring, halving_doubling)")
CASES = [(op, name, tuple(range(n))) for op in REDUCING for name in PHASES for n in (2, 5, 8)]
CASES += [(op, NESTED[1], NESTED[0]) for op in REDUCING] + [(Operation.ALL_REDUCE, "double_tree", tuple(range(7)))]
CASES += [(Operation.BROADCAST, name, tuple(range(6))) for name in ("tree", "chain")]


@pytest.mark.parametrize(("operation", "name", "layout"), CASES)
def test_all_ranks_end_when_senders_wait(operation: Operation, name: str, layout: tuple[object, ...]) -> None:
    schedule = named_schedule(operation, name, layout, 3)  # type: ignore[arg-type]
    place = block_major(schedule, 100)
    programs = [rank_program(schedule, r, place, True, True, False) for r in range(schedule.num_ranks)]
    rounds = [rounds_of(programs, rank) for rank in range(schedule.num_ranks)]
    assert unfinished(rounds) == {}
    for rank, program in enumerate(programs):
        sent = sum(len(step.sends) for steps in program.channels for step in steps)
        assert sum(len(one.sends) for one in rounds[rank]) == sent


def unfinished(rounds: list[tuple[Round, ...]]) -> dict[int, int]:
    """Rank -> round in which it is stuck: a message ends when both have posted it, a round when all of its messages have."""
    at = dict.fromkeys(range(len(rounds)), 0)
    while True:
        leaving: defaultdict[tuple[int, int], int] = defaultdict(int)
        arriving: defaultdict[tuple[int, int], int] = defaultdict(int)
        for rank, number in at.items():
            for one in rounds[rank][: number + 1]:
                for message in one.sends:
                    leaving[rank, message.peer] += 1
                for message in one.receives:
                    arriving[message.peer, rank] += 1
        ready = [
            rank
            for rank, number in at.items()
            if number < len(rounds[rank])
            and all(arriving[rank, m.peer] >= leaving[rank, m.peer] for m in rounds[rank][number].sends)
            and all(leaving[m.peer, rank] >= arriving[m.peer, rank] for m in rounds[rank][number].receives)
        ]
        if not ready:
            return {rank: number for rank, number in at.items() if number < len(rounds[rank])}
        for rank in ready:
            at[rank] += 1


def test_a_ring_has_the_order_of_a_flat_layout() -> None:
    ring = named_schedule(Operation.ALL_REDUCE, "ring", (0, 2, 1, 3))
    sent_to = [{t.peer for step in ring.steps(rank) for t in step if t.kind is Kind.SEND} for rank in range(4)]
    assert sent_to == [{2}, {3}, {1}, {0}]


def test_messages_between_two_ranks_stand_in_one_order() -> None:
    schedule = named_schedule(Operation.ALL_REDUCE, "halving_doubling", tuple(range(4)), 2)
    place = block_major(schedule, 64)
    programs = [rank_program(schedule, r, place, True, True, False) for r in range(4)]
    rounds = [rounds_of(programs, rank) for rank in range(4)]
    sizes = lambda messages, peer: [m.num_elements for m in messages if m.peer == peer]  # noqa: E731
    for rank in range(4):
        for peer in range(4):
            sent = [size for one in rounds[rank] for size in sizes(one.sends, peer)]
            assert sent == [size for one in rounds[peer] for size in sizes(one.receives, rank)]


def test_what_does_not_fit_together_is_refused() -> None:
    piece = (Piece(WORK, 0, 1),)
    sends = RankProgram(((RankStep([Message(1, 0, piece)], []),),), 1, (), {})
    nothing = RankProgram(((),), 1, (), {})
    with pytest.raises(InputError, match="1 messages leave and 0 are expected"):
        rounds_of([sends, nothing], 0)
    circle = [RankProgram(((RankStep([], [Message(1 - r, 0, piece, (COPY,))]), RankStep([Message(1 - r, 0, piece)])),), 1, (), {})
              for r in range(2)]  # fmt: skip
    with pytest.raises(InputError, match="in a circle"):
        rounds_of(circle, 0)
