"""Faults are named on every rank within the timeout, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import fault_cases as cases
from launch_configs import small_launch

from scaleacross.errors import InputError
from scaleacross.runtime.bounded_codec import BoundedCodec
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.launch_file import read_launch
from scaleacross.runtime.policy import from_launch, layout_of
from scaleacross.schedules.collective import Operation
from scaleacross.spec.network_choice import CommunicatorChoice

SIZE = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(SIZE)
    ranks.run(join_job)
    yield ranks
    ranks.close()


def test_different_sizes(pool: RankPool) -> None:
    for kind, text, seconds in pool.run(cases.sizes_differ, SIZE):
        assert kind in ("MismatchError", "PeerLostError")
        assert "1000 elements" in text or "1001 elements" in text
        assert "all_reduce" in text
        assert seconds < 60


def test_different_collectives(pool: RankPool) -> None:
    outcomes = pool.run(cases.kinds_differ, SIZE)
    assert all(kind in ("MismatchError", "PeerLostError") and "collective 0" in text for kind, text, _ in outcomes)


def test_different_splits(pool: RankPool) -> None:
    outcomes = pool.run(cases.splits_differ, SIZE)
    assert any("sends 6 elements where this rank expects 5" in text for _, text, _ in outcomes)
    assert all(kind for kind, _, _ in outcomes)


def test_a_rank_that_never_comes(pool: RankPool) -> None:
    for kind, text, seconds in pool.run(cases.one_never_comes, SIZE)[:-1]:
        assert kind in ("CollectiveTimeoutError", "PeerLostError")
        assert "rank 2 is not here yet: it has not come to this collective" in text
        assert "the time limit is over" in text
        assert seconds < 60


def test_ddp_fails_with_its_collectives(pool: RankPool) -> None:
    """DDP fails together with its collectives.

    The error must reach C++. Otherwise DDP would use an invalid result as gradients and end with a segmentation fault.
    """
    for kind, text, seconds in pool.run(cases.buckets_that_never_come, SIZE)[:-1]:
        assert kind == "RuntimeError"
        assert "the time limit is over" in text and "all_reduce sum of float32 by ring" in text
        assert "rank 2 is not here yet" in text
        assert seconds < 60


@pytest.mark.parametrize("case", [cases.message_that_never_comes, cases.peer_that_is_late])
def test_what_gloo_runs_is_named_when_it_fails(
    pool: RankPool, case: Callable[[int, int], tuple[str, str, float]]
) -> None:
    kind, text, _ = pool.run(case, SIZE)[0]
    assert kind == "CollectiveError" and "recv 1→0 of" in text
    assert "Timed out" in text or "timeout" in text  # the waiting, or the search for the peer


def test_a_broken_group_stays_broken(pool: RankPool) -> None:
    for first, second in pool.run(cases.broken_stays_broken, SIZE):
        assert first[0] and second[0]
        assert second[1] == first[1] or second[2] < 10


def test_strangers_are_turned_away_and_only_the_loopback_listens(pool: RankPool) -> None:
    assert pool.run(cases.strangers, SIZE) == ["127.0.0.1"] * SIZE


def test_a_killed_rank_is_named() -> None:
    ranks = RankPool(SIZE)
    ranks.run(join_job)
    for rank in range(SIZE):
        ranks.post(rank, cases.die_in_the_middle, SIZE)
    for rank in range(SIZE - 1):
        kind, text, seconds = ranks.take(rank, limit_s=60)
        assert kind in ("PeerLostError", "CollectiveTimeoutError")
        assert "rank 2" in text
        assert seconds < 60
    ranks.close()


def test_a_launch_file_of_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(InputError, match="8 processes, and a launch file for 4 ranks"):
        from_launch(small_launch(dp_shard=4), range(4), LinkSettings())


def test_files_that_are_no_launch_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="No such file"):
        read_launch(tmp_path / "missing.json")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"plan_name": "x"}')
    with pytest.raises(InputError, match=r"wrong\.json is no launch file: .*required"):
        read_launch(wrong)
    wrong.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is not text"):
        read_launch(wrong)


def test_layouts_nest_where_the_network_does() -> None:
    config = small_launch(dp_shard=4)
    assert layout_of(config, range(4)) == ((0, 1), (2, 3))
    assert layout_of(config, (0, 2)) == (0, 1)
    assert layout_of(small_launch(dp_shard=5, hosts=(2, 3)), range(5)) == ((0, 1), (2, 3, 4))


FIGURES = {"ratio": 3.98, "encode_bytes_per_s": 1e12, "decode_bytes_per_s": 1e12, "relative_error": 0.016}
"""Figures that a step time needs and the executor does not read."""


def test_the_network_decision_is_executed() -> None:
    config = small_launch(dp_shard=4, algorithm="hierarchical")
    connection = {
        "level": "campus",
        "queue_pairs": 2,
        "segment_bytes": 65536,
        "outstanding": 8,
        "load_balancing": "spray",
    }
    choice = CommunicatorChoice.model_validate(
        {
            "communicator": "dp_shard",
            "op": "all_reduce",
            "payload": "all_reduce",
            "algorithm": "hierarchical",
            "steps": [{"level": "campus", "algorithm": "halving_doubling"}],
            "num_chunks": 3,
            "chunk_bytes": 333333,
            "num_channels": 2,
            "connections": [connection],
            "compression": {"codec": "bounded", "levels": ["campus"], "error_bound": 1e-4, **FIGURES},
        }
    )
    groups = config.process_groups[0].model_copy(update={"network": (choice,)})
    policy = from_launch(config.model_copy(update={"process_groups": (groups,)}), range(4), LinkSettings())
    chosen = policy.choose(Operation.ALL_REDUCE, 1_000_000)
    assert chosen is not None
    assert (chosen.schedule.name, chosen.schedule.num_channels) == ("hierarchical(halving_doubling, ring)", 3)
    assert chosen.codec == BoundedCodec(1e-4) and chosen.far(0, 2) and not chosen.far(0, 1)
    assert policy.settings(0, 2).window_bytes == 2 * 8 * 65536 and not policy.settings(0, 2).share_memory
    assert policy.settings(0, 1).window_bytes == LinkSettings().window_bytes and policy.settings(0, 1).share_memory
    other = policy.choose(Operation.ALL_GATHER, 1_000_000)
    assert other is not None and other.codec is None
    loss, gradients = policy.choose(Operation.ALL_REDUCE, 4), policy.choose(Operation.ALL_REDUCE, 1024)
    assert loss is not None and loss.codec is None and gradients is not None and gradients.codec is not None
