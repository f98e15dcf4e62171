"""Assembles recorded actions, repeated for all micro-batches, into one step graph; called by ``program``.

An *occurrence* is one action of one rank class (``repeats``): a record and a micro-batch. A *thing* is the meaning of a
reference in an occurrence. Things are numbered: computations of all occurrences first, then keys, each once for every
micro-batch that it stands for. Things become nodes in the order in which they are first asked for.
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
    """Actions of a rank class: one record per sort of occurrence, and the sort of every occurrence."""

    records: Sequence[Recorded]
    repeats: Repeats


def assemble(recorder: Recorder, rows: Mapping[int, Row]) -> StepGraph:
    """Return the graph of all rank classes.

    Args:
        rows: rank class -> its actions.

    Raises:
        InputError: a rank waits for a message that no rank sends.
    """
    things = _Things(recorder, rows)
    columns = _Columns(rows)
    asking, (refs, kinds) = columns.all(columns.asks)
    asked = things.of(refs, asking)
    # whoever asks for a thing first makes it a node; later askers refer to the same node
    is_first = things.first_of(asked) == np.arange(len(asked))
    things.node[asked[is_first]] = np.arange(int(is_first.sum()))
    of, ref = kinds[is_first], refs[is_first]
    key = np.where(ref >= KEYED, ref - KEYED, -1)

    waiting, (waits, others, back) = columns.all(columns.waits)
    # ``back`` is 1 where the awaited node belongs to the previous occurrence
    target, other = things.node[things.of(waits, waiting)], things.node[things.of(others, waiting - back)]
    sending, (sends,) = columns.all(columns.sends)
    sent = things.node[things.of(sends, sending)]
    called, call_before = _followed(np.flatnonzero(things.lane[key] >= 0), things.lane[key])
    follows, sent_before = _followed(sent, of)
    # a call waits for the arrival of the previous call on its lane, a message only for the end of the previous one
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
    """Raise if a message of the graph is not among those ``sent``."""
    unsent = graph.is_message.copy()
    unsent[sent] = False
    if unsent.any():
        lost = sorted(str(key) for key, number in graph.messages.items() if unsent[number])
        raise InputError(f"the step waits for {len(lost)} messages that no rank sends, e.g. {lost[0]}")


def _followed(nodes: Ints, lanes: Ints) -> tuple[Ints, Ints]:
    """Return the ``nodes`` that follow another on the same lane, and that other; ``lanes``: (nodes of the graph,)."""
    order = np.argsort(lanes[nodes], kind="stable")
    ordered = nodes[order]
    same = lanes[ordered[1:]] == lanes[ordered[:-1]]
    return ordered[1:][same], ordered[:-1][same]


class _Things:
    """Numbers of things, and their nodes.

    Attributes:
        node: (things,) node of each thing; -1 until it is asked for.
        lane: (keys + 1,) communicator of calls that follow one another, else -1; the last entry is for nodes without a
            key.
        computed: (occurrences,) thing of the first computation.
        key: (keys,) thing of each key's first micro-batch.
        repeats: (keys,) 1 if the key stands for another node in every micro-batch, else 0.
        span: rank class -> its first occurrence, and the first of the next class.
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
        """Return the thing of each reference in its occurrence."""
        out: Ints = self.computed[occurrence] + ref
        keyed = ref >= KEYED
        key = ref[keyed] - KEYED
        out[keyed] = self.key[key] + self.repeats[key] * self.micro_batch[occurrence[keyed]]
        return out

    def first_of(self, things: Ints) -> Ints:
        """Return the index in ``things`` at which each of them stands first."""
        at = np.empty(len(self.node), dtype=np.int64)
        at[things[::-1]] = np.arange(len(things))[::-1]  # the last assignment wins, so the lowest index remains
        first: Ints = at[things]
        return first


class _Columns:
    """Columns of every pair of sorts (an action and the action before it), since ``BEFORE`` means the ends of the
    latter.

    Attributes:
        asks: per pair, (2, asks) reference and kind.
        waits: per pair, (3, waits) who waits, for whom, and 1 where the latter belongs to the occurrence before.
        sends: per pair, (1, sends) reference.
        kinds: (occurrences,) pair of each occurrence.
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
        """Return the columns of ``table`` for all occurrences in order: occurrence of each, and (rows, all) values."""
        return _repeated(table, self.kinds)


def _repeated(table: Sequence[Ints], kinds: Ints) -> tuple[Ints, Ints]:
    """Return the columns of ``table[kind]`` for all ``kinds`` in order: index in ``kinds``, and (rows, all) values."""
    lengths = np.array([columns.shape[1] for columns in table], dtype=np.int64)
    firsts, times = np.cumsum(lengths) - lengths, lengths[kinds]
    which = np.repeat(np.arange(len(kinds)), times)
    within = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times)
    return which, np.concatenate(table, axis=1)[:, firsts[kinds][which] + within]


def _told(things: _Things, who: int, row: Row) -> tuple[list[Entry], list[Side]]:
    """Return what a rank class does in order, and its concurrent transfers, with their nodes."""
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
    """Return what a rank class does in order, as arrays."""
    numbers: dict[str, int] = {}

    def columns(values: Iterable[tuple[int, int, str]]) -> Ints:
        """Return (3, n) entry, reference, and number of the component."""
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
