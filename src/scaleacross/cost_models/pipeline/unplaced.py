"""The pipelines of a decision before it is known where its groups lie: all but what their collectives and messages take.

Where many placements share layers and micro-batches, only calls differ between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import Calls, axis_calls, heads_s
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.pipeline.message_waits import message_waits
from scaleacross.cost_models.pipeline.placed import TimedPipeline, layers_busy_s, stage_seconds, timed_pipelines
from scaleacross.cost_models.pipeline.shard_passes import ShardCalls, passes_busy_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.waiting_groups import RankGroups
from scaleacross.cost_models.window_traffic import crosses_buildings, without_trunks
from scaleacross.spec.parallelism import GridAxis

WAITED: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard")
"""Axes whose collectives stages wait for."""
NO_RANKS: Final[Mapping[str, RankGroups]] = MappingProxyType({})
"""All ranks wait for groups alike."""
NO_GROUPS: Final[Mapping[str, Group]] = MappingProxyType({})
"""No rank's groups lie otherwise than all groups of their axis."""


@dataclass(frozen=True)
class UnplacedPipelines:
    """One decision on one layout.

    Attributes:
        volumes: of the decision, one row.
        stages: work of its virtual stages by accelerator type (``stage_work``).
        micro_batches: of every class of ``layout``.
    """

    volumes: Volumes
    stages: Mapping[str, StageWork]
    layout: Layout
    micro_batches: Sequence[int]

    @property
    def any_stages(self) -> StageWork:
        """Work of the stages on one of the types: what they hold is the same on all."""
        return next(iter(self.stages.values()))

    @cached_property
    def stage_volumes(self) -> Volumes:
        """A row for every virtual stage, with the parameters that it holds in as many buckets as layers, one at least."""
        stages = self.any_stages
        every = self.volumes.take(np.zeros(len(stages.rank), dtype=np.int64))
        held = {"dense_parameters": stages.dense_parameters, "expert_parameters": stages.expert_parameters}
        return replace(every, work=replace(every.work, **held, buckets=np.maximum(1.0, stages.num_layers)))

    def timed(
        self,
        groups: Mapping[str, Group],
        waits: Mapping[str, RankGroups] = NO_RANKS,
        apart: Mapping[str, Group] = NO_GROUPS,
    ) -> list[TimedPipeline]:
        """The pipelines with these groups (one row each), one for every kind of replicas. Raises as ``timed_pipelines``.

        Stages wait for groups inside buildings as long as these take on the stage's own accelerator type; for those in ``waits``
        (``waiting_groups``) as their own pipeline rank's lie. A rank's groups ``apart`` (one row each) have the links between
        buildings to themselves until all ranks' calls ask for more than these carry (``shared_links``). Shards share the networks
        of buildings with all that stages wait for.
        """
        alone = {**groups, **apart}
        held = self.stage_volumes
        shards, inside, busy_s = ShardCalls.of(held, alone), groups, self._links_busy_s(groups)
        if shards is not None and any(crosses_buildings(group.shape).any() for group in groups.values()):
            inside = {name: without_trunks(group) for name, group in groups.items()}
            shards = shards.keeping_busy(held, inside)
            busy_s["dp"] = passes_busy_s(held, groups, int(self.volumes.candidates.pp[0]))
        by_type = {
            name: stage_seconds(
                self.volumes,
                work,
                self._calls_on(name, alone, waits),
                shards,
                () if shards is None else self._calls_on(name, inside, NO_RANKS),
            )
            for name, work in self.stages.items()
        }
        behind = message_waits(self.volumes, self.any_stages, alone, waits)
        message, ranks = axis_calls("pp", self.volumes, groups["pp"]).message, self.any_stages.rank
        return timed_pipelines(self.volumes, by_type, ranks, self.layout, self.micro_batches, message, busy_s, behind)

    def _links_busy_s(self, groups: Mapping[str, Group]) -> dict[str, Floats]:
        """Seconds for which what F, B, I and W of every virtual stage wait for keeps links between buildings busy at least.

        (4, p·v) by component, every rank's in the mean; ``groups`` share these links with all others.
        """
        names = ("tp", "cp", "ep")
        far = {name for name in names if crosses_buildings(groups[name].shape).any()}
        if not far:
            return {}
        calls = zip(names, self._calls_on(next(iter(self.stages)), groups, NO_RANKS), strict=True)
        each = layers_busy_s(self.any_stages, *(own if name in far else Calls() for name, own in calls))
        return {
            name: np.stack([ahead, back, back, 0 * back]) / float(self.volumes.candidates.pp[0])
            for name, (ahead, back) in zip(names, each, strict=True)
            if name in far
        }

    def _calls_on(self, accelerator: str, groups: Mapping[str, Group], waits: Mapping[str, RankGroups]) -> list[Calls]:
        """Of tp, cp and dp_shard."""

        def calls(axis: GridAxis, name: str) -> Calls:
            def of_kind(group: Group) -> Calls:
                return axis_calls(axis, self.volumes, group.on(accelerator), group.on(accelerator))

            return waits[name].calls(of_kind) if name in waits else of_kind(groups[name])

        def heads(group: Group) -> Calls:
            return Calls(heads_s=heads_s(self.volumes, group.on(accelerator)))

        two_levels = int(self.volumes.candidates.cp_inner[0]) > 1
        keys = calls("cp", "cp_outer" if two_levels else "cp")
        if two_levels:
            inner = waits["cp_inner"].calls(heads) if "cp_inner" in waits else heads(groups["cp_inner"])
            keys = keys._replace(heads_s=inner.heads_s)
        return [calls("tp", "tp"), keys, calls("dp_shard", "ep")]

    def exchanges(
        self, groups: Mapping[str, Group], timed: TimedPipeline, waits: Mapping[str, RankGroups] = NO_RANKS
    ) -> RankGroups:
        """The all-to-alls that its pipeline ranks wait for: of several types' the shortest, as none hides more than it waits."""
        types = sorted(frozenset[str]().union(*self.layout[timed.replicas].types))
        ranks = int(self.volumes.candidates.pp[0])
        every = waits["ep"] if "ep" in waits else RankGroups.alike(groups["ep"], ranks)
        kinds = (
            min((group.on(name) for name in types), key=self._exchange_s) if group.by_type else group
            for group in every.kinds
        )
        return every._replace(kinds=tuple(kinds))

    def _exchange_s(self, group: Group) -> float:
        return float(group.all_to_all(self.volumes.routed_bytes, self.volumes.equal_copies, "tokens").time_s[0])
