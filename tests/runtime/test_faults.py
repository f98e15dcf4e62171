"""What goes wrong is named on every rank, within the timeout; nothing hangs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import fault_cases as cases
from launch_configs import small_launch

from scaleacross.errors import InputError
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.launch_file import read_launch
from scaleacross.runtime.policy import from_launch, layout_of

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
        assert seconds < 15


def test_different_collectives(pool: RankPool) -> None:
    outcomes = pool.run(cases.kinds_differ, SIZE)
    assert all(kind in ("MismatchError", "PeerLostError") and "collective 0" in text for kind, text, _ in outcomes)


def test_different_splits(pool: RankPool) -> None:
    outcomes = pool.run(cases.splits_differ, SIZE)
    assert any("sends 24 bytes where this rank expects 20" in text for _, text, _ in outcomes)
    assert all(kind for kind, _, _ in outcomes)


def test_a_rank_that_never_comes(pool: RankPool) -> None:
    for kind, text, seconds in pool.run(cases.one_never_comes, SIZE)[:-1]:
        assert kind in ("CollectiveTimeoutError", "PeerLostError")
        assert "rank 2" in text or "rank 0" in text or "rank 1" in text
        assert "the time limit is over" in text
        assert 1.5 < seconds < 5


def test_a_broken_group_stays_broken(pool: RankPool) -> None:
    for first, second in pool.run(cases.broken_stays_broken, SIZE):
        assert first[0] and second[0]
        assert second[2] < 1


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
        assert seconds < 21
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
    with pytest.raises(InputError, match=r"wrong\.json: .*required"):
        read_launch(wrong)
    wrong.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is not text"):
        read_launch(wrong)


def test_layouts_nest_where_the_network_does() -> None:
    config = small_launch(dp_shard=4)
    assert layout_of(config, range(4)) == ((0, 1), (2, 3))
    assert layout_of(config, (0, 2)) == (0, 1)
    assert layout_of(small_launch(dp_shard=5, hosts=(2, 3)), range(5)) == ((0, 1), (2, 3, 4))
