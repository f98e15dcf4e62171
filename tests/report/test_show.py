from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from scaleacross.report.accelerator import accelerator_report
from scaleacross.report.catalogue import catalogue_report
from scaleacross.report.network import network_report
from scaleacross.report.provenance import provenance_counts
from scaleacross.report.topology import topology_report
from scaleacross.report.workload import workload_report
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network import NetworkTechnology
from scaleacross.spec.topology import Topology
from scaleacross.workloads.layer_profile import Gemm, LayerProfile, ModelProfile
from scaleacross.workloads.workload import Workload

Render = Callable[..., str]


def test_topology_counts(topology: Topology, render: Render) -> None:
    shown = [" ".join(line.split()) for line in render(topology_report(topology)).splitlines()]
    assert "size 88 accelerators in 2 buildings of 1 region" in shown
    assert "east north H100-SXM 2 8 64 8 in a host" in shown
    assert "west north H100-SXM 1 3 24 8 in a host" in shown
    assert "Links inside each of east … west (2)" in shown
    assert "scale_up RoCE-400 50 GB/s 90.0 % 1:2 7 µs dcqcn" in shown


def test_buildings_with_links_of_their_own_are_shown_apart(topology: Topology, render: Render) -> None:
    region = topology.regions[0]
    east, west = region.buildings
    slow = west.links.rack.model_copy(update={"one_way_latency_s": 9e-6})
    west = west.model_copy(update={"links": west.links.model_copy(update={"rack": slow})})
    changed = topology.model_copy(update={"regions": (region.model_copy(update={"buildings": (east, west)}),)})
    shown = render(topology_report(changed))
    assert "Links inside east\n" in shown
    assert shown.count("9 µs") == 1


def test_trunk_without_bandwidth_is_all_that_the_smaller_building_sends(topology: Topology, render: Render) -> None:
    # 24 accelerators reach 90 % of 50 GB/s each: 1.08 TB/s, a quarter of it after 1:4
    shown = " ".join(render(topology_report(topology)).split())
    assert "east – west campus 1.08 TB/s (all links) 1:4 270 GB/s 100.0 % 30 µs" in shown


def test_stated_trunk_bandwidth_is_shown_as_it_is(topology: Topology, render: Render) -> None:
    trunk = topology.trunks[0].model_copy(update={"bandwidth_bytes_per_s": 7e11})
    shown = " ".join(render(topology_report(topology.model_copy(update={"trunks": (trunk,)}))).split())
    assert "east – west campus 700 GB/s 1:4 175 GB/s 100.0 % 30 µs" in shown


def ring(topology: Topology, count: int, *, closed: bool) -> Topology:
    """``count`` buildings in a row, 50 GB/s and 1 ms from one to the next; ``closed``: 1 GB/s from the last to the first."""
    first = topology.buildings[0]
    names = [f"b{number}" for number in range(count)]
    region = topology.regions[0].model_copy(
        update={"buildings": tuple(first.model_copy(update={"name": name}) for name in names)}
    )
    wide = {"one_way_latency_s": 1e-3, "bandwidth_bytes_per_s": 5e10, "oversubscription_ratio": 1.0}
    joined = [*pairwise(names), *([(names[-1], names[0])] if closed else [])]
    trunks = [topology.trunks[0].model_copy(update={"between": pair, **wide}) for pair in joined]
    if closed:
        trunks[-1] = trunks[-1].model_copy(update={"bandwidth_bytes_per_s": 1e9})
    return topology.model_copy(update={"regions": (region,), "trunks": tuple(trunks)})


def test_paths_over_several_trunks_are_shown(topology: Topology, render: Render) -> None:
    assert "Paths over" not in render(topology_report(topology))
    shown = [" ".join(line.split()) for line in render(topology_report(ring(topology, 3, closed=True))).splitlines()]
    assert "Paths over several inter-building links, which 1.0 GiB pass soonest (routed_message_mib)" in shown
    assert "b0 – b2 b0 – b1 – b2 50 GB/s 2 ms 1 GB/s, not used" in shown
    many = render(topology_report(ring(topology, 12, closed=True)))
    assert "39 more not shown" in many and many.index("b0 – b11") < many.index("b0 – b2 ")


def test_provenance_counts_each_figure_once(topology: Topology, network: NetworkTechnology) -> None:
    # one accelerator type (datasheet, assumed) in two buildings, one technology (paper) on eight links
    assert provenance_counts(topology).plain == "1 datasheet, 1 paper, 1 assumed"
    assert provenance_counts(network.model_copy(update={"provenance": {}})).plain == "no figure states its source"


def test_accelerator_figures_and_sources(accelerator: Accelerator, render: Render) -> None:
    shown = render(accelerator_report(accelerator))
    assert "bf16 989.5 TFLOP/s, fp8 1.979 PFLOP/s" in shown
    assert "80.0 GiB (76.0 GiB after 4.0 GiB reserved) at 3.35 TB/s" in shown
    assert "gemm_efficiency_fraction  assumed    an educated guess" in shown


def test_network_figures_and_sources(network: NetworkTechnology, render: Render) -> None:
    shown = render(network_report(network))
    assert "50 GB/s per accelerator and direction" in shown
    assert "a switch's manual" in shown


def test_catalogue_names_each_kind_once(render: Render) -> None:
    rows = [
        ("job", "a", "first"),
        ("job", "b", "second"),
        ("topology", "c", "third"),
    ]
    shown = render(catalogue_report(rows))
    assert shown.count("job") == 1
    assert all(word in shown for word in ("a", "b", "c", "first", "second", "third"))


class TwoLayerMixture(Workload):
    """An embedding, a dense and a mixture layer of 10 parameters each, and a head."""

    def profile(self) -> ModelProfile:
        def layer(name: str, experts: int = 0, routed: int = 0) -> LayerProfile:
            gemms = (Gemm("g", 2, 5, "column"),)
            return LayerProfile(name, gemms, None, 10, 0, experts, 0.0, {}, 2, 0, routed_tokens=routed)

        return ModelProfile(
            "m", layer("embedding"), ((layer("dense"), 1), (layer("moe", 80, 2), 3)), layer("head"), 100, num_experts=8
        )


def test_active_parameters_count_top_k_of_the_experts() -> None:
    # dense, mixtures and head, not the embedding: 10 + 3·(10 + 80·2/8) + 10 = 110 of 10 + 10 + 3·90 + 10 = 300
    profile = TwoLayerMixture(name="m", family="f").profile()
    assert profile.total_parameters == 300
    assert profile.active_parameters == 110


def test_workload_rows(render: Render) -> None:
    shown = render(workload_report(TwoLayerMixture(name="m", family="f"), sequence_length=4096))
    assert "300, 110 active per token (36.7 %)" in shown
    # six equal layers of 2·2·5 = 20 FLOP forward, three times that for training: 360
    assert "360FLOP per token" in shown.replace(" FLOP", "FLOP")
    rows = [line.split() for line in shown.splitlines()]
    assert ["moe", "1–3", "90", "80", "20", "50.0", "%"] in rows
