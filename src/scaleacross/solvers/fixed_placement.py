"""Candidates on the devices of one allocation: arrays of them on any axis orders, and single ones exactly.

Arrays have the same cost model as a plan (``cost_models.step``) on the groups that an order really makes, counted once
per distinct group. Nothing is relaxed except that pipelines whose delays have no exact closed form keep the bound of
``pipeline.lower_bound_s``. ``step_s`` times those action by action. So arrays never exceed ``step_s``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Ints, expert_axis
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.columns import columns_of
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.groups import GroupShape, exact_shape, stacked_shapes
from scaleacross.cost_models.levels import CAMPUS, Levels, build_levels
from scaleacross.cost_models.links import links_of, stacked_links
from scaleacross.cost_models.network.compression import Best
from scaleacross.cost_models.plan_cost import PlanCost, groups_of, plan_cost, step_seconds
from scaleacross.cost_models.replica_kinds import KnownReplicas
from scaleacross.cost_models.step import exact_shapes
from scaleacross.cost_models.waiting_groups import least_shape
from scaleacross.cost_models.window_traffic import GRADIENT_AXES
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.pools import AcceleratorPool, Allocation, shares
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class FixedPlacement(Bounder):
    """Bounds on the devices of one allocation, all used by every candidate (else ``exact_shape`` raises ValueError).

    ``order_bounds_s`` bounds the communication of candidates on many orders.
    """

    fill: Allocation
    levels: Levels
    _shapes: dict[tuple[int, int], GroupShape] = field(default_factory=dict)
    _groups: dict[int, Group] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pool: AcceleratorPool,
        allocation: Allocation,
        job: Job,
        profile: ModelProfile,
        network: Literal["best", "library"] | Best = "best",
    ) -> FixedPlacement:
        """Return the bounder with the links of this allocation."""
        levels = build_levels(pool.topology, shares(allocation), pool.paths)
        one = links_of(levels)
        links = one._replace(bandwidth=one.bandwidth[None], capacity=one.capacity[None], latency=one.latency[None])
        return cls(pool, job, profile, links, pool.largest_children(), network, allocation, levels)

    def shape(self, degree: int, stride: int) -> GroupShape:
        """Return the exact shape of the groups of an axis."""
        if (degree, stride) not in self._shapes:
            self._shapes[degree, stride] = exact_shape(degree, stride, self.levels)
        return self._shapes[degree, stride]

    def placed(self, candidates: Candidates, row: int, axis_order: Sequence[GridAxis]) -> Decision:
        """Return the decision of one candidate with its placement."""
        placement = Placement(axis_order=tuple(axis_order), fill=shares(self.fill))
        return candidates.decision(row).model_copy(update={"placement": placement})

    def step_s(
        self,
        decision: Decision,
        known: KnownReplicas | None = None,
        limit_s: float = np.inf,
        after_pipeline_s: float = 0.0,
    ) -> float:
        """Return the exact step time of a decision placed here, s; other arguments as of ``step_seconds``."""
        return step_seconds(
            *self._model, decision, self.groups(decision), self.levels, known, limit_s, after_pipeline_s
        )

    def cost(self, decision: Decision) -> PlanCost:
        """Return all figures of a decision placed on this allocation."""
        return plan_cost(*self._model, decision, self._shapes_of(decision), self.levels, network=self.network)

    def groups(self, decision: Decision) -> Mapping[str, Group]:
        """Return the groups of every communicator, each made once, because its laws do not depend on the candidate."""
        shapes = self._shapes_of(decision)
        new = {name: shape for name, shape in shapes.items() if id(shape) not in self._groups}
        for name, group in groups_of(new, self.levels, self.network).items():
            self._groups[id(new[name])] = group  # ``_shapes`` keeps the shape alive, so no other gets its id
        return {name: self._groups[id(shape)] for name, shape in shapes.items()}

    @property
    def _model(self) -> tuple[Job, ModelProfile, Topology]:
        return self.job, self.profile, self.pool.topology

    def _shapes_of(self, decision: Decision) -> Mapping[str, GroupShape]:
        order = decision.placed.axis_order
        return exact_shapes(
            decision.degrees, order, self.levels, count=lambda degree, stride, _: self.shape(degree, stride)
        )

    def spans(self, candidates: Candidates, axis_order: Sequence[GridAxis]) -> dict[str, Ints]:
        """Return the outermost level that the groups of every axis (and ``ep``) cross on an order, (n,) each."""
        out, stride = {}, np.ones(len(candidates), dtype=np.int64)
        for axis in axis_order:
            out[str(axis)] = self._exact(getattr(candidates, axis), stride).span
            if axis == "dp_shard":
                out["ep"] = self._exact(*expert_axis(candidates, stride)).span
            stride = stride * getattr(candidates, axis)
        return out

    def _lying(self, candidates: Candidates, degree: Ints, stride: Ints, coarse: bool, waits: bool) -> GroupShape:
        shape = self._exact(degree, stride)
        largest = max(count for _, count in self.fill)
        return least_shape(shape, degree * stride, largest, candidates.pp) if waits else shape

    def _on(self, accelerator: str, group: Group) -> Group:
        inside = (group.shape.span < CAMPUS).astype(np.int64)
        return replace(group, links=stacked_links([self.levels, self.levels.on(accelerator)], inside))

    def _crosses(self, axis: GridAxis, candidates: Candidates, stride: Ints) -> Bools | None:
        degree = np.broadcast_to(getattr(candidates, axis), stride.shape)
        crosses = self._exact(degree.ravel(), stride.ravel()).span >= CAMPUS
        return np.asarray(crosses.reshape(stride.shape) & (axis in GRADIENT_AXES))

    @property
    def many_buildings(self) -> bool:
        return len(self.fill) > 1

    def _exact(self, degree: Ints, stride: Ints) -> GroupShape:
        """Return the exact shapes of many groups, counted once per distinct (degree, stride)."""
        kinds = distinct(degree, stride)
        some = stacked_shapes([self.shape(int(degree[row]), int(stride[row])) for row in kinds.first])
        return GroupShape(*(column[kinds.code] for column in columns_of(some)))
