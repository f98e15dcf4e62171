"""B1 and B2 of ``balance`` by trying every split of the layers and every batch share: part of the oracle
``exhaustive``.

``partition_stages`` and ``share_batch`` take no part. Their objectives are written again as sort keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import gcd, isclose

import numpy as np

from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.differing_ranks import LayerCosts, Split, layer_costs
from scaleacross.cost_models.layer_seconds import TimedLayers
from scaleacross.cost_models.layout import Layout, types_of_ranks
from scaleacross.cost_models.stages import equal_stages, head_rank, layers_of_ranks
from scaleacross.schedules.pipeline import SCHEDULES, refusal
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.spec.parallelism import ScheduleName, split_layers
from scaleacross.spec.plan import BatchShare, Decision
from scaleacross.workloads.problem import Problem

SAME = 1e-9
"""Relative difference up to which seconds are equal."""


@dataclass
class BruteBalancer:
    """Every balance of one decision, without its placement, on a pool of several accelerator types."""

    problem: Problem
    pool: AcceleratorPool
    decision: Decision
    _splits: dict[object, list[Split]] = field(default_factory=dict)
    _costs: dict[str, LayerCosts] = field(default_factory=dict)

    def balanced(self, layout: Layout) -> Iterator[Decision]:
        """The decision with equal and heterogeneous layers, each with equal and heterogeneous batch shares."""
        types = types_of_ranks(layout)
        if types not in self._splits:
            self._splits[types] = self._both_splits(types)
        for split in self._splits[types]:
            several = len(self.pool.accelerators) > 1
            for shares in (None, self._best_shares(layout, split)) if several else (None,):
                if shares is None or len({share.num_micro_batches for share in shares}) > 1:
                    yield self.decision.model_copy(update={"layers_per_stage": split, "batch_shares": shares})

    def by_stage(self, layout: Layout) -> Iterator[Decision]:
        """Decisions with every recompute policy of every stage (B4), for the equal split and for the fastest one.

        The fastest split assumes that every stage recomputes as little as fits.
        """
        types, num_chunks = types_of_ranks(layout), self.decision.pipeline.num_chunks
        key = types, "by stage"
        if key not in self._splits:
            equal = equal_stages(self.problem.profile.num_layers, len(types), num_chunks, self.placement)
            other = self._fastest_split(types, equal, self._rerun_paces_s)
            self._splits[key] = list(dict.fromkeys((equal, other or equal)))
        for split in self._splits[key]:
            for policies in product(*map(_policies, split)):
                yield self.decision.model_copy(update={"layers_per_stage": split, "stage_recompute": policies})

    @property
    def costs(self) -> LayerCosts:
        """Costs of a layer on every type."""
        return self._costs_with(self.decision.recompute)

    def _costs_with(self, policy: str) -> LayerCosts:
        if policy not in self._costs:
            job, profile = self.problem.job, self.problem.profile
            decision = self.decision.model_copy(update={"recompute": policy})
            settings = candidate_of(decision, job.global_batch_sequences)
            self._costs[policy] = layer_costs(TimedLayers.of(profile, job, self.pool.accelerators, settings))
        return self._costs[policy]

    @property
    def placement(self) -> StagePlacement:
        """Where the schedule has its virtual stages."""
        return SCHEDULES[self.decision.pipeline.schedule].placement

    def _both_splits(self, types: tuple[frozenset[str], ...]) -> list[Split]:
        num_layers, num_chunks = self.problem.profile.num_layers, self.decision.pipeline.num_chunks
        equal = equal_stages(num_layers, len(types), num_chunks, self.placement)
        if len(set(types)) == 1 and len(self.pool.accelerators) > 1:
            return [equal]
        other = self._fastest_split(types, equal, self._paces_s)
        return [equal] if other is None or other == equal else [equal, other]

    def _fastest_split(
        self, types: Sequence[frozenset[str]], equal: Split, paces_s: Callable[..., list[float] | None]
    ) -> Split | None:
        num_layers, num_chunks = self.problem.profile.num_layers, self.decision.pipeline.num_chunks
        best: tuple[float, int, float, tuple[int, ...]] | None = None
        for counts in _compositions(num_layers, len(types), num_chunks):
            paces = paces_s(counts, types)
            if paces is None or (best is not None and max(paces) > best[0] * (1 + SAME)):
                continue
            away = sum(abs(count - sum(stage)) for count, stage in zip(counts, equal, strict=True))
            one = (max(paces), away, sum(pace**2 for pace in paces), counts)
            if best is None or one[0] < best[0] * (1 - SAME) or _is_before(one, best):
                best = one
        return None if best is None else tuple(split_layers(count, num_chunks) for count in best[3])

    def _rerun_paces_s(self, counts: tuple[int, ...], types: Sequence[frozenset[str]]) -> list[float] | None:
        """Seconds per micro-batch of every stage, each with the fewest reruns that fit, None when a stage does not fit."""
        kept, rerun, chunks = self._costs_with("none"), self._costs_with("full"), self.decision.pipeline.num_chunks
        paces, head = list[float](), head_rank(len(types), chunks, self.placement)
        for rank, (held, names) in enumerate(zip(counts, types, strict=True)):
            room = min(kept.capacity_bytes[kept.types.index(name)] for name in names)
            whole = held % chunks == 0
            legal = [
                n
                for n in range(held + 1)
                if n in (0, held) or (whole and n % chunks == 0 and held // gcd(n, held) <= 16)
            ]
            needed = {
                n: (rerun if n else kept).fixed_bytes[rank]
                + n * rerun.layer_bytes[rank, 0]
                + (held - n) * kept.layer_bytes[rank, 0]
                for n in legal
            }
            least = next((n for n in legal if needed[n] <= room), None)
            if least is None:
                return None
            on_types = []
            for kind in (kept.types.index(name) for name in names):
                seconds = least * float(rerun.layer_s[kind, 0]) + (held - least) * float(kept.layer_s[kind, 0])
                seconds += float(kept.ends_s[kind, 0]) * (rank == 0) + float(kept.ends_s[kind, 1]) * (rank == head)
                on_types.append(seconds)
            paces.append(max(on_types))
        return paces

    def _paces_s(self, counts: tuple[int, ...], types: Sequence[frozenset[str]]) -> list[float] | None:
        """Seconds per micro-batch of every stage, None when a stage does not fit."""
        costs, num_layers = self.costs, self.problem.profile.num_layers
        if self.decision.pipeline.num_chunks == 1:
            table = layers_of_ranks(costs.counts, [(count,) for count in counts]).astype(float)
        else:
            table = np.outer(counts, np.array(costs.counts) / num_layers)
        paces, head = list[float](), head_rank(len(types), self.decision.pipeline.num_chunks, self.placement)
        for rank, names in enumerate(types):
            needed = costs.fixed_bytes[rank] + float(costs.layer_bytes[rank] @ table[rank])
            on_types = []
            for name in names:
                kind = costs.types.index(name)
                if needed > costs.capacity_bytes[kind]:
                    return None
                seconds = float(costs.layer_s[kind] @ table[rank])
                seconds += float(costs.ends_s[kind, 0]) if rank == 0 else 0.0
                seconds += float(costs.ends_s[kind, 1]) if rank == head else 0.0
                on_types.append(seconds)
            paces.append(max(on_types))
        return paces

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


Key = tuple[float, int, float, tuple[int, ...]]


def _is_before(one: Key, other: Key) -> bool:
    """Order of splits that are equally fast.

    First is the one nearer to the equal split, then the one of less Σ pace², then lighter first stages.
    """
    if one[1] != other[1] or not isclose(one[2], other[2], rel_tol=SAME):
        return one[1:3] < other[1:3]
    return one[3] < other[3]


def _policies(chunks: Sequence[int]) -> list[str]:
    shares = {Fraction(some, chunks[0]) for some in range(1, chunks[0])} if len(set(chunks)) == 1 else set()
    some = (f"full:{share.numerator}/{share.denominator}" for share in sorted(shares) if share.denominator <= 16)
    return ["none", *some, "full"]


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
