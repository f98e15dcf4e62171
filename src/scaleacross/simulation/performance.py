"""One training step of a plan as tasks: what every class of ranks computes and sends, and what waits for what.

A class of ranks runs its pipeline actions in the order of the plan. An action computes its layers and then, layer by layer or,
where
nothing else falls between, all layers at once:

* tp        gathers and scatters that nothing hides, but for the share that the job hides behind their products; the scatters of a
            backward pass run beside weight gradients as far as half of these last, where the job says so
* cp        keys and values of a layer beside its attention
* ep        dispatch and combine; the share that the job hides runs beside the computation of another micro-batch
* messages  to the next or previous stage, in the order of the sender; computation goes on unless the job says otherwise
* gradients after the last backward pass of each layer, parameters before its first forward pass: layer after layer, one
            communicator after another, beside computation unless the job says otherwise
* shards    (parameters sharded) gathered one layer ahead of every pass, gradients scattered behind every backward pass, the
            last of them before the next action
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import Action, Kind
from scaleacross.simulation.calls import Calls, Op
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.step import STATES, Entry, Key, Player, Setting, Side, Step
from scaleacross.spec.step_work import ChunkWork

TP_REDUCTIONS: Final = 0.25
"""Share of tp collectives that are reductions of a backward pass: what running them beside weight gradients can hide at most."""


def perform(simulation: Simulation, calls: Calls, setting: Setting, players: Mapping[int, Player]) -> Step:
    """The step with all its tasks added.

    Raises:
        InputError: a message is waited for that nobody sends.
    """
    step = Step(simulation, calls, setting, players)
    for who in players:
        step.story[who], step.beside[who] = [], []
    for who in players:
        Performance(step, who).run()
    lost = sorted(map(str, step.unsent()))
    if lost:
        raise InputError(f"the replay waits for {len(lost)} messages that no rank sends, e.g. {lost[0]}")
    return step


class Performance:
    """One class of ranks on its way through its actions."""

    def __init__(self, step: Step, who: int) -> None:
        self.step, self.who, self.player = step, who, step.players[who]
        self.setting, self.job = step.setting, step.setting.job
        self.schedule = self.player.schedule
        self.row = self.schedule.actions[self.player.pipeline_rank]
        self.after: list[int] = []
        self.gates: list[tuple[int, str]] = []
        self.parameters: dict[tuple[int, int], int] = {}
        self.gradients: list[int] = []
        gradient_kinds = (Kind.B, Kind.W)
        self.first = {a.chunk: i for i, a in reversed(list(enumerate(self.row))) if a.kind is Kind.F}
        self.last = {a.chunk: i for i, a in enumerate(self.row) if a.kind in gradient_kinds}
        self.sharded = self.setting.shard == "parameters"

    def run(self) -> None:
        self._gather_parameters()
        for index, action in enumerate(self.row):
            self._receive(action)
            if self.sharded and action.kind is not Kind.W:
                self._sharded(index, action)
            else:
                self._plain(index, action)
            self._send(action)
        if not self.job.overlap.gradient_reduce:
            for chunk in self.last:
                self._reduce(chunk, 0, 1)
        self.gates += [(task, "dp") for task in self.gradients]
        self.after += self.gradients
        self._compute("optimizer", self.player.optimizer_s, "optimizer")

    # --- tasks -----------------------------------------------------------------------------------------------------------

    def _compute(self, component: str, seconds: float, label: str) -> int:
        task = self.step.simulation.compute(label, seconds, device=self.who, after=self.after)
        self.step.story[self.who].append(Entry(component, task, label, tuple(self.gates)))
        self.after, self.gates = [task], []
        return task

    def _wait(self, component: str, task: int | None, label: str) -> None:
        """Go on when ``task`` has arrived too."""
        if task is not None:
            self.step.story[self.who].append(Entry(component, task, label))
            self.after = [*self.after, task]

    def _call(
        self, use: str, key: Key, ops: tuple[Op, ...], size: float, count: float, holds: bool = False
    ) -> int | None:
        """Collectives that start now; ``holds``: they take multiprocessors from computation."""
        return self.step.collective(self.who, use, key, ops, size, count, self.after, holds=holds)

    def _aside(self, component: str, task: int | None, label: str) -> int | None:
        if task is not None:
            self.step.beside[self.who].append(Side(component, task, label))
        return task

    # --- actions ---------------------------------------------------------------------------------------------------------

    def _cell(self, action: Action) -> str:
        return f"{self._stage(action)}{action.kind.value}{action.microbatch}"

    def _stage(self, action: Action) -> int:
        return self.schedule.virtual_stage(self.player.pipeline_rank, action.chunk)

    def _layers_of(self, chunk: int) -> int:
        return max(1, self.player.chunks[chunk].num_layers)

    def _has_gradients(self) -> bool:
        return any(use in STATES and op != "all_gather" for use, op in self.setting.streams)

    def _parts(self, chunk: int, gather: bool) -> int:
        return self.step.buckets(self.player.pipeline_rank, chunk, gather)

    def _plain(self, index: int, action: Action) -> None:
        """An action in one piece, or part by part where gradients leave or parameters arrive."""
        chunk = action.chunk
        gathers = any(at == chunk for at, _ in self.parameters) and self.first[chunk] == index
        reduces = self.last.get(chunk) == index and self.job.overlap.gradient_reduce and self._has_gradients()
        pieces = self._parts(chunk, gather=gathers) if gathers or reduces else 1
        for piece in range(pieces):
            if gathers and (chunk, piece) in self.parameters:
                self._gate(self.parameters[chunk, piece], "dp")
            self._layers(index, action, piece, pieces)
            if reduces:
                self._reduce(chunk, piece, pieces)

    def _gate(self, task: int, component: str) -> None:
        self.after = [*self.after, task]
        self.gates.append((task, component))

    def _layers(self, index: int, action: Action, piece: int, pieces: int) -> None:
        """One of ``pieces`` equal parts of an action: computation and the collectives that it waits for."""
        work, share, pace = self.player.chunks[action.chunk], 1 / pieces, self.player.pace[index] / pieces
        cell, key = self._cell(action), (self._stage(action), action.kind.value, action.microbatch, piece)
        if action.kind is Kind.W:
            self._compute("compute", work.weight_gradient_s * pace, cell)
            return
        forward = action.kind is Kind.F
        whole = work.forward_s if forward else work.input_gradient_s
        weight = work.weight_gradient_s if action.kind is Kind.B else 0.0
        hidden = [(name, self._aside(name, task, cell)) for name, task in self._hidden(action, key, share)]
        attention = self._attention(action, work) if ("cp", "all_gather") in self.setting.streams else 0.0
        late = self._late_weight_s(action, work, weight)
        self._compute("compute", (whole + weight - attention - late) * pace, cell)
        if attention:
            self._keys(action, key, work, share, pace, cell)
        self._tensor(action, key, work, share, late * pace, cell)
        self._experts(action, key, work, share, cell)
        for name, task in hidden:
            self._wait(name, task, cell)

    def _attention(self, action: Action, work: ChunkWork) -> float:
        """Seconds of attention beside which keys and values travel."""
        if action.kind is Kind.F:
            return work.attention_s
        return work.attention_backward_s + (work.attention_s if self.setting.recomputes else 0.0)

    def _keys(self, action: Action, key: Key, work: ChunkWork, share: float, pace: float, cell: str) -> None:
        """Attention with its exchange of keys and values; a backward pass also scatters their gradients."""
        size = self.setting.streams["cp", "all_gather"].size_bytes
        count = work.num_attention_layers * share
        passes: list[tuple[str, float, bool]] = []
        if action.kind is Kind.F or self.setting.recomputes:
            passes.append(("forward", work.attention_s, False))
        if action.kind is not Kind.F:
            passes.append(("backward", work.attention_backward_s, True))
        for name, seconds, scatters in passes:
            gathered = self._aside("cp", self._call("cp", (*key, name), ("all_gather",), size, count), cell)
            last = gathered
            if scatters and gathered is not None:
                behind = self.step.collective(
                    self.who, "cp", (*key, name), ("reduce_scatter",), size, count, [gathered]
                )
                last = self._aside("cp", behind, cell)
            self._compute("compute", seconds * pace, cell)
            self._wait("cp", last, cell)

    def _tp_op(self) -> tuple[tuple[Op, ...], float]:
        """Operations of one gather with its scatter."""
        size = (
            self.setting.streams["tp", "all_gather"].size_bytes if ("tp", "all_gather") in self.setting.streams else 0.0
        )
        return (("all_reduce",) if self.setting.reduce_whole else ("all_gather", "reduce_scatter")), size

    def _tp_calls(self, action: Action, work: ChunkWork) -> int:
        return work.tp_forward if action.kind is Kind.F else work.tp_backward

    def _late_weight_s(self, action: Action, work: ChunkWork, weight: float) -> float:
        """Seconds of weight gradients beside which the reductions of a backward pass run; userbuffers hide these and more."""
        beside = self.job.overlap.tp_reduce and self.job.overlap.tp_fraction < TP_REDUCTIONS
        has_tp = ("tp", "all_gather") in self.setting.streams and self._tp_calls(action, work) > 0
        return weight / 2 if beside and has_tp and weight > 0 else 0.0

    def _tensor(self, action: Action, key: Key, work: ChunkWork, share: float, late_s: float, cell: str) -> None:
        """Gathers and scatters over tp that nothing hides; then the reductions beside ``late_s`` of weight gradients."""
        operations, size = self._tp_op()
        count = self._tp_calls(action, work) * share
        if not late_s:
            waited = count * (1 - self.job.overlap.tp_fraction)
            self._wait("tp", self._call("tp", key, operations, size, waited), cell)
            return
        first_pass = count / 2 if self.setting.recomputes else 0.0
        last = operations[-1:]
        self._wait("tp", self._call("tp", (*key, "first pass"), last, size, first_pass), cell)
        if len(operations) > 1:
            self._wait("tp", self._call("tp", key, operations[:-1], size, count), cell)
        behind = self._call("tp", (*key, "late"), last, size, count - first_pass, holds=True)
        beside = self._aside("tp", behind, cell)
        self._compute("compute", late_s, cell)
        self._wait("tp", beside, cell)

    def _exchanges(self, action: Action, work: ChunkWork) -> float:
        again = self.setting.recomputes and action.kind is not Kind.F
        return work.num_moe_layers * (4.0 if again else 2.0)

    def _hidden_share(self, action: Action) -> float:
        """Share of all-to-alls that runs beside the computation of another micro-batch; the outermost has none."""
        alone = 0 if action.kind is Kind.F else self.schedule.num_microbatches - 1
        return 0.0 if action.microbatch == alone else self.job.experts.overlap_fraction

    def _experts(self, action: Action, key: Key, work: ChunkWork, share: float, cell: str) -> None:
        if ("ep", "all_to_all") in self.setting.streams:
            count = self._exchanges(action, work) * share * (1 - self._hidden_share(action))
            size = self.setting.streams["ep", "all_to_all"].size_bytes
            self._wait("ep", self._call("ep", (*key, "seen"), ("all_to_all",), size, count), cell)

    def _hidden(self, action: Action, key: Key, share: float) -> Iterable[tuple[str, int | None]]:
        """Collectives that start with the action and run beside its computation."""
        work = self.player.chunks[action.chunk]
        if ("ep", "all_to_all") in self.setting.streams and self._hidden_share(action) > 0:
            count = self._exchanges(action, work) * share * self._hidden_share(action)
            size = self.setting.streams["ep", "all_to_all"].size_bytes
            yield "ep", self._call("ep", (*key, "hidden"), ("all_to_all",), size, count)
        if self.job.overlap.tp_fraction > 0 and not self._late_weight_s(action, work, work.weight_gradient_s):
            operations, size = self._tp_op()
            count = self._tp_calls(action, work) * share * self.job.overlap.tp_fraction
            yield "tp", self._call("tp", (*key, "hidden"), operations, size, count)

    # --- messages --------------------------------------------------------------------------------------------------------

    def _receive(self, action: Action) -> None:
        stage, forward = self._stage(action), action.kind is Kind.F
        if action.kind is Kind.W or (self.schedule.is_first(stage) if forward else self.schedule.is_last(stage)):
            return
        source = stage - 1 if forward else stage + 1
        rank, mine = self.schedule.locate(source)[0], self.player.pipeline_rank
        if rank == mine:
            return
        down = self._runs_down(rank, mine)
        sender = self.step.calls.machine.neighbour(self.who, forward=not down)
        self._gate(self.step.message(sender, down, (source, "F" if forward else "B", action.microbatch)), "idle")

    def _runs_down(self, source: int, target: int) -> bool:
        """Whether a message goes from a rank to the next one (from the last to the first)."""
        ranks = self.schedule.num_ranks
        return target == (source + 1) % ranks if ranks > 2 else target > source

    def _send(self, action: Action) -> None:
        stage, forward = self._stage(action), action.kind is Kind.F
        if action.kind is Kind.W or (self.schedule.is_last(stage) if forward else self.schedule.is_first(stage)):
            return
        target, mine = self.schedule.locate(stage + 1 if forward else stage - 1)[0], self.player.pipeline_rank
        if target == mine:
            return
        cell: Key = (stage, "F" if forward else "B", action.microbatch)
        number = self.step.sends(self.who, self._runs_down(mine, target), cell, self.after)
        self._aside("pp", number, self._cell(action))
        if not self.job.overlap.pipeline_messages:
            self._wait("pp", number, self._cell(action))

    # --- gradients and parameters ----------------------------------------------------------------------------------------

    def _states(self, chunk: int, part: int, parts: int, gather: bool, key: Key, after: list[int]) -> int | None:
        """Reduce (or gather) one of ``parts`` of a chunk over all communicators, one after another; shards are not replicated
        with every micro-batch."""
        work, last = self.player.chunks[chunk], None
        for use in STATES[-2::-1] if gather else STATES:
            if use == "dp_replicate" and key[0] == "shard":
                continue
            op, size = self.setting.state_op(use, gather), self.setting.state_bytes(work, use, gather) / parts
            done = self.step.collective(self.who, use, (*key, chunk, part), (op,), size, 1.0, after, lane=True)
            if done is not None:
                last, after = self._aside("dp", done, f"{'gather' if gather else 'reduce'} {chunk}.{part}"), [done]
        return last

    def _reduce(self, chunk: int, part: int, parts: int) -> None:
        """Gradients of a part of a chunk, once its last micro-batch has run backward."""
        done = self._states(chunk, part, parts, False, ("gradients",), self.after)
        if done is not None:
            self.gradients.append(done)

    def _gather_parameters(self) -> None:
        """Updated parameters, in the order in which forward passes need them."""
        if self.setting.shard != "optimizer":
            return
        order = sorted(self.first, key=lambda chunk: self.first[chunk])
        last = None
        for chunk in order:
            parts = self._parts(chunk, gather=True)
            for part in range(parts):
                done = self._states(chunk, part, parts, True, ("parameters",), [])
                if done is not None:
                    self.parameters[chunk, part] = last = done
        if not self.job.overlap.parameter_gather and last is not None:
            self.parameters.clear()
            self._gate(last, "dp")

    def _sharded(self, index: int, action: Action) -> None:
        """An action with its parameters gathered layer by layer, and in a backward pass its gradients scattered."""
        chunk, pieces = action.chunk, self._layers_of(action.chunk)
        ahead = self.job.overlap.shard_prefetch
        backward, reduced, ready = action.kind is not Kind.F, None, list(self.after)
        cell, at = self._cell(action), (self._stage(action), action.kind.value, action.microbatch)
        for piece in range(pieces):
            start = list(self.after)
            gathered = self._states(chunk, piece, pieces, True, ("shard", *at), ready if ahead else start)
            ready = start if gathered is None else [*start, gathered]
            if gathered is not None:
                self._gate(gathered, "dp")
            self._layers(index, action, piece, pieces)
            if backward and action.kind is Kind.B:
                reduced = self._states(chunk, piece, pieces, False, ("shard", *at), self.after) or reduced
                if not ahead:
                    self._wait("dp", reduced, cell)
            if self.last.get(chunk) == index:
                self._replicate(chunk, piece, pieces, reduced)
        if ahead:
            self._wait("dp", reduced, cell)

    def _replicate(self, chunk: int, piece: int, pieces: int, reduced: int | None) -> None:
        """The all-reduce of the shard over replicas, once per step."""
        size = self.setting.state_bytes(self.player.chunks[chunk], "dp_replicate", False) / pieces
        after = self.after if reduced is None else [reduced]
        key = ("gradients", chunk, piece)
        done = self.step.collective(self.who, "dp_replicate", key, ("all_reduce",), size, 1.0, after, lane=True)
        if done is not None:
            self._aside("dp", done, f"reduce {chunk}.{piece}")
            self.gradients.append(done)
