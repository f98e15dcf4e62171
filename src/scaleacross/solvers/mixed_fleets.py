"""Candidates on fleets of several accelerator types: bounds that hold for any balance, and the exact best placement.

Sets          T  accelerator types;  K  block types, N[k] layers each;  groups g: one stage of one replica, pp·dp of them
Parameters    P[t,k]  seconds of a layer per micro-batch on type t: forward, backward, recomputation, and the tp, cp and ep
              collectives that nothing hides, as fast as the best links allow;  A[t] accelerators of type t in the fleet
Bound         With Q[k] = min_t P[t,k] and f[t] = max_k Q[k]/P[t,k] ≤ 1, a group of type t does at most f[t] of the
              reference work in a given time. A group is as slow as its slowest accelerator, so at most
              ⌊(A of the i fastest types)/(tp·cp)⌋ groups are of the i fastest types, and at least one has the slowest.
              Summed over all groups, for any layers per stage and any batch shares:
                  step ≥ (m + (pp−1)/v) · dp · Σ_k N[k]·Q[k] / Σ_g f[g]  +  optimizer
Placement     every axis order on every fill (S1–S3 of ``fleets``) has a *layout*: the types on each stage of each replica
              class. Layouts are few. Each is balanced (B1–B3 of ``balance``), floors of computation sort the balances, and
              all orders and fills of a layout are priced in arrays until the next floor is not below the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import permutations
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import axis_terms
from scaleacross.cost_models.collectives import Links, stacked_links
from scaleacross.cost_models.layout import Layout, layout_of
from scaleacross.cost_models.memory import memory_parts
from scaleacross.cost_models.overlap import rounds
from scaleacross.cost_models.settings import Floats, Settings
from scaleacross.cost_models.stages import RankClasses
from scaleacross.cost_models.step import placement_free_s, step_times
from scaleacross.cost_models.uneven import layer_pass_s
from scaleacross.cost_models.work import StackedTimes, Work, pipeline_groups, times_by_type, update_s
from scaleacross.solvers.balance import Balance, Balancer
from scaleacross.solvers.candidates import Priced, Pricing
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer, stacked_shapes
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, RECOMPUTES, GridAxis
from scaleacross.spec.placement import strides
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile

EXACT_BLOCK: Final = 8
"""Placements whose pipelines are timed together."""
SERIAL_AXES: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard")
"""Axes with collectives per layer and micro-batch that computation does not hide (dp_shard: the experts')."""

LAYOUT_AXES: Final[tuple[GridAxis, ...]] = ("pp", "dp_shard", "dp_replicate")
"""Axes whose degrees and strides decide which types a stage of a replica has."""

Place = tuple[Fill, tuple[GridAxis, ...]]


def pricing_on(fleet: Fleet, job: Job, profile: ModelProfile) -> Pricing:
    """The pricing for a fleet: of one type, or of several."""
    return (MixedPricing if len(fleet.accelerators) > 1 else Pricing).on(fleet, job, profile)


def placer_on(
    fleet: Fleet,
    job: Job,
    profile: ModelProfile,
    seed: int = 0,
    incumbent_s: Callable[[], float] = lambda: np.inf,
    balanced: bool = True,
) -> Placer:
    """The placer for a fleet.

    Args:
        incumbent_s: on several types nothing at or above this is placed.
        balanced: False on several types: equal layers and batches only, whether they fit in memory or not.
    """
    pricing = pricing_on(fleet, job, profile)
    if isinstance(pricing, MixedPricing):
        return MixedPlacer(fleet, pricing, seed=seed, incumbent_s=incumbent_s, balanced=balanced)
    return Placer(fleet, pricing, seed=seed)


@dataclass(frozen=True)
class MixedPricing(Pricing):
    """Bounds for fleets of several types; the bound is the module's, whatever the placement."""

    @property
    def capacity_bytes(self) -> float:
        """Memory of the largest type: ``needed_bytes`` is that of the least loaded placement."""
        return max(accelerator.usable_memory_bytes for accelerator in self.accelerators)

    def needed_bytes(self, settings: Settings) -> Floats:
        """Bytes that the rank with most layers needs at least, under any split, without the reserve, (n,).

        That rank has ⌈L/pp⌉ layers or more; the cheapest block type, no embedding, the last rank (fewest in flight).
        """
        needed = np.empty(len(settings))
        types = len(self.profile.blocks)
        for pp, _, rows in pipeline_groups(settings):
            layers = np.eye(types, dtype=np.int64) * -(-self.profile.num_layers // pp)
            nothing = np.zeros(types, dtype=np.int64)
            classes = RankClasses(layers, nothing, nothing, nothing + pp - 1)
            parts = memory_parts(self.profile, self.job, settings.take(rows), classes)
            needed[rows] = sum(parts.values(), start=np.zeros(1)).min(axis=0)
        return needed

    def base_bound_s(self, bases: Settings) -> Floats:
        """The bound without the optimizer, which depends on the split of dp, (n,)."""
        return self._computation_s(bases)

    def coarse(self, settings: Settings) -> Priced:
        """The bound as computation that no placement changes."""
        seconds, nothing = self._computation_s(settings), np.zeros(len(settings))
        held = self.profile.total_parameters / (settings.pp * settings.tp * np.maximum(1, settings.ep))
        optimizer = update_s(self.job, self.accelerators, settings, held, nothing).min(axis=0)
        columns = {f.name: nothing for f in fields(Work)}
        work = Work(**columns | {"forward_s": seconds / rounds(settings), "optimizer_s": optimizer})
        free = placement_free_s(self.volumes(settings, work))
        return Priced(settings, work, free, free)

    def tight(self, priced: Priced) -> Priced:
        """Nothing tighter is known before the placement."""
        return priced

    def _computation_s(self, settings: Settings) -> Floats:
        """Bound of the module docstring without the optimizer, (n,)."""
        times = times_by_type(self.profile, self.job, self.accelerators, settings)
        seconds = np.stack([layer_pass_s(each, settings) + self._waits_s(each, settings) for each in times])
        layers, ends = seconds[:, :-2], seconds[:, -2:]  # (types, block types, n)
        least = layers.min(axis=0)
        share = (least / layers).max(axis=1)  # f, (types, n)
        counts = np.array([count for _, count in self.profile.blocks])
        whole = counts @ least + (share[:, None] * ends).min(axis=0).sum(axis=0)
        return rounds(settings) * settings.dp * whole / self._speed(settings, share)

    def _speed(self, settings: Settings, share: Floats) -> Floats:
        """Σ_g f[g] of the module docstring, at most, (n,)."""
        sizes = dict.fromkeys((accelerator.name for accelerator in self.accelerators), 0)
        for building in self.fleet.buildings:
            sizes[building.accelerator.name] += building.num_accelerators
        order = np.argsort(-share, axis=0)
        available = np.cumsum(np.array(list(sizes.values()))[order], axis=0) // (settings.tp * settings.cp)
        groups = settings.pp * settings.dp
        upto = np.minimum(available, groups - 1)
        upto[-1] = groups
        return (np.diff(upto, axis=0, prepend=0) * np.take_along_axis(share, order, axis=0)).sum(axis=0)

    def _waits_s(self, times: StackedTimes, settings: Settings) -> Floats:
        """Exposed tp, cp and ep collectives of one layer and micro-batch at their relaxed best, (block types + 2, n)."""
        layers = [*(block for block, _ in self.profile.blocks), self.profile.embedding, self.profile.head]
        attention = times.attention.max(axis=0)
        return np.stack(
            [self._wait_s(layer, settings, attention) for layer in layers[:-2]]
            + [self._wait_s(layer, settings, attention, is_end=True) for layer in layers[-2:]]
        )

    def _wait_s(self, layer: LayerProfile, settings: Settings, attention_s: Floats, is_end: bool = False) -> Floats:
        nothing, one = np.zeros(len(settings)), np.ones(len(settings))
        passes = np.where((settings.recompute == RECOMPUTES.index("full")) & (not is_end), 3.0, 2.0)
        work = Work(
            **{f.name: nothing for f in fields(Work)}
            | {
                "tp_gathers": 2.0 * passes * layer.tp_gathers,
                "layers": one * (layer.attention is not None and not is_end),
                "moe_layers": one * (layer.routed_tokens > 0 and not is_end),
                "attention_s": attention_s,
            }
        )
        volumes, sizes = self.volumes(settings, work), self._sizes(settings)
        ones = np.ones(len(settings), dtype=np.int64)
        terms = (self._relaxed_terms(axis, volumes, ones, sizes, coarse=True) for axis in SERIAL_AXES)
        return sum((term.serial_total_s for term in terms), start=nothing) / rounds(settings)


@dataclass
class MixedPlacer(Placer):
    """Places and balances candidates on a fleet of several types by trying every placement."""

    incumbent_s: Callable[[], float] = lambda: np.inf
    balanced: bool = True
    _layouts: dict[tuple[object, ...], Layout] = field(default_factory=dict)

    def place(
        self,
        settings: Settings,
        work: Work,
        time_limit_s: float,
        slowest_axis: GridAxis | None = None,
        enough_s: float = -np.inf,
    ) -> PlacementDecision | None:
        """The best placement and balance of a single candidate.

        None when no fill holds it, nothing fits in memory, or (unless ``slowest_axis`` is asked for) nothing is faster than
        the incumbent. ``work`` is that of ``MixedPricing.coarse``; ``communication_s`` of the decision is the step less that
        work, so that both add up to the step. There is no time limit: the work is bounded by fills times axis orders.
        """
        free_s = float(placement_free_s(self.pricing.volumes(settings, work))[0])
        limit_s = np.inf if slowest_axis else self.incumbent_s()
        best: PlacementDecision | None = None
        for floor_s, balance, rows, places in self._balanced(settings, slowest_axis):
            if floor_s >= limit_s:
                break
            if best is not None and best.communication_s <= enough_s:
                return replace(best, complete=False)
            step_s, (fill, order) = self._fastest(rows, places, limit_s)
            if step_s < limit_s:
                limit_s = step_s
                best = PlacementDecision(order, fill, step_s - free_s, complete=True, balance=balance)
        return best

    def _balanced(
        self, settings: Settings, slowest_axis: GridAxis | None
    ) -> list[tuple[float, Balance, tuple[Settings, Work], list[Place]]]:
        """Every balance of every layout with its floor, its rows and the places of the layout, lowest floor first."""
        pricing = self.pricing
        balancer = Balancer(pricing.job, pricing.profile, pricing.accelerators, settings)
        places: dict[Layout, list[Place]] = {}
        for place in self._places(settings, slowest_axis):
            places.setdefault(self._layout(settings, place), []).append(place)
        out = []
        for layout, alike in places.items():
            for balance in balancer.balances(layout) if self.balanced else [balancer.equal(layout)]:
                rows = balancer.rows(balance)
                floor_s = float(placement_free_s(pricing.volumes(*rows)).max())
                out.append((floor_s, balance, rows, alike))
        return sorted(out, key=lambda entry: entry[0])

    def _places(self, settings: Settings, slowest_axis: GridAxis | None) -> Iterator[Place]:
        active = [axis for axis in GRID_AXES if int(getattr(settings, axis)[0]) > 1]
        idle = [axis for axis in GRID_AXES if axis not in active]
        for fill in self._fills(settings, active):
            for order in permutations(active):
                if slowest_axis is None or order[-1] == slowest_axis:
                    yield fill, (*idle, *order)

    def _layout(self, settings: Settings, place: Place) -> Layout:
        fill, order = place
        degrees = settings.decision(0).degrees
        stride = strides(degrees, order)
        key = (fill, *((degrees.of(axis), stride[axis]) for axis in LAYOUT_AXES))
        if key not in self._layouts:
            self._layouts[key] = layout_of(self.fleet.topology, shares(fill), degrees, order)
        return self._layouts[key]

    def _fastest(self, rows: tuple[Settings, Work], places: Sequence[Place], limit_s: float) -> tuple[float, Place]:
        """The fastest of the places, and its step; what cannot be below ``limit_s`` is not timed."""
        floors = self._steps_s(rows, places, exact=False)
        best_s, best = np.inf, places[0]
        order = np.argsort(floors, kind="stable")
        for start in range(0, len(order), EXACT_BLOCK):
            block = [int(index) for index in order[start : start + EXACT_BLOCK]]
            if floors[block[0]] >= min(limit_s, best_s):
                break
            steps = self._steps_s(rows, [places[index] for index in block], exact=True)
            if steps.min() < best_s:
                best_s, best = float(steps.min()), places[block[int(steps.argmin())]]
        return best_s, best

    def _steps_s(self, rows: tuple[Settings, Work], places: Sequence[Place], *, exact: bool) -> Floats:
        """Step of every place, (places,): the longest of its rows. ``exact``: see ``axes.pp_terms``."""
        settings, work = rows
        place, row = (index.ravel() for index in np.indices((len(places), len(settings))))
        one = settings.take(row[: len(settings)])
        volumes = self.pricing.volumes(settings.take(row), work.take(row))
        links: Links = stacked_links([self.levels(places[int(index)][0]) for index in place])
        terms = []
        for axis in GRID_AXES:
            each = [self._axis_shapes(one, axis, _faster(order, axis), fill) for fill, order in places]
            stacked = [stacked_shapes([each[int(index)][part] for index in place]) for part in range(len(each[0]))]
            expert, ep = stacked[1:] if axis == "dp_shard" else (None, None)
            terms.append(axis_terms(axis, volumes, stacked[0], links, expert, ep, exact=exact))
        return step_times(volumes, terms).step_s.reshape(len(places), len(settings)).max(axis=1)


def _faster(order: Sequence[GridAxis], axis: GridAxis) -> frozenset[GridAxis]:
    return frozenset(order[: order.index(axis)])
