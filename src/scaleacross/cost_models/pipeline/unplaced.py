"""The pipelines of a decision before its groups are placed: everything except the times of collectives and messages.

Placements with the same layers and micro-batches share these pipelines and differ only in their calls.
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
from scaleacross.cost_models.pipeline.placed import TimedPipeline, layers_busy_s, stage_seconds, timed_pipelines
from scaleacross.cost_models.pipeline.shard_passes import ShardCalls, passes_busy_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.waiting_groups import RankGroups
from scaleacross.cost_models.window_traffic import crosses_buildings, without_trunks
from scaleacross.spec.parallelism import GridAxis

WAITED: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard")
"""Axes with collectives that stages wait for."""
NO_RANKS: Final[Mapping[str, RankGroups]] = MappingProxyType({})
"""Default for ``waits``: all ranks wait for the same groups."""
NO_GROUPS: Final[Mapping[str, Group]] = MappingProxyType({})
"""Default for ``apart``: the groups of every rank lie as all groups of their axis."""


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
        """Work of the stages on one of the types. Layers and parameters are the same on all types."""
        return next(iter(self.stages.values()))

    @cached_property
    def stage_volumes(self) -> Volumes:
        """Volumes with a row for every virtual stage, with its own parameters in one bucket per layer, at least one."""
        stages = self.any_stages
        every = self.volumes.take(np.zeros(len(stages.rank), dtype=np.int64))
        held = {"dense_parameters": stages.dense_parameters, "expert_parameters": stages.expert_parameters}
        return replace(every, work=replace(every.work, **held, buckets=np.maximum(1.0, stages.num_layers)))

    def timed(
        self,
        groups: Mapping[str, Group],
        waits: Mapping[str, RankGroups] = NO_RANKS,
        apart: Mapping[str, Group] = NO_GROUPS,
        shards: Mapping[str, RankGroups] = NO_RANKS,
    ) -> list[TimedPipeline]:
        """The pipelines with these groups (one row each), one per kind of replicas. Raises as ``timed_pipelines``.

        Waits for groups inside buildings are those of the stage's own accelerator type. Waits for groups in ``waits``
        (``waiting_groups``) are those of the stage's pipeline rank. The groups of a rank in ``apart`` (one row each)
        have the inter-building links to themselves until the calls of all ranks ask for more than these carry
        (``shared_links``). Shards travel over the groups of the stage's rank in ``shards``, and share the networks of
        buildings with all other calls of the stages.
        """
        alone = {**groups, **apart}
        held = self.stage_volumes
        of_stages = {name: own.on(self.any_stages.rank) for name, own in shards.items()}
        passes, inside, busy_s = ShardCalls.of(held, {**alone, **of_stages}), groups, self._links_busy_s(groups)
        if passes is not None and any(crosses_buildings(group.shape).any() for group in groups.values()):
            inside = {name: without_trunks(group) for name, group in groups.items()}
            passes = passes.keeping_busy(held, inside)
            busy_s["dp"] = passes_busy_s(held, groups, int(self.volumes.candidates.pp[0]))
        by_type = {
            name: stage_seconds(
                self.volumes,
                work,
                self._calls_on(name, alone, waits),
                passes,
                () if passes is None else self._calls_on(name, inside, NO_RANKS),
            )
            for name, work in self.stages.items()
        }
        message, ranks = axis_calls("pp", self.volumes, groups["pp"]).message, self.any_stages.rank
        return timed_pipelines(self.volumes, by_type, ranks, self.layout, self.micro_batches, message, busy_s)

    def _links_busy_s(self, groups: Mapping[str, Group]) -> dict[str, Floats]:
        """Least seconds for which waits of F, B, I and W of every virtual stage keep inter-building links busy.

        The shape is (4, p·v) by component, in the mean over ranks. ``groups`` share these links with all others.
        """
        names = ("tp", "cp", "ep")
        crossing = {name for name in names if crosses_buildings(groups[name].shape).any()}
        if not crossing:
            return {}
        calls = zip(names, self._calls_on(next(iter(self.stages)), groups, NO_RANKS), strict=True)
        each = layers_busy_s(self.any_stages, *(own if name in crossing else Calls() for name, own in calls))
        return {
            name: np.stack([ahead, back, back, 0 * back]) / float(self.volumes.candidates.pp[0])
            for name, (ahead, back) in zip(names, each, strict=True)
            if name in crossing
        }

    def _calls_on(self, accelerator: str, groups: Mapping[str, Group], waits: Mapping[str, RankGroups]) -> list[Calls]:
        """Calls of tp, cp and dp_shard on one accelerator type."""

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
        """The all-to-alls that the ranks of a pipeline wait for.

        Of several accelerator types the shortest counts, because no call overlaps with more than its own wait.
        """
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
