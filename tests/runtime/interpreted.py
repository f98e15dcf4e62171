"""Kernels under Triton's interpreter: import this before any module of ``scaleacross.runtime.kernels``."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="the kernels need triton, which exists for Linux")

import torch


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal in type, shape and every bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))
