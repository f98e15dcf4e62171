"""Price whole arrays of candidates on one given placement rule: an axis order over one fill.

The same cost model as a plan's (``cost_models.step``) on the groups that the order really makes, counted once per distinct
group; nothing is relaxed. Only pipelines whose delays have no exact closed form keep the bound of ``pipeline.lower_bound_s``:
``plan_cost`` times those action by action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from scaleacross.cost_models.collectives import Group, links_of
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.settings import Floats, Ints, Settings
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.work import Work
from scaleacross.solvers.candidates import Pricing, communication_s
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.spec.job import Job, Overlap
from scaleacross.spec.parallelism import GridAxis
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class FixedPlacement(Pricing):
    """Pricing on the devices of one fill, which every candidate fills exactly."""

    levels: Levels
    _shapes: dict[tuple[int, int], GroupShape] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet, fill: Fill, job: Job, profile: ModelProfile) -> FixedPlacement:
        """Pricing with the links of this fill."""
        levels = build_levels(fleet.topology, shares(fill), fleet.graph)
        one = links_of(levels)
        links = one._replace(bandwidth=one.bandwidth[None], capacity=one.capacity[None], latency=one.latency[None])
        return cls(fleet, job, profile, links, fleet.largest_children(), levels)

    def under(self, overlap: Overlap) -> FixedPlacement:
        """The same placement for a job with other overlap settings; counted groups are shared."""
        return replace(self, job=self.job.model_copy(update={"overlap": overlap}))

    def step_s(self, settings: Settings, work: Work, axis_order: Sequence[GridAxis]) -> Floats:
        """Step time of candidates that fill the devices, axes placed in this order, fastest first, (n,).

        ``work`` is ``self.work(settings)``, which no overlap setting changes.

        Raises:
            ValueError: a candidate does not fill the devices.
        """
        volumes = self.volumes(settings, work)
        terms = self.order_terms(axis_order, volumes)
        return placement_free_s(volumes) + communication_s(volumes, *terms)

    def _group(self, settings: Settings, degree: Ints, stride: Ints, coarse: bool, rows: Ints | None = None) -> Group:
        kinds = distinct(degree, stride)
        pairs = [(int(degree[row]), int(stride[row])) for row in kinds.first]
        for pair in pairs:
            if pair not in self._shapes:
                self._shapes[pair] = exact_shape(*pair, self.levels)
        parts = [
            np.stack([getattr(self._shapes[pair], f.name) for pair in pairs])[kinds.code] for f in fields(GroupShape)
        ]
        return Group(GroupShape(*parts), self.links, self.launch_s, rows)
