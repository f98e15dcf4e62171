"""Edges of the layers of one action: computation, and the collectives that are exposed or overlap with it.

``program.Program`` derives from ``Layers`` and adds messages, gradients and parameters.

* tp        gathers and scatters are exposed, except the share that the job overlaps with their products; the scatters of a
            backward pass overlap with up to half of the weight gradients, where the job says so
* cp        keys and values that are sent round a ring overlap with attention; attention waits for those that are
            gathered, and for all-to-alls of heads before and after it, within a ring too
* ep        dispatch and combine; the share that the job overlaps is concurrent with another micro-batch's computation,
            or shared experts of the same layer are concurrent with both
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaleacross.schedules.pipeline import Action, Kind
from scaleacross.spec.step_work import ChunkWork
from scaleacross.step.graph import Computation, Entry, Key, Side
from scaleacross.step.recording import MICRO_BATCH, Recorder
from scaleacross.step.setting import Op

TP_REDUCTIONS: Final = 0.25
"""Share of tp collectives that are reductions of a backward pass: the most that can overlap with weight gradients."""

LETTERS: Final = {kind: kind.value for kind in Kind}
"""Kind -> its letter. The table is faster than the enum's ``value``, which runs Python code at every access."""


class Layers:
    """Records the layers of one rank class.

    Attributes:
        after: references that the next computation or call waits for.
        gates: (reference, component) of nodes whose waiting is accounted to a component.
        stages: virtual stage of each chunk.
        heads, ring: use of the groups that swap heads, and of those that exchange keys and values.
        swaps: whether heads are exchanged by all-to-alls.
        exchanges: bytes of one all-to-all of experts; 0 without experts.
    """

    def __init__(self, graph: Recorder, who: int) -> None:
        self.graph, self.who, self.work = graph, who, graph.ranks[who]
        self.setting, self.job = graph.setting, graph.setting.job
        self.schedule = self.work.schedule
        self.after: list[int] = []
        self.gates: list[tuple[int, str]] = []
        self.stages = [
            self.schedule.virtual_stage(self.work.pipeline_rank, chunk) for chunk in range(len(self.work.chunks))
        ]
        self.tp_ops, self.tp_bytes = self._tp_op()
        sizes, two_levels = self.setting.size_bytes, self.setting.degrees.cp_inner > 1
        self.heads, self.ring = ("cp_inner", "cp_outer") if two_levels else ("cp", "cp")
        self.swaps = (self.heads, "all_to_all") in sizes
        self.has_keys = self.swaps or (self.ring, "all_gather") in sizes
        self.exchanges = self.setting.size_bytes.get(("ep", "all_to_all"), 0.0)
        rank = self.work.pipeline_rank
        self.keys_again, self.tokens_again = self.setting.keys_again[rank], self.setting.tokens_again[rank]
        self._seconds: dict[tuple[Kind, int], tuple[float, float, float]] = {}

    def _compute(self, component: str, seconds: float, label: str) -> int:
        """Record a computation that waits for ``after``; everything later waits for it alone."""
        node = self.graph.compute(Computation(component, self.work.pipeline_rank, self.who, seconds), self.after)
        self.graph.tell(Entry(component, node, label, tuple(self.gates)))
        self.after, self.gates = [node], []
        return node

    def _wait(self, component: str, node: int | None, label: str) -> None:
        """Let everything later wait for ``node`` too, and account that time to ``component``."""
        if node is not None:
            self.graph.tell(Entry(component, node, label))
            self.after = [*self.after, node]

    def _call(
        self, use: str, key: Key, ops: tuple[Op, ...], size: float, count: float, holds: bool = False
    ) -> int | None:
        """Record collectives that start now; ``holds``: they take multiprocessors from computation."""
        return self.graph.collective(self.who, use, key, ops, size, count, self.after, holds=holds)

    def _wait_through(
        self, component: str, key: Key, ops: tuple[Op, ...], size: float, count: float, label: str, use: str = ""
    ) -> None:
        """Record exposed collectives: they start now, and everything later waits for them alone.

        ``use``: the groups that run them; by default those of ``component``.
        """
        node = self._call(use or component, key, ops, size, count)
        if node is not None:
            self.graph.tell(Entry(component, node, label))
            self.after = [node]

    def _aside(self, component: str, node: int | None, label: str) -> int | None:
        """List ``node`` among the concurrent transfers of the timeline; return it."""
        if node is not None:
            self.graph.aside(Side(component, node, label))
        return node

    def _gate(self, node: int, component: str) -> None:
        """Let the next computation wait for ``node``, and account that waiting to ``component``."""
        self.after = [*self.after, node]
        self.gates.append((node, component))

    def _cell(self, action: Action) -> str:
        return f"{self.stages[action.chunk]}{LETTERS[action.kind]}{MICRO_BATCH}"

    def _layers_of(self, chunk: int) -> int:
        return max(1, self.work.chunks[chunk].num_layers)

    # --- a part of an action ------------------------------------------------------------------------------------------------

    def _layers(self, index: int, action: Action, piece: int, pieces: int) -> None:
        """Record one of ``pieces`` equal parts of an action: its computation and its collectives."""
        work, share, pace = self.work.chunks[action.chunk], 1 / pieces, self.work.pace[index] / pieces
        cell, key = self._cell(action), (self.stages[action.chunk], LETTERS[action.kind], MICRO_BATCH, piece)
        if action.kind is Kind.W:
            self._compute("compute", work.weight_gradient_s * pace, cell)
            return
        # overlapped collectives start before the computation and are waited for after it
        hidden = [(name, self._aside(name, node, cell)) for name, node in self._hidden(action, key, share)]
        if (action.kind, action.chunk) not in self._seconds:
            self._seconds[action.kind, action.chunk] = self._split(action, work)
        first, attention, late = self._seconds[action.kind, action.chunk]
        self._compute("compute", first * pace, cell)
        if attention:
            self._keys(action, key, work, share, pace, cell)
        self._tensor(action, key, work, share, late * pace, cell)
        self._experts(action, key, work, share, pace, cell)
        for name, node in hidden:
            self._wait(name, node, cell)

    def _split(self, action: Action, work: ChunkWork) -> tuple[float, float, float]:
        """Return seconds of computation without own overlap, of attention, and of weight gradients that overlap with
        reductions.

        Attention counts only where it exchanges keys and values. Shared experts are left out: ``_experts`` records
        them.
        """
        weight = work.weight_gradient_s if action.kind is Kind.B else 0.0
        attention = self._attention(action, work) if self.has_keys else 0.0
        late = self._late_weight_s(action, work, weight)
        whole = work.forward_s if action.kind is Kind.F else work.input_gradient_s
        return max(0.0, whole + weight - attention - late - sum(self._shared(action, work))), attention, late

    def _shared(self, action: Action, work: ChunkWork) -> tuple[float, ...]:
        """Return seconds of shared experts that overlap with dispatch and combine, one figure per pass.

        A forward action has one pass; a backward action has the repeated forward pass and its own. Input gradients
        alone take as long as the forward pass (assumed).
        """
        if not self.exchanges or action.kind is Kind.F:
            return (work.shared_s * bool(self.exchanges),)
        back = work.shared_backward_s if action.kind is Kind.B else work.shared_s
        return work.shared_s * self.tokens_again, back

    def _attention(self, action: Action, work: ChunkWork) -> float:
        """Return the seconds of attention, including attention that a backward pass repeats."""
        if action.kind is Kind.F:
            return work.attention_s
        return work.attention_backward_s + work.attention_s * self.keys_again

    def _keys(self, action: Action, key: Key, work: ChunkWork, share: float, pace: float, cell: str) -> None:
        """Record attention with its exchange over cp; a backward pass also scatters gradients of keys and values."""
        sizes = self.setting.size_bytes
        swapped, size = sizes.get((self.heads, "all_to_all"), 0.0), sizes.get((self.ring, "all_gather"), 0.0)
        one_level = self.setting.context_exchange in ("gather", "all_to_all")
        if one_level and self.swaps:
            size = swapped
        count = work.num_attention_layers * share
        passes: list[tuple[str, float, float, bool]] = []
        again = 1.0 if action.kind is Kind.F else self.keys_again
        if again:
            passes.append(("forward", work.attention_s * again, count * again, False))
        if action.kind is not Kind.F:
            passes.append(("backward", work.attention_backward_s, count, True))
        for name, seconds, calls, scatters in passes:
            # a backward pass does not gather again what the forward pass kept
            kept = scatters and not self.setting.regathers[self.work.pipeline_rank]
            if one_level:
                ahead: tuple[Op, ...] = ("all_to_all",) if self.swaps else ("all_gather",)
                if self.swaps or not kept:
                    self._wait_through("cp", (*key, name, "before"), ahead, size, calls, cell)
                self._compute("compute", seconds * pace, cell)
                after: tuple[Op, ...] = ("all_to_all",) if self.swaps else ("reduce_scatter",) if scatters else ()
                if after:
                    self._wait_through("cp", (*key, name, "after"), after, size, calls, cell)
                continue
            if self.swaps:
                self._wait_through("cp", (*key, name, "before"), ("all_to_all",), swapped, calls, cell, self.heads)
            call = None if kept else self._call(self.ring, (*key, name), ("all_gather",), size, calls)
            last = gathered = self._aside("cp", call, cell)
            if scatters and (kept or gathered is not None):
                before = self.after if gathered is None else [gathered]
                behind = self.graph.collective(
                    self.who, self.ring, (*key, name), ("reduce_scatter",), size, count, before
                )
                last = self._aside("cp", behind, cell)
            self._compute("compute", seconds * pace, cell)
            self._wait("cp", last, cell)
            if self.swaps:
                self._wait_through("cp", (*key, name, "after"), ("all_to_all",), swapped, calls, cell, self.heads)

    def _tp_op(self) -> tuple[tuple[Op, ...], float]:
        """Return the operations of one gather with its scatter, and the bytes of each."""
        operations: tuple[Op, ...] = ("all_reduce",) if self.setting.reduce_whole else ("all_gather", "reduce_scatter")
        return operations, self.setting.size_bytes.get(("tp", operations[0]), 0.0)

    def _tp_calls(self, action: Action, work: ChunkWork) -> float:
        return work.tp_forward if action.kind is Kind.F else work.tp_backward

    def _late_weight_s(self, action: Action, work: ChunkWork, weight: float) -> float:
        """Return the seconds of weight gradients that overlap with the reductions of a backward pass.

        It is 0 where the job overlaps at least ``TP_REDUCTIONS`` of tp with its products: that covers the reductions.
        """
        concurrent = self.job.overlap.tp_reduce and self.job.overlap.tp_fraction < TP_REDUCTIONS
        has_tp = self.tp_bytes > 0 and self._tp_calls(action, work) > 0
        return weight / 2 if concurrent and has_tp and weight > 0 else 0.0

    def _tensor(self, action: Action, key: Key, work: ChunkWork, share: float, late_s: float, cell: str) -> None:
        """Record exposed gathers and scatters over tp, then reductions that overlap with ``late_s`` of computation."""
        operations, size = self.tp_ops, self.tp_bytes
        count = self._tp_calls(action, work) * share
        if not late_s:
            waited = count * (1 - self.job.overlap.tp_fraction)
            self._wait_through("tp", key, operations, size, waited, cell)
            return
        # reductions of the repeated forward pass are exposed; only those of the backward pass itself overlap
        first_pass = max(0.0, count - work.tp_forward * share)
        last = operations[-1:]
        self._wait_through("tp", (*key, "first pass"), last, size, first_pass, cell)
        if len(operations) > 1:
            self._wait_through("tp", key, operations[:-1], size, count, cell)
        behind = self._call("tp", (*key, "late"), last, size, count - first_pass, holds=True)
        concurrent = self._aside("tp", behind, cell)
        self._compute("compute", late_s, cell)
        self._wait("tp", concurrent, cell)

    def _exchanges(self, action: Action, work: ChunkWork) -> float:
        """Return the all-to-alls of an action: two per layer, and two more where a backward pass repeats them."""
        again = self.tokens_again if action.kind is not Kind.F else 0.0
        return work.num_moe_layers * (2.0 + 2.0 * again)

    def _alone(self, action: Action) -> bool:
        """Return whether the action has no other micro-batch to overlap with: forward the first, backward the last."""
        return action.microbatch == (0 if action.kind is Kind.F else self.schedule.num_microbatches - 1)

    def _hidden_share(self, action: Action) -> float:
        """Return the share of all-to-alls that overlaps with another micro-batch's computation."""
        return 0.0 if self._alone(action) else self.job.experts.overlap_fraction

    def _experts(self, action: Action, key: Key, work: ChunkWork, share: float, pace: float, cell: str) -> None:
        """Record the all-to-alls that are exposed, or that overlap only with shared experts of their layers."""
        shared, size = self._shared(action, work), self.exchanges
        if not sum(shared):
            count = self._exchanges(action, work) * share * (1 - self._hidden_share(action))
            self._wait_through("ep", (*key, "seen"), ("all_to_all",), size, count, cell)
            return
        passes = (1.0,) if action.kind is Kind.F else (self.tokens_again, 1.0)
        for number, (seconds, ways) in enumerate(zip(shared, passes, strict=True)):
            if not ways:
                continue
            count = 2.0 * ways * work.num_moe_layers * share
            call = self._call("ep", (*key, "beside shared", str(number)), ("all_to_all",), size, count)
            concurrent = self._aside("ep", call, cell)
            self._compute("compute", seconds * pace, cell)
            self._wait("ep", concurrent, cell)

    def _hidden(self, action: Action, key: Key, share: float) -> Iterable[tuple[str, int | None]]:
        """Yield (component, call) of collectives that start with the action and overlap with its computation."""
        work = self.work.chunks[action.chunk]
        if self.exchanges and self._hidden_share(action) > 0:
            count = self._exchanges(action, work) * share * self._hidden_share(action)
            yield "ep", self._call("ep", (*key, "hidden"), ("all_to_all",), self.exchanges, count, holds=True)
        if self.job.overlap.tp_fraction > 0 and not self._late_weight_s(action, work, work.weight_gradient_s):
            count = self._tp_calls(action, work) * share * self.job.overlap.tp_fraction
            yield "tp", self._call("tp", (*key, "hidden"), self.tp_ops, self.tp_bytes, count)
