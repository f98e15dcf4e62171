"""The start: a constant number of store operations, one address, and errors that name the rank."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from start_runs import launch, on_this_host, run_ranks

from scaleacross.errors import InputError
from scaleacross.runtime.agreement import Look, Pass, Publish, Take, Token, ring_agreement
from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.launch_file import launch_digest, require_world_size
from scaleacross.runtime.start import open_store, start
from scaleacross.spec.launch import LaunchConfig, Rendezvous


def play(plans: list[str]) -> tuple[list[Token], list[dict[type, int]]]:
    """Run every rank of the ring in turn until all have ended.

    Return the verdicts and the number of steps of each kind.
    """
    world = len(plans)
    ranks = [ring_agreement(rank, world, plan, f"address {rank}") for rank, plan in enumerate(plans)]
    store: dict[str, str] = {}
    inbox: list[deque[Token]] = [deque() for _ in plans]
    steps: list[dict[type, int]] = [{Publish: 0, Look: 0, Pass: 0, Take: 0} for _ in plans]
    wants: list[Any] = [None] * world
    verdicts: dict[int, Token] = {}
    turn = deque(reversed(range(world)))
    while turn:
        rank = turn.popleft()
        step, answer = wants[rank], None
        if (isinstance(step, Look) and step.key not in store) or (isinstance(step, Take) and not inbox[rank]):
            turn.append(rank)
            continue
        if isinstance(step, Look):
            answer = store[step.key]
            assert answer == f"address {(rank + 1) % world}"
        elif isinstance(step, Take):
            answer = inbox[rank].popleft()  # type: ignore[assignment]
        try:
            wants[rank] = following = ranks[rank].send(answer)
        except StopIteration as end:
            verdicts[rank] = end.value
            continue
        steps[rank][type(following)] += 1
        if isinstance(following, Publish):
            store[following.key] = following.value
        elif isinstance(following, Pass):
            inbox[(rank + 1) % world].append(following.token)
        turn.append(rank)
    return [verdicts[rank] for rank in range(world)], steps


@pytest.mark.parametrize("world", [2, 3, 8, 300])
def test_every_rank_needs_two_store_operations_and_two_messages(world: int) -> None:
    verdicts, steps = play(["plan"] * world)
    assert verdicts == [Token("plan", world, None)] * world
    assert steps == [{Publish: 1, Look: 1, Pass: 2, Take: 2}] * world


def test_one_rank_needs_nothing() -> None:
    assert play(["plan"]) == ([Token("plan", 1, None)], [{Publish: 0, Look: 0, Pass: 0, Take: 0}])


@pytest.mark.parametrize("strangers", [{3}, {1}, {6}, {2, 5}])
def test_all_ranks_name_the_first_that_runs_another_plan(strangers: set[int]) -> None:
    verdicts, _ = play(["other" if rank in strangers else "plan" for rank in range(7)])
    assert {one.stranger for one in verdicts} == {min(strangers)}


def test_a_job_starts_and_listens_on_the_address_of_the_launch_file_only() -> None:
    config = on_this_host(launch(2, 2))
    found = run_ranks(config, "sums")
    assert {rank: answer for rank, (kind, (answer, _)) in found.items() if kind == "ok"} == {
        0: [4.0, 3.0],
        1: [6.0, 3.0],
        2: [4.0, 7.0],
        3: [6.0, 7.0],
    }
    assert {address for _, (_, addresses) in found.values() for address in addresses} == {"127.0.0.1"}


def test_a_launch_file_edited_on_one_host_is_an_error_on_every_rank() -> None:
    """A launch file that differs on one host is an error on every rank, although it names the same plan."""
    found = run_ranks(on_this_host(launch(2, 2)), "stranger")
    assert {kind for kind, _ in found.values()} == {"InputError"}
    assert {message for _, message in found.values()} == {
        "rank 2 (host-0) has another launch file than rank 0 (host-0): another plan's, or an edited one. Copy one launch.json "
        "to all hosts"
    }


def test_only_the_rendezvous_may_differ() -> None:
    config = launch(2, 2)
    assert launch_digest(on_this_host(config)) == launch_digest(config)
    again = LaunchConfig.model_validate_json(config.model_dump_json(indent=1))
    assert launch_digest(again) == launch_digest(config) != launch_digest(launch(2, 2, recompute="full"))


def test_a_rank_that_does_not_start_is_named_by_its_neighbours() -> None:
    found = run_ranks(on_this_host(launch(2, 2)), "impatient", absent=2)
    assert {kind for kind, _ in found.values()} <= {"CollectiveTimeoutError", "PeerLostError"}
    assert "rank 1 waited 3 s for rank 2 (host-0) to publish its address: it has not started" in found[1][1]
    assert "rank 2 (host-0)" in found[3][1]


def test_a_rendezvous_that_nobody_serves_is_named() -> None:
    config = on_this_host(launch(2, 2))
    with pytest.raises(CollectiveTimeoutError, match=r"rank 1 does not reach .* is rank 0 running on host-0\?"):
        open_store(config, 1, timeout_s=1)


def test_several_hosts_need_a_rendezvous() -> None:
    with pytest.raises(InputError, match=r'2 hosts and no rendezvous.*"address": "<address of host-0>", "port": 29500'):
        open_store(launch(2, 2, num_hosts=2), 0)


def test_an_address_of_another_host_is_refused_and_nothing_else_tried() -> None:
    config = launch(2, 2, rendezvous=Rendezvous(address="192.0.2.1", port=29500))
    with pytest.raises(
        InputError, match=r"listens on 192\.0\.2\.1:29500 and nowhere else, and this host .* cannot: Cannot"
    ):
        open_store(config, 0)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "*"])
def test_a_rendezvous_never_listens_everywhere(address: str) -> None:
    with pytest.raises(ValidationError, match="would listen on every network of the host"):
        Rendezvous(address=address, port=29500)


def test_another_number_of_processes_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of processes is an immediate error.

    Ranks 2 and 3 never start. Waiting for them would take the whole time limit and blame them.
    """
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"2 processes, and a launch file for 4 ranks.*num_accelerators=2"):
        start(on_this_host(launch(2, 2)), 0, timeout_s=5)


def test_other_hosts_than_the_plan_s_are_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other hosts than the plan's are an immediate error.

    There are as many processes as ranks, but on other hosts. Rank 1 would take its link to rank 0 for one inside a
    host.
    """
    for name, value in {"WORLD_SIZE": "4", "RANK": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    config = launch(2, 2, num_hosts=2)
    with pytest.raises(InputError, match=r"rank 1 is one of 1 processes .* has 2 on .*--nnodes=2 --nproc-per-node=2"):
        start(config, 1, timeout_s=5)
    for local in ("2", "4"):  # on its host, and all on this machine
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        require_world_size(config)
