"""Encodings of elements in messages: unchanged, in a narrower type than that of their sum, or coded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Encoding(Protocol):
    """Elements to bytes and back. Pieces may be cut at multiples of ``GRAIN`` elements without changing any byte."""

    @property
    def name(self) -> str:
        """Name in messages and traces."""

    def most_bytes(self, num_elements: int) -> int:
        """Return the bytes of ``num_elements``, or the most that they may take if that depends on their values."""

    def write(self, values: torch.Tensor, out: torch.Tensor) -> int:
        """Encode ``values`` into ``out`` (uint8 of ``most_bytes``); return the bytes that it took."""

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Decode ``data`` (uint8); the result may be a view of it."""

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return ``values`` as uint8 if they travel as they lie in memory, else None."""


GRAIN = 256
"""Largest number of elements that any encoding codes together."""


@dataclass(frozen=True)
class Plain:
    """Elements of one type, rounded to it if they were summed in a wider one."""

    dtype: torch.dtype
    name: str = "plain"

    def most_bytes(self, num_elements: int) -> int:
        """Return the bytes of ``num_elements``."""
        return num_elements * self.dtype.itemsize

    def write(self, values: torch.Tensor, out: torch.Tensor) -> int:
        """Copy, rounding to nearest even if the type is narrower."""
        out.view(self.dtype).copy_(values)
        return out.numel()

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Return a view of ``data``."""
        del num_elements
        return data.view(self.dtype)

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return a view if no rounding is needed, else None."""
        return values.view(torch.uint8) if values.dtype == self.dtype else None
