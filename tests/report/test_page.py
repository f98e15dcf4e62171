"""report.html: the data of its charts, its size, no need for a network, and rendering in a browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job
from priced import MONEY, two
from report.conftest import Render
from scaleacross.cli import app
from scaleacross.cli.page import page_files
from scaleacross.report.memory import PARTS
from scaleacross.report.page import html
from scaleacross.report.page.chart import Chart, whole_spec
from scaleacross.report.page.design_space import space_page
from scaleacross.report.page.html import page
from scaleacross.report.page.pages import (
    comparison_page,
    front_page,
    plan_page,
    simulation_page,
    sweep_page,
    weeks_page,
)
from scaleacross.report.page.pictures import picture_files
from scaleacross.report.page.pipeline import actions_of, critical_path, pipeline_chart, simulated_chart, waits
from scaleacross.report.page.site import placement, site_map, trunk_loads
from scaleacross.report.page.step import memory, waterfall
from scaleacross.report.page.studies import front_chart, sweep_charts
from scaleacross.report.terminal import plan_report, section_texts
from scaleacross.spec.goodput import LongRun
from scaleacross.spec.placement import BuildingShare, coordinates
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.summary import PlanSummary

SMALL = {"degrees": {"tp": 1, "cp": 1}, "schedules": ["1F1B"], "recompute": ["none"]}
NOTHING = PlanSummary(bottlenecks=())
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
can_draw = pytest.mark.skipif(not html.can_draw(), reason="the extra 'report' (vl-convert-python) is not installed")


@dataclass
class Found:
    """The fields of a result that the page of a design space reads."""

    rows: list[dict[str, Any]]
    num_drawn: int = 240
    rivals: tuple[str, ...] = ("production",)
    ablations: tuple[str, ...] = ()
    space: Any = field(default_factory=lambda: SimpleNamespace(name="toy"))


def drawn(chart: Chart, layer: int | None = None) -> list[dict[str, Any]]:
    """The rows of a chart, or of one of its layers."""
    spec: Any = chart.spec if layer is None else chart.spec["layer"][layer]
    return list(spec["data"]["values"])


# --- what the charts hold --------------------------------------------------------------------------------------------


def test_parts_of_the_step_follow_each_other_up_to_the_step(plan: Plan) -> None:
    rows = drawn(waterfall(plan))
    assert rows[0]["from"] == 0
    assert [row["to"] for row in rows[:-1]] == [row["from"] for row in rows[1:]]
    assert rows[-1]["to"] == pytest.approx(plan.cost.step_s)


def test_memory_of_a_stage_adds_up(plan: Plan) -> None:
    chart = memory(plan)
    own = [row["GiB"] for row in drawn(chart, 0) if row["stage"] == 1]
    assert len(own) == len(PARTS)
    assert sum(own) == pytest.approx(plan.memory[1].total_bytes / 2**30, abs=0.01)
    assert {row["capacity"] for row in drawn(chart, 1)} == {80.0}


def test_every_rank_has_one_cell_with_its_coordinates(plan: Plan) -> None:
    cells = drawn(placement(plan), 0)
    assert [cell["n"] for cell in cells] == list(range(plan.degrees.world_size))
    assert [cell["b"] for cell in cells] == ["east"] * 40 + ["west"] * 24
    at = coordinates(plan.degrees, plan.placement.axis_order, 13)
    assert cells[13]["at"] == f"tp {at['tp']}, dp_replicate {at['dp_replicate']}, pp {at['pp']}"
    assert len({(cell["c"], cell["r"]) for cell in cells}) == len(cells)


def test_blocks_of_ranks_leave_none_out(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.report.page.site.MAX_CELLS", 10)
    cells = drawn(placement(plan), 0)
    assert [rank for cell in cells for rank in range(cell["n"], cell["l"] + 1)] == list(range(64))
    assert cells[0]["at"] == "tp all, dp_replicate 0, pp 0"


def test_the_map_shows_every_building_and_the_load_of_every_link(plan: Plan) -> None:
    chart = site_map(plan)
    edges, nodes = drawn(chart, 0), drawn(chart, 2)
    assert {node["building"]: node["said"] for node in nodes} == {"east": "40 of 64", "west": "24 of 24"}
    assert [(edge["link"], edge["load"], edge["capacity"]) for edge in edges] == [("east – west", "0.9 %", "270 GB/s")]


def test_many_links_have_a_chart_of_their_own(plan: Plan) -> None:
    assert trunk_loads(plan) is None
    topology = sa.load_topology("region_five_buildings")
    job = plan.job.model_copy(update={"topology": topology.model_dump(mode="json")})
    chosen = plan.decision.model_copy(
        update={
            "placement": plan.placement.model_copy(
                update={
                    "fill": tuple(BuildingShare(building=one.name, num_accelerators=8) for one in topology.buildings)
                }
            )
        }
    )
    many = plan.model_copy(update={"job": job, "decision": chosen})
    chart = trunk_loads(many)
    assert chart is not None and len(drawn(chart)) == len(topology.trunks) > 3
    assert {row["said"].split(" of ")[0] for row in drawn(chart)} == {"0.9 %"}
    assert len(drawn(site_map(many), 1)) == len(topology.buildings)


def test_the_simulated_step_shows_what_took_most_of_every_part() -> None:
    found = sa.simulate(small_plan(), timeline=True)
    rows = drawn(simulated_chart(found))
    row = found.rows[0]
    spent = sum(one["e"] - one["s"] for one in rows if one["r"] == row.name and one["k"] == "compute") / 1e3
    assert spent == pytest.approx(row.components_s["compute"], rel=0.05)
    for before, after in pairwise(one for one in rows if one["r"] == row.name):
        assert before["e"] <= after["s"] and (before["k"] != after["k"] or before["e"] < after["s"])


@pytest.mark.parametrize(("name", "chunks"), [("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2), ("GPipe", 1)])
def test_the_critical_path_has_no_gap_but_messages(name: Any, chunks: int) -> None:
    timeline = sa.schedule(name, 4, 8, chunks, latency_s=3e-4, message_s=1e-4, weight_gradient_s=5e-4)
    path = critical_path(timeline)
    ends = [one.end_s for row in actions_of(timeline) for one in row]
    assert path[-1].end_s == max(ends) and path[0].start_s == 0
    arrivals = {(message.source, message.action): message.arrival_s for message in timeline.messages}
    for before, after in pairwise(path):
        reached = [before.end_s, arrivals.get((before.rank, f"{before.stage}{before.kind}{before.micro_batch}"), 0.0)]
        assert any(after.start_s == pytest.approx(at, abs=1e-12) for at in reached)
        assert after.rank == before.rank or after.micro_batch == before.micro_batch


def test_waits_are_idle_time_with_a_message_under_way() -> None:
    slow, fast = (sa.schedule("1F1B", 4, 8, latency_s=latency) for latency in (1e-3, 0.0))
    assert waits(fast) == []
    found = waits(slow)
    assert found
    for rank, start, end in found:
        assert 0 < end - start <= 1e-3 + 1e-9
        row = slow.rows[rank]
        assert not any(s < end - 1e-9 and e > start + 1e-9 for s, e in zip(row.start_s, row.end_s, strict=True))


def test_long_pipelines_draw_some_ranks_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.report.page.pipeline.MAX_SPANS", 50)
    chart = pipeline_chart(sa.schedule("1F1B", 8, 8))
    assert {row["r"] for row in drawn(chart)} == {0, 4, 7}
    assert "3 of 8 ranks are drawn" in chart.note


@cache
def small_plan() -> Plan:
    return sa.plan(plain_job(2, 2, **SMALL), time_limit_s=5)


@cache
def front() -> Any:
    return sa.pareto(two("step_time", **SMALL), ("step_time", MONEY), points=3)


@cache
def two_paths() -> Any:
    return study(global_batch_sequences=[8, 16], sequence_length=[2048, 4096])


def study(**grid: Any) -> Any:
    job = plain_job(2, **SMALL).model_dump(mode="json", exclude_none=True)
    return sa.sweep({"name": "small", "base": [job], "grid": grid})


@pytest.mark.heavy
def test_a_study_of_two_paths_is_a_map_and_of_one_is_bars() -> None:
    result = two_paths()
    (chart,) = sweep_charts(result)
    assert {(row["x"], row["y"]) for row in drawn(chart)} == {(a, b) for a in ("8", "16") for b in ("2048", "4096")}
    assert {row["tokens/s"] for row in drawn(chart)} == {row["tokens_per_s"] for row in result.rows}
    (bars,) = sweep_charts(study(global_batch_sequences=[8, 16]))
    assert [row["label"] for row in drawn(bars)] == ["8", "16"]


@pytest.mark.heavy
def test_the_front_shows_the_bound_of_every_point() -> None:
    rows = drawn(front_chart(front()))
    assert [row["step_time"] for row in rows] == [point.values[0] for point in front().points]
    for row, point in zip(rows, front().points, strict=True):
        assert row["bound x"] <= row["step_time"] * (1 + 1e-9) and row["bound y"] >= row[MONEY] * (1 - 1e-9)
        assert row["optimised"] == point.plan.job.objective


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@can_draw
def test_names_are_escaped_and_nothing_is_fetched(plan: Plan) -> None:
    job = plan.job.model_copy(update={"name": "</script><script>alert(1)</script>"})
    text = page(*plan_page(plan.model_copy(update={"job": job}), NOTHING, None), "scaleacross")
    assert "<script>alert" not in text
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    specs = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)
    assert len(specs) == text.count("<figure") > 4
    assert all(json.loads(spec)["width"] == "container" for spec in specs)


@pytest.mark.heavy
@can_draw
def test_the_page_of_a_plan_holds_every_section_of_its_whole_report(plan: Plan, render: Render) -> None:
    text = unescape(page_files(lambda: plan_page(plan, NOTHING, None), plan)["report.html"])
    whole = render(plan_report(plan), 140)
    assert {"collectives", "proof"} <= section_texts(plan).keys()
    assert all(line.rstrip() in text for line in whole.splitlines()[1:])
    assert "<pre class=" not in page("x", [], [], "y")


@pytest.mark.slow
@can_draw
def test_a_page_of_131072_accelerators_has_at_most_3_mb() -> None:
    job = sa.load_job("llama3_405b_region")
    allocation = [
        {"building": f"building-{name}", "num_accelerators": size}
        for name, size in (("a", 27648), ("b", 27648), ("c", 27648), ("d", 24064), ("e", 24064))
    ]
    decision = {
        "degrees": {"tp": 4, "cp": 4, "pp": 16, "dp_shard": 256, "dp_replicate": 2},
        "pipeline": {"schedule": "Interleaved1F1B", "num_chunks": 8, "micro_batch_sequences": 1},
        "recompute": "none",
        "shard": "optimizer",
        "placement": {"axis_order": ["tp", "cp", "pp", "dp_shard", "dp_replicate"], "fill": allocation},
    }
    found = sa.evaluate((job, Decision.model_validate(decision)))
    assert found.degrees.world_size == 131_072
    text = page(*plan_page(found, NOTHING, sa.schedule_of_plan(found)), "scaleacross")
    assert len(text.encode()) <= 3e6


def test_without_the_library_files_are_written_and_the_way_out_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(html, "can_draw", lambda: False)
    path = tmp_path / "job.json"
    path.write_text(plain_job(2, 2, **SMALL).model_dump_json(exclude_none=True))
    made = CliRunner().invoke(app, ["plan", str(path), "-o", str(tmp_path / "out"), "--time-limit", "5"])
    assert made.exit_code == 0, made.output
    assert "no report.html: it is drawn by Vega-Lite: pip install 'scaleacross[report]'" in made.stderr
    assert (tmp_path / "out" / "plan.json").is_file() and not (tmp_path / "out" / "report.html").exists()
    with pytest.raises(sa.InputError, match="pip install"):
        page("x", [], [], "y")


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def every_chart() -> list[Chart]:
    """The charts of all pages."""
    found = small_plan()
    timeline = sa.schedule("Interleaved1F1B", 4, 8, 2, latency_s=1e-3)
    week = LongRun(
        days=7,
        draws=1,
        seed=0,
        goodput_fraction={"p5": 0.8, "p50": 0.9, "p95": 0.95, "mean": 0.9},
        closed_form_fraction=None,
        lost={"stall": 0.04, "restart": 0.06},
        interruptions=3,
        interruptions_range={"p5": 3, "p95": 3},
        interruptions_by_cause={"host": 3},
        timeline=(1.0, 0.8, 0.9),
    )
    pages = [
        plan_page(found, sa.summarise(found), timeline),
        simulation_page(found, sa.simulate(found, timeline=True)),
        front_page(front()),
        sweep_page(two_paths()),
        comparison_page(sa.compare(found.job, time_limit_s=0.5), NOTHING, None),
        weeks_page("a plan", week),
    ]
    charts = [chart for _, _, own in pages for chart in own]
    return [Chart(f"{index}-{one.name}", one.title, one.note, one.spec, one.rows) for index, one in enumerate(charts)]


@pytest.mark.heavy
@can_draw
@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_draws_every_chart_without_a_word(every_chart: list[Chart], tmp_path: Path, width: int) -> None:
    """A browser draws every chart without a message on the console.

    Every chart is an image, and nothing is wider than the window.
    """
    told = (
        "<script>const ready = setInterval(() => { if (document.body.dataset.drawn) { clearInterval(ready);"
        "document.body.dataset.wide = document.documentElement.scrollWidth; } }, 20);</script></body>"
    )
    head, _, tail = page("All charts", [("width", str(width))], every_chart, "a test").rpartition("</body>")
    path = tmp_path / "report.html"
    path.write_text(f"{head}{told}{tail}", encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=60000")
    window = (f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    assert BROWSER is not None
    ran = subprocess.run(
        [BROWSER, *options, *window, f"file://{path}"], capture_output=True, text=True, timeout=180, check=False
    )
    assert not [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert 'data-drawn="yes"' in ran.stdout
    assert ran.stdout.count("<svg") >= len(every_chart)
    wide = re.search(r'data-wide="(\d+)"', ran.stdout)
    assert wide is not None and int(wide[1]) <= max(width, 500)


@pytest.mark.heavy
@can_draw
def test_every_specification_compiles(every_chart: list[Chart]) -> None:
    import vl_convert

    for chart in every_chart:
        assert vl_convert.vegalite_to_svg(whole_spec(chart, 600)).startswith("<svg"), chart.name


@pytest.mark.heavy
@can_draw
def test_charts_are_written_as_pictures_and_tables(every_chart: list[Chart], tmp_path: Path) -> None:
    some = every_chart[:3]
    files = picture_files(some)
    assert set(files) == {f"{chart.name}.{kind}" for chart in some for kind in ("svg", "png", "csv")}
    for chart in some:
        assert bytes(files[f"{chart.name}.png"])[:4] == b"\x89PNG"
        assert str(files[f"{chart.name}.svg"]).startswith("<svg")
        assert len(list(csv.DictReader(io.StringIO(str(files[f"{chart.name}.csv"]))))) == len(chart.rows)


@pytest.mark.heavy
@can_draw
def test_commands_that_read_a_plan_write_its_charts(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(sa.plan(plain_job(1, 1, **SMALL)).model_dump_json(), encoding="utf-8")
    for command in ("evaluate", "simulate"):
        folder = tmp_path / command
        result = CliRunner().invoke(app, [command, str(path), "--charts", str(folder)])
        assert result.exit_code == 0, result.output
        assert {"site.svg", "site.png", "site.csv"} <= {one.name for one in folder.iterdir()}


def test_a_design_space_shows_baselines_that_ended_apart_from_those_cut_short() -> None:
    ours = {"ours_s": 1.0, "fleet": "h100", "buildings": 2, "regions": 1, "latency_ms": 0.25, "oversubscription": 1.0}
    rows = [
        {**ours, "model": "toy", "accelerators": 1024, "production_s": 1.1, "production_complete": True},
        {**ours, "model": "toy", "accelerators": 2048, "production_s": 9.0, "production_complete": False},
    ]
    found = Found(rows)
    _, facts, charts = space_page(found)  # type: ignore[arg-type]
    assert "most 1.10, on the 1 points where it ran to its end" in dict(facts)["over production"]
    over = next(chart for chart in charts if chart.name == "over-production")
    assert [row["tuning"] for row in over.rows] == ["baseline ran to its end", "baseline cut short"]
    assert all("2048" not in row["where"] and "2,048" not in row["where"] for row in charts[-1].rows)
