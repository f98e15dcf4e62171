"""Rows of a table distributed over ranks: fetched early, with the results of fetching them when they are needed.

A batch is requested while an earlier one is still computed. Rows that no earlier batch has yet to update come at once,
overlapped with the computation. The others (collisions) come after those updates, so every batch reads what the batches
before it have written. Owners decide, since they know which rows all ranks of the group have requested. So results
equal those of a synchronous run bit by bit. The order of a training loop:

    request = table.request(batches[0])
    for batch, following in pairwise(batches):
        rows = table.collect(request)           # late rows travel here
        ahead = table.request(following)        # early rows travel from here on
        gradients = ...                         # concurrent with this
        table.update(request, gradients)
        request = ahead

All ranks of the group make the same calls in the same order; row numbers and their count may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError


@dataclass
class Request:
    """A batch that has been requested.

    Attributes:
        num_rows: different rows that this rank asked for.
        num_late: those of them that wait for updates of earlier batches.
    """

    num_rows: int
    num_late: int
    _number: int
    _inverse: Tensor
    _order: Tensor
    _counts: list[int]
    _places: Tensor
    _asked: list[int]
    _late_here: Tensor
    _late_there: Tensor
    _early: Tensor
    _work: dist.Work | None = None
    _collected: bool = False
    _updated: bool = False
    _sent: Tensor | None = field(default=None, repr=False)


class EarlyRows:
    """A table whose row r lies on rank r mod ranks of ``group``, updated by gradient descent.

    Args:
        own_rows: fp32 (rows of this rank, width): rows rank, rank + ranks, rank + 2·ranks, …
        num_rows: rows of the whole table.
        learning_rate: factor on the gradients in ``update``.
        early: False fetches every row when it is collected: the synchronous run.

    Raises:
        InputError: another number of rows than this rank holds.
    """

    def __init__(
        self, group: dist.ProcessGroup, own_rows: Tensor, num_rows: int, learning_rate: float, early: bool = True
    ) -> None:
        self.group, self.num_rows, self.learning_rate, self.early = group, num_rows, learning_rate, early
        self.size, self.rank = group.size(), group.rank()
        wanted = len(range(self.rank, num_rows, self.size))
        if own_rows.dim() != 2 or own_rows.shape[0] != wanted or own_rows.dtype != torch.float32:
            raise InputError(
                f"rank {self.rank} holds {wanted} fp32 rows of {num_rows}, not {tuple(own_rows.shape)} {own_rows.dtype}"
            )
        self.rows = own_rows
        self._open: list[Request] = []
        self._made = 0

    def request(self, ids: Tensor) -> Request:
        """Ask for the rows of a batch, int64 (n,) in [0, num_rows), repeats allowed.

        Raises:
            InputError: another type or shape, or a number out of range.
        """
        if (
            ids.dtype != torch.int64
            or ids.dim() != 1
            or (ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_rows)
        ):
            raise InputError(
                f"row numbers are int64 (n,) from 0 to {self.num_rows - 1}, not {ids.dtype} of {tuple(ids.shape)}"
            )
        distinct, inverse = torch.unique(ids, return_inverse=True)
        order = torch.argsort(distinct % self.size, stable=True)
        counts = torch.bincount(distinct % self.size, minlength=self.size)
        asked = torch.empty_like(counts)
        dist.all_to_all_single(asked, counts, group=self.group)
        there, here = counts.tolist(), asked.tolist()
        places = self._exchanged(distinct[order] // self.size, there, here)
        late_here = (
            torch.ones_like(places, dtype=torch.bool) if not self.early else torch.isin(places, self._to_be_updated())
        )
        # the owner says which rows it sends later, in the order in which they were asked for
        late_there = self._exchanged(late_here.to(torch.uint8), here, there).bool()
        request = Request(
            num_rows=distinct.numel(),
            num_late=int(late_there.sum()),
            _number=self._made,
            _inverse=inverse,
            _order=order,
            _counts=there,
            _places=places,
            _asked=here,
            _late_here=late_here,
            _late_there=late_there,
            _early=self.rows.new_empty(int((~late_there).sum()), self.rows.shape[1]),
        )
        request._sent = self.rows[places[~late_here]]
        splits = _per_rank(~late_there, there), _per_rank(~late_here, here)
        request._work = dist.all_to_all_single(request._early, request._sent, *splits, group=self.group, async_op=True)
        self._open.append(request)
        self._made += 1
        return request

    def collect(self, request: Request) -> Tensor:
        """Return the rows of a batch, fp32 (n, width), as all batches before it leave them.

        Raises:
            InputError: it was collected before, or an earlier batch has yet to be updated.
        """
        if request._collected:
            raise InputError("these rows were collected before")
        if self._open and self._open[0] is not request:
            raise InputError(f"update batch {self._open[0]._number} before batch {request._number} is collected")
        if request._work is not None:
            request._work.wait()
        request._sent = None
        late = self.rows.new_empty(request.num_late, self.rows.shape[1])
        leaving = self.rows[request._places[request._late_here]]
        splits = _per_rank(request._late_there, request._counts), _per_rank(request._late_here, request._asked)
        dist.all_to_all_single(late, leaving, *splits, group=self.group)
        came = self.rows.new_empty(request.num_rows, self.rows.shape[1])
        came[request._late_there], came[~request._late_there] = late, request._early
        distinct = torch.empty_like(came)
        distinct[request._order] = came
        request._collected = True
        return distinct[request._inverse]

    def update(self, request: Request, gradients: Tensor) -> None:
        """Subtract learning_rate · Σ gradients from the rows of a batch; ``gradients`` (n, width) as collected.

        Sums are taken per rank in the order of the batch and then by rank, in fp32.

        Raises:
            InputError: the batch was not collected, was updated before, or has another shape.
        """
        if not request._collected or request._updated:
            raise InputError("a batch is updated once, after it is collected")
        if gradients.shape != (request._inverse.numel(), self.rows.shape[1]):
            raise InputError(
                f"gradients of {tuple(gradients.shape)} for {request._inverse.numel()} rows of {self.rows.shape[1]}"
            )
        sums = self.rows.new_zeros(request.num_rows, self.rows.shape[1]).index_add_(0, request._inverse, gradients)
        came = self._exchanged(sums[request._order], request._counts, request._asked)
        distinct, inverse = torch.unique(request._places, return_inverse=True)
        total = self.rows.new_zeros(distinct.numel(), self.rows.shape[1]).index_add_(0, inverse, came)
        self.rows[distinct] -= self.learning_rate * total
        request._updated = True
        self._open.remove(request)

    def _to_be_updated(self) -> Tensor:
        """Return the row numbers here of all batches that are requested and not yet updated."""
        return torch.cat([one._places for one in self._open]) if self._open else torch.empty(0, dtype=torch.int64)

    def _exchanged(self, sent: Tensor, leaving: list[int], coming: list[int]) -> Tensor:
        out = sent.new_empty(sum(coming), *sent.shape[1:])
        dist.all_to_all_single(out, sent.contiguous(), coming, leaving, group=self.group)
        return out


def _per_rank(mask: Tensor, counts: list[int]) -> list[int]:
    return [int(part.sum()) for part in mask.split(counts)]
