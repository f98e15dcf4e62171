"""The command ``simulate``: its output, files and refusals."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import instances
import scaleacross as sa
from scaleacross.api.weeks import simulate_weeks
from scaleacross.cli import app
from scaleacross.emitters.step_trace import step_trace_json
from scaleacross.errors import InputError
from scaleacross.report.page import html
from scaleacross.report.simulation import chart_line
from scaleacross.simulation.what_if import disturbance_of, notes_on
from scaleacross.spec.plan import COMPONENTS, Plan
from scaleacross.spec.topology import Topology
from scaleacross.units import human_bytes

RUNNER = CliRunner()
PINNED: dict[str, Any] = {"num_accelerators": 16, "schedules": "1F1B", "recompute": "none"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan for two buildings joined by a link, with data parallelism across."""
    degrees = {"pp": 2, "dp_replicate": 4, "tp": 2, "cp": 1, "dp_shard": 1}
    return sa.plan(instances.plain_job(2, 2, degrees=degrees, shard=["none"], **PINNED), alternatives=False)


@pytest.fixture(scope="module")
def path(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_text(plan.model_dump_json())
    return str(file)


def test_report_holds_estimate_and_simulation_side_by_side(path: str) -> None:
    result = RUNNER.invoke(app, ["simulate", path, "--gantt"])
    assert result.exit_code == 0, result.output
    for words in (
        "Estimated and simulated step time",
        "pipeline bubble",
        "of the step",
        "F forward",
        "F0",
        "|0",
        "waiting",
    ):
        assert words in result.stdout


def test_a_folder_gets_facts_and_page(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "can_draw", lambda: True)
    monkeypatch.setattr(html, "_library", lambda: "")
    for arguments in ((), ("--days", "3", "--draws", "2")):
        result = RUNNER.invoke(app, ["simulate", path, "-o", str(tmp_path / "out"), *arguments])
        assert result.exit_code == 0, result.output
        facts = json.loads((tmp_path / "out" / "simulation.json").read_text())
        assert facts.get("plan_name") or facts["days"] == 3
        assert "<figure" in (tmp_path / "out" / "report.html").read_text()


def test_json_adds_up(path: str) -> None:
    facts = json.loads(RUNNER.invoke(app, ["simulate", path, "--json"]).stdout)
    assert sum(facts["components_s"].values()) == pytest.approx(facts["step_s"])
    assert list(facts["components_s"]) == list(COMPONENTS)
    assert not any(row["spans"] for row in facts["rows"])


def test_trace_has_streams_and_never_overlaps_on_a_thread(path: str, tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["simulate", path, "--trace", str(tmp_path / "step.json")])
    assert "wrote" in result.stderr
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"compute", "pp, concurrent"} <= names
    for spans in slices(events).values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(process, thread) -> its slices in order, in whole nanoseconds, as a viewer reads them."""
    out: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            out.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    return {thread: sorted(spans) for thread, spans in out.items()}


def test_an_arrow_leads_from_every_message_to_what_its_receiver_does_next(plan: Plan) -> None:
    step = sa.simulate(plan, timeline=True)
    events = json.loads(step_trace_json(step))["traceEvents"]
    sent, arrived = ({one["id"]: one for one in events if one["ph"] == letter} for letter in "sf")
    assert len(sent) == len(arrived) == len(step.messages) > 0
    computations = slices(events)
    for number, end in arrived.items():
        start = sent[number]
        assert start["pid"] != end["pid"] and start["ts"] < end["ts"]
        at = round(start["ts"] * 1000)
        assert any(first <= at < last for first, last in computations[start["pid"], start["tid"]])  # leaves a slice
        assert computations[end["pid"], end["tid"]][-1][0] >= round(end["ts"] * 1000)  # and finds one


def test_the_critical_path_is_one_chain_from_the_first_computation_to_the_end(plan: Plan) -> None:
    step = sa.simulate(plan, timeline=True)
    events = json.loads(step_trace_json(step))["traceEvents"]
    (process,) = [
        one["pid"] for one in events if one["name"] == "process_name" and one["args"]["name"] == "critical path"
    ]
    chain = slices(events)[process, 0]
    assert chain[0][0] == 0
    assert chain[-1][1] == pytest.approx(step.step_s * 1e9, rel=1e-4)
    covered = sum(end - start for start, end in chain)
    assert covered > 0.95 * step.step_s * 1e9  # what is missing: latency between a message's end and its arrival


def test_a_trace_needs_the_timeline(plan: Plan) -> None:
    with pytest.raises(InputError, match="timeline=True"):
        step_trace_json(sa.simulate(plan))


def test_chart_lines_keep_their_width(plan: Plan) -> None:
    step = sa.simulate(plan, timeline=True)
    for width in (20, 77, 400):
        assert all(len(chart_line(row, step.step_s, width).plain) == width for row in step.rows)


# --- what if ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what_if", ["straggler=0:2", "slow=scale_up:0.1", "slow=b0/b1:0.01", "slow=building:0.1"])
def test_what_is_slower_never_makes_the_step_faster(plan: Plan, what_if: str) -> None:
    assert sa.simulate(plan, what_if=[what_if]).step_s >= sa.simulate(plan).step_s


def test_a_straggler_slows_its_own_stage(plan: Plan) -> None:
    slow = sa.simulate(plan, what_if=["straggler=0:2"])
    assert slow.step_s > 1.2 * sa.simulate(plan).step_s


def test_a_slow_trunk_slows_what_crosses_it(plan: Plan) -> None:
    assert len(plan.placement.fill) == 2
    assert sa.simulate(plan, what_if=["slow=b0/b1:0.001"]).step_s > 1.2 * sa.simulate(plan).step_s


def test_a_change_is_held_against_the_step_without_it_and_named_as_a_cause(plan: Plan, path: str) -> None:
    slow, steady = sa.simulate(plan, what_if=["slow=b0/b1:0.001"]), sa.simulate(plan)
    assert slow.undisturbed_s == pytest.approx(steady.step_s) and steady.undisturbed_s is None and steady.change is None
    assert slow.flags and all(one.cause.startswith("the estimate is without slow=b0/b1:0.001; ") for one in slow.flags)
    shown = " ".join(RUNNER.invoke(app, ["simulate", path, "--what-if", "slow=b0/b1:0.001"]).output.split())
    assert f"slow=b0/b1:0.001: {slow.step_s / steady.step_s:.3g} times the {steady.step_s:.4g} s without" in shown


def test_a_lost_rack_leaves_its_micro_batches_to_others(plan: Plan) -> None:
    assert sa.simulate(plan, what_if=["lost-rack=b0:0"]).component("compute") > 1.3 * sa.simulate(plan).component(
        "compute"
    )


def test_what_several_options_take_adds_up(plan: Plan) -> None:
    """Repeated options add up: two racks, and two losses of one level.

    Earlier only the second one counted.
    """
    with pytest.raises(InputError, match="in one of these racks, so the job stops"):
        sa.simulate(plan, what_if=["lost-rack=b0:0", "lost-rack=b1:0"])
    topology = Topology.model_validate(plan.job.topology)
    both = disturbance_of(["slow=zone:0.5", "slow=b0/b1:0.25", "slow=rack:0.5"], plan, topology).slowdown
    assert both.levels == {1: 0.5, 2: 0.5} and both.trunks == {frozenset(("b0", "b1")): 0.25}
    planes = topology.model_dump(mode="json")
    for building in (one for region in planes["regions"] for one in region["buildings"]):
        building["links"]["zone"]["num_planes"] = 4
    lost = ["slow=zone:0.5", "lost-plane=zone"]
    assert disturbance_of(lost, plan, Topology.model_validate(planes)).slowdown.levels == {2: 0.5 * 0.75}


@pytest.mark.parametrize(
    "twice",
    [
        ["slow=b0/b1:0.5", "slow=b1/b0:0.5"],
        ["lost-rack=b0:0", "lost-rack=b0:0"],
        ["jitter=0.1", "jitter=0.2"],
        ["straggler=1:2", "straggler=1:3"],
        ["straggler=1:2", "straggler=01:3"],
    ],
)
def test_the_same_stated_twice_is_refused(plan: Plan, twice: list[str]) -> None:
    with pytest.raises(InputError, match="says it already: state it once"):
        sa.simulate(plan, what_if=twice)


def test_replicas_that_meet_rarely_send_a_part_of_their_gradients(plan: Plan) -> None:
    """Replicas that synchronise rarely send a part of their gradients.

    They send one fiftieth of a step's bytes between replicas, or that with an eighth of the bits. All else is
    unchanged.
    """

    def carried(*what_if: str) -> float:
        (trunk,) = (link for link in sa.simulate(plan, what_if=what_if).links if link.name.startswith("trunk b0 to b1"))
        return trunk.carried_bytes

    assert plan.placement.axis_order[-1] == "dp_replicate"  # nothing else crosses
    assert carried("sync-every=50") == pytest.approx(carried() / 50)
    assert carried("sync-every=50:4") == pytest.approx(carried() / 400)
    assert carried("sync-every=1") == carried()
    (note,) = sa.simulate(plan, what_if=["sync-every=50"]).notes
    held = max(stage.optimizer_bytes for stage in plan.memory) / plan.job.optimizer.state_bytes
    assert "replicas drift apart" in note and f"keep up to {human_bytes(8 * held)} more" in note
    on_host = plan.model_copy(
        update={"memory": tuple(stage.model_copy(update={"optimizer_bytes": 0.0}) for stage in plan.memory)}
    )
    assert "more" not in notes_on(["sync-every=50"], on_host)[0]
    with pytest.raises(InputError, match="is of one step"):
        simulate_weeks(plan, days=1, what_if=["sync-every=50"])


def test_one_replica_has_nobody_to_meet() -> None:
    degrees = {"pp": 2, "dp_replicate": 1, "tp": 2, "cp": 1, "dp_shard": 4}
    job = instances.plain_job(2, 2, degrees=degrees, shard=["optimizer"], **PINNED)
    with pytest.raises(InputError, match="plan has one replica"):
        sa.simulate(sa.plan(job, alternatives=False), what_if=["sync-every=50"])


def test_without_copies_of_its_states_a_job_stops_with_a_rack() -> None:
    """Without copies of its states a job stops when a rack fails.

    Each of four ranks of dp_shard holds a quarter of the states that no other rank has.
    """
    degrees = {"pp": 2, "dp_replicate": 1, "tp": 2, "cp": 1, "dp_shard": 4}
    job = instances.plain_job(2, 2, degrees=degrees, shard=["optimizer"], **PINNED)
    with pytest.raises(InputError, match="all fault units"):
        sa.simulate(sa.plan(job, alternatives=False), what_if=["lost-rack=b0:0"])


def test_jitter_follows_its_seed(plan: Plan) -> None:
    one, again, other = (sa.simulate(plan, what_if=["jitter=0.1", f"seed={seed}"]).step_s for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    ("what_if", "words"),
    [
        ("wind=3", "choose from jitter"),
        ("jitter=much", "a number from 0 to 1 is expected, got 'much'"),
        ("slow=moon:0.5", "no link 'moon'"),
        ("lost-plane=building", "states no num_planes for level building"),
        ("seed=1.5", "a whole number is expected, got '1.5'"),
        ("straggler=99999:2", "there is no global rank 99999"),
        ("sync-every=0", "a number from 1 to 1e+06 is expected, got '0'"),
        ("sync-every=50:64", "a number from 1 to 32 is expected, got '64'"),
        ("lost-rack=nowhere:0", "the plan uses no building 'nowhere'"),
    ],
)
def test_what_if_that_is_none_is_refused(path: str, what_if: str, words: str) -> None:
    result = RUNNER.invoke(app, ["simulate", path, "--what-if", what_if])
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_older_plan_is_refused(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan.model_copy(update={"work": None}).model_dump_json())
    result = RUNNER.invoke(app, ["simulate", str(tmp_path / "plan.json")])
    assert result.exit_code == 2
    assert "does not state its computation" in result.stderr
