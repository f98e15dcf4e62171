"""Terms of the axes equal the collectives of ``traffic.flows``: the same bytes, timed once per call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machines import accelerator, allocation, candidates, flat, gpt, job

from scaleacross.catalogue import load_workload
from scaleacross.cost_models.axes import Terms, axis_terms
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.step import exact_shapes, one_row
from scaleacross.cost_models.traffic import Volumes, flows
from scaleacross.cost_models.window_traffic import communicators
from scaleacross.cost_models.work import work_of
from scaleacross.spec.framework import ExpertRuntime, Overlap
from scaleacross.spec.parallelism import GRID_AXES, SHARD_LEVELS
from scaleacross.workloads.equal_copies import EVERY_COPY
from scaleacross.workloads.layer_profile import ModelProfile

LAUNCH_S = 1e-5
ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


class Case:
    """One candidate whose communication overlaps with nothing.

    Attention takes no time, tp reductions are exposed, and there is no pipeline warm-up.
    """

    def __init__(self, profile: ModelProfile, **columns: Any) -> None:
        self.candidates = candidates(**columns)
        world = int(self.candidates.world_size[0])
        self.levels: Levels = build_levels(flat(2, world // 2), allocation(("b0", world // 2), ("b1", world // 2)))
        of = job(2048, 64).model_copy(update={"overlap": Overlap(tp_reduce=False)})
        work = work_of(profile, of, [accelerator()], self.candidates)
        work = replace(work, attention_s=np.zeros(1))
        self.volumes = Volumes(of, profile, self.candidates, work, LAUNCH_S)
        shapes = exact_shapes(self.candidates.decision(0).degrees, ORDER, self.levels)  # type: ignore[arg-type]
        self.shapes: dict[str, GroupShape] = {name: one_row(shape) for name, shape in shapes.items()}

    def terms(self, axis: Any) -> Terms:
        links = links_of(self.levels)
        experts = self.shapes["expert"], self.shapes["ep"]
        return axis_terms(axis, self.volumes, self.shapes[axis], links, *experts)

    def flow_seconds(self, axis: str) -> float:
        """Seconds of all flows of an axis: Σ time × count per step."""
        sent = [flow for flow in flows(self.volumes) if flow.axis == axis]
        links = links_of(self.levels)
        groups = {name: Group(shape, links, LAUNCH_S) for name, shape in self.shapes.items()}
        return sum(float(time_of(f, groups[f.shape], EVERY_COPY).time_s[0]) * f.per_step for f in sent)

    def term_seconds(self, axis: str) -> float:
        """Exposed seconds for m micro-batches, plus every window as often as a step has it."""
        m = float(self.candidates.num_micro_batches[0])
        home = "dp_shard" if axis == "ep" else axis
        terms = self.terms(home)
        serial = terms.serial_s.get(axis, np.zeros(1))[0]
        groups = {name: Group(shape, links_of(self.levels), LAUNCH_S) for name, shape in self.shapes.items()}
        traffic = sum(communicators(home, self.volumes, groups[home], groups["expert"]))  # type: ignore[arg-type]
        once, every = traffic[:2].sum(), traffic[2:4].sum()
        return float(serial + (0.0 if axis == "ep" else once + m * every))


CASES = {
    "dense, replicated": (gpt(), {"tp": 2, "dp_replicate": 4, "num_micro_batches": 8}),
    "dense, cp without shards": (gpt(), {"cp": 2, "dp_replicate": 4, "num_micro_batches": 8}),
    "optimizer sharded": (gpt(), {"tp": 2, "cp": 2, "dp_shard": 4, "dp_replicate": 2, "shard": "optimizer"}),
    "parameters sharded": (gpt(), {"tp": 2, "cp": 2, "dp_shard": 4, "shard": "parameters", "num_micro_batches": 3}),
    "full recomputation": (gpt(), {"tp": 4, "cp": 4, "dp_shard": 2, "shard": "optimizer", "recompute": "full"}),
    "experts": (
        load_workload("mixtral-8x22b"),
        {"tp": 2, "dp_shard": 8, "ep": 4, "num_micro_batches": 8, "shard": "optimizer", "recompute": "full"},
    ),
    "experts with context": (
        load_workload("mixtral-8x22b"),
        {"cp": 2, "dp_shard": 8, "ep": 2, "dp_replicate": 2, "shard": "parameters", "num_micro_batches": 4},
    ),
}


@pytest.mark.parametrize("axis", ["tp", "cp", "dp_shard", "dp_replicate", "ep"])
@pytest.mark.parametrize("name", CASES)
def test_flows_take_as_long_as_the_unhidden_terms(name: str, axis: str) -> None:
    workload, columns = CASES[name]
    case = Case(workload.profile(), **columns)
    assert case.flow_seconds(axis) == pytest.approx(case.term_seconds(axis), rel=1e-12)


def test_every_axis_in_use_sends_something() -> None:
    for workload, columns in CASES.values():
        case = Case(workload.profile(), **columns)
        used = {axis for axis in ("tp", "cp", "dp_replicate", "ep") if columns.get(axis, 1) > 1}
        assert used <= {flow.axis for flow in flows(case.volumes)}


def test_key_value_exchange_overlaps_with_attention() -> None:
    case = Case(gpt().profile(), cp=4, dp_replicate=2)
    exposed = case.terms("cp").serial_s["cp"][0]
    one = exposed / 3  # gathered forward, gathered and reduced backward
    for attention, expected in ((0.5 * one, 0.5 * one + (2 - 1.25) * one), (one, 0.0), (0.9 * one, 0.1 * one)):
        case.volumes = replace(case.volumes, work=replace(case.volumes.work, attention_s=np.array([attention])))
        assert case.terms("cp").serial_s["cp"][0] == pytest.approx(expected, abs=1e-15)


def test_axes_of_one_rank_cost_nothing() -> None:
    case = Case(gpt().profile(), dp_replicate=2)
    for axis in GRID_AXES:
        if axis != "dp_replicate":
            terms = case.terms(axis)
            assert not terms.window_s.any()
            assert terms.serial_total_s[0] == 0


def test_dp_shard_needs_the_shapes_of_its_experts() -> None:
    case = Case(gpt().profile(), dp_shard=2, shard=SHARD_LEVELS[1])
    with pytest.raises(ValueError, match="expert_shape"):
        axis_terms("dp_shard", case.volumes, case.shapes["dp_shard"], links_of(case.levels))


def stating(case: Case, **changes: object) -> Case:
    """The case with other settings of its job."""
    case.volumes = replace(case.volumes, job=case.volumes.job.model_copy(update=changes))
    return case


def test_tokens_sent_once_per_place_travel_less() -> None:
    workload, columns = CASES["experts"]
    every = Case(workload.profile(), **columns).terms("dp_shard").serial_s["ep"][0]
    case = stating(Case(workload.profile(), **columns), experts=ExpertRuntime(dispatch="deduplicated"))
    fewer = case.terms("dp_shard").serial_s["ep"][0]
    assert 0.5 * every < fewer < every  # top 2: at best both copies have the same destination


def test_sharded_parameters_without_prefetch_are_waited_for_in_every_round() -> None:
    case = Case(gpt().profile(), dp_shard=4, pp=2, num_micro_batches=3, shard="parameters")
    ahead = case.terms("dp_shard")
    waited = stating(case, overlap=Overlap(shard_prefetch=False)).terms("dp_shard")
    passes = 3 + case.volumes.work.fill_rounds[0]
    assert passes == 4
    assert waited.serial_s["dp"][0] == pytest.approx(passes * ahead.window_s[2:4].sum())
    assert not waited.window_s[[2, 3, 6, 7]].any()
