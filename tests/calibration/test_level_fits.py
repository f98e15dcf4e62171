"""Figures of network levels are fitted to bench results, written, read back and used for planning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job, plain_topology, plain_trunk
from scaleacross.api.level_calibration import level_entries
from scaleacross.calibration.levels import Bench, _Rows, with_figures
from scaleacross.catalogue.load import load_topology
from scaleacross.cli import app
from scaleacross.cost_models.plan_cost import placed_shapes
from scaleacross.errors import InputError, TooFewError
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology, trunk_bytes_per_s
from scaleacross.workloads.problem import problem_of

SIZES = [4.0**k for k in range(5, 14)]
TRUE = {"rack": (0.7, 9e-6), "campus": (0.5, 120e-6)}
"""Share of the stated rate and one-way latency in s of the measured machine."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    """dp_shard between hosts of a rack, dp_replicate between two buildings."""
    topology = plain_topology(2, 2)
    topology["trunks"][0] = plain_trunk("b0", "b1", 20.0, 20.0)
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 8, "dp_replicate": 2}
    return sa.plan(plain_job(topology=topology, degrees=degrees, shard=["optimizer"]), alternatives=False)


def machine(plan: Plan) -> Topology:
    topology = problem_of(plan.job).topology
    for level, figures in TRUE.items():
        topology = with_figures(topology, plan.decision, level, *figures, None)  # type: ignore[arg-type]
    return topology


def measured(plan: Plan, axis: str, op: str, noise: float) -> dict[str, object]:
    """Output of a bench on that machine, with log-normal noise."""
    problem = problem_of(plan.job)
    shapes = placed_shapes(problem.topology, plan.decision)
    level: LinkLevel = LINK_LEVELS[int(shapes[axis].span)]
    launch_s = problem.topology.buildings[0].accelerator.kernel_launch_s
    rows = _Rows(machine(plan), plan.decision, shapes, level, launch_s)
    bench = Bench(op, axis, tuple(SIZES), tuple(SIZES), "")
    at = np.arange(len(SIZES))
    times = rows.predict([bench], at, 1.0, TRUE[level][1])
    times = times * np.exp(np.random.default_rng(len(axis)).normal(0.0, noise, len(times)))
    row = {"algorithm_bytes_per_s": 1.0, "bus_bytes_per_s": 1.0, "num_wrong": 0, "gloo_time_s": 1.0}
    row |= {"predicted_s": None, "error_fraction": None}
    return {
        **{"plan_name": plan.job.name, "host": "dgx-7", "op": op, "axis": axis, "algorithm": "ring", "num_groups": 1},
        **{"num_ranks": getattr(plan.degrees, axis), "dtype": "float32", "iterations": 5},
        "rows": [
            {"size_bytes": int(size), "num_elements": int(size) // 4, "time_s": time, **row}
            for size, time in zip(SIZES, times.tolist(), strict=True)
        ],
    }


def benches(plan: Plan, folder: Path, noise: float = 0.03) -> list[Path]:
    out = []
    for axis, op in (("dp_shard", "reduce_scatter"), ("dp_replicate", "all_reduce")):
        path = folder / f"{axis}.json"
        path.write_text(json.dumps(measured(plan, axis, op, noise)))
        out.append(path)
    return out


def test_the_figures_that_made_the_times_are_found(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(tmp_path))
    [topology, network] = level_entries(benches(plan, tmp_path), plan, "2026-11-22")
    assert (topology.kind, network.kind) == ("topologies", "networks")
    for residual in topology.residuals:
        assert residual.base is not None and residual.base.median_abs_error > 0.2
        assert residual.in_sample.median_abs_error < 0.05 > residual.left_out["sizes"].median_abs_error
    for entry in (topology, network):
        (tmp_path / entry.path).parent.mkdir(exist_ok=True)
        (tmp_path / entry.path).write_text(entry.text)
    found, stated = load_topology(tmp_path / topology.path), problem_of(plan.job).topology
    rack, before = found.buildings[0].links.rack, stated.buildings[0].links.rack
    rate = [one.technology.bandwidth_bytes_per_s * one.technology.efficiency_fraction for one in (rack, before)]
    assert rate[0] == pytest.approx(TRUE["rack"][0] * rate[1], rel=0.1)
    assert rack.one_way_latency_s == pytest.approx(TRUE["rack"][1], rel=0.1)
    trunk = trunk_bytes_per_s(found, found.trunks[0])
    assert trunk == pytest.approx(TRUE["campus"][0] * trunk_bytes_per_s(stated, stated.trunks[0]), rel=0.1)
    assert found.trunks[0].one_way_latency_s == pytest.approx(TRUE["campus"][1], rel=0.1)
    origin = found.provenance["trunks.one_way_latency_s"]
    assert origin.status == "fitted" and re.search(r"dp_replicate.json \(sha256 \w+\) on dgx-7", origin.source)


@pytest.mark.slow
def test_the_planner_uses_what_was_written(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner uses the written figures.

    The step time from the command line is close to that of the measured machine.
    """
    paths, file = benches(plan, tmp_path), tmp_path / "plan.json"
    file.write_text(plan.model_dump_json())
    fleet = tmp_path / "fleet"
    options = [*(part for path in paths for part in ("--bench", str(path))), "--plan", str(file), "-o", str(fleet)]
    result = CliRunner().invoke(app, ["calibrate", *options], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "collectives across campus" in result.output and "collectives across rack" in result.output
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(fleet))
    name = problem_of(plan.job).topology.name
    evaluated = sa.evaluate((plan.job.model_copy(update={"topology": name}), plan.decision))
    truth = sa.evaluate(
        (plan.job.model_copy(update={"topology": machine(plan).model_dump(mode="json")}), plan.decision)
    )
    assert abs(evaluated.cost.step_s / truth.cost.step_s - 1) < 0.05 < truth.cost.step_s / plan.cost.step_s - 1


def test_what_cannot_be_used_is_refused(plan: Plan, tmp_path: Path) -> None:
    good = measured(plan, "dp_replicate", "all_reduce", 0.0)
    rows = good["rows"]
    assert isinstance(rows, list)
    for change, words, kind in (
        ({"plan_name": "other"}, "a bench of plan 'other'; the plan is 'plain'", InputError),
        ({"rows": []}, "no output of scaleacross bench --json.*rows", InputError),
        ({"op": "broadcast"}, "broadcast is not modelled", InputError),
        ({"num_ranks": 5}, "5 ranks per group of dp_replicate; the plan has 2", InputError),
        ({"rows": [{**rows[0], "num_wrong": 3}]}, "some results were wrong", InputError),
        ({"rows": rows[:2]}, "campus: 2 times; 4 sizes are needed", TooFewError),
    ):
        path = tmp_path / "bench.json"
        path.write_text(json.dumps(good | change))
        with pytest.raises(kind, match=words):
            level_entries([path], plan, "2026-11-22")
    path.write_text("{}")
    with pytest.raises(InputError, match="no output of scaleacross bench --json"):
        level_entries([path], plan, "2026-11-22")


def test_a_bench_alone_says_nothing_of_levels(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["calibrate", "--bench", str(tmp_path / "x.json")])
    assert result.exit_code == 2 and "--plan" in result.output
