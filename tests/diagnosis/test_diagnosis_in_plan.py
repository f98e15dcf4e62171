"""With launch.json a diagnosis names hosts and levels, and compares dumps without predictions with the plan's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from diagnosis_runs import Run

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from launch_configs import small_launch

from scaleacross.diagnosis.planned import add_predictions, in_plan
from scaleacross.diagnosis.verdict import diagnosis
from scaleacross.errors import InputError
from scaleacross.spec.trace import Cursor

NUM_ELEMENTS = 250_000  # 1 MB, which the launch file predicts to take 10 ms


def ring(slow_link: bool, took_ms: float) -> Run:
    """Six ranks, three per building; the link 2→3 crosses between the buildings."""
    run = Run(6)
    for step in range(20):
        for rank in range(6):
            to, come = (rank + 1) % 6, (rank - 1) % 6
            own = int((took_ms if slow_link and (rank, to) == (2, 3) else took_ms / 5) * 1e6)
            cursors = {
                to: Cursor(4, 4, sent_bytes=10**6, send_ns=own),
                come: Cursor(
                    received_chunks=4, chunks_to_receive=4, received_bytes=10**6, receive_ns=int(took_ms * 1e6)
                ),
            }
            at_ms = step * (took_ms + 1)
            run.issue(rank, at_ms=at_ms, took_ms=took_ms, size=NUM_ELEMENTS, cursors=cursors, dtype="Float")
    return run


def test_predictions_come_from_the_plan_where_dumps_have_none() -> None:
    config = small_launch(dp_shard=6, hosts=(3, 3))
    traces = ring(slow_link=True, took_ms=50).traces()
    assert add_predictions(traces, config) == 120
    assert {one.predicted_s for trace in traces for one in trace.operations} == {0.01}
    assert add_predictions(traces, config) == 0, "existing figures stay"


def test_the_link_is_named_with_its_level_and_its_hosts() -> None:
    config = small_launch(dp_shard=6, hosts=(3, 3))
    traces = ring(slow_link=True, took_ms=50).traces()
    add_predictions(traces, config)
    found = in_plan(diagnosis(traces), config)
    assert found.root is not None
    assert (found.verdict, found.root.link, found.root.level) == ("slow_link", (2, 3), "campus")
    assert found.places == {2: "h0, building b0, region r", 3: "h1, building b1, region r"}


def test_a_plan_that_expects_it_acquits() -> None:
    traces = ring(slow_link=False, took_ms=10).traces()
    add_predictions(traces, small_launch(dp_shard=6, hosts=(3, 3)))
    assert diagnosis(traces).verdict == "all_good"


def test_the_launch_file_of_another_job_is_refused() -> None:
    with pytest.raises(InputError, match="dumps of a job of 6 ranks, and a launch file of small for 4"):
        add_predictions(ring(False, 10).traces(), small_launch(dp_shard=4))


def test_a_launch_file_of_as_many_ranks_and_other_groups_is_refused() -> None:
    run = Run(4)
    run.group("a", (0, 1), desc="dp_shard")
    run.group("alone", (2,), desc="pp")  # an axis of degree 1 has groups of one rank, and the launch file no entry
    run.issue(0, "a")
    assert add_predictions(run.traces(), small_launch(pp=2, dp_shard=2)) == 0
    with pytest.raises(InputError, match=r"group dp_shard of ranks 0, 1, which small does not .*this job ran"):
        add_predictions(run.traces(), small_launch(dp_shard=4))
