"""B1 and B2 of ``balance`` by trying every split of the layers and every batch share: part of the oracle ``exhaustive``.

Neither ``partition_stages`` nor ``share_batch`` takes part; their objectives are written again as sort keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from scaleacross.cost_models.layer_seconds import times_by_type
from scaleacross.cost_models.layout import Layout, types_of_ranks
from scaleacross.cost_models.settings import settings_of
from scaleacross.cost_models.stages import equal_stages, head_rank, layers_of_ranks
from scaleacross.cost_models.uneven import LayerCosts, Split, layer_costs
from scaleacross.schedules.pipeline import SCHEDULES, refusal
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.solvers.fleets import Fleet
from scaleacross.spec.parallelism import ScheduleName, split_layers
from scaleacross.spec.plan import BatchShare, Decision
from scaleacross.workloads.problem import Problem

SAME = 1e-9
"""Seconds that differ by less, relatively, are equal."""


@dataclass
class BruteBalancer:
    """Every balance of one decision (its placement left out) on a fleet of several accelerator types."""

    problem: Problem
    fleet: Fleet
    decision: Decision
    _splits: dict[tuple[frozenset[str], ...], list[Split]] = field(default_factory=dict)
    _costs: list[LayerCosts] = field(default_factory=list)

    def balanced(self, layout: Layout) -> Iterator[Decision]:
        """The decision with equal and uneven layers, each with equal and uneven batch shares."""
        types = types_of_ranks(layout)
        if types not in self._splits:
            self._splits[types] = self._both_splits(types)
        for split in self._splits[types]:
            several = len(self.fleet.accelerators) > 1
            for shares in (None, self._best_shares(layout, split)) if several else (None,):
                if shares is None or len({share.num_micro_batches for share in shares}) > 1:
                    yield self.decision.model_copy(update={"layers_per_stage": split, "batch_shares": shares})

    @property
    def costs(self) -> LayerCosts:
        """Costs of a layer on every type."""
        if not self._costs:
            job, profile = self.problem.job, self.problem.profile
            settings = settings_of(self.decision, job.global_batch_sequences)
            times = times_by_type(profile, job, self.fleet.accelerators, settings)
            self._costs.append(layer_costs(profile, job, self.fleet.accelerators, settings, times))
        return self._costs[0]

    @property
    def placement(self) -> StagePlacement:
        """Where the schedule has its virtual stages."""
        return SCHEDULES[self.decision.pipeline.schedule].placement

    def _both_splits(self, types: tuple[frozenset[str], ...]) -> list[Split]:
        num_layers, num_chunks = self.problem.profile.num_layers, self.decision.pipeline.num_chunks
        equal = equal_stages(num_layers, len(types), num_chunks, self.placement)
        if len(set(types)) == 1 and len(self.fleet.accelerators) > 1:
            return [equal]
        best: tuple[float, int, tuple[int, ...]] | None = None
        for counts in _compositions(num_layers, len(types), num_chunks):
            pace = self._pace_s(counts, types)
            away = sum(abs(count - sum(stage)) for count, stage in zip(counts, equal, strict=True))
            if not np.isfinite(pace) or (best is not None and pace > best[0] * (1 + SAME)):
                continue
            if best is None or pace < best[0] * (1 - SAME) or (away, counts) < best[1:]:
                best = (pace, away, counts)
        if best is None:
            return [equal]
        other = tuple(split_layers(count, num_chunks) for count in best[2])
        return [equal] if other == equal else [equal, other]

    def _pace_s(self, counts: tuple[int, ...], types: Sequence[frozenset[str]]) -> float:
        """Slowest stage in seconds per micro-batch, inf when a stage does not fit."""
        costs, num_layers = self.costs, self.problem.profile.num_layers
        if self.decision.pipeline.num_chunks == 1:
            table = layers_of_ranks(costs.counts, [(count,) for count in counts]).astype(float)
        else:
            table = np.outer(counts, np.array(costs.counts) / num_layers)
        slowest, head = 0.0, head_rank(len(types), self.decision.pipeline.num_chunks, self.placement)
        for rank, names in enumerate(types):
            needed = costs.fixed_bytes[rank] + float(costs.layer_bytes[rank] @ table[rank])
            for name in names:
                kind = costs.types.index(name)
                if needed > costs.capacity_bytes[kind]:
                    return float("inf")
                seconds = float(costs.layer_s[kind] @ table[rank])
                seconds += float(costs.ends_s[kind, 0]) if rank == 0 else 0.0
                seconds += float(costs.ends_s[kind, 1]) if rank == head else 0.0
                slowest = max(slowest, seconds)
        return slowest

    def _best_shares(self, layout: Layout, split: Split) -> tuple[BatchShare, ...] | None:
        pp, pipeline = self.decision.degrees.pp, self.decision.pipeline
        whole = self.problem.job.global_batch_sequences // pipeline.micro_batch_sequences
        table = layers_of_ranks(self.costs.counts, split, self.placement)
        paces = [float(self.costs.slowest_pass_s(table, one.types).max()) for one in layout]
        by_pace = sorted(range(len(layout)), key=lambda c: (-paces[c], c))
        best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
        for numbers in product(*(range(1, whole // one.num_replicas + 1) for one in layout)):
            if sum(m * one.num_replicas for m, one in zip(numbers, layout, strict=True)) != whole:
                continue
            if not all(runs(pipeline.schedule, pp, m, pipeline.num_chunks) for m in numbers):
                continue
            time = max((m + (pp - 1) / pipeline.num_chunks) * pace for m, pace in zip(numbers, paces, strict=True))
            fewest_left = tuple(-numbers[c] for c in by_pace)
            if best is None or time < best[0] * (1 - SAME):
                best = (time, fewest_left, numbers)
            elif time <= best[0] * (1 + SAME) and fewest_left < best[1]:
                best = (best[0], fewest_left, numbers)
        if best is None or len(layout) == 1:
            return None
        return tuple(
            BatchShare(buildings=one.buildings, num_replicas=one.num_replicas, num_micro_batches=m)
            for one, m in zip(layout, best[2], strict=True)
        )


def runs(schedule: ScheduleName, pp: int, num_micro_batches: int, num_chunks: int) -> bool:
    """R7."""
    if pp == 1:
        return True
    return refusal(schedule, pp, num_micro_batches, num_chunks) is None


def _compositions(total: int, parts: int, least: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as ``parts`` numbers of at least ``least``, in order."""
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        for rest in _compositions(total - first, parts - 1, least):
            yield (first, *rest)
