"""Embedding tables sharded as a launch file says: look-ups by row exchange, updates on the ranks that hold the rows.

A *bag* is the request of one sample to one shard for one feature: row numbers go out, and one vector comes back, the
sum of the rows. Bags of one width and one number of reads travel together, in one exchange each of row numbers, vectors
and gradients. Every pair of ranks has room for as many bags as the rank with the most shards needs. So nothing waits
for counts, but an unbalanced plan sends more empty room.

Row numbers may be sent a step ahead (``ask``), as the cost model assumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.runtime.row_exchange import Received, exchange_again, exchange_rows, return_rows
from scaleacross.spec.embedding_launch import EmbeddingLaunch, TableLaunch, TableShard

TYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ADAGRAD_EPSILON: Final = 1e-8
Initial = Callable[[TableLaunch, TableShard], Tensor]


@dataclass
class _Held:
    """The shards of one width on this rank, stacked by rows.

    Attributes:
        width: columns.
        weight: (rows, width).
        state: optimizer state, one fp32 figure per row.
        first: (table, number of the shard) -> its first row here.
    """

    width: int
    weight: Tensor
    state: Tensor
    first: dict[tuple[int, int], int] = field(default_factory=dict)

    def update(self, rows: Tensor, gradients: Tensor, rate: float, adagrad: bool) -> None:
        """Apply row-wise AdaGrad or SGD to ``rows``, after the gradients of repeated rows are added up."""
        touched, places = rows.unique(return_inverse=True)
        total = torch.zeros(len(touched), self.width).index_add_(0, places, gradients.float())
        if adagrad:
            self.state[touched] += total.square().mean(1)
            total /= self.state[touched].sqrt().add(ADAGRAD_EPSILON)[:, None]
        self.weight[touched] -= (rate * total).to(self.weight.dtype)


@dataclass(frozen=True)
class _Bag:
    """What every sample asks of one shard for one feature; ``local`` numbers the shard within its rank and width."""

    feature: int
    shard: TableShard
    local: int


@dataclass(frozen=True)
class _Sent:
    """Row numbers that have been sent, of bags of one width and number of reads."""

    width: int
    bags: tuple[_Bag, ...]
    received: Received
    rows: Tensor


class Asked(NamedTuple):
    """What ``EmbeddingTables.ask`` returns: row numbers by feature, and what has been sent for them."""

    ids: Sequence[Tensor]
    sent: list[_Sent]


class EmbeddingTables(torch.nn.Module):
    """The shards of one rank, and the exchange with those of the other ranks.

    Call it with the row numbers of the rank's samples, or with what ``ask`` returned for them. Its backward updates the
    rows by the mean gradient over all ranks (row-wise AdaGrad or SGD, as the launch file says). No optimizer of torch
    sees them.
    """

    def __init__(
        self,
        launch: EmbeddingLaunch,
        group: dist.ProcessGroup,
        initial: Initial,
        learning_rate: float,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        """Hold the shards that the launch file puts on this rank.

        Args:
            group: the ranks of one replica group (axis dp_shard).
            initial: (table, shard) -> its rows × columns; called for the shards of this rank only.
            replicas: joins the groups (axis dp_replicate); None: there is one group.

        Raises:
            InputError: a memory, optimizer or kind of table that this runtime does not execute.
        """
        super().__init__()
        for table in launch.tables:
            _require_known(table, launch)
        self.launch, self.group, self.replicas = launch, group, replicas
        self.rate, self.adagrad = learning_rate, launch.optimizer == "rowwise_adagrad"
        self.features = [table for table in launch.tables for _ in range(table.num_features)]
        self._step = 0
        rank, size = group.rank(), group.size()
        self._held = _hold(launch, rank, initial)
        self._whole = {
            table.name: _stack(table.dimension, [initial(table, table.shards[rank])], launch)
            for table in launch.tables
            if table.sharding == "data_parallel"
        }
        self._bags = _bags(launch, size)
        # autograd calls a backward only where an input asks for a gradient
        self._handle = torch.zeros((), requires_grad=True)

    def ask(self, ids: Sequence[Tensor]) -> Asked:
        """Send row numbers to the ranks that hold the rows.

        Args:
            ids: by feature, in the order of the tables: int64 (samples, reads), −1 where a sample reads less. Shapes
                are the same on all ranks.

        Raises:
            InputError: another number of features, or tensors that are not two-dimensional.
        """
        if len(ids) != len(self.features) or any(one.dim() != 2 for one in ids):
            raise InputError(f"{len(self.features)} tensors of (samples, reads) are needed, one per feature")
        classes: defaultdict[tuple[int, int], list[_Bag]] = defaultdict(list)
        for bag in self._bags:
            classes[bag.shard.columns, ids[bag.feature].shape[1]].append(bag)
        return Asked(ids, [self._sent(width, tuple(bags), ids) for (width, _), bags in sorted(classes.items())])

    def _sent(self, width: int, bags: tuple[_Bag, ...], ids: Sequence[Tensor]) -> _Sent:
        rows = []
        for bag in bags:
            own = ids[bag.feature] - bag.shard.first_row
            here = (ids[bag.feature] >= 0) & (own >= 0) & (own < bag.shard.rows)
            number = torch.full((len(own), 1), bag.local + 1, dtype=torch.int64)  # 0: nobody asks
            rows.append(torch.cat([number, torch.where(here, own, -1)], 1))
        samples = len(rows[0])
        ranks = torch.tensor([bag.shard.rank for bag in bags])
        # the bags of the rank with the most of these shards: a size that all ranks know beforehand
        room = samples * int(ranks.bincount().max())
        received = exchange_rows(self.group, torch.cat(rows), ranks.repeat_interleave(samples), room)
        return _Sent(width, bags, received, self._places(width, received))

    def _places(self, width: int, received: Received) -> Tensor:
        """Return (requests, reads): rows among those held in this width, −1 for none.

        Raises:
            InputError: a rank asks for a shard or a row that this rank does not hold.
        """
        held = self._held.get(width)
        first = {} if held is None else held.first
        sizes = [self.launch.tables[table].shards[number].rows for table, number in first]
        # requests number shards from 1; entry 0 is discarded below
        starts, rows = torch.tensor([0, *first.values()]), torch.tensor([0, *sizes])
        number, own = received.rows[:, :1], received.rows[:, 1:]
        known = (number >= 0) & (number < len(starts))
        shard = torch.where(known, number, 0)
        wrong = ~known | ((number > 0) & ((own < -1) | (own >= rows[shard])))
        if bool(wrong.any()):
            raise self._refusal(width, received, int(wrong.any(1).nonzero()[0]))
        return torch.where((own >= 0) & (number > 0), own + starts[shard], -1)

    def _refusal(self, width: int, received: Received, request: int) -> InputError:
        """Return the error that names the rank behind a request for what is not here, and the table."""
        peer = dist.get_global_rank(self.group, request // received.capacity)
        number, *own = received.rows[request].tolist()
        first = self._held[width].first if width in self._held else {}
        places = [(self.launch.tables[table], shard) for table, shard in first]
        if not 0 < number <= len(places):
            held = ", ".join(f"'{table.name}'" for table, _ in places) or "none"
            return InputError(
                f"global rank {peer} asks for shard {number} of {width} columns; this rank holds {len(places)} ({held}): "
                "start all ranks from one launch.json"
            )
        table, shard = places[number - 1]
        row = next(one for one in own if one < -1 or one >= table.shards[shard].rows)
        return InputError(
            f"global rank {peer} asks for row {row} of a shard of table '{table.name}' that has "
            f"{table.shards[shard].rows:,} rows: start all ranks from one launch.json"
        )

    def forward(self, asked: Sequence[Tensor] | Asked) -> list[Tensor]:
        """Return the vectors of every feature, (samples, dimension), added up over the rows that a sample reads.

        Args:
            asked: row numbers by feature, or what ``ask`` returned.
        """
        ids, sent = asked if isinstance(asked, Asked) else self.ask(asked)
        return list(_LookUp.apply(self._handle, self, ids, sent))

    def look_up(self, ids: Sequence[Tensor], sent: Sequence[_Sent]) -> list[Tensor]:
        """Return the vectors of every feature, without autograd."""
        out = [
            _pooled(self._whole[table.name].weight, ids[number])
            if table.sharding == "data_parallel"
            else torch.zeros(len(ids[number]), table.dimension, dtype=TYPES[self.launch.precision])
            for number, table in enumerate(self.features)
        ]
        for asked in sent:
            held = self._held.get(asked.width)
            nothing = torch.zeros(len(asked.rows), asked.width, dtype=TYPES[self.launch.precision])
            results = _pooled(held.weight, asked.rows) if held is not None else nothing
            back = return_rows(self.group, asked.received, results)
            for bag, vectors in zip(asked.bags, back.split(len(back) // len(asked.bags)), strict=True):
                first = bag.shard.first_column
                out[bag.feature][:, first : first + asked.width] += vectors
        return out

    def update(self, ids: Sequence[Tensor], sent: Sequence[_Sent], gradients: Sequence[Tensor]) -> None:
        """Send the gradients of the vectors to the rows, and take an optimizer step there."""
        size = self.group.size()
        for asked in sent:
            first = [bag.shard.first_column for bag in asked.bags]
            parts = [gradients[bag.feature][:, f : f + asked.width] for bag, f in zip(asked.bags, first, strict=True)]
            come = exchange_again(self.group, asked.received, torch.cat(parts).contiguous())
            if asked.width in self._held:
                read = asked.rows >= 0
                each = come[read.nonzero()[:, 0]]
                self._held[asked.width].update(asked.rows[read], each / size, self.rate, self.adagrad)
        for name, held in self._whole.items():
            total = torch.zeros_like(held.weight)
            for number, table in enumerate(self.features):
                if table.name == name:
                    read = ids[number] >= 0
                    total.index_add_(0, ids[number][read], gradients[number][read.nonzero()[:, 0]].to(total.dtype))
            dist.all_reduce(total, group=self.group)
            held.update(torch.arange(len(total)), total / size, self.rate, self.adagrad)
        self._step += 1
        if self.replicas is not None and self._step % self.launch.sync_interval_steps == 0:
            self._average(self.replicas)

    def _average(self, replicas: dist.ProcessGroup) -> None:
        """Replace the rows and their state by the mean over the replica groups."""
        for held in (*self._held.values(), *self._whole.values()):
            for tensor in (held.weight, held.state):
                dist.all_reduce(tensor, group=replicas)
                tensor /= replicas.size()

    def shards(self) -> dict[tuple[str, int, int], Tensor]:
        """Return (table, first row, first column) -> the present shard on this rank."""
        out = {(name, 0, 0): held.weight for name, held in self._whole.items()}
        for held in self._held.values():
            for (table, number), first in held.first.items():
                shard = self.launch.tables[table].shards[number]
                place = (self.launch.tables[table].name, shard.first_row, shard.first_column)
                out[place] = held.weight[first : first + shard.rows]
        return out


class _LookUp(torch.autograd.Function):
    """Exchanges vectors forward; sends gradients the same way backward, followed by the update."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, tables: EmbeddingTables, ids: Any, sent: Any) -> tuple[Tensor, ...]:
        ctx.tables, ctx.ids, ctx.sent = tables, ids, sent
        return tuple(tables.look_up(ids, sent))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.tables.update(ctx.ids, ctx.sent, gradients)
        return None, None, None, None


