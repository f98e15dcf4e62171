"""The discrete choices of a plan, enumerated as ``Candidates`` rows, and the number of refused ones by rule.

The search first enumerates partial candidates (``SearchSpace.partials``) and expands those that survive (``expand``).

Parameters: L layers, H heads, K key/value heads, E experts, s tokens per sequence, G sequences, A accelerators.

Choices: tp, cp, pp, dp_shard, dp_replicate, ep, sequences per micro-batch b, schedule with v chunks, recompute policy,
shard level, exchange over cp, folding of experts onto lanes of tp and cp, shares of activations and optimizer states on
the host.

R1 heads          tp divides H, K and the MLP widths
R2 sequence       2·cp divides s (load-balanced halves) and so does tp of what is left; s/cp ≥ MIN_TOKENS_PER_RANK
                  by all-to-all: tp·cp divides H and K, too; with a ring outside: tp·cp_inner, 1 < cp_inner < cp
R3 layers         pp ≤ L and pp·v ≤ L, or with chunks L + 2: the embedding and the head may have virtual stages of
                  their own (unless the model has prediction layers in addition to its head);
                  pp is the smallest that R6 and R9 allow of its ⌈L/pp⌉ and ⌈(L+2)/pp⌉ (``stage_counts``)
R4 batch          dp_shard·dp_replicate·b divides G;  m = G/(dp·b)
R5 experts        ep divides E and dp_shard; ep > 1 needs a shard level; folded: tp·cp·ep divides E, dp_shard > 1
R6 accelerators   tp·cp·pp·dp ≤ A (or = the number asked for, or in the range), whole hosts or a divisor of one
R7 schedule       pp, m and v that the schedule's generator accepts (``schedules.pipeline.refusal``); v as the
                  schedule has chunks; without pipeline only 1F1B (nothing to choose)
R8 shard level    none needs dp_shard = 1, every other level dp_shard·cp > 1; parameters_once needs pp = 1, because
                  in a pipeline one micro-batch would drop what the next one needs
R9 user           values that the job pins
R10 target        what the job's target can express (``targets``)
R11 recompute     if n of d layers are rerun, d divides the layers of every chunk, all chunks are equal and no
                  activations are on the host; recomputation by stage needs pp > 1

Memory limits are not rules of the space: the search checks them together with the bounds (``candidates``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import (
    ALL_TO_ALL_RING,
    ANY_EXCHANGE,
    ANY_POLICY,
    Bools,
    Candidates,
    Ints,
    concatenate,
)
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.recomputation import in_whole_layers
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import ROUNDS, is_legal
from scaleacross.solvers.stage_counts import StageCounts, pinned
from scaleacross.spec.job import Job
from scaleacross.spec.offloading import millionths
from scaleacross.spec.parallelism import (
    CONTEXT_EXCHANGES,
    SCHEDULE_NAMES,
    SHARD_LEVELS,
    WITHOUT_PIPELINE,
    ScheduleName,
    has_chunks,
)
from scaleacross.spec.recomputation import BY_STAGE, RECOMPUTES
from scaleacross.targets import expressible
from scaleacross.targets.law import Scope
from scaleacross.workloads.layer_profile import ModelProfile

MIN_TOKENS_PER_RANK: Final = 1024
"""Least tokens per rank under context parallelism: below it ring attention has too little work per message."""
MOST_PARTIALS: Final = 16_000_000
"""Most partial candidates enumerated at once: 2 GB as columns, and a few times that while bounded and sorted."""


@dataclass
class Refusals:
    """How many values or combinations each rule refused."""

    counts: Counter[str] = field(default_factory=Counter)

    def keep(self, ok: bool, rule: str) -> bool:
        """Return ``ok``, and count one refusal under ``rule`` if it is false."""
        if not ok:
            self.counts[rule] += 1
        return ok


@dataclass(frozen=True)
class SearchSpace:
    """Everything that enumeration needs. ``max_accelerators`` and ``host_unit`` come from the topology.

    With ``policies_open``, recompute policies and offloads stay open (``ANY_POLICY``) until ``open_policies``
    enumerates them.
    """

    job: Job
    profile: ModelProfile
    max_accelerators: int
    host_unit: int
    policies_open: bool = False
    by_stage: bool = False  # whether to include recomputation by stage, which only some placers can place

    @cached_property
    def policies(self) -> Ints:
        """Every policy that the job allows, (policies, 3): recompute code, millionths of both offloads."""
        some = (policy for policy in self.job.recompute if self.by_stage or policy != BY_STAGE)
        every = product(some, self.job.activation_offload, self.job.optimizer_offload)
        return np.array([(RECOMPUTES.index(one), *map(millionths, s)) for one, *s in every], np.int64).reshape(-1, 3)

    def whole_layers(self, recompute: Ints, chunks: Ints, activations: Ints, refusals: Refusals) -> Bools:
        """R11: whether each row's policy reruns whole layers in every one of its ``chunks`` virtual stages, (n,)."""
        whole = in_whole_layers(recompute, self.profile.num_layers, chunks, activations)
        refusals.counts.update({"R11 no whole layers to recompute": int((~whole).sum())} if not whole.all() else {})
        return whole

    def batches(self, refusals: Refusals) -> Iterator[Candidates]:
        """Yield all candidates, one batch per pp. Each combination appears exactly once."""
        return (self.expand(partials, refusals) for partials in self.partials(refusals))

    def partials(self, refusals: Refusals) -> Iterator[Candidates]:
        """Yield partial candidates, one batch per pp, with the split of dp, shard level and exchange still open.

        Their ``dp_shard`` is the whole of dp, and ``shard`` is a level that some candidate has. So a partial candidate
        needs no more memory or time than any candidate made from it with that level. The same holds for an open
        exchange over cp (``ANY_EXCHANGE``).

        Raises:
            InputError: there are more than ``MOST_PARTIALS``.
        """
        made = 0
        for pp in self.pp_values(refusals):
            parts = []
            for part in self._parts(pp, refusals):
                made += part.shape[1]
                if made > MOST_PARTIALS:
                    more = f"over {MOST_PARTIALS:,} combinations, more than memory holds at once"
                    raise InputError(
                        f"'{self.job.name}' has {more}: state fewer values, pin a degree, or take space: quick"
                    )
                parts.append(part)
            if parts:
                yield self.expressed(Candidates(*np.concatenate(parts, axis=1)), ("partial",), refusals)

    def expressed(self, candidates: Candidates, scopes: tuple[Scope, ...], refusals: Refusals) -> Candidates:
        """R10: the rows that the target can express. An open policy counts as none, which every target can."""
        rows = replace(candidates, recompute=np.where(candidates.policy_open, 0, candidates.recompute))
        keep = expressible(self.job, self.profile, rows, len(candidates), scopes, refusals.counts)
        return candidates if keep is None else candidates.take(keep)

    def expand(self, partials: Candidates, refusals: Refusals) -> Candidates:
        """All candidates that ``partials`` stand for (R5, R8)."""
        parts = []
        for (dp, with_cp, piped, folded, ep), rows in self._alike(partials):
            states = self._states(dp, with_cp, piped, folded, refusals).get(ep, [])
            dp_shard, shard = np.array(states, dtype=np.int64).reshape(-1, 2).T
            copies = partials.take(np.repeat(rows, len(states)))
            split = np.tile(dp_shard, len(rows))
            parts.append(replace(copies, dp_shard=split, dp_replicate=dp // split, shard=np.tile(shard, len(rows))))
        return self.expressed(self._exchanging(concatenate(parts)), ("split",), refusals)

    def _exchanging(self, candidates: Candidates) -> Candidates:
        """Repeat every row once for each exchange over cp that it may choose."""
        legal = [self._legal(candidates, code) for code in range(len(CONTEXT_EXCHANGES))]
        if not len(candidates) or (candidates.context != ANY_EXCHANGE).all():
            return candidates
        copies, codes = np.nonzero(np.stack(legal, axis=1))
        return replace(candidates.take(copies), context=codes)

    def _legal(self, candidates: Candidates, code: int) -> Bools:
        """R2 (exchanges), R9: whether rows may have the exchange ``code``, (n,). ALL_TO_ALL_RING is never open."""
        kind, chosen = CONTEXT_EXCHANGES[code], candidates.context
        open_ = (chosen == ANY_EXCHANGE) & (kind in self.job.context_exchange) & (code != ALL_TO_ALL_RING)
        if kind == "all_to_all":
            open_ &= self._divides_heads(candidates.tp * candidates.cp)
        out: Bools = open_ | (chosen == code)
        return out

    def _divides_heads(self, number: Ints) -> Bools:
        heads = [count for block, _ in self.profile.blocks for count in block.heads]
        return np.logical_and.reduce([count % number == 0 for count in heads])

    def num_candidates(self, partials: Candidates) -> Ints:
        """Number of candidates that each partial candidate stands for, (n,)."""
        several = [(degree > 1).astype(np.int64) for degree in (partials.cp, partials.pp, partials.expert_lanes)]
        kinds = distinct(*(columns := np.stack([partials.dp, *several, partials.ep])))
        counts = [
            len(self._states(int(dp), bool(with_cp), bool(piped), bool(folded), Refusals()).get(int(ep), []))
            for dp, with_cp, piped, folded, ep in columns[:, kinds.first].T
        ]
        exchanges = np.sum([self._legal(partials, code) for code in range(len(CONTEXT_EXCHANGES))], axis=0)
        return np.array(counts, dtype=np.int64)[kinds.code] * exchanges

    def _alike(self, partials: Candidates) -> Iterator[tuple[tuple[int, bool, bool, bool, int], Ints]]:
        """Yield rows with equal (dp, cp > 1, pp > 1, folded, ep), which have the same legal shard states."""
        several = 4 * (partials.cp > 1) + 2 * (partials.pp > 1) + (partials.expert_lanes > 1)
        # the five figures are packed into one integer, so that one sort groups the rows
        key = (partials.dp * 8 + several) * 65536 + partials.ep
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else []:
            row = rows[0]
            with_cp, piped, folded = (bool(getattr(partials, axis)[row] > 1) for axis in ("cp", "pp", "expert_lanes"))
            yield (int(partials.dp[row]), with_cp, piped, folded, int(partials.ep[row])), rows

    def tp_values(self, refusals: Refusals) -> list[int]:
        """R1, R9: legal values of tp, ascending."""
        attention = [block.attention for block, _ in self.profile.blocks if block.attention]
        widths = [
            gemm.out_features if gemm.shard.endswith("column") else gemm.in_features
            for block, _ in self.profile.blocks
            for gemm in block.gemms
            if gemm.shard != "none"
        ]
        whole = math.gcd(*(n for block, _ in self.profile.blocks for n in block.heads), *widths)
        heads = ", ".join(f"{a.num_heads} heads and {a.num_kv_heads} key/value heads" for a in attention[:1])
        rule = f"R1 tp must divide {heads or 'the layer widths'}"
        return [
            tp
            for tp in sorted({*divisors(whole), *pinned(self.job, "tp")})
            if self.job.degrees.allows("tp", tp)
            and refusals.keep(whole % tp == 0, rule)
            and tp <= self.max_accelerators
        ]

    def cp_values(self, refusals: Refusals) -> list[int]:
        """R2 (without tp), R9: legal values of cp, ascending."""
        sequence, keep = self.job.sequence_length, refusals.keep
        halves, few = "R2 2·cp must divide the sequence", "R2 too few tokens per rank"
        fitting = [cp for cp in divisors(sequence) if cp == 1 or keep(sequence % (2 * cp) == 0, halves)]
        out = [cp for cp in fitting if cp == 1 or keep(sequence // cp >= MIN_TOKENS_PER_RANK, few)]
        return [cp for cp in out if cp <= self.max_accelerators and self.job.degrees.allows("cp", cp)]

    def _exchange(self, tp: int, cp: int, refusals: Refusals) -> list[tuple[int, int]]:
        """R2 (exchanges), R9: pairs (exchange code, cp_inner) for one tp and cp.

        The code is ANY_EXCHANGE where several exchanges without cp_inner are legal, and 0 where cp is 1.
        """
        if cp == 1:
            return [(0, 1)]
        divides = bool(self._divides_heads(np.array([tp * cp]))[0])
        rule = "R2 tp · cp must divide the heads of an all-to-all"
        asked = dict.fromkeys(self.job.context_exchange)
        # ``asked`` maps every kind to None, so any other answer means that the kind was not asked for
        two_levels = [ALL_TO_ALL_RING] if asked.pop("all_to_all_ring", self) is None else []
        left = [kind for kind in asked if kind != "all_to_all" or refusals.keep(divides, rule)]
        codes = [ANY_EXCHANGE] if len(left) > 1 else [CONTEXT_EXCHANGES.index(kind) for kind in left]
        allows = self.job.degrees.allows
        out = [(code, 1) for code in codes if allows("cp_inner", 1)]
        return out + [
            (code, inner) for code in two_levels for inner in self._inner(tp, cp, refusals) if allows("cp_inner", inner)
        ]

    def _inner(self, tp: int, cp: int, refusals: Refusals) -> list[int]:
        """R2: legal cp_inner, the ranks inside a ring; none where a recurrent layer needs all-to-alls alone."""
        if any(block.recurrence for block, _ in self.profile.blocks):
            return []
        rule = "R2 tp · cp_inner must divide the heads of an all-to-all inside a ring"
        some = (inner for inner in divisors(cp) if 1 < inner < cp)
        return [inner for inner in some if refusals.keep(bool(self._divides_heads(np.array([tp * inner]))[0]), rule)]

    @cached_property
    def _stages(self) -> StageCounts:
        return StageCounts(self.job, self.profile.num_layers)

    def pp_values(self, refusals: Refusals) -> list[int]:
        """R3 (without chunks), R9: legal values of pp. A value that the user pins is used as it is."""
        most, rule = self.profile.num_layers, "R3 more stages than layers"
        return [pp for pp in self._stages.worth if refusals.keep(pp <= most, rule) and pp <= self.max_accelerators]

    def _parts(self, pp: int, refusals: Refusals) -> Iterator[Ints]:
        """Yield partial columns: (tp, cp, exchange, expert lanes) × pipelines × ep × policies, for one dp at a time."""
        pairs = [
            (tp, cp)
            for tp, cp in product(self.tp_values(refusals), self.cp_values(refusals))
            if refusals.keep((self.job.sequence_length // cp) % tp == 0, "R2 tp must divide the tokens of a rank")
        ]
        policies = np.array([(ANY_POLICY, 0, 0)]) if self.policies_open else self.policies
        for dp in divisors(self.job.global_batch_sequences):
            fitting = [
                (tp, cp, context, lanes, inner)
                for tp, cp in pairs
                if self._stages.needs(pp, tp * cp * dp) and self._fits(tp * cp * pp * dp, refusals)
                for (context, inner), lanes in product(
                    self._exchange(tp, cp, refusals), self._lanes(tp * cp, dp, refusals)
                )
            ]
            if not fitting:
                continue
            pipelines = np.array(self._pipelines(pp, self.job.global_batch_sequences // dp, refusals)).reshape(-1, 4)
            # legal shard states depend on dp, pp and these two flags only, so rows with equal flags form one grid
            for with_cp, folded in product((False, True), repeat=2):
                grid = np.array([one for one in fitting if (one[1] > 1, one[3] > 1) == (with_cp, folded)])
                states = self._states(dp, with_cp, pp > 1, folded, refusals) if len(grid) else {}
                experts = np.array([(ep, pairs[0][1]) for ep, pairs in states.items()]).reshape(-1, 2)
                sizes = len(grid), len(pipelines), len(experts), len(policies)
                if not all(sizes):
                    continue
                g, c, e, p = rows = np.indices(sizes).reshape(len(sizes), -1)
                whole = self.whole_layers(policies[p, 0], pp * pipelines[c, 2], policies[p, 1], refusals)
                # R5: lanes and ep together divide the experts; without experts both are 1
                whole &= max(1, self.profile.num_experts) % (grid[g, 3] * experts[e, 0]) == 0
                g, c, e, p = rows[:, whole]
                all_dp, one, stages = (np.full(len(g), value) for value in (dp, 1, pp))
                columns = [grid[g, 0], grid[g, 1], all_dp, one, stages, grid[g, 4], experts[e, 0], grid[g, 3]]
                yield np.stack(
                    [*columns, *pipelines[c].T, policies[p, 0], experts[e, 1], grid[g, 2], *policies[p, 1:].T]
                )

    def _lanes(self, lanes: int, dp: int, refusals: Refusals) -> list[int]:
        """R5 (folding), R9: numbers of tp and cp lanes that experts may lie on; 1 where nothing is to choose."""
        experts, asked = self.profile.num_experts, self.job.expert_folding
        out = [1] if lanes == 1 or not experts or "none" in asked else []
        rule = "R5 folded experts need tp · cp to divide their number, and dp_shard > 1"
        if lanes > 1 and experts and "tp_cp" in asked and refusals.keep(experts % lanes == 0 and dp > 1, rule):
            out.append(lanes)
        return [one for one in out if self.job.degrees.allows("expert_lanes", one)]

    def _fits(self, world_size: int, refusals: Refusals) -> bool:
        """R6: whether the job allows so many accelerators, they exist, and they are whole hosts or a divisor of one."""
        asked = self.job.allows_accelerators(world_size)
        if not refusals.keep(asked, "R6 other than the number of accelerators asked for"):
            return False
        if not refusals.keep(world_size <= self.max_accelerators, "R6 more accelerators than there are"):
            return False
        whole = world_size % self.host_unit == 0 or self.host_unit % world_size == 0
        return refusals.keep(whole, "R6 no whole number of hosts")

    def _pipelines(self, pp: int, sequences: int, refusals: Refusals) -> list[tuple[int, int, int, int]]:
        """R3 (chunks), R4, R7: (micro_batch, num_micro_batches, num_chunks, schedule) of a replica's ``sequences``."""
        out = []
        for micro_batch in self.job.micro_batch_sequences:
            if not refusals.keep(sequences % micro_batch == 0, "R4 micro-batches do not divide the batch"):
                continue
            m = sequences // micro_batch
            for name, num_chunks in product(self.job.schedules, self.job.num_chunks):
                if self._schedule_ok(name, pp, m, num_chunks, refusals):
                    out.append((micro_batch, m, num_chunks, SCHEDULE_NAMES.index(name)))
        return out

    def _schedule_ok(self, name: ScheduleName, pp: int, m: int, num_chunks: int, refusals: Refusals) -> bool:
        if pp == 1:
            return name == "1F1B" and num_chunks == 1
        if not has_chunks(name, num_chunks):
            return False
        most = self.profile.num_layers + (self.profile.empty_ends if num_chunks > 1 else 0)
        if not refusals.keep(pp * num_chunks <= most, "R3 more chunks than layers"):
            return False
        rule = "R7 micro-batches in no whole rounds" if name in ROUNDS else "R7 too few micro-batches for the schedule"
        return refusals.keep(is_legal(name, pp, m, num_chunks), rule)

    def _states(
        self, dp: int, with_cp: bool, piped: bool, folded: bool, refusals: Refusals
    ) -> dict[int, list[tuple[int, int]]]:
        """R5, R8, R9: legal shard states by ep, ep -> [(dp_shard, shard code)], remembered with their refusals."""
        key = (dp, with_cp, piped, folded)
        if key not in self._known_states:
            refused = Refusals()
            self._known_states[key] = (self._work_out_states(*key, refused), refused.counts)
        states, counts = self._known_states[key]
        refusals.counts.update(counts)
        return states

    @cached_property
    def _known_states(
        self,
    ) -> dict[tuple[int, bool, bool, bool], tuple[dict[int, list[tuple[int, int]]], Counter[str]]]:
        return {}

    def _work_out_states(
        self, dp: int, with_cp: bool, piped: bool, folded: bool, refusals: Refusals
    ) -> dict[int, list[tuple[int, int]]]:
        allows = self.job.degrees.allows
        out: dict[int, list[tuple[int, int]]] = {}
        for dp_shard, level in product(divisors(dp), self.job.shard):
            if not (allows("dp_shard", dp_shard) and allows("dp_replicate", dp // dp_shard)):
                continue
            sharded = level != "none"
            if folded and dp_shard == 1:
                continue
            if not refusals.keep(sharded or dp_shard == 1, "R8 dp_shard needs a shard level"):
                continue
            if not refusals.keep(not sharded or dp_shard > 1 or with_cp, "R8 a shard level needs dp_shard or cp"):
                continue
            if not refusals.keep(level not in WITHOUT_PIPELINE or not piped, "R8 parameters_once needs pp 1"):
                continue
            for ep in divisors(math.gcd(dp_shard, self.profile.num_experts or 1)):
                if allows("ep", ep) and refusals.keep(sharded or ep == 1, "R5 experts need a shard level"):
                    out.setdefault(ep, []).append((dp_shard, SHARD_LEVELS.index(level)))
        return out


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))
