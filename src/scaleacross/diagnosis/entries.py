"""Converts the content of a flight-recorder dump, which is untrusted, into a ``RankTrace`` and checks every field.

It reads the dumps of PyTorch's NCCL and gloo groups and of our runtime. Fields that PyTorch omits (gloo: ranks of
groups, start times) stay open. Nothing is read deeper than the format goes, and each list is converted once. A file
whose parts refer to each other therefore takes no more work than its size.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain
from typing import Any, Final

from scaleacross.spec.trace import CURSOR_FIELDS, EXTRA_KEY, Cursor, Operation, RankTrace, State, TraceGroup

MAX_ENTRIES: Final = 1_000_000
_STATES: Final[tuple[State, ...]] = ("scheduled", "started", "completed")
_INT: Final[frozenset[type]] = frozenset((int,))
_LIST: Final[frozenset[type]] = frozenset((list,))
_STR: Final[frozenset[type]] = frozenset((str,))
NOT_ALIGNABLE: Final = -1
"""Sequence of a send or receive whose number on its pair of ranks cannot be known."""


class GroupTable:
    """Groups of all dumps, each stored once: they compare by identity, and a long list of ranks is parsed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], TraceGroup] = {}

    def get(self, name: str, desc: str, ranks: str) -> TraceGroup:
        """Return the group of ``ranks``, given as text ``[0, 1, ...]``; empty where the dump does not state them."""
        key = (name, desc, ranks)
        if key not in self._known:
            members = json.loads(ranks) if ranks else []
            if type(members) is not list or not all(type(rank) is int and rank >= 0 for rank in members):
                raise ValueError(f"ranks of group {name!r} are {ranks[:60]!r}, no list of ranks")
            self._known[key] = TraceGroup(name, desc, tuple(sorted(set(members))))
        return self._known[key]


def rank_trace(content: Any, rank: int, source: str, groups: GroupTable) -> RankTrace:
    """Return the trace of ``rank`` from the content of its dump.

    Raises:
        ValueError: the content is no flight-recorder dump; the message names the field.
    """
    body = _typed(content, dict, "the dump")
    version = _typed(body.get("version"), str, "version")
    if version.partition(".")[0] != "2":
        raise ValueError(f"version is {version[:20]!r}; versions 2.x are read")
    entries = _typed(body.get("entries", []), list, "entries")
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"{len(entries)} entries; at most {MAX_ENTRIES} are read")
    stated = _groups(_typed(body.get("pg_config", {}), dict, "pg_config"), groups)
    reader = _EntryReader(rank, stated, groups)
    operations = [one for number, entry in enumerate(entries) if (one := reader.operation(number, entry)) is not None]
    operations.sort(key=lambda one: one.record_id)  # a ring may be written as it lies in memory
    from_start = not operations or operations[0].record_id == 0
    if not from_start:
        reader.forget_counted_pairs()
    world_size = body.get("world_size")
    host = body.get("host_name")
    return RankTrace(
        rank=rank,
        source=source,
        groups=tuple(dict.fromkeys((*stated.values(), *(one.group for one in operations)))),
        operations=operations,
        world_size=world_size if type(world_size) is int and 0 < world_size < 2**31 else None,
        host=host[:255] if type(host) is str else None,
        complete_from_start=from_start,
    )


def _groups(config: dict[Any, Any], groups: GroupTable) -> dict[str, TraceGroup]:
    stated = {}
    for key, value in config.items():
        one = _typed(value, dict, f"pg_config[{key!r}]")
        name = str(one.get("name", key))
        ranks = one.get("ranks", "")
        text = json.dumps(ranks) if type(ranks) is list else _typed(ranks, str, f"ranks of group {name[:40]!r}")
        if name:  # gloo states one nameless group, which no entry refers to
            stated[name] = groups.get(name, str(one.get("desc", "")), text)
    return stated


