"""Balance work over pipeline stages and replicas when a placement mixes accelerator types.

For a candidate on a given placement the choices are

B1 layers     the equal split, or the one of ``partition_stages`` for the types that the placement has on each stage
              (where all stages have the same types: the equal split only, since ``unequal_layers`` tries the other)
B2 batch      equally many micro-batches for every replica, or those of ``share_batch`` for the pace that each class has
              under the split chosen by B1 (with one class, or a target that knows no other: equally many only)
B3 memory     every stage fits the smallest type on it, with the micro-batches of the replicas that have most
B4 reruns     under ``recompute: per_stage`` as many layers of every stage as its memory asks for
              (``partition_stages``), on the equal split and on the one that is fastest with them; batches are equal

So there are at most four balances, and all of them get step times. Their number, and the size of both models, depends
on the buildings, the layers and the micro-batches, not on the accelerators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Ints
from scaleacross.cost_models.differing_ranks import LayerCosts, Rows, Split, SplitRanks, head_rank_of, layer_costs
from scaleacross.cost_models.layer_seconds import TimedLayers
from scaleacross.cost_models.layout import Layout, layout_of, types_of_ranks
from scaleacross.cost_models.memory import host_bytes
from scaleacross.cost_models.offloading import host_room_bytes
from scaleacross.cost_models.plan_cost import layers_per_stage, micro_batches_of
from scaleacross.cost_models.recomputation import on_ranks
from scaleacross.cost_models.stages import equal_stages, every_rank, layers_of_ranks, placement_of
from scaleacross.cost_models.work import work_of
from scaleacross.schedules.pipeline import legal_micro_batches
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.solvers.partition_stages import Reruns, StagePaces, partition_stages
from scaleacross.solvers.share_batch import share_batch
from scaleacross.spec.parallelism import SCHEDULE_NAMES
from scaleacross.spec.plan import BatchShare, Decision
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.targets import needs_equal_batches
from scaleacross.workloads.problem import Problem


@dataclass(frozen=True)
class Balance:
    """Layers [rank][chunk], micro-batches per replica class and recompute policies per rank, on one layout.

    ``placement`` says which rank holds which virtual stage.
    """

    layout: Layout
    split: Split
    micro_batches: tuple[int, ...]
    placement: StagePlacement = "loop"
    stage_recompute: tuple[str, ...] | None = None

    @property
    def layers_per_stage(self) -> Split | None:
        """Split as a decision states it: None when it is the equal one."""
        equal = equal_stages(sum(map(sum, self.split)), len(self.split), len(self.split[0]), self.placement)
        return None if self.split == equal else self.split

    @property
    def stated(self) -> dict[str, object]:
        """Layers, batch shares and recompute policies as fields of a decision."""
        return {name: getattr(self, name) for name in ("layers_per_stage", "batch_shares", "stage_recompute")}

    @property
    def batch_shares(self) -> tuple[BatchShare, ...] | None:
        """Micro-batches as a decision states them: None when they are equal."""
        if len(set(self.micro_batches)) == 1:
            return None
        return tuple(
            BatchShare(buildings=one.buildings, num_replicas=one.num_replicas, num_micro_batches=m)
            for one, m in zip(self.layout, self.micro_batches, strict=True)
        )


@dataclass(frozen=True)
class Balancer:
    """Finds the balances of one candidate."""

    timed: TimedLayers
    _fastest: dict[tuple[frozenset[str], ...], Split | None] = field(init=False, default_factory=dict)
    _ranks: dict[tuple[Split, tuple[str, ...] | None], SplitRanks] = field(init=False, default_factory=dict)
    _tables: dict[Split, Ints] = field(init=False, default_factory=dict)
    _costs: dict[int, LayerCosts] = field(init=False, default_factory=dict)
    _known_fits: dict[tuple[object, ...], bool] = field(init=False, default_factory=dict)

    @property
    def candidates(self) -> Candidates:
        """The candidate as a single row."""
        return self.timed.candidates

    @property
    def placement(self) -> StagePlacement:
        """Rank that holds each virtual stage under the candidate's schedule."""
        return placement_of(self.candidates)

    @property
    def costs(self) -> LayerCosts:
        """Layer costs with equal batch shares."""
        return self._costs_with(int(self.candidates.num_micro_batches[0]))

    def equal(self, layout: Layout) -> Balance:
        """Return equal layers and batches, whether they fit or not."""
        m = int(self.candidates.num_micro_batches[0])
        return Balance(layout, self._equal_split, (m,) * len(layout), self.placement)

    @cached_property
    def _equal_split(self) -> Split:
        pp, num_chunks = int(self.candidates.pp[0]), int(self.candidates.num_chunks[0])
        return equal_stages(self.timed.profile.num_layers, pp, num_chunks, self.placement)

    def balances(self, layout: Layout) -> Iterator[Balance]:
        """Yield the balances of B1–B3 that fit, the equal one first."""
        alike, types = self.equal(layout).micro_batches, types_of_ranks(layout)
        for split in self._splits(types):
            # unequal batches give some replica more micro-batches, which never need less memory
            if not self.fits(types, split, alike[0]):
                continue
            yield Balance(layout, split, alike, self.placement)
            for micro_batches in self._shares(layout, split):
                if micro_batches != alike and self.fits(types, split, max(micro_batches)):
                    yield Balance(layout, split, micro_batches, self.placement)

    @cached_property
    def unequal_split(self) -> Split | None:
        """Split of ``partition_stages`` on a pool of one type; None where it is the equal one, or none fits."""
        types = [frozenset(one.name for one in self.timed.accelerators)] * int(self.candidates.pp[0])
        split = self._paces.partition(types, self.placement)
        return None if split == self._equal_split else split

    def unequal(self, layout: Layout) -> Iterator[Balance]:
        """Yield ``unequal_split`` with equally many micro-batches for every replica, where it fits."""
        balance = self.equal(layout)
        types, most = types_of_ranks(layout), max(balance.micro_batches)
        if self.unequal_split is not None and self.fits(types, self.unequal_split, most):
            yield replace(balance, split=self.unequal_split)

    def by_stage(self, layout: Layout) -> Iterator[Balance]:
        """Yield the balances of B4."""
        kept, rerun = (self._with(policy) for policy in ("none", "full"))
        num_chunks, types = int(self.candidates.num_chunks[0]), types_of_ranks(layout)
        reruns = Reruns(kept.costs, rerun.costs, types, num_chunks)
        fastest = partition_stages(kept.costs, types, num_chunks, self.placement, reruns)
        for split in dict.fromkeys((self._equal_split, fastest)):
            policies = None if split is None else reruns.policies(split)
            if split is not None and policies is not None:
                yield replace(self.equal(layout), split=split, stage_recompute=policies)

    def _with(self, policy: str) -> Balancer:
        return Balancer(self._timed(recompute=RECOMPUTES.index(policy)))

    def _timed(self, **columns: int) -> TimedLayers:
        """Return the timed layers with other ``columns`` of the candidate."""
        other = {name: np.array([value]) for name, value in columns.items()}
        return self.timed._replace(candidates=replace(self.candidates, **other))

    def rows(self, balance: Balance) -> Rows:
        """Return the rows that time a balance: one if all ranks are alike, else one per kind of rank."""
        if len(self.timed.accelerators) == 1 and balance.layers_per_stage is None and balance.stage_recompute is None:
            work = work_of(*self.timed[:4])
            return Rows(self.candidates, work, np.zeros(len(self.candidates), dtype=np.int64))
        key = balance.split, balance.stage_recompute
        if key not in self._ranks:  # layouts have few splits
            timed = self.timed._replace(candidates=on_ranks(self.candidates, balance.stage_recompute))
            self._ranks[key] = SplitRanks.of(timed, balance.split)
        return self._ranks[key].differing_rows(balance.layout, balance.micro_batches)

    def _splits(self, types: tuple[frozenset[str], ...]) -> list[Split]:
        equal = self._equal_split
        if len(set(types)) == 1:
            return [equal]
        if types not in self._fastest:  # layouts of many buildings have the same types
            self._fastest[types] = self._paces.partition(types, self.placement)
        other = self._fastest[types]
        return [equal] if other is None or other == equal else [equal, other]

    @cached_property
    def _paces(self) -> StagePaces:
        return StagePaces(self.costs, int(self.candidates.num_chunks[0]))

    def _shares(self, layout: Layout, split: Split) -> list[tuple[int, ...]]:
        if len(layout) == 1 or needs_equal_batches(self.timed.job):
            return []
        m, pp, num_chunks = (
            int(getattr(self.candidates, name)[0]) for name in ("num_micro_batches", "pp", "num_chunks")
        )
        replicas = [one.num_replicas for one in layout]
        name, total = SCHEDULE_NAMES[int(self.candidates.schedule[0])], m * sum(replicas)
        legal = legal_micro_batches(name, pp, num_chunks, total) if pp > 1 else range(1, total + 1)
        # warm-up and cool-down leave a rank idle for (pp − 1)/v micro-batches
        shares = share_batch(self.paces(layout, split), replicas, total, (pp - 1) / num_chunks, legal)
        return [] if shares is None else [shares]

    def paces(self, layout: Layout, split: Split) -> list[float]:
        """Return the seconds of a micro-batch on the slowest stage of every replica class."""
        layers = self._table(split)
        return [float(self.costs.slowest_pass_s(layers, one.types).max()) for one in layout]

    def fits(self, types: tuple[frozenset[str], ...], split: Split, most: int) -> bool:
        """Return whether every rank holds its layers in memory, with at most ``most`` micro-batches a replica.

        ``types``: of every rank (``types_of_ranks``).
        """
        key = types, split, most
        if key not in self._known_fits:  # most layouts have the types of another one
            costs = self._costs_with(most)
            fits = bool((costs.bytes(self._table(split)) <= costs.least_capacity_bytes(types)).all())
            self._known_fits[key] = fits and self._host_holds(types, split, most)
        return self._known_fits[key]

    def _host_holds(self, types: Sequence[frozenset[str]], split: Split, most: int) -> bool:
        """Return whether host memory holds what every rank offloads."""
        if not (self.candidates.activation_offload.any() or self.candidates.optimizer_offload.any()):
            return True
        candidates = self._timed(num_micro_batches=most).candidates
        classes = every_rank(self._table(split), head_rank_of(candidates))
        filled = host_bytes(self.timed.profile, self.timed.job, candidates, classes)[:, 0]
        rooms = [host_room_bytes([one for one in self.timed.accelerators if one.name in names]) for names in types]
        return bool((filled <= rooms).all())

    def _costs_with(self, num_micro_batches: int) -> LayerCosts:
        if num_micro_batches not in self._costs:
            self._costs[num_micro_batches] = layer_costs(self._timed(num_micro_batches=num_micro_batches))
        return self._costs[num_micro_batches]

    def _table(self, split: Split) -> Ints:
        if split not in self._tables:  # few splits are asked for again and again
            self._tables[split] = layers_of_ranks(self.costs.counts, split, self.placement)
        return self._tables[split]


def balance_of(problem: Problem, decision: Decision, candidates: Candidates) -> Balance:
    """Return the balance that a placed decision states, by default the equal one (``candidates`` is its row)."""
    layout = layout_of(problem.topology, decision)
    split = layers_per_stage(problem.profile, decision)
    batches = micro_batches_of(decision, candidates, layout)
    return Balance(layout, split, batches, placement_of(candidates), decision.stage_recompute)
