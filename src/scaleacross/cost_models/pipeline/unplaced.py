"""The pipelines of a decision before it is known where its groups lie: all but what their collectives and messages take.

Where many placements share layers and micro-batches, only calls differ between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaleacross.cost_models.axes import axis_calls
from scaleacross.cost_models.chunk_work import Split, StageWork, stage_work
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.layer_seconds import StackedTimes
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.pipeline.placed import TimedPipeline, stage_seconds, timed_pipelines
from scaleacross.cost_models.traffic import Volumes
from scaleacross.spec.accelerator import Accelerator


@dataclass(frozen=True)
class UnplacedPipelines:
    """One decision on one layout.

    Attributes:
        volumes: of the decision, one row.
        stages: work of its virtual stages by accelerator type.
        micro_batches: of every class of ``layout``.
    """

    volumes: Volumes
    stages: Mapping[str, StageWork]
    layout: Layout
    micro_batches: Sequence[int]

    @classmethod
    def of(
        cls,
        volumes: Volumes,
        accelerators: Sequence[Accelerator],
        times: Sequence[StackedTimes],
        layout: Layout,
        split: Split,
        micro_batches: Sequence[int],
    ) -> UnplacedPipelines:
        """With ``times`` of every accelerator type. Raises ValueError as ``stage_work``."""
        stages = {
            one.name: stage_work(volumes.profile, volumes.job, one, each, volumes.settings, split)
            for one, each in zip(accelerators, times, strict=True)
        }
        return cls(volumes, stages, layout, micro_batches)

    @property
    def any_stages(self) -> StageWork:
        """Work of the stages on one of the types: what they hold is the same on all."""
        return next(iter(self.stages.values()))

    def timed(self, groups: Mapping[str, Group]) -> list[TimedPipeline]:
        """The pipelines with these groups (one row each), one for every kind of replicas. Raises as ``timed_pipelines``."""
        tp, cp, shard, pp = (
            axis_calls(axis, self.volumes, groups[axis], groups["ep"]) for axis in ("tp", "cp", "dp_shard", "pp")
        )
        by_type = {name: stage_seconds(self.volumes, work, (tp, cp, shard)) for name, work in self.stages.items()}
        return timed_pipelines(self.volumes, by_type, self.any_stages.rank, self.layout, self.micro_batches, pp.message)
