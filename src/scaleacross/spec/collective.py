"""Result of ``scaleacross collective``: every way to run one collective on one group, and a bound for all of them."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from scaleacross.spec.base import Spec
from scaleacross.spec.network import CurveOp, LinkLevel


class CollectiveOption(Spec):
    """One way to run the collective, and its time if nothing else uses the network."""

    algorithm: str = Field(description="a schedule; the algorithms of a hierarchical one outermost level first")
    num_chunks: PositiveInt = Field(description="chunks that follow one another")
    time_s: float
    algorithm_bytes_per_s: float = Field(description="size over time, as nccl-tests' algbw")
    bus_bytes_per_s: float = Field(
        description="algbw times nccl-tests' factor of the operation, comparable with a link's rate"
    )
    bytes_per_level: dict[LinkLevel, float] = Field(
        description="bytes that one group sends into one unit below the level"
    )


class CollectiveStudy(Spec):
    """All options, fastest first, and a bound that no algorithm can beat."""

    op: CurveOp
    size_bytes: PositiveFloat = Field(description="full tensor; of an all-to-all what one rank sends in all")
    topology: str
    num_ranks: PositiveInt
    stride: PositiveInt = Field(description="global ranks between neighbours of the group")
    num_groups: PositiveInt = Field(description="groups that run it at the same time and share the links")
    members: dict[LinkLevel, float] = Field(description="crossed level -> units that one group touches below it")
    bound_s: float
    bound_level: LinkLevel | None = Field(description="level whose links the bound speaks of")
    options: tuple[CollectiveOption, ...]