class _EntryReader:
    """Converts entries of one rank into operations, and caches values that several entries share."""

    def __init__(self, rank: int, stated: dict[str, TraceGroup], groups: GroupTable) -> None:
        self._rank, self._stated, self._groups = rank, stated, groups
        self._sizes: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._dtypes: dict[int, set[str]] = {}
        self._pairs: defaultdict[tuple[TraceGroup, tuple[int, int]], int] = defaultdict(int)
        self._counted: list[Operation] = []

    def forget_counted_pairs(self) -> None:
        """Discard counted sequences: the oldest entries are gone, so a count from the first entry has no meaning."""
        for one in self._counted:
            one.sequence = NOT_ALIGNABLE

    def operation(self, number: int, entry: Any) -> Operation | None:
        """Return one operation; None for the entry that closes a batch of sends and receives."""
        if type(entry) is not dict:
            raise ValueError(f"entries[{number}] is of type {type(entry).__name__}, dict is needed")
        name, desc = _pair_of_names(entry.get("process_group"), number)
        group = self._stated.get(name) or self._groups.get(name, desc, "")
        library, _, called = str(entry.get("profiling_name", "")).partition(":")
        op, _, peers = (called or library).partition(" ")
        if op == "coalesced":
            return None
        extra = entry.get(EXTRA_KEY)
        operation = Operation(
            record_id=_count(entry, "record_id", number),
            group=group,
            sequence=_count(entry, "collective_seq_id", number),
            op=op[:64],
            pair=self._pair(op, peers, group, number) if peers else None,
            input_sizes=self._shapes(entry.get("input_sizes"), number),
            output_sizes=self._shapes(entry.get("output_sizes"), number),
            dtypes=self._types(entry),
            state=_state(entry, number),
            created_ns=_count(entry, "time_created_ns", number),
            started_ns=_time(entry.get("time_discovered_started_ns")),
            completed_ns=_time(entry.get("time_discovered_completed_ns")),
        )
        if operation.pair is not None:
            if extra is None:
                self._pairs[group, operation.pair] += 1
                operation.sequence = self._pairs[group, operation.pair]
                self._counted.append(operation)
            else:
                operation.sequence = _count(entry, "p2p_seq_id", number)
        if extra is not None:
            _read_extra(operation, _typed(extra, dict, f"entries[{number}].{EXTRA_KEY}"))
        return operation

    def _pair(self, op: str, peers: str, group: TraceGroup, number: int) -> tuple[int, int]:
        """Return (source, target) global ranks of ``send 0->1`` or ``recv 1<-0``, which count within the group."""
        left, arrow, right = peers.partition("->" if op == "send" else "<-")
        if op not in ("send", "recv") or not arrow or not (left.isdecimal() and right.isdecimal()):
            raise ValueError(f"entries[{number}] is called {op[:20]!r} with peers {peers[:40]!r}")
        source, target = (int(left[:9]), int(right[:9])) if op == "send" else (int(right[:9]), int(left[:9]))
        if not group.ranks:
            return source, target
        if max(source, target) >= len(group.ranks):
            raise ValueError(f"entries[{number}]: peers {peers[:40]!r} in a group of {len(group.ranks)} ranks")
        return group.ranks[source], group.ranks[target]

    def _shapes(self, value: Any, number: int) -> tuple[tuple[int, ...], ...]:
        if value is None:
            return ()
        # by identity: a file may refer to one list very often
        key = id(value)
        if key not in self._sizes:
            if type(value) is not list or not _LIST.issuperset(map(type, value)):
                raise ValueError(f"sizes of entries[{number}] are no list of shapes")
            shapes = tuple(map(tuple, value))
            if not _INT.issuperset(map(type, chain.from_iterable(shapes))):
                raise ValueError(f"sizes of entries[{number}] hold something else than whole numbers")
            self._sizes[key] = shapes
        return self._sizes[key]

    def _types(self, entry: dict[str, Any]) -> tuple[str, ...]:
        names: set[str] = set()
        for value in (entry.get("input_dtypes"), entry.get("output_dtypes")):
            if type(value) is list:
                if id(value) not in self._dtypes:
                    self._dtypes[id(value)] = {one[:32] for one in value if type(one) is str}
                names |= self._dtypes[id(value)]
        return tuple(sorted(names))


def _read_extra(operation: Operation, extra: dict[str, Any]) -> None:
    """Read the fields that our own recorder adds; a field of the wrong type is ignored."""
    op, algorithm, num_bytes = extra.get("op"), extra.get("algorithm"), extra.get("bytes")
    predicted, awaited, cursors = extra.get("predicted_s"), extra.get("awaited"), extra.get("cursors")
    operation.op = op[:64] if type(op) is str and op else operation.op
    operation.algorithm = algorithm[:64] if type(algorithm) is str else ""
    operation.num_bytes = num_bytes if type(num_bytes) is int and num_bytes >= 0 else None
    operation.predicted_s = predicted if type(predicted) is float and 0 < predicted < 1e9 else None
    ratio = extra.get("compression_ratio")
    operation.compression_ratio = ratio if type(ratio) is float and 0 < ratio < 1e9 else None
    operation.awaited = awaited if type(awaited) is bool else None
    for peer, counts in cursors.items() if type(cursors) is dict else ():
        good = type(counts) is list and len(counts) == len(CURSOR_FIELDS) and _INT.issuperset(map(type, counts))
        if good and str(peer).isdecimal():
            operation.cursors[int(str(peer)[:9])] = Cursor(*counts)


def _state(entry: dict[str, Any], number: int) -> State:
    """Return the state as written; a retired entry has ended even if its state does not say so, as in gloo's dumps."""
    if entry.get("retired") is True:
        return "completed"
    state = entry.get("state")
    if state not in _STATES:
        raise ValueError(f"entries[{number}].state is {str(state)[:20]!r}; known are {', '.join(_STATES)}")
    return _STATES[_STATES.index(state)]


def _pair_of_names(value: Any, number: int) -> tuple[str, str]:
    if type(value) in (list, tuple) and len(value) == 2 and _STR.issuperset(map(type, value)):
        return value[0], value[1]
    raise ValueError(f"entries[{number}].process_group is no pair of a name and a description")


def _typed(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{where} is of type {type(value).__name__}, {kind.__name__} is needed")
    return value


def _count(entry: dict[str, Any], field: str, number: int) -> int:
    value = entry.get(field)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"entries[{number}].{field} is no whole number from 0")
    return value


def _time(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**63 else None
