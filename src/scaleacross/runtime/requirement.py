"""Says what the runtime needs where it is missing, and loads what it may go without."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from scaleacross.errors import InputError

if TYPE_CHECKING:
    import torch

INSTALL = "pip install 'scaleacross[runtime]'"


def has_torch() -> bool:
    """Whether torch can be imported."""
    return find_spec("torch") is not None


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Whether Triton kernels work on ``tensor``; elsewhere the references do, which give the same bits."""
    return bool(tensor.is_cuda) and find_spec("triton") is not None


def kernels(name: str) -> ModuleType:
    """A module of ``runtime.kernels``, imported where it is used because it needs triton."""
    return import_module(f"scaleacross.runtime.kernels.{name}")


def require_torch() -> None:
    """Raise InputError where torch, or its distributed package, is missing."""
    if not has_torch():
        raise InputError(f"the runtime needs torch, which is not installed: {INSTALL}")
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise InputError(f"the runtime needs a torch that was built with distributed and gloo: {INSTALL}")
