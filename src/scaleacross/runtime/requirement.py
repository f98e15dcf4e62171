"""Reports what the runtime needs if it is missing, and imports optional modules."""

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
    """Return whether torch can be imported."""
    return find_spec("torch") is not None


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Return whether Triton kernels work on ``tensor``. Elsewhere the references run, which give the same bits."""
    return bool(tensor.is_cuda) and find_spec("triton") is not None


def kernels(name: str) -> ModuleType:
    """Return a module of ``runtime.kernels``. It is imported only where it is used, because it needs triton."""
    return import_module(f"scaleacross.runtime.kernels.{name}")


def require_torch() -> None:
    """Raise InputError if torch, or its distributed package, is missing."""
    if not has_torch():
        raise InputError(f"the runtime needs torch, which is not installed: {INSTALL}")
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise InputError(f"the runtime needs a torch that was built with distributed and gloo: {INSTALL}")
