"""Runs made by hand: operations of many ranks on one clock, and the traces of their recorders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from scaleacross.spec.trace import Cursor, Operation, RankTrace, State, TraceGroup

START_NS = 1_700_000_000_000_000_000


class Run:
    """``world`` ranks that record what they issue; all have the group ``world``."""

    def __init__(self, world: int) -> None:
        self.size = world
        self.operations: defaultdict[int, list[Operation]] = defaultdict(list)
        self.groups: dict[str, TraceGroup] = {}
        self.group("world", range(world))
        self._sequence: defaultdict[tuple[int, str, tuple[int, int] | None], int] = defaultdict(int)

    def group(self, name: str, ranks: Iterable[int], desc: str = "") -> None:
        """Add a group by name."""
        self.groups[name] = TraceGroup(name, desc or name, tuple(sorted(ranks)))

    def issue(
        self,
        rank: int,
        group: str = "world",
        op: str = "all_reduce",
        *,
        state: State = "completed",
        at_ms: float = 0.0,
        took_ms: float = 1.0,
        size: int = 8,
        out: int | None = None,
        dtype: str = "float32",
        pair: tuple[int, int] | None = None,
        awaited: bool | None = None,
        cursors: dict[int, Cursor] | None = None,
        predicted_s: float | None = None,
    ) -> Operation:
        """One operation of ``rank``; sequence numbers count up by themselves."""
        key = (rank, group, pair)
        self._sequence[key] += 1
        created = START_NS + int(at_ms * 1e6)
        one = Operation(
            record_id=len(self.operations[rank]),
            group=self.groups[group],
            sequence=self._sequence[key],
            op=op,
            pair=pair,
            input_sizes=((size,),),
            output_sizes=((size if out is None else out,),),
            dtypes=(dtype,),
            state=state,
            created_ns=created,
            started_ns=None if state == "scheduled" else created,
            completed_ns=created + int(took_ms * 1e6) if state == "completed" else None,
            awaited=awaited,
            cursors=cursors or {},
            predicted_s=predicted_s,
        )
        self.operations[rank].append(one)
        return one

    def everyone(self, ranks: Iterable[int] | None = None, **how: object) -> None:
        """Issue the same operation on all ``ranks``."""
        for rank in range(self.size) if ranks is None else ranks:
            self.issue(rank, **how)  # type: ignore[arg-type]

    def traces(self, without: Sequence[int] = ()) -> list[RankTrace]:
        """The traces that ranks dump, except those of ``without``."""
        return [
            RankTrace(
                rank=rank,
                source=f"trace_rank_{rank}",
                groups=tuple(group for group in self.groups.values() if rank in group.ranks),
                operations=self.operations[rank],
                world_size=self.size,
                host=f"host-{rank // 8}",
            )
            for rank in range(self.size)
            if rank not in without
        ]
