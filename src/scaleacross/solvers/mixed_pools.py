"""Memory tests and lower bounds on step time for mixed accelerator pools, valid for every placement and balance.

Sets          T  accelerator types;  K  block types, N[k] layers each;  groups g: one stage of one replica, pp·dp of them
Parameters    P[t,k]  seconds of a layer per micro-batch on type t: forward, backward, recomputation, and exposed tp, cp
              and ep collectives over the type's best links;  A[t] accelerators of type t in the pool
Bound         With Q[k] = min_t P[t,k] and f[t] = max_k Q[k]/P[t,k] ≤ 1, a group of type t does at most f[t] of the
              reference work in a given time. A group is as slow as its slowest accelerator, so at most
              ⌊(A of the i fastest types)/(tp·cp)⌋ groups are of the i fastest types, and one or more has the slowest.
              The busiest rank computes m times. Summed over all groups, for any split of layers and batch:
                  step ≥ m · T + fill + optimizer,      T = dp · Σ_k N[k]·Q[k] / Σ_g f[g]
              ``fill`` is the warm-up and cool-down that ``pipeline.heterogeneous_ranks`` bounds for any set of speeds.
              Some rank of the slowest type runs at least v layers in m⁻ micro-batches (one layer less for each end of
              the model that may be a virtual stage of its own). Some rank runs the layers of ``mixed_memory`` m times.
              ``mixed_passes`` bounds one micro-batch's path, sharded parameters, and inter-building traffic.
              Gradients and parameters overlap once per step with at most the share h/m⁻ of the computation (h of
              ``overlap``, m⁻ fewest micro-batches). Exposed is the rest, or the least bucket and the occupied
              multiprocessor time if that is more. HBM losses add to it. Gradients that may cross buildings start
              after the share ``early_gradients.before_gradients`` of the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.axes import Terms, waiting, waits_of
from scaleacross.cost_models.buckets import least_bucket_share
from scaleacross.cost_models.candidates import Candidates, Floats, Ints, stride_of
from scaleacross.cost_models.columns import column_names
from scaleacross.cost_models.early_gradients import before_gradients
from scaleacross.cost_models.layer_seconds import StackedTimes, layer_pass_s, times_by_type
from scaleacross.cost_models.memory import Held, held_parameters, memory_parts
from scaleacross.cost_models.overlap import BUSY, CALLS, EVERY_PASS, TRAFFIC_ROWS, least_together_s, num_communicators
from scaleacross.cost_models.pipeline.heterogeneous_ranks import (
    at_least,
    fill_past_once_s,
    own_fill_paces,
    speed_in_any_order,
)
from scaleacross.cost_models.pipeline.timed_bounds import folded
from scaleacross.cost_models.rank_seconds import columns_of_types, update_s
from scaleacross.cost_models.recomputation import gathers_again, gathers_once, layers_again
from scaleacross.cost_models.sharding import reduced_every_pass
from scaleacross.cost_models.stages import RankClasses, block_counts
from scaleacross.cost_models.step import hbm_lost_s, placement_free_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import SHARDED, window_s
from scaleacross.cost_models.work import Work
from scaleacross.solvers.arcs import axes_of_several, by_orders, sets_before
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import ORDER_BLOCK, Bounder
from scaleacross.solvers.mixed_estimates import like_the_slowest, share_left
from scaleacross.solvers.mixed_memory import by_pipeline, layers_that_fit
from scaleacross.solvers.mixed_passes import (
    ShardedPasses,
    least_chunks,
    of_most_experts,
    path_s,
    prefix_share,
    trunk_messages_s,
)
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.solvers.share_batch import fewest_micro_batches
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GridAxis
from scaleacross.workloads.layer_profile import ModelProfile


def bounder_on(pool: AcceleratorPool, job: Job, profile: ModelProfile) -> Bounder:
    """Return ``Bounder`` for a pool of one accelerator type, ``MixedBounder`` for a mixed pool."""
    return (MixedBounder if len(pool.accelerators) > 1 else Bounder).on(pool, job, profile)


@dataclass(frozen=True)
class MixedBounder(Bounder):
    """Bounds on mixed pools by the formulas of the module docstring, whatever the placement."""

    def room_bytes(self, headroom_fraction: float) -> float:
        """Return the usable bytes of the type with most memory: ``needed_bytes`` is a minimum over placements."""
        return max(accelerator.room_bytes(headroom_fraction) for accelerator in self.accelerators)

    def needed_bytes(self, candidates: Candidates) -> Floats:
        """Return the bytes that the rank with most layers needs at least under any split, without the reserve, (n,).

        That rank has ⌈L/pp⌉ layers or more. They count as the smallest block type, without embedding, on the last rank,
        which has the fewest micro-batches in flight.
        """
        needed = np.empty(len(candidates))
        types = len(self.profile.blocks)
        for pp, rows in by_pipeline(candidates):
            layers = np.eye(types, dtype=np.int64) * -(-self.profile.num_layers // pp)
            nothing = np.zeros(types, dtype=np.int64)
            classes = RankClasses(layers, nothing, nothing, nothing + pp - 1, nothing + 1)
            parts = memory_parts(self.profile, self.job, candidates.take(rows), classes)
            needed[rows] = sum(parts.values(), start=np.zeros(1)).min(axis=0)
        return needed

    def partial_free_s(self, partials: Candidates) -> Floats:
        """Return a lower bound on computation with warm-up and cool-down, s, (n,), for any split of dp."""
        return self._computation_s(partials, self._times(partials), ())

    def partial_bound_s(self, partials: Candidates) -> Floats:
        """Return a lower bound on computation and exposed collectives, s, (n,), without gradients and optimizer."""
        times = self._times(partials)
        known: tuple[GridAxis, ...] = ("tp", "cp", "dp_shard")
        return self._computation_s(partials, times, self._coarse_terms(self._unit_volumes(partials, times), known))

    def partial_estimate_s(self, partials: Candidates, bound_s: Floats) -> Floats:
        """Return the ``mixed_estimates`` step time of each partial candidate's best candidate, s, (n,), at least the bound."""
        equal = self._equal_ranks
        return self._estimate_s(partials, equal.partial_bound_s(partials), equal.partial_free_s(partials), bound_s)

    def coarse(self, candidates: Candidates) -> Bounded:
        """Bound every axis as if it were the innermost one; inf where no split of the layers fits in memory."""
        times = self._times(candidates)
        volumes = self._unit_volumes(candidates, times)
        terms = self._coarse_terms(volumes, ("tp", "cp", "dp_shard", "dp_replicate"))
        work = self._least_work(candidates, self._computation_s(candidates, times, terms))
        free = placement_free_s(self.volumes(candidates, work))
        room, fullest = layers_that_fit(self.job, self.profile, self.pool.buildings, candidates)
        seconds = np.stack([layer_pass_s(each, candidates) for each in times]) + self._waits_s(candidates, terms)
        busiest = candidates.num_micro_batches * fullest * seconds[:, :-2].min(axis=(0, 1))
        bound = np.maximum(self._bound_s(volumes, times, terms), busiest) + work.optimizer_s
        bound = np.where(room < self.profile.num_layers, np.inf, bound)
        equal = self._equal_ranks.coarse(candidates)
        estimate = self._estimate_s(candidates, equal.estimate_s, equal.free_s, bound)
        return Bounded(candidates, work, free, bound, estimate)

    def _estimate_s(self, candidates: Candidates, equal_s: Floats, free_s: Floats, bound_s: Floats) -> Floats:
        """Return ``mixed_estimates``, s, (n,), at least the bound; no placement changes ``free_s`` of ``equal_s``."""
        left = share_left(self.job, self.profile, self.pool, candidates, self._times(candidates))
        return np.maximum(bound_s, equal_s - (1 - left) * free_s)

    @cached_property
    def _equal_ranks(self) -> Bounder:
        return Bounder.on(like_the_slowest(self.pool, self.job), self.job, self.profile)

    def tight(self, bounded: Bounded) -> Bounded:
        """Bound every axis at the stride that the best axis order gives it."""
        added = np.empty(len(bounded.bound_s))
        for rows, orders in by_orders(bounded.candidates):
            some = bounded.candidates.take(rows), bounded.work.take(rows)
            added[rows] = self.order_bounds_s(*some, orders).min(axis=0)
        bound = np.maximum(bounded.bound_s, bounded.free_s + added)
        equal = self._equal_ranks.tight(self._equal_ranks.coarse(bounded.candidates))
        estimate = self._estimate_s(bounded.candidates, equal.estimate_s, equal.free_s, bound)
        return replace(bounded, bound_s=bound, estimate_s=estimate)

    def order_bounds_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """Return lower bounds on the step less ``placement_free_s``, s, per order of the same axes, (orders, n)."""
        times, every = self._times(candidates), np.arange(len(candidates))
        volumes = self._unit_volumes(candidates, times)
        arcs = []
        for axis in (axis for axis in orders[0] if axis != "pp"):
            sets, of_order = sets_before(orders, axis)
            stride = np.concatenate([stride_of(candidates, faster) for faster in sets])
            terms = self._relaxed_terms(axis, volumes.take(np.tile(every, len(sets))), stride)
            arcs.append((terms, of_order * len(candidates)))
        out = np.empty((len(orders), len(candidates)))
        step = max(1, ORDER_BLOCK // max(1, len(candidates)))
        for start in range(0, len(orders), step):
            block = out[start : start + step]
            rows = np.tile(every, len(block))
            placed = [terms.take((at[start : start + step, None] + every).ravel()) for terms, at in arcs]
            some = volumes.take(rows)
            block[:] = self._bound_s(some, [each.take(rows) for each in times], placed).reshape(block.shape)
        if "pp" in orders[0]:
            strides = np.stack([stride_of(candidates, order[: order.index("pp")]) for order in orders])
            sent = trunk_messages_s(self.pool, self.links, volumes, strides, fewest_micro_batches(self.job, candidates))
            np.maximum(out, sent, out=out)
        return out + (work.optimizer_s - placement_free_s(self.volumes(candidates, work)))

    def _times(self, candidates: Candidates) -> list[StackedTimes]:
        return times_by_type(self.profile, self.job, self.accelerators, candidates)

    def _least_work(self, candidates: Candidates, computation_s: Floats) -> Work:
        """Return ``Work`` whose placement-free part is ``computation_s`` and the least optimizer update."""
        nothing = np.zeros(len(candidates))
        held = self.profile.trainable_parameters / (candidates.pp * candidates.tp * candidates.experts_over)
        optimizer = update_s(self.job, self.accelerators, candidates, held, nothing).min(axis=0)
        columns = dict.fromkeys(column_names(Work), nothing)
        each = computation_s / candidates.num_micro_batches
        return Work(**columns | {"forward_s": each, "optimizer_s": optimizer})

    def _unit_volumes(self, candidates: Candidates, times: Sequence[StackedTimes]) -> Volumes:
        """Return volumes of one gather, layer and expert layer, and the fullest rank's least dense parameters."""
        nothing, one = np.zeros(len(candidates)), np.ones(len(candidates))
        _, dense = self._fullest(candidates)
        work = Work(
            **dict.fromkeys(column_names(Work), nothing)
            | columns_of_types(self.profile, self.job, self.accelerators, candidates, times)
            | {
                # g gathers forward are 2(2g + a·g) in all where the share a runs again; ends of the model (``every``) never
                # do. Modules may run again, too: too large a forward part lengthens no wait (``_tp_waits_s``).
                "tp_gathers": one,
                "tp_forward": 0.5 / (2.0 + layers_again(candidates)),
                "every_tp_gathers": one,
                "every_tp_forward": 0.25 * one,
                **dict.fromkeys(("weight_s", "every_weight_s"), one * np.inf),  # all that may overlap with it does
                "layers": one,
                "buckets": one,
                "moe_layers": one * bool(self.profile.num_experts),
                "attention_s": np.max([each.attention_s.max(axis=0) for each in times], axis=0),
                "dense_parameters": dense,
                "mean_held_share": one,
            }
        )
        return self.volumes(candidates, work)

    def _fullest(self, candidates: Candidates) -> tuple[Floats, Floats]:
        """Return the least (all, dense) parameters of the fullest rank, (n,) each: the mean over the ranks."""
        each, outer = self._held(candidates)
        total = (np.array(block_counts(self.profile)) @ each.total + outer.total[0]) / candidates.pp
        return total, total * (each.dense / each.total).min(axis=0)

    def _held(self, candidates: Candidates) -> tuple[Held, Held]:
        """Return the parameters of a layer of each block type, (block types, n), and of both ends, (1, n)."""
        kinds = len(self.profile.blocks)
        nobody = RankClasses(np.eye(kinds, dtype=np.int64), *(np.zeros(kinds, dtype=np.int64),) * 4)
        ends = RankClasses(np.zeros((1, kinds), dtype=np.int64), *(np.ones(1, dtype=np.int64),) * 4)
        each, outer = (held_parameters(self.profile, candidates, classes) for classes in (nobody, ends))
        return each, outer

    def _relaxed_terms(
        self, axis: GridAxis, volumes: Volumes, stride: Ints | None = None, coarse: bool = False
    ) -> Terms:
        """Return the terms of an axis at their least; those of dp_shard are named ``ep``, its exposed component."""
        name = "ep" if axis == "dp_shard" else axis
        innermost = np.ones(len(volumes.candidates), dtype=np.int64)
        calls = self._calls_by_type(axis, volumes, innermost if stride is None else stride, coarse)
        waits = [waits_of(volumes, each) for each in calls]
        serial, passed = (np.stack([getattr(one, of) for one in waits], axis=-1) for of in ("waited_s", "passed_s"))
        window, unshared = self._carried_s(axis, volumes, stride, coarse)
        unshared_s = () if unshared is None else (unshared,)
        full = of_most_experts(volumes, self._held(volumes.candidates)[0]) if axis in SHARDED else None
        experts = None if full is None else window_s(axis, full, *self._carrying(axis, full, stride, coarse))
        terms = Terms({name: serial}, (window,), unshared_s=unshared_s, passed_s=passed, of_experts_s=experts)
        return waiting(volumes, terms)

    def _coarse_terms(self, volumes: Volumes, axes: Sequence[GridAxis]) -> list[Terms]:
        """Return the terms of the ``axes`` that have several ranks, each as if it were the innermost axis."""
        some = axes_of_several(volumes.candidates, axes)
        return [self._relaxed_terms(axis, volumes, coarse=True) for axis in some]

    def _bound_s(self, volumes: Volumes, times: Sequence[StackedTimes], terms: Sequence[Terms]) -> Floats:
        """Return the bound without the optimizer, s, (n,), for collectives that take ``terms``."""
        candidates, work = volumes.candidates, volumes.work
        computation = self._computation_s(candidates, times, terms)
        traffic = sum((term.window_s for term in terms), start=np.zeros((TRAFFIC_ROWS, len(candidates))))
        early, fewest = self.early(volumes), fewest_micro_batches(self.job, candidates)
        if early is not None:
            unshared = (part for term in terms for part in term.unshared_s)
            traffic = early.alone(traffic, sum(unshared, start=np.zeros((2, len(candidates)))))
        windows = least_together_s(traffic, 1 / num_communicators(candidates, bool(self.profile.num_experts)))
        waited = sum((term.serial_s.get("dp", 0.0) for term in terms), start=np.zeros(len(candidates)))
        chunks, pp = candidates.num_chunks, candidates.pp
        # h: with several chunks the last pp micro-batches of the other chunks overlap with reductions, too
        hidden = (pp * (chunks - 1) + 1) / chunks
        once = windows[0] + windows[1]
        first = least_bucket_share(self.job.overlap, candidates, self._fullest(candidates)[0])
        products = (1 - 1 / chunks) * (1 - work.elementwise_fraction)
        reducing, moving = work.contention_fraction * products, work.least_contention_fraction * products
        beside = (first + reducing) * traffic[0] + (first + moving) * traffic[1]
        behind = once - computation * np.minimum(1.0, hidden / fewest)
        if early is not None:
            later: Floats = 1 - before_gradients(candidates, fewest)
            behind = np.where(early.gradients_cross, windows[0] - computation * later, behind)
        # gradients that are reduced once per step may overlap with what sharded passes expose
        sharded = reduced_every_pass(candidates)
        exposed = np.maximum(np.where(sharded, 0.0, behind), beside)
        fewest_batches = replace(volumes, candidates=replace(candidates, num_micro_batches=fewest))
        least = np.maximum(computation + exposed, self._path_s(volumes, times, terms) + beside)
        rows = np.flatnonzero(traffic[CALLS][EVERY_PASS].any(axis=0))
        if len(rows):
            passes = self._sharded(
                volumes.take(rows), [each.take(rows) for each in times], [t.take(rows) for t in terms]
            )
            least[rows] = passes.least_s(least[rows], fewest[rows])
            least = np.maximum(least, fewest * traffic[BUSY][EVERY_PASS].sum(axis=0))  # links serve all groups
            least = np.maximum(least, np.where(sharded, computation + behind, 0.0))
        return least + waited + hbm_lost_s(fewest_batches)

    def _sharded(self, volumes: Volumes, times: Sequence[StackedTimes], terms: Sequence[Terms]) -> ShardedPasses:
        candidates = volumes.candidates
        waits = self._waits_s(candidates, terms)
        nothing = np.zeros((TRAFFIC_ROWS, len(candidates)))
        traffic = sum((term.window_s for term in terms), start=nothing)[CALLS]
        experts = sum((term.of_experts_s for term in terms if term.of_experts_s is not None), start=nothing)
        return ShardedPasses(volumes, times, waits, traffic, experts, self._held(candidates), self._speed)

    def _path_s(self, volumes: Volumes, times: Sequence[StackedTimes], terms: Sequence[Terms]) -> Floats:
        """Return bound 4 of ``mixed_passes``, s, (n,)."""
        candidates = volumes.candidates
        message = self._calls("pp", volumes, np.ones_like(candidates.pp), coarse=True).message
        seconds = np.stack([layer_pass_s(each, candidates) for each in times]) + self._waits_s(candidates, terms)
        return path_s(self.profile, candidates, seconds, message)

    def _computation_s(self, candidates: Candidates, times: Sequence[StackedTimes], terms: Sequence[Terms]) -> Floats:
        """Return a lower bound on computation and exposed collectives of layers, without the optimizer, s, (n,).

        No rank is faster than one that has the fastest type for everything. Nothing more holds while the recompute
        policy is open: each type's minimum is known then, but no ratio of two types.
        """
        seconds = np.stack([layer_pass_s(each, candidates) for each in times]) + self._waits_s(candidates, terms)
        layers, ends = seconds[:, :-2], seconds[:, -2:]  # (types, block types, n)
        least = layers.min(axis=0)
        share = (least / layers).max(axis=1)  # f, (types, n)
        counts = np.array([count for _, count in self.profile.blocks])
        whole = counts @ least + (share[:, None] * ends).min(axis=0).sum(axis=0)
        once = counts @ least + ends.min(axis=0).sum(axis=0)
        pp, m, phi = candidates.pp, candidates.num_micro_batches, share.min(axis=0)
        fewest = fewest_micro_batches(self.job, candidates)
        by_shares = np.where(candidates.rerun_open, 0.0, candidates.dp * whole / self._speed(candidates, share))
        pace = np.maximum(by_shares, once / pp)
        before = prefix_share(candidates, times, seconds)
        enough = at_least(fewest, m, pp, phi, candidates.dp == 1)
        chunk = (candidates.num_chunks - 1) * layers.max(axis=(0, 1)) + _folded(candidates) * ends[:, 1].max(axis=0)
        any_order = self._in_any_order_s(candidates, share, (whole, once), before, fewest) - before * chunk
        fill = np.maximum(
            own_fill_paces(candidates.schedule, pp, enough, phi) * pace,
            fill_past_once_s(candidates.schedule, pp, enough, once, pace),
        )
        filled = np.where(candidates.rerun_open, m * pace, np.maximum(m * pace + fill, any_order))
        held = least_chunks(candidates, self.profile.num_layers)
        return np.maximum(filled, fewest * held * layers.min(axis=1).max(axis=0))

    def _in_any_order_s(
        self, candidates: Candidates, share: Floats, passes_s: tuple[Floats, Floats], before: Floats, fewest: Ints
    ) -> Floats:
        """Return the bound ``any order`` of ``heterogeneous_ranks``, s, (n,).

        Some rank of a replica takes W/pp or more for a micro-batch. So in a step of S no replica has more than
        m⁺ = S·pp/W. The bound B(m⁺) falls as m⁺ grows, hence as S grows. Let s be a first bound on S, and
        t = B(m⁺(s)) ≥ s. Then S ≥ B(m⁺(t)): where S ≥ t, since t ≥ B(m⁺(t)); where S < t, since B(m⁺(S)) ≥ B(m⁺(t)).

        Args:
            share: f, (types, n).
            passes_s: W of a replica, and the least ΣT.
            before: d, (n,).
            fewest: m⁻, (n,).
        """
        m, dp, pp, (whole, once) = candidates.num_micro_batches, candidates.dp, candidates.pp, passes_s

        def bound_s(step_s: Floats) -> Floats:
            """Return B(m⁺) for a step time."""
            most = np.clip(step_s * pp / whole, m, m * dp - (dp - 1) * fewest)
            return np.asarray(m * dp * whole / self._speed(candidates, share, before / most))

        by_shares = bound_s(bound_s(m * dp * whole / self._speed(candidates, share)))
        of_one = m * once / speed_in_any_order(np.ones((1, len(m))), pp[None], np.ones_like(dp), before / m)
        return np.maximum(by_shares, of_one)

    def _waits_s(self, candidates: Candidates, terms: Sequence[Terms]) -> Floats:
        """Return exposed tp, cp and ep seconds per layer and micro-batch, (types, block types + 2, n)."""
        nothing = np.zeros((len(self.types), len(candidates)))
        parts = [[term.serial_s[name].T for term in terms if name in term.serial_s] for name in ("tp", "cp", "ep")]
        tp, cp, ep = (sum(part, start=nothing) / candidates.num_micro_batches for part in parts)
        ep = ep * (1 - self.job.experts.overlap_fraction)  # the rest may overlap with computation
        out = [
            2.0 * (2.0 * gathers_once(block, candidates) + gathers_again(block, candidates)) * tp
            + block.exchanges_over_cp * cp
            + (block.routed_tokens > 0) * ep
            for block, _ in self.profile.blocks
        ]
        ends = sum((np.asarray(term.passed_s).T for term in terms if "tp" in term.serial_s), start=nothing)
        out += [4.0 * end.tp_gathers * ends for end in (self.profile.embedding, self.profile.head)]
        return np.stack(out, axis=1)

    def _speed(self, candidates: Candidates, share: Floats, lost: Floats | float = 0.0) -> Floats:
        """Return an upper bound on Σ_g f[g], (n,), or with ``lost`` on the sum of ``speed_in_any_order``."""
        order = np.argsort(-share, axis=0)
        available = np.cumsum(np.array(self.pool.num_by_type)[order], axis=0) // (candidates.tp * candidates.cp)
        groups = candidates.pp * candidates.dp
        # at least one group has the slowest type
        upto = np.minimum(available, groups - 1)
        upto[-1] = groups
        lost = np.broadcast_to(lost, groups.shape)
        return speed_in_any_order(np.take_along_axis(share, order, axis=0), upto, candidates.dp, lost)


def of_one_type(bounder: Bounder) -> Bounder:
    """Return bounds on the same pool for ranks of one type: its own, or the slowest of several."""
    return Bounder(**{each.name: getattr(bounder, each.name) for each in fields(Bounder)})


def _folded(candidates: Candidates) -> Ints:
    """Return 1 where a rank may hold both ends of the model, else 0, (n,)."""
    return folded(candidates.schedule).astype(np.int64)
