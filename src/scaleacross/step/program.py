"""Builds the step graph: work and messages of every rank class, and all waits. ``simulation.step_run`` calls it.

A rank class runs its pipeline actions in the order of the plan. An action computes its layers one by one or, where
nothing happens between them, all at once (``layers``). Concurrent with computation are:

* messages  to the next or previous stage, in the order of the sender; computation goes on unless the job says otherwise
* gradients after the last backward pass of each layer, parameters before its first forward pass: layer after layer, one
            communicator after another, overlapped with computation unless the job says otherwise
* shards    (parameters sharded) gathered one layer ahead of every pass, or of every forward pass; (gradients sharded)
            gradients scattered after every backward pass, or pass of weight gradients, the last of them before the next action

Every overlap rule is an edge here or in ``layers``, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from scaleacross.schedules.pipeline import Action, Kind
from scaleacross.spec.parallelism import PASS_GATHERS, REDUCED_EVERY_PASS
from scaleacross.step.assembly import Row, assemble
from scaleacross.step.graph import Key, StepGraph
from scaleacross.step.layers import LETTERS, Layers
from scaleacross.step.recording import BEFORE, MICRO_BATCH, Recorded, Recorder
from scaleacross.step.repeats import Repeats, repeats
from scaleacross.step.setting import STATES, RankClasses, RankWork, Setting


def build(classes: RankClasses, setting: Setting, ranks: Mapping[int, RankWork]) -> StepGraph:
    """Build the graph of one step.

    Args:
        ranks: rank class -> its schedule and work.

    Raises:
        InputError: a rank waits for a message that no rank sends.
    """
    recorder = Recorder(classes, setting, ranks)
    known: dict[tuple[object, ...], Repeats] = {}
    rows = {}
    for who, work in ranks.items():
        program = Program(recorder, who)
        # classes of one pipeline rank with equal pace share the analysis of their row
        same = id(work.schedule), work.pipeline_rank, work.pace
        if same not in known:
            known[same] = repeats(program.row, program.special(), work.pace)
        rows[who] = Row(program.records(known[same].example), known[same])
    return assemble(recorder, rows)


class Neighbour(NamedTuple):
    """The rank class ``who`` that holds virtual stage ``stage``.

    ``down``: it is of the next pipeline rank (the first after the last), else of the previous one.
    """

    stage: int
    down: bool
    who: int


GATHERING: Final[tuple[tuple[Kind, ...], ...]] = ((), (Kind.F,), (Kind.F, Kind.B, Kind.I))
"""Kinds of actions that gather the parameters of their layers, by ``PASS_GATHERS``. Input gradients need parameters, as
whole backward passes do; weight gradients need activations only."""
HAVING_GRADIENTS: Final = (Kind.B, Kind.W)
"""Kinds of actions after which their layers have weight gradients."""


class Program(Layers):
    """Records all actions of one rank class.

    Attributes:
        row: its actions in order.
        parameters: (chunk, part) -> gather that the first forward pass of the part waits for.
        gradients: reductions that the optimizer waits for.
        first, last: chunk -> index of its first forward pass, and of its last action with weight gradients.
        scatters, gathers: kinds of actions that scatter gradients, and that gather parameters.
    """

    def __init__(self, graph: Recorder, who: int) -> None:
        super().__init__(graph, who)
        self.row = self.schedule.actions[self.work.pipeline_rank]
        self.parameters: dict[tuple[int, int], int] = {}
        self.gradients: list[int] = []
        self.neighbours: dict[tuple[int, bool], Neighbour | None] = {}
        self.first = {a.chunk: i for i, a in reversed(list(enumerate(self.row))) if a.kind is Kind.F}
        self.last = {a.chunk: i for i, a in enumerate(self.row) if a.kind in HAVING_GRADIENTS}
        self.scatters = HAVING_GRADIENTS if self.setting.shard in REDUCED_EVERY_PASS else ()
        self.gathers = GATHERING[PASS_GATHERS.get(self.setting.shard, 0)]

    def records(self, examples: Iterable[int]) -> list[Recorded]:
        """Record the work before all actions, each of ``examples`` (indices in the row), and the work after all."""
        before = self._recorded([], self._gather_parameters)
        actions = [self._recorded([BEFORE], partial(self._act, index, self.row[index])) for index in examples]
        return [before, *actions, self._recorded([BEFORE], self._finish)]

    def special(self) -> set[int]:
        """Return indices of actions that are recorded each by itself.

        These are the first action, and in every chunk the actions that gather parameters or reduce gradients. Where
        all-to-alls overlap with another micro-batch, actions without one to overlap with are special too.
        """
        alone = {i for i, a in enumerate(self.row) if self._alone(a)} if self.job.experts.overlap_fraction else set()
        return {0, *self.first.values(), *self.last.values(), *alone}

    def _recorded(self, after: list[int], what: Callable[[], None]) -> Recorded:
        record = self.graph.begin()
        self.after = after
        what()
        record.ends = self.after
        return record

    def _act(self, index: int, action: Action) -> None:
        self._receive(action)
        if action.kind in (*self.gathers, *self.scatters):
            self._sharded(index, action)
        else:
            self._plain(index, action)
        self._send(action)

    def _finish(self) -> None:
        """Record the reductions that no action started, and the optimizer."""
        if not self.job.overlap.gradient_reduce:
            for chunk in self.last:
                parts = self._parts(chunk)
                for part in range(parts):
                    if self.scatters:
                        self._replicate(chunk, part, parts, None)
                    else:
                        self._reduce(chunk, part, parts)
        self.gates += [(node, "dp") for node in self.gradients]
        self.after = [*self.after, *self.gradients]
        self._compute("optimizer", self.work.optimizer_s, "optimizer")

    # --- actions ---------------------------------------------------------------------------------------------------------

    def _has_gradients(self) -> bool:
        return any(use in STATES and op != "all_gather" for use, op in self.setting.size_bytes)

    def _parts(self, chunk: int) -> int:
        return self.graph.buckets(self.work.pipeline_rank, chunk)

    def _plain(self, index: int, action: Action) -> None:
        """Record an action in one piece, or part by part where it gathers parameters or reduces gradients."""
        chunk = action.chunk
        gathers = self.first.get(chunk) == index and any(at == chunk for at, _ in self.parameters)
        reduces = self.last.get(chunk) == index and self.job.overlap.gradient_reduce and self._has_gradients()
        within = self.job.overlap.reduces_within(pipelined=self.schedule.num_ranks > 1)
        pieces = self._parts(chunk) if gathers or reduces else 1
        for piece in range(pieces):
            if gathers and (chunk, piece) in self.parameters:
                self._gate(self.parameters[chunk, piece], "dp")
            self._layers(index, action, piece, pieces)
            if reduces and within:
                self._reduce(chunk, piece, pieces)
        if reduces and not within:
            for piece in range(pieces):
                self._reduce(chunk, piece, pieces)

    # --- messages --------------------------------------------------------------------------------------------------------

    def _receive(self, action: Action) -> None:
        """Let the action wait, idle, for its message: forward from the previous stage, backward from the next one."""
        forward = action.kind is Kind.F
        source = self._neighbour(action, not forward)
        if source is not None:
            cell: Key = (source.stage, "F" if forward else "B", MICRO_BATCH)
            self._gate(self.graph.message(source.who, not source.down, cell), "idle")

    def _send(self, action: Action) -> None:
        """Send the result: forward to the next stage, backward to the previous one; wait unless messages overlap."""
        forward = action.kind is Kind.F
        target = self._neighbour(action, forward)
        if target is None:
            return
        key: Key = (self.stages[action.chunk], "F" if forward else "B", MICRO_BATCH)
        number, cell = self.graph.sends(self.who, target.down, key, self.after), self._cell(action)
        self._aside("pp", number, cell)
        if not self.job.overlap.messages(chunked=self.schedule.num_chunks > 1):
            self._wait("pp", number, cell)

    def _neighbour(self, action: Action, ahead: bool) -> Neighbour | None:
        """Return the holder of the next (``ahead``) or previous virtual stage; None if no message is needed."""
        if action.kind is Kind.W:
            return None
        key = action.chunk, ahead
        if key not in self.neighbours:
            self.neighbours[key] = self._adjacent(self.stages[action.chunk], ahead)
        return self.neighbours[key]

    def _adjacent(self, stage: int, ahead: bool) -> Neighbour | None:
        """Return the holder of the stage after or before ``stage``; None at the ends and on the own rank."""
        if self.schedule.is_last(stage) if ahead else self.schedule.is_first(stage):
            return None
        there = stage + 1 if ahead else stage - 1
        rank, mine, ranks = self.schedule.locate(there)[0], self.work.pipeline_rank, self.schedule.num_ranks
        if rank == mine:
            return None
        # with two ranks each is both next and previous, so the higher one counts as next
        down = rank == (mine + 1) % ranks if ranks > 2 else rank > mine
        return Neighbour(there, down, self.graph.classes.neighbour(self.who, forward=down))

    # --- gradients and parameters ----------------------------------------------------------------------------------------

    def _states(self, chunk: int, part: int, parts: int, gather: bool, key: Key, after: list[int]) -> int | None:
        """Reduce (or gather) one of ``parts`` of a chunk over all communicators, one after another; return the last
        call.

        With shards (``key``), ``dp_replicate`` is left out: replicas reduce once per step, not with every micro-batch.
        """
        work, last = self.work.chunks[chunk], None
        for use in STATES[-2::-1] if gather else STATES:
            if use == "dp_replicate" and key[0] == "shard":
                continue
            op, size = self.setting.state_op(use, gather), self.setting.state_bytes(work, use, gather) / parts
            done = self.graph.collective(self.who, use, (*key, chunk, part), (op,), size, 1.0, after, lane=True)
            if done is not None:
                last, after = self._aside("dp", done, f"{'gather' if gather else 'reduce'} {chunk}.{part}"), [done]
        return last

    def _reduce(self, chunk: int, part: int, parts: int) -> None:
        """Reduce the gradients of a part of a chunk, after the backward pass of its last micro-batch."""
        done = self._states(chunk, part, parts, False, ("gradients",), self.after)
        if done is not None:
            self.gradients.append(done)

    def _gather_parameters(self) -> None:
        """Gather updated parameters at the start of the step, in the order in which forward passes need them."""
        if self.setting.shard == "none" or self.gathers:
            return
        order = sorted(self.first, key=lambda chunk: self.first[chunk])
        last = None
        for chunk in order:
            parts = self._parts(chunk)
            for part in range(parts):
                done = self._states(chunk, part, parts, True, ("parameters",), [])
                if done is not None:
                    self.parameters[chunk, part] = last = done
        if not self.job.overlap.parameter_gather and last is not None:
            self.parameters.clear()
            self._gate(last, "dp")

    def _sharded(self, index: int, action: Action) -> None:
        """Record an action layer by layer, with gathers of its parameters, scatters of its gradients, or both."""
        chunk, pieces = action.chunk, self._layers_of(action.chunk)
        ahead = self.job.overlap.shard_prefetch
        gathers, reduced = action.kind in self.gathers, None
        cell, at = self._cell(action), (self.stages[chunk], LETTERS[action.kind], MICRO_BATCH)
        gathered = self._states(chunk, 0, pieces, True, ("shard", *at), self.after) if gathers else None
        for piece in range(pieces):
            following, start = None, [*self.after, *([] if gathered is None else [gathered])]
            if gathered is not None:
                self._gate(gathered, "dp")
            # the gather of the next layer starts before this layer's computation, with ``shard_prefetch``
            if gathers and ahead and piece + 1 < pieces:
                following = self._states(chunk, piece + 1, pieces, True, ("shard", *at), start)
            self._layers(index, action, piece, pieces)
            if action.kind in self.scatters:
                reduced = self._states(chunk, piece, pieces, False, ("shard", *at), self.after) or reduced
                if not ahead:
                    self._wait("dp", reduced, cell)
            if gathers and not ahead and piece + 1 < pieces:
                following = self._states(chunk, piece + 1, pieces, True, ("shard", *at), self.after)
            gathered = following
            if self.last.get(chunk) == index and self.job.overlap.gradient_reduce:
                self._replicate(chunk, piece, pieces, reduced)
        if ahead:
            self._wait("dp", reduced, cell)

    def _replicate(self, chunk: int, piece: int, pieces: int, reduced: int | None) -> None:
        """All-reduce the shard of a piece over replicas, once per step."""
        size = self.setting.state_bytes(self.work.chunks[chunk], "dp_replicate", False) / pieces
        after = self.after if reduced is None else [reduced]
        key = ("gradients", chunk, piece)
        done = self.graph.collective(self.who, "dp_replicate", key, ("all_reduce",), size, 1.0, after, lane=True)
        if done is not None:
            self._aside("dp", done, f"reduce {chunk}.{piece}")
            self.gradients.append(done)
