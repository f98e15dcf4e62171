"""Recorded actions, repeated for all micro-batches, as one graph: a few operations on arrays for all nodes at once.

An *occurrence* is one action of one class of ranks (``repeats``): what was recorded, and its micro-batch. A reference and an
occurrence make a *thing*: computations of all occurrences one after another, then keys, each as often as there are micro-batches
it stands for. Things become nodes in the order in which they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.errors import InputError
from scaleacross.step.graph import Course, Entry, Ints, Side, StepGraph
from scaleacross.step.recording import BEFORE, KEYED, MICRO_BATCH, Recorded, Recorder
from scaleacross.step.repeats import Repeats


class Row(NamedTuple):
    """What a class does: a record of every sort of occurrence, and which occurrence is of which sort."""

    records: Sequence[Recorded]
    repeats: Repeats


def assemble(recorder: Recorder, rows: Mapping[int, Row]) -> StepGraph:
    """The graph of all classes of ranks.

    Args:
        rows: class -> what it does.

    Raises:
        InputError: a message is waited for that nobody sends.
    """
    things = _Things(recorder, rows)
    columns = _Columns(rows)
    asking, (refs, kinds) = columns.all(columns.asks)
    asked = things.of(refs, asking)
    is_first = things.first_of(asked) == np.arange(len(asked))
    things.node[asked[is_first]] = np.arange(int(is_first.sum()))
    of, ref = kinds[is_first], refs[is_first]
    key = np.where(ref >= KEYED, ref - KEYED, -1)

    waiting, (waits, others, back) = columns.all(columns.waits)
    target, other = things.node[things.of(waits, waiting)], things.node[things.of(others, waiting - back)]
    sending, (sends,) = columns.all(columns.sends)
    sent = things.node[things.of(sends, sending)]
    called, call_before = _followed(np.flatnonzero(things.lane[key] >= 0), things.lane[key])
    follows, sent_before = _followed(sent, of)
    targets = np.concatenate([called, target, follows])
    order = np.argsort(targets, kind="stable")
    graph = StepGraph(
        recorder.setting,
        recorder.ranks,
        tuple(recorder.kinds),
        of,
        np.concatenate([call_before, other, ~sent_before])[order],
        np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=len(of)))]),
        {who: things.node[things.computed[first + 1 : last - 1]] for who, (first, last) in things.span.items()},
        tuple(recorder.keys),
        key,
        things.micro_batch[asking[is_first]],
        lambda who: _told(things, who, rows[who]),
        lambda who: _course(things, who, rows[who]),
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

    def __init__(self, recorder: Recorder, rows: Mapping[int, Row]) -> None:
        lengths = [len(row.repeats.sort) for row in rows.values()]
        ends = np.cumsum(lengths).tolist()
        self.span = {who: (end - length, end) for who, length, end in zip(rows, lengths, ends, strict=True)}
        self.micro_batch = np.concatenate([row.repeats.micro_batch for row in rows.values()])
        counts = np.concatenate(
            [np.array([one.num_computations for one in row.records])[row.repeats.sort] for row in rows.values()]
        )
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
        out: Ints = self.computed[occurrence] + ref
        keyed = ref >= KEYED
        key = ref[keyed] - KEYED
        out[keyed] = self.key[key] + self.repeats[key] * self.micro_batch[occurrence[keyed]]
        return out

    def first_of(self, things: Ints) -> Ints:
        """Where each of ``things`` stands first."""
        at = np.empty(len(self.node), dtype=np.int64)
        at[things[::-1]] = np.arange(len(things))[::-1]  # of equal ones the last assignment holds
        first: Ints = at[things]
        return first


class _Columns:
    """Columns of every recorded action, told apart by the action before it.

    Attributes:
        asks: reference, kind.
        waits: who waits, for whom, and 1 where that one is of the occurrence before.
        sends: reference.
    """

    def __init__(self, rows: Mapping[int, Row]) -> None:
        self.asks: list[Ints] = []
        self.waits: list[Ints] = []
        self.sends: list[Ints] = []
        kinds = []
        for records, known in rows.values():
            kinds.append(len(self.asks) + known.pair)
            for before, own in known.pairs:
                self._add(records[before] if before >= 0 else Recorded(), records[own])
        self.kinds = np.concatenate(kinds)

    def _add(self, before: Recorded, one: Recorded) -> None:
        self.asks.append(np.array([one.asks, one.kinds], dtype=np.int64))
        self.sends.append(np.array([one.sends], dtype=np.int64))
        waits, others = np.array([one.waits, one.others], dtype=np.int64)
        behind = others == BEFORE
        times = np.where(behind, len(before.ends), 1)
        back, others = np.repeat(behind, times), np.repeat(others, times)
        others[back] = np.tile(np.array(before.ends, dtype=np.int64), int(behind.sum()))
        self.waits.append(np.stack([np.repeat(waits, times), others, back]))

    def all(self, table: Sequence[Ints]) -> tuple[Ints, Ints]:
        """The columns of ``table`` for all occurrences one after another: which occurrence, and (columns, all) values."""
        return _repeated(table, self.kinds)


def _repeated(table: Sequence[Ints], kinds: Ints) -> tuple[Ints, Ints]:
    """The columns of ``table[kind]`` for all ``kinds`` one after another: which of ``kinds``, and (columns, all) values."""
    lengths = np.array([columns.shape[1] for columns in table], dtype=np.int64)
    firsts, times = np.cumsum(lengths) - lengths, lengths[kinds]
    which = np.repeat(np.arange(len(kinds)), times)
    within = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times)
    return which, np.concatenate(table, axis=1)[:, firsts[kinds][which] + within]


def _told(things: _Things, who: int, row: Row) -> tuple[list[Entry], list[Side]]:
    """What a class does in order, and the transfers that run meanwhile, with the numbers of their nodes."""
    refs: list[int] = []
    occurrences: list[int] = []
    done = [row.records[sort] for sort in row.repeats.sort.tolist()]
    for number, one in enumerate(done, things.span[who][0]):
        here = [ref for entry in one.story for ref in (entry.node, *(gate for gate, _ in entry.gates))]
        here += [side.node for side in one.concurrent]
        refs += here
        occurrences += [number] * len(here)
    found = iter(things.node[things.of(np.array(refs, dtype=np.int64), np.array(occurrences, dtype=np.int64))].tolist())
    story: list[Entry] = []
    concurrent: list[Side] = []
    for one, micro_batch in zip(done, row.repeats.micro_batch.tolist(), strict=True):
        for entry in one.story:
            label = entry.label.replace(MICRO_BATCH, str(micro_batch))
            node, gates = next(found), tuple((next(found), component) for _, component in entry.gates)
            story.append(Entry(entry.component, node, label, gates))
        for side in one.concurrent:
            concurrent.append(Side(side.component, next(found), side.label.replace(MICRO_BATCH, str(micro_batch))))
    return story, concurrent


def _course(things: _Things, who: int, row: Row) -> Course:
    """What a class does in order, as arrays."""
    numbers: dict[str, int] = {}

    def columns(values: Iterable[tuple[int, int, str]]) -> Ints:
        """Entry, reference and component of each."""
        kept = [(entry, ref, numbers.setdefault(component, len(numbers))) for entry, ref, component in values]
        return np.array(kept, dtype=np.int64).reshape(-1, 3).T

    entries, gates = [], []
    for one in row.records:
        entries.append(columns((0, entry.node, entry.component) for entry in one.story))
        gates.append(columns((at, *gate) for at, entry in enumerate(one.story) for gate in entry.gates))
    first, sort = things.span[who][0], row.repeats.sort
    here, (_, refs, component) = _repeated(entries, sort)
    there, (gated, gate, waited) = _repeated(gates, sort)
    nodes, gate_nodes = (things.node[things.of(of, first + at)] for of, at in ((refs, here), (gate, there)))
    before = np.searchsorted(here, np.arange(len(sort)))
    return Course(tuple(numbers), component, nodes, before[there] + gated, gate_nodes, waited)
