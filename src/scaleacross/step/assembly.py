"""Recorded actions, repeated for all micro-batches, as one graph: a few operations on arrays for all nodes at once.

An *occurrence* is one action of one class of ranks: what was recorded, and its micro-batch. A reference and an occurrence make a
*thing*: computations of all occurrences one after another, then keys, each as often as there are micro-batches it stands for.
Things become nodes in the order in which they are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from scaleacross.errors import InputError
from scaleacross.step.graph import Entry, Ints, Side, StepGraph
from scaleacross.step.recording import BEFORE, KEYED, MICRO_BATCH, Recorded, Recorder

Occurrence = tuple[Recorded, int]


def assemble(recorder: Recorder, rows: Mapping[int, Sequence[Occurrence]]) -> StepGraph:
    """The graph of all classes of ranks.

    Args:
        rows: class -> its occurrences: before its first action, its actions, after its last action.

    Raises:
        InputError: a message is waited for that nobody sends.
    """
    things = _Things(recorder, rows)
    columns = _Columns(rows)
    asking, requests = columns.all(columns.requests, 2)
    asked = things.of(requests[:, 0], asking)
    is_first = things.first_of(asked) == np.arange(len(asked))
    things.node[asked[is_first]] = np.arange(int(is_first.sum()))
    of, ref = requests[is_first, 1], requests[is_first, 0]
    key = np.where(ref >= KEYED, ref - KEYED, -1)

    occurrence, waits = columns.all(columns.waits, 3)
    target = things.node[things.of(waits[:, 0], occurrence)]
    other = things.node[things.of(waits[:, 1], occurrence - waits[:, 2])]
    occurrence, sends = columns.all(columns.sends, 1)
    sent = things.node[things.of(sends[:, 0], occurrence)]
    called, call_before = _followed(np.flatnonzero(things.lane[key] >= 0), things.lane[key])
    follows, sent_before = _followed(sent, of)
    targets = np.concatenate([called, target, follows])
    order = np.argsort(targets, kind="stable")
    others = np.concatenate([call_before, other, ~sent_before])[order]
    graph = StepGraph(
        recorder.setting,
        recorder.ranks,
        tuple(recorder.kinds),
        of,
        others,
        np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=len(of)))]),
        {who: things.node[things.computed[first + 1 : last - 1]] for who, (first, last) in things.span.items()},
        tuple(recorder.keys),
        key,
        things.micro_batch[asking[is_first]],
        lambda who: _told(things, who, rows[who]),
    )
    _refuse_unsent(graph, sent)
    return graph


def _refuse_unsent(graph: StepGraph, sent: Ints) -> None:
    unsent = graph.is_message.copy()
    unsent[sent] = False
    if unsent.any():
        lost = sorted(str(key) for key, number in graph.messages.items() if unsent[number])
        raise InputError(f"the step waits for {len(lost)} messages that no rank sends, e.g. {lost[0]}")


def _followed(nodes: Ints, lanes: Ints) -> tuple[Ints, Ints]:
    """Of ``nodes`` in order those that have one before them on the same lane, and that one; ``lanes``: of every node."""
    order = np.argsort(lanes[nodes], kind="stable")
    ordered = nodes[order]
    same = lanes[ordered[1:]] == lanes[ordered[:-1]]
    return ordered[1:][same], ordered[:-1][same]


class _Things:
    """What references mean in every occurrence.

    Attributes:
        node: (things,) number of the node.
        lane: (keys + 1,) communicator of calls that follow one another, else -1; the last is for what has no key.
        computed: (occurrences,) first computation, a thing.
        span: class -> its first occurrence, and the first of the next class.
    """

    def __init__(self, recorder: Recorder, rows: Mapping[int, Sequence[Occurrence]]) -> None:
        occurrences = list(chain.from_iterable(rows.values()))
        ends = np.cumsum([len(row) for row in rows.values()]).tolist()
        self.span = {who: (end - len(row), end) for (who, row), end in zip(rows.items(), ends, strict=True)}
        self.micro_batch = np.array([micro_batch for _, micro_batch in occurrences], dtype=np.int64)
        counts = np.array([one.num_computations for one, _ in occurrences], dtype=np.int64)
        self.computed = np.cumsum(counts) - counts
        self.repeats = np.array([MICRO_BATCH in key for key in recorder.keys], dtype=np.int64)
        times = np.where(self.repeats, self.micro_batch.max() + 1, 1)
        self.key = counts.sum() + np.cumsum(times) - times
        self.node = np.full(int(counts.sum() + times.sum()), -1, dtype=np.int64)
        numbers = {lane: number for number, lane in enumerate(dict.fromkeys(recorder.lanes.values()))}
        self.lane = np.full(len(recorder.keys) + 1, -1, dtype=np.int64)
        for key, lane in recorder.lanes.items():
            self.lane[key] = numbers[lane]

    def of(self, ref: Ints, occurrence: Ints) -> Ints:
        """The thing that each reference means in its occurrence."""
        out = self.computed[occurrence] + ref
        keyed = ref >= KEYED
        key = ref[keyed] - KEYED
        out[keyed] = self.key[key] + self.repeats[key] * self.micro_batch[occurrence[keyed]]
        return out

    def first_of(self, things: Ints) -> Ints:
        """Where each of ``things`` stands first."""
        at = np.empty(len(self.node), dtype=np.int64)
        at[things[::-1]] = np.arange(len(things))[::-1]  # of equal ones the last assignment holds
        return at[things]


class _Columns:
    """Requests (reference, kind), waits (target, other, 1 where the other is of the occurrence before) and sends (reference) of
    every recorded action, told apart by the action before it."""

    def __init__(self, rows: Mapping[int, Sequence[Occurrence]]) -> None:
        self.requests: list[list[tuple[int, ...]]] = []
        self.waits: list[list[tuple[int, ...]]] = []
        self.sends: list[list[tuple[int, ...]]] = []
        known: dict[tuple[int, int], int] = {}
        kinds = []
        for row in rows.values():
            before = Recorded()
            for one, _ in row:
                kind = known.setdefault((id(before), id(one)), len(known))
                if kind == len(self.requests):
                    self._add(before, one)
                kinds.append(kind)
                before = one
        self.kinds = np.array(kinds, dtype=np.int64)

    def _add(self, before: Recorded, one: Recorded) -> None:
        self.requests.append(list(one.requests))
        self.sends.append([(ref,) for ref in one.sends])
        waits: list[tuple[int, ...]] = []
        for target, other in one.waits:
            if other == BEFORE:
                waits += [(target, ref, 1) for ref in before.ends]
            else:
                waits.append((target, other, 0))
        self.waits.append(waits)

    def all(self, table: list[list[tuple[int, ...]]], width: int) -> tuple[Ints, Ints]:
        """The rows of ``table`` for all occurrences one after another: which occurrence, and the row
        of ``width`` numbers."""
        lengths = np.array([len(rows) for rows in table], dtype=np.int64)
        flat = np.array(list(chain.from_iterable(table)), dtype=np.int64).reshape(-1, width)
        firsts, times = np.cumsum(lengths) - lengths, lengths[self.kinds]
        occurrence = np.repeat(np.arange(len(self.kinds)), times)
        within = np.arange(len(occurrence)) - np.repeat(np.cumsum(times) - times, times)
        return occurrence, flat[firsts[self.kinds][occurrence] + within]


def _told(things: _Things, who: int, row: Sequence[Occurrence]) -> tuple[list[Entry], list[Side]]:
    """What a class does in order, and the transfers that run meanwhile, with the numbers of their nodes."""
    refs: list[int] = []
    occurrences: list[int] = []
    for number, (one, _) in enumerate(row, things.span[who][0]):
        here = [ref for entry in one.story for ref in (entry.node, *(gate for gate, _ in entry.gates))]
        here += [side.node for side in one.concurrent]
        refs += here
        occurrences += [number] * len(here)
    found = iter(things.node[things.of(np.array(refs, dtype=np.int64), np.array(occurrences, dtype=np.int64))].tolist())
    story: list[Entry] = []
    concurrent: list[Side] = []
    for one, micro_batch in row:
        for entry in one.story:
            label = entry.label.replace(MICRO_BATCH, str(micro_batch))
            node, gates = next(found), tuple((next(found), component) for _, component in entry.gates)
            story.append(Entry(entry.component, node, label, gates))
        for side in one.concurrent:
            concurrent.append(Side(side.component, next(found), side.label.replace(MICRO_BATCH, str(micro_batch))))
    return story, concurrent
