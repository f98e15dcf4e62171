"""Measured curves of collectives: laws by hand and limit cases.

Collectives use them inside a domain only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from machines import LATENCIES, RATES, allocation, building, topology, trunk

from one_collective import all_reduce, all_to_all, gather
from scaleacross import catalogue
from scaleacross.cost_models.collective_curves import curve_s, domain_table, fastest, slowest
from scaleacross.cost_models.collectives import ALGORITHM_NAMES, HIERARCHICAL, MEASURED
from scaleacross.cost_models.groups import exact_shape, largest_children, relaxed_shape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import Links, links_of, stacked_links
from scaleacross.simulation.curves import measured_s
from scaleacross.spec.network import CURVE_OPS, CollectiveCurve, CurveOp, NetworkTechnology
from scaleacross.spec.topology import Building

KIB, MIB = 2**10, 2**20


def curve(op: CurveOp, num_ranks: int, **times: float) -> CollectiveCurve:
    """Times in µs by size: ``_512``, ``_1024``, …"""
    points = {int(size[1:]): time * 1e-6 for size, time in times.items()}
    return CollectiveCurve(op=op, num_ranks=num_ranks, time_s=points)


def ring(op: CurveOp, num_ranks: int, base_s: float, step_s: float, bytes_per_s: float) -> CollectiveCurve:
    """A curve of base + (n−1) · (step + c/B) at every power of two."""
    sizes = [2**log for log in range(8, 32)]
    steps = {size: base_s + (num_ranks - 1) * (step_s + size / num_ranks / bytes_per_s) for size in sizes}
    return CollectiveCurve(op=op, num_ranks=num_ranks, time_s=steps)


def seconds(curves: list[CollectiveCurve], op: CurveOp, num_ranks: float, size: float, domain: int = 8) -> float:
    table = domain_table(curves, domain)
    assert table is not None
    return float(curve_s(table[None], 0, op, np.array(num_ranks), np.array(size)))


# --- one curve ------------------------------------------------------------------------------------------------------


def test_points_are_met_and_lines_lie_between() -> None:
    curves = [curve("all_reduce", 4, _1024=10, _4096=16, _1048576=100)]
    assert seconds(curves, "all_reduce", 4, 1024) == pytest.approx(10e-6)
    assert seconds(curves, "all_reduce", 4, 2560) == pytest.approx(13e-6)  # half way between 1,024 and 4,096
    assert seconds(curves, "all_reduce", 4, MIB) == pytest.approx(100e-6)


def test_latency_below_and_bandwidth_beyond() -> None:
    curves = [curve("all_gather", 2, _1024=10, _1048576=100)]
    assert seconds(curves, "all_gather", 2, 1) == pytest.approx(10e-6)
    assert seconds(curves, "all_gather", 2, 64 * MIB) == pytest.approx(64 * 100e-6)
    assert seconds(curves, "all_gather", 2, 2.0**45) == pytest.approx(2**25 * 100e-6)


def test_nothing_to_send_and_nobody_to_send_to_are_free() -> None:
    curves = [curve("all_gather", 2, _1024=10, _1048576=100)]
    assert seconds(curves, "all_gather", 1, MIB) == 0
    assert seconds(curves, "all_gather", 2, 0) == 0


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({1024: 1e-5, 2048: 9e-6}, "2,048 B in 9e-06 s, but 1,024 B already take 1e-05 s"),
        ({2048: 1e-5, 1024: 2e-5}, "sizes must ascend"),
        ({1024: 1e-5}, "at least 2"),
    ],
)
def test_impossible_curves_are_refused(times: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CollectiveCurve(op="all_gather", num_ranks=2, time_s=times)


def test_two_curves_of_one_group_are_refused() -> None:
    one = curve("all_gather", 2, _1024=10, _2048=11)
    with pytest.raises(ValueError, match="two curves of all_gather among 2: keep one"):
        NetworkTechnology(name="x", bandwidth_bytes_per_s=1e9, efficiency_fraction=1, curves=(one, one))


# --- group sizes that nobody measured -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [3, 5, 6, 7, 8, 16, 64])
@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
def test_a_ring_measured_twice_is_known_for_all(op: CurveOp, num_ranks: int) -> None:
    law = (5e-6, 1e-6, 200e9)
    curves = [ring(op, 2, *law), ring(op, 4, *law)]
    for size in (4 * KIB, MIB, 256 * MIB):
        expected = law[0] + (num_ranks - 1) * (law[1] + size / num_ranks / law[2])
        assert seconds(curves, op, num_ranks, size, domain=64) == pytest.approx(expected, rel=1e-3)


def test_a_single_group_size_grows_by_steps_or_like_the_gather() -> None:
    one = [curve("all_reduce", 2, _512=10, _1073741824=5000)]
    assert seconds(one, "all_reduce", 4, 4 * KIB) == pytest.approx(3 * seconds(one, "all_reduce", 2, 2 * KIB))
    law = (5e-6, 1e-6, 200e9)
    curves = [*one, ring("all_gather", 2, *law), ring("all_gather", 4, *law)]
    growth = seconds(curves, "all_gather", 4, MIB) / seconds(curves, "all_gather", 2, MIB)
    assert seconds(curves, "all_reduce", 4, MIB) == pytest.approx(growth * seconds(curves, "all_reduce", 2, MIB))


@pytest.mark.parametrize("also", [(), (8,)])
def test_an_all_to_all_among_fewer_than_any_measured_takes_the_time_of_the_fewest(also: tuple[int, ...]) -> None:
    curves = [curve("all_to_all", n, _512=10, _1048576=80) for n in (4, *also)]
    link = NetworkTechnology(name="x", bandwidth_bytes_per_s=1e11, efficiency_fraction=1, curves=tuple(curves))
    assert seconds(curves, "all_to_all", 2, MIB) == pytest.approx(80e-6)
    assert measured_s(link, "all_to_all", 2, MIB) == pytest.approx(80e-6)


def test_all_to_all_sends_to_all_peers_at_once() -> None:
    curves = [curve("all_to_all", 2, _512=10, _1048576=50), curve("all_to_all", 8, _512=10, _1048576=90)]
    assert seconds(curves, "all_to_all", 4, MIB) == pytest.approx(70e-6)  # log 4 is half way from log 2 to log 8
    assert seconds(curves, "all_to_all", 16, MIB, domain=16) == pytest.approx(90e-6 * (15 / 16) / (7 / 8))


def test_gather_and_scatter_mirror_each_other() -> None:
    curves = [curve("reduce_scatter", 4, _512=10, _1048576=50)]
    assert seconds(curves, "all_gather", 4, MIB) == pytest.approx(50e-6)
    assert np.isnan(seconds(curves, "all_reduce", 4, MIB))
    assert np.isnan(seconds(curves, "all_to_all", 4, MIB))


def test_a_curve_that_starts_late_is_completed_from_other_groups() -> None:
    law = (5e-6, 1e-6, 200e9)
    late = CollectiveCurve(op="all_gather", num_ranks=8, time_s={64 * MIB: 500e-6, 128 * MIB: 900e-6})
    curves = [ring("all_gather", 2, *law), ring("all_gather", 4, *law), late]
    assert seconds(curves, "all_gather", 8, 64 * MIB) == pytest.approx(500e-6)
    assert seconds(curves, "all_gather", 8, KIB) == pytest.approx(5e-6 + 7 * (1e-6 + 128 / 200e9), rel=1e-3)
    assert seconds([late], "all_gather", 8, KIB) == pytest.approx(500e-6)


def test_more_ranks_than_measured_are_never_faster() -> None:
    curves = [curve("all_reduce", 2, _512=100, _1073741824=101), curve("all_reduce", 8, _512=60, _1073741824=61)]
    assert seconds(curves, "all_reduce", 16, KIB, domain=16) == pytest.approx(60e-6)  # a straight line would say 6.7


def test_groups_larger_than_the_domain_are_held_at_the_domain() -> None:
    curves = [ring("all_gather", 2, 5e-6, 1e-6, 2e11), ring("all_gather", 4, 5e-6, 1e-6, 2e11)]
    assert seconds(curves, "all_gather", 64, MIB, domain=8) == seconds(curves, "all_gather", 8, MIB, domain=8)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_slowest_and_fastest_of_several_domains() -> None:
    both = [curve("all_gather", 2, _512=10, _1024=20), curve("all_reduce", 2, _512=10, _1024=20)]
    quick = domain_table([curve("all_gather", 2, _512=5, _1024=30)], 8)
    slow = domain_table(both, 8)
    assert quick is not None
    assert slow is not None
    least, most = fastest([quick, slow]), slowest([quick, slow])
    assert least is not None
    assert most is not None
    gathers, reduces, exchanges = (CURVE_OPS.index(op) for op in ("all_gather", "all_reduce", "all_to_all"))
    assert (least[gathers] == np.minimum(quick[gathers], slow[gathers])).all()
    assert (most[gathers] == np.maximum(quick[gathers], slow[gathers])).all()
    assert np.isnan(most[reduces]).all(), "one of them has no curve: alpha-beta for both"
    assert (least[reduces] == 0).all(), "no bound without curves"
    assert np.isnan(least[exchanges]).all()
    assert slowest([quick, None]) is None
    assert fastest([None, None]) is None
    assert (fastest([quick, None]) == np.zeros_like(quick)).all()


def test_rows_take_their_own_table() -> None:
    first, second = (domain_table([curve("all_gather", 2, _512=t, _1024=t)], 8) for t in (10, 40))
    assert first is not None
    assert second is not None
    together = curve_s(np.stack([first, second]), np.array([1, 0, 1]), "all_gather", np.array(2.0), np.full(3, 600.0))
    assert together.tolist() == pytest.approx([40e-6, 10e-6, 40e-6])


# --- collectives on links with curves -------------------------------------------------------------------------------

LAW: dict[CurveOp, tuple[float, float, float]] = {
    "all_gather": (5e-6, 1e-6, 60e9),
    "reduce_scatter": (5e-6, 1e-6, 70e9),
    "all_reduce": (5e-6, 2e-6, 40e9),
    "all_to_all": (5e-6, 1e-6, 50e9),
}


def measured(unit: Building, ops: tuple[CurveOp, ...] = CURVE_OPS, sizes: tuple[int, ...] = (2, 4)) -> Building:
    """A building whose scale-up technology has curves."""
    curves = tuple(ring(op, num_ranks, *LAW[op]) for op in ops for num_ranks in sizes)
    scale_up = unit.links.scale_up
    technology = scale_up.technology.model_copy(update={"curves": curves})
    links = unit.links.model_copy(update={"scale_up": scale_up.model_copy(update={"technology": technology})})
    return unit.model_copy(update={"links": links})


def one_building(ops: tuple[CurveOp, ...] = CURVE_OPS, **changes: Any) -> Levels:
    return build_levels(topology([measured(building("a", 6, **changes), ops)]), allocation(("a", 24)))


def by_law(op: CurveOp, num_ranks: int, size: float) -> float:
    base, step, rate = LAW[op]
    return base + (num_ranks - 1) * (step + size / num_ranks / rate)


def test_a_group_inside_a_domain_takes_the_curve_launch_included() -> None:
    levels = one_building()
    shape, links = exact_shape(4, 1, levels), links_of(levels)
    for op, timed in {
        "all_gather": gather(np.array(MIB), shape, links, 1.0),
        "reduce_scatter": gather(np.array(MIB), shape, links, 1.0, "reduce_scatter"),
        "all_reduce": all_reduce(np.array(MIB), shape, links, 1.0),
        "all_to_all": all_to_all(np.array(MIB), shape, links, 1.0),
    }.items():
        assert timed.time_s == pytest.approx(by_law(op, 4, MIB)), op  # type: ignore[arg-type]
        assert timed.algorithm == MEASURED
    assert ALGORITHM_NAMES[MEASURED] == "measured"


def test_hierarchical_adds_the_inner_phase_by_its_curve() -> None:
    # 24 ranks: 4 in a host, 2 hosts in a rack, 3 racks; scarce uplinks of racks, so that hierarchical beats the ring
    levels, S, launch_s = one_building(oversubscription=(1, 1, 40, 1)), 2.0**28, 1e-5
    timed = gather(np.array(S), exact_shape(24, 1, levels), links_of(levels), launch_s)
    rack, zone = RATES[1] * 4, RATES[2] * 8 / 40
    narrow, wide = S * 2 / 3 / zone, S / 2 / rack
    steps = LATENCIES[1] + 2 * LATENCIES[2]

    def cut(passes: int, inner: Callable[[float], float]) -> float:
        """Seconds with 32 chunks: the narrow level is always busy, the others count one chunk.

        With two passes 3 of 4 long-haul latencies overlap with transfers.
        """
        return passes * (steps + wide / 32 + narrow) + inner(S / 32) - (passes - 1) * 3 * LATENCIES[2]

    assert timed.algorithm == HIERARCHICAL
    assert timed.time_s == pytest.approx(cut(1, lambda size: by_law("all_gather", 4, size)) + launch_s)
    reduce = all_reduce(np.array(S), exact_shape(24, 1, levels), links_of(levels), launch_s)
    both = cut(2, lambda size: by_law("all_gather", 4, size) + by_law("reduce_scatter", 4, size))
    assert reduce.time_s == pytest.approx(both + launch_s)


def test_no_group_across_domains_beats_one_inside() -> None:
    # wide, low-latency outer links: the ring over them would take 2 µs
    levels = one_building(rates=(1e9, 1e15, 1e15, 1e15), latencies=(0, 0, 0, 0))
    for degree, stride in ((6, 4), (12, 2), (24, 1)):
        shape = exact_shape(degree, stride, levels)
        timed = gather(np.array(MIB), shape, links_of(levels), 2e-6)
        inside_s = by_law("all_gather", 4, MIB)
        assert inside_s * (1 - 1e-9) <= timed.time_s <= 1.1 * inside_s  # protocols take a little longer


def test_an_operation_without_a_curve_is_estimated_by_alpha_and_beta() -> None:
    levels, plain = one_building(("all_gather",)), build_levels(topology([building("a", 6)]), allocation(("a", 24)))
    for degree, stride in ((4, 1), (24, 1), (6, 4)):
        shape = exact_shape(degree, stride, levels)
        for price in (all_reduce, all_to_all):
            ours = price(np.array(MIB), shape, links_of(levels), 1e-5)
            assert ours == price(np.array(MIB), shape, links_of(plain), 1e-5)


def test_allocations_with_and_without_curves_side_by_side() -> None:
    with_curves, plain = one_building(), build_levels(topology([building("a", 6)]), allocation(("a", 24)))
    shape = exact_shape(4, 1, plain)
    both = gather(np.full(3, MIB), shape, stacked_links([plain, with_curves, plain]), 1e-5)
    alone = [gather(np.array(MIB), shape, links_of(one), 1e-5) for one in (plain, with_curves)]
    assert both.time_s.tolist() == [alone[0].time_s, alone[1].time_s, alone[0].time_s]
    assert both.algorithm[1] == MEASURED


@pytest.mark.heavy
@examples(max_examples=100, deadline=None)
@given(
    st.sampled_from([(d, s) for d in range(2, 33) for s in range(1, 17) if 48 % (d * s) == 0]),
    st.sampled_from([(24, 24), (28, 20), (12, 36)]),
    st.sampled_from(["host", "rack"]),
    st.floats(1, 1e9),
    st.sampled_from([(1e9, 1e15, 1e15, 1e15), RATES]),
)
def test_relaxed_shapes_estimate_nothing_above_the_exact_ones(
    axis: tuple[int, int], shares: tuple[int, int], domain: str, size: float, rates: tuple[float, ...]
) -> None:
    changes: dict[str, Any] = {"rates": rates, "domain": domain, "latencies": (1e-7, 1e-7, 1e-6, 1e-5)}
    units = [measured(building(name, 9, **changes), sizes=sizes) for name, sizes in (("a", (2, 4)), ("b", (2, 8)))]
    levels = build_levels(topology(units, trunks=[trunk("a", "b")]), allocation(("a", shares[0]), ("b", shares[1])))
    degree, stride = axis
    exact, links = exact_shape(degree, stride, levels), links_of(levels)
    monotone = np.maximum.accumulate(levels.bandwidth[::-1])[::-1], np.maximum.accumulate(levels.capacity[::-1])[::-1]
    better = Links(*monotone, levels.latency, links.curves, links.curve)
    for least in range(1, stride + 1):  # as in the coarse bound: at this stride or any larger one
        relaxed = relaxed_shape(np.array([degree]), np.array([least]), largest_children(levels))
        for price in (gather, all_reduce, all_to_all):
            bound = price(np.array([size]), relaxed, better, 1e-6).time_s[0]
            assert bound <= price(np.array(size), exact, links, 1e-6).time_s * (1 + 1e-9), price.__name__


# --- the catalogue --------------------------------------------------------------------------------------------------


def bus_bytes_per_s(name: str, op: CurveOp, num_ranks: int, size: int) -> float:
    time_s = seconds(list(catalogue.load_network(name).curves), op, num_ranks, size)
    return (2 if op == "all_reduce" else 1) * (num_ranks - 1) / num_ranks * size / time_s


@pytest.mark.parametrize(("name", "low", "high"), [("nvlink4", 8, 32), ("nvlink5", 32, 64)])
def test_half_of_peak_at_tens_of_mebibytes(name: str, low: int, high: int) -> None:
    peak = bus_bytes_per_s(name, "all_reduce", 8, 2**29)
    assert (
        bus_bytes_per_s(name, "all_reduce", 8, low * MIB)
        < peak / 2
        <= bus_bytes_per_s(name, "all_reduce", 8, high * MIB)
    )


@pytest.mark.parametrize(("name", "all_reduce", "all_gather"), [("nvlink4", 450e9, 335e9), ("nvlink5", 704e9, 619e9)])
def test_reduction_in_the_switch_beats_the_gather(name: str, all_reduce: float, all_gather: float) -> None:
    # bus bandwidth at 512 MiB among 8, ai-dynamo/aiconfigurator 095f58a
    assert bus_bytes_per_s(name, "all_reduce", 8, 2**29) == pytest.approx(all_reduce, rel=0.02)
    assert bus_bytes_per_s(name, "all_gather", 8, 2**29) == pytest.approx(all_gather, rel=0.02)


@pytest.mark.parametrize("name", ["nvlink3", "nvlink4", "nvlink5"])
def test_catalogue_curves_are_sane_everywhere(name: str) -> None:
    technology = catalogue.load_network(name)
    table = domain_table(technology.curves, 72)
    assert table is not None
    assert np.isfinite(table).all()
    assert (table > 0).all()
    assert (np.diff(table, axis=-1) >= 0).all()
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        for num_ranks in (2, 4, 8, 16, 64, 72):
            time_s = seconds(list(technology.curves), op, num_ranks, 2**32, domain=72)  # type: ignore[arg-type]
            assert (num_ranks - 1) / num_ranks * 2**32 / time_s < technology.bandwidth_bytes_per_s, (op, num_ranks)
