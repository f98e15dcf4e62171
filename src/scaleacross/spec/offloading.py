"""Shares of activations and optimizer states that wait in host memory."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

MILLIONTHS: Final = 1_000_000
"""Shares are whole millionths, so that candidates hold them as whole numbers."""
OFFLOADS: Final = ("activation_offload", "optimizer_offload")
"""Fields of a decision, and of a job that allows some shares."""
OffloadShare = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda share: round(share, 6))]


def millionths(share: float) -> int:
    """A share as candidates hold it."""
    return round(share * MILLIONTHS)
