"""Translates the arguments that torch passes to a process group into the terms of this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

REDUCTIONS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reduction_name(op: Any) -> str:
    """Return the lower-case name of a ``ReduceOp``; ``other`` for one with a factor."""
    return next((name.lower() for name in REDUCTIONS if op == getattr(dist.ReduceOp, name)), "other")


def is_plain(tensor: Tensor, device_types: Collection[str]) -> bool:
    """Return whether ``tensor`` is dense and on a device of one of these types."""
    return tensor.device.type in device_types and tensor.layout is torch.strided


def size_bytes(tensor: Tensor) -> int:
    """Return the bytes of all elements."""
    return tensor.numel() * tensor.element_size()


def timeout_seconds(opts: Any) -> float:
    """Return the timeout of one call in seconds; 0 if none was given."""
    timeout = getattr(opts, "timeout", None)
    return max(timeout.total_seconds(), 0.0) if isinstance(timeout, timedelta) else 0.0


def waits(opts: Any) -> bool:
    """Return whether the caller does nothing until the collective is done."""
    return not getattr(opts, "asyncOp", True)


class Form(NamedTuple):
    """The ways in which one method of ``ProcessGroup`` may be called.

    Attributes:
        options: makes the ``opts`` of a call that gives none.
        tensors: by position, the names of the argument in torch's forms.
        depths: by position, the depth of nested lists in the form with ``opts``; the short form may leave one level
            out.
        short: fields of ``opts`` that the short form takes one by one, in this order.
    """

    options: Callable[[], Any]
    tensors: tuple[tuple[str, ...], ...]
    depths: tuple[int, ...]
    short: tuple[str, ...] = ()

    def nests(self, args: Sequence[Any]) -> bool:
        """Return whether each argument is a list exactly if its depth is 1. A depth of 2 never passes."""
        return all(depth == isinstance(value, list) for value, depth in zip(args, self.depths, strict=False))

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in the form with ``opts``. Raises TypeError for one that torch does not know either."""
        left, given = dict(named), list(args[: len(self.tensors)])
        for names in self.tensors[len(given) :]:
            name = next((name for name in names if name in left), None)
            if name is None:
                raise TypeError(f"argument {' or '.join(names)} is missing")
            given.append(left.pop(name))
        given = [_nested(value, depth) for value, depth in zip(given, self.depths, strict=True)]
        rest = list(args[len(self.tensors) :])
        if len(rest) == 1 and not left and _is_options(rest[0]):
            return [*given, rest[0]]
        opts = left.pop("opts", None) or self.options()
        if len(rest) > len(self.short):
            raise TypeError(f"{len(rest) - len(self.short)} arguments more than torch takes")
        for name, value in [*zip(self.short, rest, strict=False), *left.items()]:
            if name not in self.short:
                raise TypeError(f"unknown argument {name}")
            if value is not None:
                setattr(opts, FIELDS.get(name, name), value)
        return [*given, opts]


FIELDS: Final = {"op": "reduceOp", "root": "rootRank"}

_ONE: Final = (("tensors", "tensor"),)
_TWO: Final = (("output", "outputTensor"), ("input", "inputTensor", "tensor"))
_LISTS: Final = (("output_tensors", "outputs", "output"), ("input_tensors", "inputs", "input_tensor", "input"))
_SPLITS: Final = (("output_split_sizes",), ("input_split_sizes",))
FORMS: Final[Mapping[str, Form]] = {
    "allreduce": Form(c10d.AllreduceOptions, _ONE, (1,), ("op", "timeout")),
    "allreduce_coalesced": Form(c10d.AllreduceCoalescedOptions, _ONE, (1,)),
    "broadcast": Form(c10d.BroadcastOptions, _ONE, (1,), ("root", "timeout")),
    "reduce": Form(c10d.ReduceOptions, _ONE, (1,), ("root", "op", "timeout")),
    "all_gather_single": Form(c10d.AllgatherOptions, _TWO, (0, 0), ("timeout",)),
    "all_gather_single_coalesced": Form(c10d.AllgatherOptions, _LISTS, (1, 1)),
    "allgather": Form(c10d.AllgatherOptions, _LISTS, (2, 1), ("timeout",)),
    "reduce_scatter_single": Form(c10d.ReduceScatterOptions, _TWO, (0, 0), ("op", "timeout")),
    "reduce_scatter_single_coalesced": Form(c10d.ReduceScatterOptions, _LISTS, (1, 1)),
    "reduce_scatter": Form(c10d.ReduceScatterOptions, _LISTS, (1, 2), ("op", "timeout")),
    "all_to_all_single": Form(c10d.AllToAllOptions, (*_TWO, *_SPLITS), (0, 0, 1, 1), ("timeout",)),
    "barrier": Form(c10d.BarrierOptions, (), (), ("timeout",)),
}
"""Forms by the name of the method here. torch overloads each: ``opts`` or its fields, a tensor or a list of one."""


def any_form(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``method``, which takes tensors and ``opts``, be called in every form of torch's own method of that name."""
    form = FORMS[method.__name__]
    options, num_args = form.options, len(form.tensors) + 1

    @wraps(method)
    def call(group: Any, *args: Any, **named: Any) -> Any:
        if len(args) == num_args and not named and type(args[-1]) is options and form.nests(args):
            return method(group, *args)  # as torch.distributed's own functions call it
        return method(group, *form.bind(args, named))

    return call


def _nested(value: Any, depth: int) -> Any:
    """Return ``value`` as lists of ``depth`` levels; it may lack one of them."""
    held, found = value, 0
    while isinstance(held, list | tuple) and found < depth:
        found += 1
        if not held:
            return value
        held = held[0]
    return value if found == depth else [value]


def _is_options(value: Any) -> bool:
    return hasattr(value, "timeout") and hasattr(value, "asyncOp")
