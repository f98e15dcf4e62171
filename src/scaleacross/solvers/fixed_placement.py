"""Price whole arrays of candidates on one given placement rule: an axis order over one fill.

The same cost model as a plan's (``cost_models.step``) on the groups that the order really makes, counted once per distinct
group; nothing is relaxed. Only pipelines whose delays have no exact closed form keep the bound of ``pipeline.lower_bound_s``:
``plan_cost`` times those action by action.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.settings import Ints, Settings
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class FixedPlacement(Pricing):
    """Pricing on the devices of one fill, which every candidate fills exactly (``exact_shape`` raises ValueError otherwise).

    ``arranged(settings, order).step_s(job)`` is the step time of candidates under the overlap settings of a job.
    """

    levels: Levels
    _shapes: dict[tuple[int, int], GroupShape] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet, fill: Fill, job: Job, profile: ModelProfile) -> FixedPlacement:
        """Pricing with the links of this fill."""
        levels = build_levels(fleet.topology, shares(fill), fleet.graph)
        one = links_of(levels)
        links = one._replace(bandwidth=one.bandwidth[None], capacity=one.capacity[None], latency=one.latency[None])
        return cls(fleet, job, profile, links, fleet.largest_children(), levels)

    def _group(self, settings: Settings, degree: Ints, stride: Ints, coarse: bool, rows: Ints | None = None) -> Group:
        kinds = distinct(degree, stride)
        pairs = [(int(degree[row]), int(stride[row])) for row in kinds.first]
        for pair in pairs:
            if pair not in self._shapes:
                self._shapes[pair] = exact_shape(*pair, self.levels)
        parts = [
            np.stack([getattr(self._shapes[pair], f.name) for pair in pairs])[kinds.code] for f in fields(GroupShape)
        ]
        return Group(GroupShape(*parts), self.links, self.launch_s, rows, self.network)
