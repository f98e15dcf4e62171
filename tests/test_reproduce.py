"""Design spaces: the drawn points, their baselines, the stored records, and the text of the page."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from scaleacross.api import Reproduction, ablation, design_replay, refereeing, study_run
from scaleacross.api.assemble import cost_of
from scaleacross.api.design_run import BASELINE_NAMES, PLAN_NAMES, design_key, run_design_point
from scaleacross.api.problems import problem_of
from scaleacross.catalogue import design_points, load_design_space
from scaleacross.catalogue.design_spaces import draw
from scaleacross.cli import app
from scaleacross.report.design_space import lost, single_gains
from scaleacross.report.design_space_page import design_page, design_svg
from scaleacross.spec.design_space import AXES, DesignSpace
from scaleacross.spec.plan import Decision

LINK = {"technology": "roce-400g", "one_way_latency_us": 5}
SMALL: dict[str, Any] = {
    "name": "small",
    "command": "reproduce",
    "model": {"llama3.1-8b": 4096},
    "accelerators": [32],
    "fleet": [["h100"]],
    "buildings": [2],
    "distance": [{"num_regions": 1, "one_way_latency_ms": 0.1}, {"num_regions": None, "one_way_latency_ms": 10}],
    "oversubscription": [4],
    "latency_in_region_ms": 0.025,
    "kinds": {"h100": {"accelerator": "h100-sxm"}},
    "building_defaults": {
        "accelerators_per_host": 8,
        "hosts_per_rack": 1,
        "racks_per_zone": 2,
        "links": {"scale_up": {"technology": "nvlink4", "one_way_latency_us": 1}}
        | dict.fromkeys(("rack", "zone", "building"), LINK),
    },
    "tokens_per_step": {"least": 262144, "per_accelerator": 1},
    "job": {"degrees": {"cp": 1}, "schedules": ["1F1B", "ZBH1"], "micro_batch_sequences": 1, "stages": "equal"},
    "points": 2,
    "gap_tolerance": 0.001,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("space")


@pytest.fixture(scope="module")
def found(folder: Path) -> Reproduction:
    return sa.reproduce(SMALL, directory=folder)


# --- what is drawn --------------------------------------------------------------------------------------------------


def test_the_published_space_is_the_one_that_was_asked_for() -> None:
    space, _ = load_design_space("scale_across")
    assert space.points >= 240
    assert set(space.buildings) == {2, 3, 4, 6, 8}
    assert {distance.num_regions for distance in space.distance} >= {1, 2, 3}
    assert (min(space.accelerators), max(space.accelerators)) == (1024, 131072)
    assert {len(fleet) for fleet in space.fleet} == {1, 2}
    assert {"llama3.1-405b", "deepseek-v3"} <= set(space.model)


def test_a_prefix_is_what_fewer_points_are_and_every_value_stands_about_equally_often() -> None:
    space, _ = load_design_space("scale_across")
    drawn = draw(space)
    assert draw(space, 24) == drawn[:24]
    assert len({repr(values) for values in drawn}) == space.points
    assert all((values["distance"].num_regions or 1) <= values["buildings"] for values in drawn)
    for axis in AXES:
        counts = Counter(repr(values[axis]) for values in drawn)
        wanted = Counter(map(repr, space.values[axis]))
        shares = {value: counts[value] / number for value, number in wanted.items()}
        assert min(shares.values()) > 0.55 * max(shares.values()), axis
    every = draw(space, 10**6)
    assert len(every) == len(space.combinations)


def test_a_fleet_is_built_as_it_says() -> None:
    data = SMALL | {
        "accelerators": [56],
        "buildings": [4],
        "fleet": [["h100", "b200"]],
        "kinds": SMALL["kinds"] | {"b200": {"accelerator": "b200"}},
        "distance": [{"num_regions": 2, "one_way_latency_ms": 10}],
        "points": 1,
    }
    [point] = design_points(load_design_space(data)[0])
    topology = problem_of(point.job, ()).topology
    assert [building.num_accelerators for building in topology.buildings] == [16, 16, 16, 8]
    assert [building.accelerator.name for building in topology.buildings] == ["h100-sxm", "b200"] * 2
    assert [len(region.buildings) for region in topology.regions] == [2, 2]
    trunks = {trunk.between: trunk for trunk in topology.trunks}
    assert len(trunks) == 6
    assert trunks["building-0", "building-1"].one_way_latency_s == pytest.approx(25e-6)
    assert trunks["building-1", "building-2"].one_way_latency_s == pytest.approx(10e-3)
    assert {trunk.oversubscription_ratio for trunk in trunks.values()} == {12}
    assert point.fields["fleet"] == "h100+b200"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fleet": [["h300"]]}, "kind 'h300'; kinds: h100"),
        ({"distance": [{"num_regions": 3, "one_way_latency_ms": 1}]}, "more regions or kinds than buildings"),
        ({"command": "plan"}, "is no design space"),
    ],
)
def test_a_wrong_space_says_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        load_design_space(SMALL | changes)


def test_a_design_space_is_no_sweep() -> None:
    with pytest.raises(sa.InputError, match="scaleacross reproduce"):
        sa.sweep("scale_across")


# --- baselines ---------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_ours_is_never_slower_and_one_dimension_never_loses_to_production(found: Reproduction) -> None:
    assert {row["status"] for row in found.rows} <= {"gap_tolerance", "optimal"}
    assert lost(found) == []
    for row in found.rows:
        assert {f"{name}_s" for name in PLAN_NAMES} <= set(row)
        assert row["ours_s"] == row["step_s"]
        assert all(
            row[f"{name}_s"] <= row["production_s"] * (1 + 1e-9) for name in ("placement", "schedule", "network")
        )
        gains = single_gains(found, row)
        assert gains["joint"] >= max(gains.values()) * (1 - 1e-9)


@pytest.mark.heavy
def test_axes_keep_their_names_in_the_table(found: Reproduction) -> None:
    """Plans may leave accelerators idle, but the column of an axis keeps the size of the topology."""
    assert {row["accelerators"] for row in found.rows} == {32}
    assert all(
        row["accelerators_used"] == row["tp"] * row["pp"] * row["dp_shard"] * row["dp_replicate"] for row in found.rows
    )


@pytest.mark.heavy
def test_each_ablation_changes_its_own_dimension_only(folder: Path, found: Reproduction) -> None:
    for line in (folder / "points.jsonl").read_text().splitlines():
        chosen = {name: Decision.model_validate(one) for name, one in json.loads(line)["decisions"].items()}
        start, placed, timed, wired = (chosen[name] for name in ("production", "placement", "schedule", "network"))
        bare: dict[str, None] = {"placement": None, "layers_per_stage": None, "batch_shares": None}
        assert placed.model_copy(update=bare) == start.model_copy(update=bare)
        assert timed.model_copy(update={"pipeline": start.pipeline}) == start
        assert wired.model_copy(update={"network": None}) == start and wired.network is not None
        assert chosen["placement_and_degrees"].pipeline.schedule == "1F1B"
        assert chosen["placement_and_degrees"].network is None


@pytest.mark.heavy
def test_the_best_schedule_is_found_where_there_is_a_pipeline() -> None:
    [point, _] = design_points(load_design_space(SMALL)[0])
    problem = problem_of(point.job, ())
    start = sa.plan(point.job, overrides=["degrees.pp=4", "schedules=[1F1B]"]).decision
    better = ablation.better_schedule(problem, {"production": start})
    assert better.pipeline.schedule == "ZBH1"
    assert cost_of(problem, better).cost.step_s < cost_of(problem, start).cost.step_s


# --- what is stored -----------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_second_run_runs_nothing_and_a_wider_one_only_what_is_new(
    folder: Path, found: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = sa.reproduce(SMALL, directory=folder)
    assert (again.num_run, again.rows) == (0, found.rows)
    monkeypatch.setattr(study_run, "run_points", lambda task, points, *_: points and pytest.fail("something was run"))
    first = sa.reproduce(SMALL, directory=folder, points=1)
    assert first.rows == found.rows[:1]
    wider = SMALL | {"points": 4, "oversubscription": [4, 8]}
    half = sa.reproduce(wider, directory=folder, run=False)
    assert (half.num_drawn, half.num_run) == (4, 0)
    assert 0 < len(half.rows) <= 2  # those with 1:4
    with pytest.raises(sa.InputError, match="nothing was run there yet"):
        sa.reproduce(SMALL, directory=folder / "elsewhere", run=False)


@pytest.mark.heavy
def test_the_page_states_what_the_rows_say(found: Reproduction) -> None:
    page = design_page(found, "scaleacross reproduce small", date(2030, 1, 2))
    assert "small: 2 of 2 combinations" in page
    assert "Plans of others with a lower estimate than the best that our search found: 0" in page
    assert "| production, all points | estimate | 2 | " in page and "| simulation |" not in page
    ratio = max(row["production_s"] / row["ours_s"] for row in found.rows)
    assert "| production | 2 | " in page and f" | {ratio:.2f} | " in page
    assert all(f"\n| {name} | " in page for name in BASELINE_NAMES)
    svg = design_svg(found)
    assert svg.count("<polyline") == 2 and svg.endswith("</svg>\n")


@pytest.mark.heavy
def test_the_simulation_runs_what_the_records_name(folder: Path, found: Reproduction) -> None:
    assert not any("ours_simulated_s" in row for row in found.rows)
    assert "was simulated yet" in design_page(found, "", date(2030, 1, 2))
    replayed = sa.reproduce(SMALL, directory=folder, points=1, replay=True)
    [row] = replayed.rows
    assert row["ours_priced_s"] == pytest.approx(row["ours_s"], rel=1e-12)
    [line, _] = (json.loads(text) for text in (folder / "points.jsonl").read_text().splitlines())
    plan = sa.evaluate((design_points(load_design_space(SMALL)[0])[0].job, Decision(**line["decisions"]["ours"])))
    assert row["ours_simulated_s"] == pytest.approx(sa.simulate(plan).step_s, rel=1e-9)
    page = design_page(replayed, "", date(2030, 1, 2))
    names = [name for name in PLAN_NAMES if f"{name}_s" in row]
    assert {*BASELINE_NAMES, *replayed.ablations, "ours"} == set(names)
    assert all(row[f"{name}_priced_s"] == pytest.approx(row[f"{name}_s"], rel=1e-12) for name in names)
    off = max((row[f"{name}_priced_s"] / row[f"{name}_simulated_s"] - 1 for name in names), key=abs)
    different = len({(row[f"{name}_priced_s"], row[f"{name}_simulated_s"]) for name in names})
    assert f"| all, equal ones once | {different} | " in page and f" {off:+.1%} |" in page
    assert different < len(names)
    fastest = min(row[f"{name}_simulated_s"] for name in BASELINE_NAMES) / row["ours_simulated_s"]
    assert f"| the best baseline, all points | simulation | 1 | {fastest:.3f} | " in page
    assert "| by simulation, 1 points | placement | schedule | network | placement and degrees | joint |" in page
    again = sa.reproduce(SMALL, directory=folder, run=False)  # listed with the points that have no simulation
    assert ["ours_simulated_s" in row for row in again.rows] == [True, False]


@pytest.mark.heavy
def test_a_plan_that_the_simulator_refuses_has_no_time_and_says_why(
    found: Reproduction, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(plan: sa.Plan) -> None:
        raise sa.InputError("not this one")

    monkeypatch.setattr(design_replay, "simulated_step_s", refuse)
    [line, _] = (json.loads(text) for text in (folder / "points.jsonl").read_text().splitlines())
    contest = design_replay.contest_of(design_points(load_design_space(SMALL)[0])[0].job, line)
    assert contest is not None
    record = design_replay.replay_contest(contest)
    assert record["figures"] == {} and "ours: not this one" in record["reason"]
    assert design_replay.contest_of(contest.job, {"status": "infeasible"}) is None


@pytest.mark.heavy
def test_the_page_names_what_the_simulation_says_against_us(found: Reproduction) -> None:
    """The page lists lost comparisons, wrong estimates, plans without a simulation, and baselines without a plan."""
    rows = [dict(row) for row in found.rows]
    rows[0] |= {
        "ours_priced_s": 2.0,
        "ours_simulated_s": 4.0,
        "production_priced_s": 3.0,
        "production_simulated_s": 3.0,
    }
    rows[1] |= {"referee": "ours: too long to play ", "atlas_s": None, "atlas_reason": "no rows of racks"}
    cheap = {"arnold_priced_s": 8.0, "arnold_simulated_s": 2.0}  # slow by estimate, the fastest by simulation
    rows[0] |= cheap | {"network_priced_s": 3.0, "network_simulated_s": 3.0}  # production's plan under another name
    page = design_page(Reproduction(**{**vars(found), "rows": tuple(rows)}), "", date(2030, 1, 2))
    assert "| production, all points | simulation | 1 | 0.750 | 0.75 | 0 | 1 |" in page
    assert "| the best baseline, all points | simulation | 1 | 0.500 | 0.50 | 0 | 1 |" in page
    assert "Estimate and simulation of 3 plans are within 5% on 1 (33%)." in page
    assert "- -50.0%: ours, llama3.1-8b on 32 h100" in page
    assert "slower than production on 1 point:\n- production takes 0.750 of our step: llama3.1-8b" in page
    assert "slower than the best baseline on 1 point:\n- arnold takes 0.500 of our step: llama3.1-8b" in page
    assert "one dimension of production on 1 point:\n- network only takes 0.750 of our step: llama3.1-8b" in page
    assert "could not be simulated: 1\n- llama3.1-8b on 32 h100" in page and "ours: too long to play" in page
    assert "Baselines without a plan: 1\n- atlas, 1 point: no rows of racks" in page


@pytest.mark.heavy
def test_the_simulation_chooses_our_plan_among_the_finalists_of_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalist with the longest estimate is fastest here and becomes our plan.

    The comparison by estimates uses the best estimate, which loses to no baseline. Simulated times are below all
    estimates, so no further plan is simulated.
    """
    monkeypatch.setattr(refereeing, "stepped", lambda plan, _: SimpleNamespace(step_s=1e-6 / plan.cost.step_s))
    monkeypatch.setattr(refereeing, "PRICE_RATIO", 2.0)
    space, _ = load_design_space(SMALL | {"finalists": 3, "time_limit_s": 1, "rival_time_limit_s": 1})
    [point, _] = design_points(space)
    record = run_design_point(space, point)
    figures = record["figures"]
    assert record["reason"] == "" and 1 < figures["finalists"] <= 3
    assert figures["best_price_s"] < figures["ours_s"]
    assert all(
        figures["best_price_s"] <= figures[f"{name}_s"] * (1 + 1e-9) for name in PLAN_NAMES if f"{name}_s" in figures
    )
    contest = design_replay.contest_of(point.job, record)
    assert contest is not None and contest.ours_s == (figures["ours_s"], 1e-6 / figures["ours_s"])
    ours_alone = replace(contest, decisions={"ours": contest.decisions["ours"]})
    simulated = design_replay.replay_contest(ours_alone)["figures"]
    assert (simulated["ours_priced_s"], simulated["ours_simulated_s"]) == contest.ours_s
    row = {**point.fields, **figures, "seconds": 1.0, "status": record["status"], "reason": ""}
    found = Reproduction(space, (row,), 1, 1, BASELINE_NAMES, tuple(ablation.ABLATIONS), {})
    assert lost(found) == []
    assert lost(replace(found, rows=({**row, "atlas_s": 0.9 * figures["best_price_s"]},)))
    by_price = space.model_copy(update={"finalists": None})
    assert design_key(space, point, "1") != design_key(by_price, point, "1")


