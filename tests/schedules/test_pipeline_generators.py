"""Every generated schedule is legal and has its authors' published order.

Shapes without a schedule are refused with a reason.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import SCHEDULES, Action, Kind, PipelineSchedule, generate, is_legal, refusal
from scaleacross.schedules.pipeline.check import check, peak_in_flight
from scaleacross.schedules.pipeline.eager_1f1b import with_extra
from scaleacross.spec.parallelism import SCHEDULE_NAMES, TWO_CHUNKS, ScheduleName, has_chunks

SHAPES = [
    (name, p, m, v)
    for name, p, m, v in itertools.product(SCHEDULES, range(1, 9), (*range(1, 13), 16, 17, 24), range(1, 4))
    if is_legal(name, p, m, v)
]


def _cells(schedule: PipelineSchedule, rank: int) -> str:
    return " ".join(str(action) for action in schedule.actions[rank])


def test_registry_holds_exactly_the_names_of_the_spec() -> None:
    assert tuple(SCHEDULES) == SCHEDULE_NAMES


@pytest.mark.heavy
def test_all_small_shapes_are_legal() -> None:
    assert len(SHAPES) > 500
    for shape in SHAPES:
        check(generate(*shape))


def test_one_f_one_b_by_hand() -> None:
    # p = 3, m = 4: rank 0 runs 3 forwards ahead, rank 2 alternates at once
    schedule = generate("1F1B", 3, 4, 1)
    assert _cells(schedule, 0) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"
    assert _cells(schedule, 1) == "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"
    assert _cells(schedule, 2) == "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3"


def test_gpipe_by_hand() -> None:
    assert _cells(generate("GPipe", 2, 3, 1), 1) == "0F0 0F1 0F2 0B0 0B1 0B2"


def test_interleaved_by_hand() -> None:
    # p = 2, m = 4, v = 2: rounds of 2; ahead are (v-1)·2 + 2·(p-s-1) = 4 forwards on rank 0 and 2 on rank 1
    schedule = generate("Interleaved1F1B", 2, 4, 2)
    assert _cells(schedule, 0) == "0F0 0F1 1F0 1F1 0F2 1B0 0F3 1B1 1F2 0B0 1F3 0B1 1B2 1B3 0B2 0B3"
    assert _cells(schedule, 1) == "0F0 0F1 1F0 1B0 1F1 1B1 0F2 0B0 0F3 0B1 1F2 1B2 1F3 1B3 0B2 0B3"


def test_interleaved_rounds_of_more_than_p() -> None:
    # m = 10 on p = 4: two rounds of 5 micro-batches
    first = [action for action in generate("Interleaved1F1B", 4, 10, 2).actions[0] if action.kind is Kind.F][:10]
    assert first == [Action(Kind.F, i, chunk) for chunk in range(2) for i in range(5)]


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "words"),
    [
        ("Eager1F1B", 8, 7, 1, "7 on 8 ranks"),
        ("ZBH1", 4, 8, 2, "1 model chunk per rank, got 2: use InterleavedZeroBubble"),
        ("ZBH2", 4, 6, 1, "at least 7 micro-batches, got 6 on 4 ranks"),
        ("InterleavedZeroBubble", 4, 8, 1, "at least 2 model chunks per rank, got 1: use ZBH1"),
        ("LoopedBFS", 4, 8, 1, "use GPipe for one"),
        ("ZBVZeroBubble", 4, 8, 3, "exactly 2 model chunks per rank, got 3"),
        ("VHalf", 4, 8, 1, "exactly 2 model chunks per rank, got 1"),
        ("VMin", 4, 0, 2, "at least 1 rank"),
        ("DualPipe", 3, 8, 2, "an even number of ranks, got 3"),
        ("DualPipe", 4, 9, 2, "an even number of micro-batches, half for each direction, got 9"),
        ("DualPipe", 4, 6, 2, "at least 8 micro-batches, got 6 on 4 ranks"),
        ("DualPipeV", 4, 7, 2, "at least 8 micro-batches, got 7 on 4 ranks"),
        ("1F1B", 8, 7, 1, "7 on 8 ranks"),
        ("1F1B", 2, 4, 2, "1 model chunk per rank, got 2"),
        ("GPipe", 2, 4, 3, "1 model chunk per rank, got 3"),
        ("GPipe", 0, 4, 1, "at least 1 rank"),
        ("Interleaved1F1B", 4, 8, 1, "at least 2 model chunks per rank, got 1"),
        ("Interleaved1F1B", 4, 9, 2, "9 micro-batches on 4 ranks in 2 rounds, which must divide them: use 8 or 12"),
        ("Interleaved1F1B", 4, 0, 2, "at least 1 rank"),
    ],
)
def test_refusal_names_the_numbers(name: str, p: int, m: int, v: int, words: str) -> None:
    assert words in (refusal(name, p, m, v) or "")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"^{name} "):
        generate(name, p, m, v)  # type: ignore[arg-type]


def test_suggested_microbatches_are_accepted() -> None:
    for p, m, v in itertools.product(range(1, 13), range(1, 60), (2, 3)):
        if (reason := refusal("Interleaved1F1B", p, m, v)) is not None:
            low, high = (int(word) for word in reason.split("use ")[1].split(" micro")[0].split(" or "))
            assert is_legal("Interleaved1F1B", p, low, v) and is_legal("Interleaved1F1B", p, high, v)


def test_chunks_of_the_spec_are_those_of_the_generators() -> None:
    for name, v in itertools.product(SCHEDULES, range(1, 6)):
        assert has_chunks(name, v) == is_legal(name, 4, 16, v)


def test_zero_bubble_by_hand() -> None:
    # rank 1 of 2 waits one input gradient longer with its weights; ZBH2 runs 2·2 − 1 = 3 ahead on rank 0
    schedule = generate("ZBH1", 2, 3, 1)
    assert _cells(schedule, 0) == "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"
    assert _cells(schedule, 1) == "0F0 0I0 0F1 0I1 0W0 0F2 0I2 0W1 0W2"
    assert _cells(generate("ZBH2", 2, 3, 1), 1) == "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2"


def test_eager_runs_as_many_ahead_as_asked() -> None:
    assert peak_in_flight(generate("Eager1F1B", 4, 12, 1)) == (7, 5, 3, 1)
    schedule = with_extra(12, [3, 3, 0, 0])
    check(schedule)
    assert peak_in_flight(schedule) == (7, 6, 2, 1)
    for extra in ([0, 2, 0, 0], [0, 0, -1, 0]):
        with pytest.raises(InputError, match="at most one more than on rank"):
            with_extra(12, extra)
    with pytest.raises(InputError, match="3 on 4 ranks"):
        with_extra(3, [0] * 4)


@pytest.mark.parametrize("name", ["ZBH1", "ZBH2", "ZBVZeroBubble", "VHalf", "VMin"])
def test_zero_bubble_schedules_hold_no_more_than_they_promise(name: ScheduleName) -> None:
    chunks = 2 if name in TWO_CHUNKS else 1
    for p, m in itertools.product(range(2, 13), (24, 32)):
        limit = {"ZBH1": p, "ZBH2": 2 * p - 1, "ZBVZeroBubble": 2 * p, "VHalf": p + 2, "VMin": 2 * p // 3 + 3}[name]
        check(generate(name, p, m, chunks), limit)


def test_dualpipe_folds_into_dualpipe_v() -> None:
    """DualPipe folds into DualPipeV.

    Ranks 0 to p/2−1 of DualPipe run the program of DualPipeV's ranks. The others mirror it with exchanged copies.
    """
    p, m = 8, 20
    both, folded = generate("DualPipe", p, m, 2), generate("DualPipeV", p // 2, m // 2, 2)
    for rank, row in enumerate(folded.actions):
        assert [replace(a, microbatch=a.microbatch % (m // 2)) for a in both.actions[rank]] == list(row)
        mirrored = [
            replace(a, microbatch=a.microbatch % (m // 2), chunk=1 - a.chunk) for a in both.actions[p - 1 - rank]
        ]
        assert mirrored == list(row)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"GPipe, 1F1B, Interleaved1F1B.*did you mean '1F1B'"):
        generate("1F2B", 2, 2, 1)  # type: ignore[arg-type]


def test_interleaving_holds_more_than_one_f_one_b() -> None:
    # p = 4, m = 8, v = 2, in chunk activations: (v-1)·4 + 2·(3-s) + 1
    assert peak_in_flight(generate("Interleaved1F1B", 4, 8, 2)) == (11, 9, 7, 5)
    assert peak_in_flight(generate("1F1B", 4, 8, 1)) == (4, 3, 2, 1)
    assert peak_in_flight(generate("GPipe", 4, 8, 1)) == (8, 8, 8, 8)


def test_virtual_stage_and_location_invert() -> None:
    schedule = generate("Interleaved1F1B", 3, 3, 4)
    places = [schedule.locate(stage) for stage in range(schedule.num_virtual_stages)]
    assert places[:4] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert [schedule.virtual_stage(*place) for place in places] == list(range(12))
    wave = replace(schedule, placement="v")
    places = [wave.locate(stage) for stage in range(wave.num_virtual_stages)]
    assert [rank for rank, _ in places] == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]
    assert [wave.virtual_stage(*place) for place in places] == list(range(12))
