"""Link technology and the link that a topology level is made of."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, PositiveFloat

from scaleacross.spec.base import Name, SourcedSpec, Spec

# The link used by two accelerators is named after the smallest unit that holds both of them.
LinkLevel = Literal["scale_up", "rack", "zone", "building", "campus", "region"]
LINK_LEVELS: tuple[LinkLevel, ...] = get_args(LinkLevel)


class NetworkTechnology(SourcedSpec):
    """A link technology: what one accelerator gets from it in one direction."""

    name: Name
    bandwidth_bytes_per_s: PositiveFloat = Field(description="line rate per accelerator and direction, bytes/s")
    efficiency_fraction: float = Field(gt=0, le=1, description="share of line rate that large collectives reach")
    congestion_control: Name = Field(default="none", description="e.g. dcqcn, receiver-driven, none")
    load_balancing: Name = Field(default="none", description="e.g. ecmp, adaptive-routing, spray, none")


class LevelLink(Spec):
    """The network of one level inside a building.

    ``oversubscription_ratio`` o means 1:o: when every accelerator below sends across this level at once, each gets 1/o of its
    line rate.
    """

    technology: NetworkTechnology
    one_way_latency_s: float = Field(ge=0, description="latency of one message, sender to receiver, s")
    oversubscription_ratio: float = Field(default=1.0, ge=1.0, description="o of 1:o")


class Trunk(SourcedSpec):
    """A link between two buildings (same region: ``campus``; else ``region``), per direction.

    Capacity = ``bandwidth_bytes_per_s`` if stated, else the line rate of all accelerators in the smaller of the two buildings;
    either is divided by ``oversubscription_ratio``.
    """

    between: tuple[Name, Name] = Field(description="names of the two buildings")
    bandwidth_bytes_per_s: PositiveFloat | None = Field(
        default=None, description="aggregate capacity per direction, bytes/s"
    )
    oversubscription_ratio: float = Field(default=1.0, ge=1.0, description="o of 1:o")
    one_way_latency_s: float = Field(ge=0, description="one-way latency of a message, s")
    efficiency_fraction: float = Field(
        default=1.0, gt=0, le=1, description="share of the capacity that the job's flows reach"
    )
