"""Aligns the operations of all ranks: one ``Instance`` per group and sequence number; ``verdict`` calls it.

A ring buffer drops old operations. An operation that is not in a rank's trace counts as *absent* only if the trace goes
back far enough to contain it. Otherwise the rank may have run it long ago.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scaleacross.diagnosis.entries import NOT_ALIGNABLE
from scaleacross.spec.trace import Operation, RankTrace, TraceGroup

Key = tuple[TraceGroup, int, tuple[int, int] | None]


@dataclass(eq=False, slots=True)
class Instance:
    """One operation of a group, as recorded by its members.

    Attributes:
        pair: source and target of a send or receive; None for a collective.
        operations: rank -> its record.
        absent: members whose trace proves that they never issued it.
    """

    group: TraceGroup
    sequence: int
    pair: tuple[int, int] | None
    operations: dict[int, Operation] = field(default_factory=dict)
    absent: tuple[int, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks that take part in the operation."""
        return self.group.ranks if self.pair is None else self.pair

    @property
    def pending(self) -> list[int]:
        """Ranks that issued it and on which it has not ended."""
        return [rank for rank, one in self.operations.items() if one.state != "completed"]

    @property
    def since_ns(self) -> int:
        """Time at which the first rank issued it, ns."""
        return min(one.created_ns for one in self.operations.values())

    def label(self) -> str:
        """Return a label like ``all_reduce #5 of dp``, with the operation that most ranks issued."""
        names = [one.op for one in self.operations.values()]
        name = max(sorted(set(names)), key=names.count)
        if self.pair is not None:
            name = f"{'send' if name == 'recv' else name} {self.pair[0]}→{self.pair[1]}"
        called = (
            self.group.desc if self.group.desc in ("", self.group.name) else f"{self.group.name} ({self.group.desc})"
        )
        return f"{name} #{self.sequence} of {called or self.group.name}"


@dataclass(slots=True)
class Alignment:
    """All instances, in the order in which they first appear, and the trace of every rank."""

    traces: dict[int, RankTrace]
    instances: list[Instance]
    by_key: dict[Key, Instance]
    missing_ranks: tuple[int, ...]
    world_size: int

    def stuck(self) -> list[Instance]:
        """Return the instances that have not ended on every rank that issued them."""
        return [one for one in self.instances if any(op.state != "completed" for op in one.operations.values())]


def align(traces: Iterable[RankTrace]) -> Alignment:
    """Align ``traces``. Ranks without a trace that a group or a world size names are listed as missing."""
    by_rank = {trace.rank: trace for trace in traces}
    by_key: dict[Key, Instance] = {}
    for trace in by_rank.values():
        for one in trace.operations:
            if one.sequence == NOT_ALIGNABLE:
                continue
            key = (one.group, one.sequence, one.pair)
            instance = by_key.get(key)
            if instance is None:
                instance = by_key[key] = Instance(*key)
            instance.operations[trace.rank] = one
    instances = list(by_key.values())
    groups = {group for trace in by_rank.values() for group in trace.groups}
    named = {rank for group in groups for rank in group.ranks}
    size = max((trace.world_size or 0 for trace in by_rank.values()), default=0)
    everybody = named | set(range(min(size, 2**20))) | set(by_rank)
    alignment = Alignment(by_rank, instances, by_key, tuple(sorted(everybody - set(by_rank))), len(everybody))
    horizons = _Horizons(by_rank)
    for instance in instances:
        if len(instance.operations) < len(instance.members):
            instance.absent = tuple(
                rank
                for rank in instance.members
                if rank not in instance.operations and rank in by_rank and horizons.would_hold(rank, instance)
            )
    return alignment


class _Horizons:
    """The oldest operation in each trace, per group."""

    def __init__(self, traces: dict[int, RankTrace]) -> None:
        self._traces = traces
        self._first: dict[tuple[int, TraceGroup, tuple[int, int] | None], int] = {}
        for rank, trace in traces.items():
            if not trace.complete_from_start:
                for one in reversed(trace.operations):
                    self._first[rank, one.group, one.pair] = one.sequence

    def would_hold(self, rank: int, instance: Instance) -> bool:
        """Return whether the trace of ``rank`` would contain ``instance`` if the rank had issued it."""
        trace = self._traces[rank]
        if trace.complete_from_start:
            return True
        first = self._first.get((rank, instance.group, instance.pair))
        if first is not None:
            return instance.sequence > first
        return not trace.operations or instance.since_ns > trace.operations[0].created_ns
