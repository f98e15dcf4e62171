"""NCCLX's files: the tuner grammars round-trip, the topology files switch the distance class, nothing has an unknown name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import make_plan, two_buildings
from tuner_reader import read_nccl, read_ncclx

from scaleacross.emitters import EMITTERS
from scaleacross.emitters.nccl_variables import HINTS
from scaleacross.emitters.ncclx import HINT_OF, MIN_SLOW_MS, NCCLX_PREFIX, SLOW_RATIO
from scaleacross.emitters.tuner_grammar import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    TunerRow,
    catch_all,
    nccl_text,
    ncclx_text,
)
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import Degrees


@st.composite
def rows(draw: st.DrawFn) -> TunerRow:
    nodes, local = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    low = draw(st.integers(0, 2**40)) * nodes * local
    high = low + draw(st.integers(0, 2**30)) * nodes * local
    names = (draw(st.sampled_from(kind)) for kind in (COLLECTIVES, ALGORITHMS, PROTOCOLS))
    collective, algorithm, protocol = names
    channels = draw(st.one_of(st.just(-1), st.integers(1, 64)))
    return TunerRow(collective, low, high, algorithm, protocol, nodes, nodes * local, channels)


def test_calls_that_no_row_fits_keep_their_channels() -> None:
    text = nccl_text(catch_all())
    assert read_nccl(text) == catch_all()
    fields = [line.split(",") for line in text.splitlines()[1:]]
    assert {(row[5], row[6], row[7]) for row in fields} == {("0", "-1", "-1")}


@given(st.lists(rows(), max_size=5))
def test_both_grammars_round_trip(some: list[TunerRow]) -> None:
    assert read_nccl(nccl_text(some)) == some
    assert read_ncclx(ncclx_text(some)) == some


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (read_nccl, "allreduce,0,1,ring,simple,-1,2"),
        (read_nccl, "allreduce,0,1,ring,simple,-1,2,many"),
        (read_nccl, "alltoall,0,1,ring,simple,-1,2,16"),
        (read_nccl, "allreduce,0,1,ring,turbo,-1,2,16"),
        (read_nccl, "allreduce,9,1,ring,simple,-1,2,16"),
        (read_ncclx, "allreduce,5,ring,simple,-1,2,8"),
        (read_ncclx, "allreduce,[0,5],ring,simple,65,2,8"),
        (read_ncclx, "allreduce,[0,5],ring,simple,-1,0,8"),
        (read_ncclx, "allreduce,[0,5],ring,simple,-1,2"),
    ],
)
def test_what_a_grammar_refuses(read: object, line: str) -> None:
    with pytest.raises(EmitError):
        read(line)  # type: ignore[operator]


def test_comments_and_half_open_intervals() -> None:
    assert read_ncclx("# all\nallgather,[2, 9),ring,simple,-1,2,4  # far\n")[0][1:3] == (16, 64)


def test_files_of_a_plan_over_two_buildings() -> None:
    plan = make_plan(Degrees(tp=4, pp=5), topology=two_buildings(latency_s=1e-3))
    files = EMITTERS["ncclx"](plan)
    hosts = {name: text for name, text in files.items() if "/topology/" in name}
    places = {re.search(r"TOPOLOGY=(\S+)", text)[1] for text in hosts.values()}  # type: ignore[index]
    assert len(hosts) == 5 and all(place.count("/") == 3 for place in places)
    assert len({place.split("/")[0] for place in places}) == 2
    hints = json.loads(files["ncclx/comm_hints.json"])
    known = {NCCLX_PREFIX + hint: set(algorithms.values()) for hint, algorithms in HINT_OF.values()}
    assert hints["pp"] == {"ncclx::allreduceAlgo": "ctring"}
    assert "tp" not in hints  # inside hosts
    assert all(value in known[hint] for each in hints.values() for hint, value in each.items() if hint in known)
    assert all(hint in (*known, *HINTS, "splitShare") for each in hints.values() for hint in each)
    longest = max(one.time_s for one in plan.collectives if one.axis == "pp")
    threshold = max(MIN_SLOW_MS, SLOW_RATIO * 1e3 * longest)
    stated = re.search(r"BY_PG=(\S+)", files["ncclx/ncclx.env"])[1]  # type: ignore[index]
    assert dict(part.split(":") for part in stated.split(","))["pp"] == str(int(-(-threshold // 1)))
    assert "allreduceAlgo=ctring, tuner" in files["ncclx/explain.md"]
    assert all(row.algorithm == "ring" for row in read_ncclx(files["ncclx/ncclx_tuner.csv"]))


@pytest.mark.parametrize("often", [1.0, 1e6])
def test_of_collectives_that_share_a_hint_the_one_that_takes_most_of_a_step_has_it(often: float) -> None:
    """If collectives share a hint, the one with the largest part of the step sets it.

    One communicator reduces in a ring and by levels. explain.md says whose algorithm both run.
    """
    plan = make_plan(Degrees(dp_shard=16))
    (reduction,) = plan.collectives
    first = reduction.model_copy(update={"algorithm": "hierarchical", "per_step": often})
    second = reduction.model_copy(update={"per_step": 100.0, "name": "dp_shard all_reduce of others"})
    files = EMITTERS["ncclx"](plan.model_copy(update={"collectives": (first, second)}))
    value = "cthierarchical_ring" if often > 100 else "ctring"
    assert json.loads(files["ncclx/comm_hints.json"])["dp_shard"]["ncclx::allreduceAlgo"] == value
    shared = [line for line in files["ncclx/explain.md"].splitlines() if "which another of its collectives has" in line]
    assert len(shared) == 1 and f"allreduceAlgo={value}, which" in shared[0]
