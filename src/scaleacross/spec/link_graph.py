"""A small network stated link by link, for collectives on irregular networks that no regular algorithm suits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, model_validator

from scaleacross.spec.base import Name, SourcedSpec, Spec

Rank = Annotated[int, Field(ge=0)]


class LinkGroup(Spec):
    """Equal links between pairs of ranks."""

    pairs: tuple[tuple[Rank, Rank], ...] = Field(min_length=1, description="[from, to] of every link")
    both_ways: bool = Field(default=True, description="a link of the same rate in the other direction too")
    bandwidth_bytes_per_s: PositiveFloat = Field(description="rate of one link in one direction, bytes/s")
    latency_s: float = Field(default=0.0, ge=0, description="one-way latency of a message, s")


class Switch(Spec):
    """Ranks that a switch joins pairwise; each rank sends through one port and receives through one."""

    ranks: tuple[Rank, ...] = Field(min_length=2, description="ranks on the switch")
    bandwidth_bytes_per_s: PositiveFloat = Field(description="rate of a port in one direction, bytes/s")
    latency_s: float = Field(default=0.0, ge=0, description="one-way latency of a message through it, s")


class LinkGraph(SourcedSpec):
    """Ranks 0 … num_ranks − 1, and the links and switches that join them."""

    name: Name
    description: str = ""
    num_ranks: int = Field(ge=2, description="ranks, numbered from 0")
    links: tuple[LinkGroup, ...] = Field(default=(), description="point-to-point links")
    switches: tuple[Switch, ...] = Field(default=(), description="switches")

    @model_validator(mode="after")
    def _ranks_exist(self) -> LinkGraph:
        named = [rank for group in self.links for pair in group.pairs for rank in pair]
        named += [rank for switch in self.switches for rank in switch.ranks]
        if named and max(named) >= self.num_ranks:
            raise ValueError(
                f"rank {max(named)} is named, but num_ranks is {self.num_ranks}: ranks are 0 to {self.num_ranks - 1}"
            )
        loops = [pair for group in self.links for pair in group.pairs if pair[0] == pair[1]]
        if loops:
            raise ValueError(f"link from rank {loops[0][0]} to itself")
        return self