def _pooled(weight: Tensor, rows: Tensor) -> Tensor:
    """Return Σ over the reads of weight[rows], computed in fp32 and rounded once; −1 adds nothing."""
    picked = weight[rows.clamp(min=0)].float() * (rows >= 0)[..., None]
    return picked.sum(1).to(weight.dtype)


def _stack(width: int, parts: Sequence[Tensor], launch: EmbeddingLaunch) -> _Held:
    weight = torch.cat([part.to(TYPES[launch.precision]) for part in parts])
    return _Held(width, weight, torch.zeros(len(weight)))


def _shards_of(launch: EmbeddingLaunch, rank: int) -> dict[int, list[tuple[int, int]]]:
    """Return width -> [(table, shard number)] of the model-parallel shards on a rank, in the order of storage."""
    out: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, table in enumerate(launch.tables):
        for index, shard in enumerate(table.shards):
            if shard.rank == rank and shard.rows and table.sharding != "data_parallel":
                out[shard.columns].append((number, index))
    return dict(out)


def _hold(launch: EmbeddingLaunch, rank: int, initial: Initial) -> dict[int, _Held]:
    out = {}
    for width, own in _shards_of(launch, rank).items():
        parts = [initial(launch.tables[table], launch.tables[table].shards[number]) for table, number in own]
        held = _stack(width, parts, launch)
        at = 0
        for place, part in zip(own, parts, strict=True):
            held.first[place] = at
            at += len(part)
        out[width] = held
    return out


def _bags(launch: EmbeddingLaunch, size: int) -> list[_Bag]:
    """Return every shard of every model-parallel table, once per feature that reads it."""
    local = {
        place: number
        for rank in range(size)
        for own in _shards_of(launch, rank).values()
        for number, place in enumerate(own)
    }
    out, feature = [], 0
    for number, table in enumerate(launch.tables):
        for _ in range(table.num_features):
            out += [
                _Bag(feature, shard, local[number, index])
                for index, shard in enumerate(table.shards)
                if (number, index) in local
            ]
            feature += 1
    return out


def _require_known(table: TableLaunch, launch: EmbeddingLaunch) -> None:
    if table.kernel not in ("dense", "fused"):
        raise InputError(
            f"table '{table.name}' is planned with {table.kernel}; the runtime keeps rows next to the model: plan with "
            "kernels: [dense, fused]"
        )
    if not table.pooled:
        raise InputError(f"table '{table.name}' sends every row (pooled: false); the runtime adds rows of a sample up")
    if launch.optimizer not in ("sgd", "rowwise_adagrad"):
        raise InputError(f"optimizer {launch.optimizer}: the runtime has sgd and rowwise_adagrad")