def test_words_and_the_last_digits_of_a_figure_make_no_other_point() -> None:
    space, folder = load_design_space(SMALL)
    point = design_points(space, folder)[0]
    topology: Any = point.job.topology
    trunks = [one | {"one_way_latency_s": one["one_way_latency_s"] * (1 + 1e-15)} for one in topology["trunks"]]

    def key(**changes: Any) -> str:
        job = point.job.model_copy(update={"topology": topology | changes})
        return design_key(space, replace(point, job=job), "1")

    assert key(description="the same fleet in other words") == key(trunks=trunks) == key()
    assert key(name="another") != key() != design_key(space, point, "2")


def test_fields_of_a_space_can_be_overridden() -> None:
    space, _ = load_design_space("scale_across", ["accelerators=[1024]", "points=3"])
    assert {point.fields["accelerators"] for point in design_points(space)} == {1024}
    with pytest.raises(sa.InputError, match="acelerators"):
        load_design_space("scale_across", ["acelerators=[1024]"])


@pytest.mark.heavy
def test_the_page_tells_baselines_that_were_cut_short_from_others(found: Reproduction) -> None:
    rows = [dict(row) | {f"{name}_complete": True for name in BASELINE_NAMES} for row in found.rows]
    rows[0]["production_complete"] = False
    page = design_page(Reproduction(**{**vars(found), "rows": tuple(rows)}), "", date(2030, 1, 2))
    cut, ended = (row["production_s"] / row["ours_s"] for row in rows)
    assert f"| production | 1 | {ended:.3f} | {ended:.2f} | 1 | {cut:.3f} | {cut:.2f} |" in page
    assert any(line.startswith("| the best baseline | 1 | ") for line in page.splitlines())
    assert page.count("| 0 | – | – |") == len(BASELINE_NAMES) - 1
    assert f"| production, run to its end | estimate | 1 | {ended:.3f} | " in page
    assert page.index("| production, run to its end |") < page.index("| production, all points |")
    by_work = Reproduction(**{**vars(found), "space": found.space.model_copy(update={"work_limit": 40})})
    assert "came to their end within 40 step times" in design_page(by_work, "", date(2030, 1, 2))


