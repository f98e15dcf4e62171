"""Every file under ``configs/`` loads, and every physical number in it has a source and a status."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaleacross.catalogue import (
    entries,
    load_accelerator,
    load_decision,
    load_job,
    load_plan_or_decision,
    load_topology,
    resolve,
)
from scaleacross.units import SI_SUFFIXES, UNCONVERTED_SUFFIXES, USER_UNITS

CONFIGS = Path(__file__).parents[2] / "configs"
every_entry = cache(entries)


def is_physical(key: str) -> bool:
    hardware = ("num_multiprocessors", "collective_multiprocessors", "gemm_tile_rows", "gemm_tile_cols")
    return key in hardware or key.endswith((*USER_UNITS, *SI_SUFFIXES, *UNCONVERTED_SUFFIXES, "_fraction", "_ratio"))


def figures(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Dotted keys of the physical numbers of a file, as provenance writes them (docstring of SourcedSpec)."""
    if isinstance(value, list):
        for item in value:
            yield from figures(item, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "provenance":
                continue
            if key == "gemm_models":  # the figures of a fit belong together
                yield from (f"{key}.{kind}" for kind in item)
            elif key == "attention_model" or is_physical(key):
                yield ".".join((*path, key))
            else:
                yield from figures(item, path if key in ("building_defaults", "regions", "buildings") else (*path, key))


def test_walk_finds_figures_where_they_stand() -> None:
    data = yaml.safe_load((CONFIGS / "topologies" / "two_buildings_unequal.yaml").read_text())
    assert {"links.zone.one_way_latency_us", "trunks.oversubscription_ratio"} <= set(figures(data))
    assert "peak_tflop_per_s" in set(figures({"peak_tflop_per_s": {"bf16": 1}}))


def test_every_figure_has_a_source_and_nothing_else_has() -> None:
    for entry in every_entry():
        if entry.kind == "studies":
            continue  # a study varies these values, so they are no claims
        if entry.kind == "workloads":  # a model's shape is chosen, not measured
            assert "\n# Source: " in entry.path.read_text(), entry.path
            continue
        data = yaml.safe_load(entry.path.read_text())
        assert set(figures(data)) == set(data.get("provenance", {})), entry.path


def test_every_file_loads_under_its_own_name() -> None:
    for entry in every_entry():
        assert not entry.summary.startswith("cannot be read"), entry.path
        if entry.kind != "plans":
            assert yaml.safe_load(entry.path.read_text())["name"] == entry.name == entry.path.stem, entry.path


def test_the_catalogue_holds_what_it_promises() -> None:
    have = {(entry.kind, entry.name) for entry in every_entry()}
    accelerators = ["a100-80gb", "h100-sxm", "h200", "b200", "gb200-nvl72", "mi300x"]
    assert {("accelerators", name) for name in accelerators} <= have
    assert {("jobs", name) for name in ("llama3_405b_two_buildings", "deepseek_v3_two_buildings")} <= have


@pytest.mark.parametrize(
    ("name", "buildings", "accelerators"),
    [
        ("one_building", [3072], 3072),
        ("two_buildings_unequal", [10_000, 6384], 16_384),
        ("region_five_buildings", [8 * 3072, 8 * 3072, 8 * 3072, 7 * 3072, 7 * 3072], 116_736),
        ("three_regions", [8192, 8192, 8192], 24_576),
        ("llama3_24k", [24_576], 24_576),
    ],
)
def test_sizes_of_the_topologies(name: str, buildings: list[int], accelerators: int) -> None:
    topology = load_topology(name)
    assert [building.num_accelerators for building in topology.buildings] == buildings
    assert topology.num_accelerators == accelerators


def test_region_has_the_published_relative_latencies_and_oversubscription() -> None:
    # NCCLX, arXiv 2510.20171: 1 / 7 / 15 / 30; 1:2.8 between zones; the four links of a building share its 1:2.8
    topology = load_topology("region_five_buildings")
    links = topology.buildings[0].links
    unit = links.rack.one_way_latency_s
    latencies = [links.zone.one_way_latency_s, links.building.one_way_latency_s, topology.trunks[0].one_way_latency_s]
    assert [latency / unit for latency in latencies] == pytest.approx([7, 15, 30])
    assert links.building.oversubscription_ratio == 2.8
    assert len(topology.trunks) == 10
    for building in topology.buildings:
        own = [trunk for trunk in topology.trunks if building.name in trunk.between]
        assert sum(1 / trunk.oversubscription_ratio for trunk in own) == pytest.approx(1 / 2.8)


def test_peaks_and_capacities_of_the_data_sheets() -> None:
    h100 = load_accelerator("h100-sxm")
    assert h100.peak_flop_per_s["bf16"] == pytest.approx(989.4e12)
    assert h100.memory_bytes == 81_559 * 2**20
    assert h100.memory_bandwidth_bytes_per_s == pytest.approx(3.35e12)


@pytest.mark.parametrize("name", ["llama3_405b_two_buildings", "deepseek_v3_two_buildings", "llama3_8b_one_building"])
def test_jobs_resolve_and_are_then_self_contained(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem = resolve(load_job(name))
    monkeypatch.setattr("scaleacross.catalogue.find.config_folders", lambda: [tmp_path])  # all figures are known
    again = resolve(problem.job)
    assert again == problem
    assert again.topology.num_accelerators >= (problem.job.num_accelerators or 1)


# Table 4 of arXiv 2407.21783: GPUs, TP, CP, PP, DP, sequence length, batch per data-parallel group
TABLE_4 = {
    1: (8192, 8, 1, 16, 64, 8192, 32),
    2: (16_384, 8, 1, 16, 128, 8192, 16),
    3: (16_384, 8, 16, 16, 8, 131_072, 16),
}


@pytest.mark.parametrize("row", TABLE_4)
def test_llama3_rows_say_what_table_4_says(row: int) -> None:
    gpus, tp, cp, pp, dp, sequence, batch_per_dp = TABLE_4[row]
    job, decision = load_decision(f"llama3_table4_row{row}")
    degrees = decision.degrees
    assert (degrees.world_size, degrees.tp, degrees.cp, degrees.pp, degrees.dp) == (gpus, tp, cp, pp, dp)
    assert (job.sequence_length, job.global_batch_sequences) == (sequence, batch_per_dp * dp)
    assert job.tokens_per_step == 2**24
    assert load_plan_or_decision(CONFIGS / "plans" / f"llama3_table4_row{row}.yaml") == (job, decision)
