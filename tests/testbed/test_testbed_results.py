"""Acceptance limits computed from results: good results meet each of them, and bad results miss it."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from emulated import EXAMPLES

from scaleacross.catalogue import load_topology
from scaleacross.cost_models.network.codec import figures
from scaleacross.errors import EmulationError, InputError
from scaleacross.report.testbed_page import results_page
from scaleacross.report.testbed_plot import training_plot
from scaleacross.spec.testbed import (
    CollectiveResults,
    CollectiveSetting,
    Conditions,
    TimedCollective,
    TrainedPlan,
    TrainingResults,
    TrainingSetting,
)
from scaleacross.testbed import collectives, experiments
from scaleacross.testbed.cases import LAYERED, Case, Timing
from scaleacross.testbed.core_figures import Alone, Core, _price, fitted_accelerator
from scaleacross.testbed.link_figures import (
    INSIDE,
    LONG_BYTES,
    SHORT_BYTES,
    SWEPT,
    SWEPT_CHUNKS,
    link_figures,
    measured_topology,
)
from scaleacross.testbed.model_shape import ModelShape
from scaleacross.testbed.training import resolved

CONDITIONS = Conditions(
    date="2026-11-22", machine="a", num_cores=2, versions="b", fixed_shares=True, load_average=(0.1, 0.2)
)


def timed(name: str, measured_s: float, predicted_s: float | None = None) -> TimedCollective:
    times = {"measured_s": measured_s, "fastest_s": measured_s, "slowest_s": measured_s, "predicted_s": predicted_s}
    return TimedCollective(name=name, error_fraction=0.0, **times)


def setting(layered_s: float, turns_s: float = 0.5, coded_s: float = 0.1, ring_predicted_s: float = 0.26) -> Any:
    rows = (
        timed("ring", 0.25, ring_predicted_s),
        timed("hierarchical(ring, ring) in 4", layered_s, 0.18),
        timed(collectives.INTERLEAVED, turns_s),
        timed(collectives.COMPRESSED, coded_s),
    )
    chosen = min((row for row in rows if row.predicted_s), key=lambda row: row.predicted_s or 0).name
    figures = {"trunk_bytes_per_s": 50e6, "one_way_latency_s": 0.0, "size_bytes": 8 << 20}
    return CollectiveSetting(rows=rows, chosen=chosen, **figures)


def test_good_collectives_meet_every_bar() -> None:
    assert [bar.is_met for bar in collectives.bars([setting(0.185)])] == [True] * 6


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        (setting(0.185, turns_s=0.4), [0]),
        (setting(0.185, coded_s=0.15), [1]),
        (setting(0.21), [2, 3, 5]),
        (setting(0.185, ring_predicted_s=0.17), [4, 5]),
    ],
)
def test_each_bar_of_collectives_can_be_missed(found: CollectiveSetting, missed: list[int]) -> None:
    assert [index for index, bar in enumerate(collectives.bars([found])) if not bar.is_met] == missed


def trained(name: str, measured_s: float, predicted_s: float, loss: float = 3.0) -> TrainedPlan:
    names = {"name": name, "degrees": "pp 2", "across": "pp", "schedule": "1F1B"}
    times = {"measured_s": measured_s, "fastest_s": measured_s, "slowest_s": measured_s, "predicted_s": predicted_s}
    return TrainedPlan(**names, **times, num_steps=20, losses=(6.0, loss))


def trained_setting(ours: TrainedPlan, production: TrainedPlan) -> TrainingSetting:
    return TrainingSetting(
        topology="two", trunks=("100 Mbit/s, 0 ms",), thinnest_bytes_per_s=12.5e6, plans=(ours, production)
    )


@pytest.mark.parametrize(
    ("ours", "production", "missed"),
    [
        (trained("ours", 1.0, 1.05), trained("production", 2.0, 1.9), []),
        (trained("ours", 1.0, 1.05), trained("production", 1.2, 1.2), [1]),
        (trained("ours", 1.0, 1.05), trained("production", 0.9, 0.9), [0, 1, 2]),
        (trained("ours", 1.0, 1.3), trained("production", 2.0, 1.9), [3, 4]),
        (trained("ours", 1.0, 1.05), trained("production", 2.0, 1.9, loss=3.1), [5]),
    ],
)
def test_each_bar_of_training_can_be_missed(ours: TrainedPlan, production: TrainedPlan, missed: list[int]) -> None:
    found = experiments.bars([trained_setting(ours, production)], None)
    assert [index for index, bar in enumerate(found) if not bar.is_met] == missed


def test_a_plan_that_two_share_counts_once() -> None:
    production = trained("production", 2.0, 1.4)
    shared = production.model_copy(update={"name": "atlas", "same_as": "production"})
    one = trained_setting(trained("ours", 1.0, 1.05), production)
    both = one.model_copy(update={"plans": (*one.plans, shared)})
    assert [bar.measured for bar in experiments.bars([both], None)] == [
        bar.measured for bar in experiments.bars([one], None)
    ]
    assert shared.label == "atlas (as production)"


def test_plot_has_a_bar_and_a_prediction_per_plan_on_one_scale() -> None:
    one = trained_setting(trained("ours", 1.0, 1.05), trained("production", 2.0, 1.9))
    picture = ElementTree.fromstring(training_plot([one]))
    bars = [float(bar.attrib["width"].rstrip("%")) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")][:0:-1]
    assert bars[0] == pytest.approx(2 * bars[1], rel=1e-2)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}line"))) == 2


def test_page_says_what_was_missed() -> None:
    one = trained_setting(trained("ours", 1.0, 1.05), trained("production", 1.2, 1.2))
    one = one.model_copy(update={"refused": {"atlas": "no stage fits"}})
    training = TrainingResults(conditions=CONDITIONS, settings=(one,), bars=tuple(experiments.bars([one], None)))
    other = setting(0.185)
    both = CollectiveResults(conditions=CONDITIONS, settings=(other,), bars=tuple(collectives.bars([other])))
    page = results_page(training, both, "scaleacross testbed report job.yaml")
    assert (
        page.count("**missed**") == 1
        and "1.20x" in page
        and "atlas is not trained: no stage fits." in page
        and "**hierarchical(ring, ring) in 4**" in page
    )


def timings(latency_s: float, bytes_per_s: float, launch_s: float = 0.0, message_s: float = 0.0) -> list[Timing]:
    """What ``link_cases`` would measure on such links, two pairs at once."""

    def pair(name: str, size: int, operation: Any, passes: int) -> Timing:
        flows = 1 if name == INSIDE else 2
        seconds = launch_s + passes * (latency_s + flows * size / 2 / bytes_per_s)
        return Timing(Case(name, ((0, 2), (1, 3)), "ring", size, 1, operation=operation), (seconds,), 0.0)

    swept = [
        Timing(Case(SWEPT, ((0, 1, 2, 3),), LAYERED, SHORT_BYTES, 1, k, children=((0, 1), (2, 3))), (seconds,), 0.0)
        for k in SWEPT_CHUNKS
        for seconds in [launch_s + 4 * latency_s + (k - 1) * 4 * message_s]
    ]
    pairs = [
        pair(name, size, operation, passes)
        for name in (INSIDE, "east–west")
        for size, operation, passes in (
            (SHORT_BYTES, "all_gather", 1),
            (SHORT_BYTES, "all_reduce", 2),
            (LONG_BYTES, "all_reduce", 2),
        )
    ]
    return [*swept, *pairs]


def test_link_figures_recover_what_made_the_times() -> None:
    found = link_figures(timings(3e-3, 40e6, 2e-3, 1e-4))
    for level in found.levels.values():
        assert level.bytes_per_s == pytest.approx(40e6)
        assert level.latency_s == pytest.approx(3e-3, rel=0.05)
    assert (found.launch_s, found.message_overhead_s) == pytest.approx((2e-3, 1e-4), rel=0.05)
    with pytest.raises(EmulationError, match="inside"):
        link_figures(timings(0.2, -40e6))


def test_measured_figures_replace_stated_ones_and_say_so() -> None:
    topology = load_topology(EXAMPLES / "two_buildings.yaml")
    measured = measured_topology(topology, link_figures(timings(3e-3, 40e6, 2e-3, 1e-4)), "here, today")
    (trunk,) = measured.trunks
    assert trunk.one_way_latency_s == pytest.approx(3e-3, rel=0.05)
    assert trunk.efficiency_fraction == pytest.approx(40 / 50, rel=1e-2)
    link, accelerator = measured.buildings[0].links.rack, measured.buildings[0].accelerator
    assert link.technology.efficiency_fraction == pytest.approx(40 / 312.5, rel=1e-2)
    assert link.technology.message_overhead_s == pytest.approx(1e-4, rel=0.05)
    assert accelerator.collective_start_s == pytest.approx(2e-3, rel=0.05) != accelerator.kernel_launch_s
    origins = link.technology.provenance | accelerator.provenance
    for name in ("efficiency_fraction", "message_overhead_s", "collective_launch_s"):
        assert origins[name].status == "measured"
    assert measured.provenance["trunks.one_way_latency_s"].source == "here, today"


@pytest.mark.heavy
def test_fitted_accelerator_gives_back_the_runs_that_it_was_fitted_to() -> None:
    known = resolved(EXAMPLES / "job.yaml")
    runs = [Alone(8, 1, 0.36, 0.14), Alone(8, 2, 0.70, 0.14), Alone(4, 1, 0.19, 0.08)]
    found = fitted_accelerator(known.job, known.topology, Core(runs, {"int8_block": 5e8}), "here")
    assert figures("int8_block", [found])[1] == 5e8 != figures("bf16", [found])[1]
    for run in runs[:2]:
        passes, update = _price(known.job, known.topology, found, run)
        assert passes == pytest.approx(run.passes_s, rel=0.03) and update == pytest.approx(run.update_s, rel=0.01)
    assert found.provenance["peak_flop_per_s"].status == "fitted"


def test_models_that_the_testbed_does_not_train_are_refused() -> None:
    workload = {"family": "dense_transformer", "gated_mlp": True}
    with pytest.raises(InputError, match="gated_mlp: False, not True"):
        ModelShape.of(workload)
