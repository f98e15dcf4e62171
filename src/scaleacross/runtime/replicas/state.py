"""The state of a replica: parameters, optimizer and whatever else a step changes; and how a joiner gets it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from scaleacross.errors import InputError


class Stateful(Protocol):
    """An object with a state, such as a scheduler, a sampler or a scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take a state over."""


class TrainingState:
    """The state of one rank, and what a step does to it.

    Args:
        model, optimizer: as they train. Parameters may be DTensors (``fully_shard``): each rank keeps its own part.
        update: applies the gradients; None: ``optimizer.step()`` and ``optimizer.zero_grad()``. It must depend on the
            gradients and on this state alone, because joiners repeat it.
        more: further objects that ``update`` changes, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        update: Callable[[], object] | None = None,
        more: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.model, self.optimizer, self._update, self._more = model, optimizer, update, dict(more or {})
        self.parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameter that requires a gradient: nothing to reduce")
        if half := [one for one in self.parameters if one.dtype == torch.float16]:
            raise InputError(
                f"{len(half)} parameters are float16, whose weighted sums overflow: use bfloat16 or float32"
            )

    def update(self) -> None:
        """Apply the gradients."""
        if self._update is not None:
            self._update()
        else:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def save(self) -> bytes:
        """Return a copy, which later steps do not change."""
        kept = {
            "model": {name: _local(value) for name, value in self.model.state_dict().items()},
            "optimizer": _mapped(self.optimizer.state_dict(), _local),
            "more": {name: one.state_dict() for name, one in self._more.items()},
        }
        buffer = io.BytesIO()
        torch.save(kept, buffer)
        return buffer.getvalue()

    def load(self, data: bytes) -> None:
        """Take over what ``save`` of another replica made; nothing in it is executed.

        Raises:
            InputError: it belongs to another model or optimizer.
        """
        kept = torch.load(io.BytesIO(data), weights_only=True)
        own = self.model.state_dict()
        if own.keys() != kept["model"].keys() or any(_local(own[n]).shape != v.shape for n, v in kept["model"].items()):
            raise InputError(
                "the donor's model has other parameters than this replica's: start all with the same model"
            )
        with torch.no_grad():
            for name, value in kept["model"].items():
                _local(own[name]).copy_(value)
        numbered = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, entry in kept["optimizer"]["state"].items():
            entry.update({name: _like(value, numbered[number]) for name, value in entry.items()})
        self.optimizer.load_state_dict(kept["optimizer"])
        for name, state in kept["more"].items():
            self._more[name].load_state_dict(state)


def gradients_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return flat views of the gradients of this rank's part of every parameter; zeros where backward made none."""
    out = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif not _local(parameter.grad).is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        out.append(_local(parameter.grad).view(-1))
    return out


def _local(value: Any) -> Any:
    """Return this rank's part of a DTensor; anything else unchanged."""
    return value.to_local() if hasattr(value, "to_local") else value


def _like(value: Any, parameter: Tensor) -> Any:
    """Return ``value`` as a DTensor if ``parameter`` is one with a local part of its shape; otherwise unchanged."""
    if not hasattr(parameter, "to_local") or not isinstance(value, Tensor) or value.shape != _local(parameter).shape:
        return value
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(value, mesh, placements, shape=parameter.shape, stride=parameter.stride())


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to every leaf of nested dicts and lists."""
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    return change(value)