@pytest.mark.heavy
def test_a_loss_is_reported(found: Reproduction) -> None:
    worse = [dict(row) for row in found.rows]
    worse[0]["atlas_s"] = worse[0]["ours_s"] * 0.9
    tampered = Reproduction(**{**vars(found), "rows": tuple(worse)})
    assert len(lost(tampered)) == 1 and "atlas takes 0.9000 of our step" in lost(tampered)[0]
    assert "than the best that our search found: 1" in design_page(tampered, "", date(2030, 1, 2))


@pytest.mark.heavy
def test_cli(folder: Path, found: Reproduction, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(SMALL))
    command = ["reproduce", str(path), "--no-run", "-o", str(folder)]
    result = CliRunner().invoke(app, [*command, "--json", "--docs", str(tmp_path / "docs")])
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["done"], data["drawn"], data["slower"]) == (2, 2, [])
    assert data["speed_up_over"]["production"]["points"] == 2
    assert sorted(file.name for file in (tmp_path / "docs").iterdir()) == ["small.csv", "small.md", "small.svg"]
    shown = CliRunner().invoke(app, command)
    assert "2 of 2 drawn, 0 run now" in shown.stdout
    broken = [json.loads(text) for text in (folder / "points.jsonl").read_text().splitlines()]
    broken[0]["figures"]["atlas_s"] = broken[0]["figures"]["ours_s"] / 2
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(line) + "\n" for line in broken))
    lost_one = CliRunner().invoke(app, ["reproduce", str(path), "--no-run", "-o", str(tmp_path)])
    assert lost_one.exit_code == 1
    assert "a baseline has a lower estimate on 1, which is a bug" in lost_one.stderr


@pytest.mark.slow
def test_too_little_agreement_of_estimate_and_simulation_fails(
    folder: Path, found: Reproduction, tmp_path: Path
) -> None:
    path, home = tmp_path / "small.yaml", tmp_path / "home"
    path.write_text(json.dumps(SMALL))
    shutil.copytree(folder, home)
    sa.reproduce(SMALL, directory=home, replay=True)
    command = ["reproduce", str(path), "--no-run", "-o", str(home), "--agree"]
    assert CliRunner().invoke(app, [*command, "0"]).exit_code == 0
    lines = [json.loads(text) for text in (home / "replays.jsonl").read_text().splitlines()]
    for line in lines:
        line["figures"]["ours_simulated_s"] *= 2
    (home / "replays.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = CliRunner().invoke(app, [*command, "0.99"])
    assert failed.exit_code == 1
    assert "simulated plans are within 5% of their estimate, 99% are wanted" in failed.stderr


def test_the_spaces_axes_are_its_fields() -> None:
    assert set(AXES) <= set(DesignSpace.model_fields)
