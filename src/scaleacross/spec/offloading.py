"""Shares of activations and optimizer states that are kept in host memory."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

MILLIONTHS: Final = 1_000_000
"""Shares are whole millionths, so that candidates hold them as whole numbers."""
OFFLOADS: Final = ("activation_offload", "optimizer_offload")
"""Fields with these shares: one value in a decision, the allowed values in a job."""
OffloadShare = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda share: round(share, 6))]


def millionths(share: float) -> int:
    """A share as a whole number of millionths, as candidates store it."""
    return round(share * MILLIONTHS)
