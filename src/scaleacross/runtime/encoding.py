"""How elements travel: as they are, in a narrower type than they are summed in, or coded. A segment says how many it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Encoding(Protocol):
    """Elements to bytes and back. Pieces may be cut at multiples of ``GRAIN`` elements without changing any byte."""

    @property
    def name(self) -> str:
        """For messages and traces."""

    def most_bytes(self, num_elements: int) -> int:
        """Bytes of ``num_elements``; the most that they may take where that depends on their values."""

    def write(self, values: torch.Tensor, out: torch.Tensor) -> int:
        """Encode ``values`` into ``out``, uint8 of ``most_bytes``; returns the bytes that it took."""

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Decode ``data``, uint8; the result may be a view of it."""

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """``values`` themselves as uint8 where they travel as they lie in memory, else None."""


GRAIN = 256
"""Elements that any encoding codes together at most."""


@dataclass(frozen=True)
class Plain:
    """Elements of one type, rounded to it where they were summed in a wider one."""

    dtype: torch.dtype
    name: str = "plain"

    def most_bytes(self, num_elements: int) -> int:
        """Bytes of ``num_elements``."""
        return num_elements * self.dtype.itemsize

    def write(self, values: torch.Tensor, out: torch.Tensor) -> int:
        """Copy, rounding to nearest even where the type is narrower."""
        out.view(self.dtype).copy_(values)
        return out.numel()

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """A view."""
        del num_elements
        return data.view(self.dtype)

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """A view where no rounding is needed."""
        return values.view(torch.uint8) if values.dtype == self.dtype else None
