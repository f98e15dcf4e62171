"""Link technology and the link that a topology level is made of."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Name, SourcedSpec, Spec

# The link used by two accelerators is named after the smallest unit that holds both of them.
LinkLevel = Literal["scale_up", "rack", "zone", "building", "campus", "region"]
LINK_LEVELS: tuple[LinkLevel, ...] = get_args(LinkLevel)

Transport = Literal["roce", "tcp"]

MAX_LATENCY_S = 10.0
MAX_BYTES_PER_S = 1e17


def _in_seconds(latency_s: float) -> float:
    """Return the latency; refuse one that must be in another unit.

    For comparison, one way over a geostationary satellite takes 0.25 s.
    """
    if latency_s > MAX_LATENCY_S:
        raise ValueError(f"{latency_s:g} s is more than {MAX_LATENCY_S:g} s: check its unit (_s, _ms, _us)")
    return latency_s


Latency = Annotated[float, AfterValidator(_in_seconds)]


def _in_bytes_per_s(rate: float) -> float:
    """Return the rate; refuse one that must be in another unit.

    For comparison, the largest topology sends a tenth of the limit if each of its accelerators sends 10 GB/s.
    """
    if rate > MAX_BYTES_PER_S:
        raise ValueError(
            f"{rate:g} bytes/s is more than {MAX_BYTES_PER_S:g} bytes/s: check its unit (_gbit_per_s, _gbyte_per_s)"
        )
    return rate


LinkRate = Annotated[float, Field(gt=0), AfterValidator(_in_bytes_per_s)]

CurveOp = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
CURVE_OPS: tuple[CurveOp, ...] = get_args(CurveOp)


class CollectiveCurve(Spec):
    """Time of one collective by size, among ``num_ranks`` accelerators that share this link and nothing else.

    Sizes are nccl-tests': the full tensor of gather, scatter and reduce; for an all-to-all the bytes that one rank
    sends in total, its own part included. Between two sizes time is linear, so each pair has its own α and β. Below the
    first size it is constant (latency), above the last it is proportional to size (bandwidth). Launch is included.
    """

    op: CurveOp
    num_ranks: Annotated[int, Field(ge=2)] = Field(description="accelerators in the group")
    time_s: dict[PositiveInt, PositiveFloat] = Field(min_length=2, description="size in bytes -> time, s")

    @model_validator(mode="after")
    def _more_bytes_never_take_less(self) -> CollectiveCurve:
        for (small, early), (large, late) in pairwise(self.time_s.items()):
            if large <= small:
                raise ValueError(f"{self._label}: size {large:,} B follows {small:,} B; sizes must ascend")
            if late < early:
                raise ValueError(
                    f"{self._label}: {large:,} B in {late:g} s, but {small:,} B already take {early:g} s; "
                    "a curve must not fall (fit it to the measurements, or smooth it)"
                )
        return self

    @property
    def _label(self) -> str:
        return f"curve of {self.op} among {self.num_ranks}"


class NetworkTechnology(SourcedSpec):
    """A link technology: its figures per accelerator and direction."""

    name: Name
    bandwidth_bytes_per_s: LinkRate = Field(description="line rate per accelerator and direction, bytes/s")
    efficiency_fraction: float = Field(gt=0, le=1, description="share of line rate that large collectives reach")
    congestion_control: Name = Field(default="none", description="e.g. dcqcn, receiver-driven, none")
    load_balancing: Name = Field(default="none", description="e.g. ecmp, adaptive-routing, spray, none")
    retransmission: Literal["go_back_n", "selective_repeat"] = Field(
        default="go_back_n",
        description="what a network adapter sends again when a packet is lost on an inter-building link",
    )
    packet_bytes: PositiveInt = Field(
        default=4096, description="largest packet payload (RoCE and InfiniBand MTU), bytes"
    )
    message_overhead_s: float = Field(
        default=0.0,
        ge=0,
        description="what every message of a further chunk adds beyond its bytes, s (those of a first chunk pay latency); "
        "nothing inside a scale-up domain",
    )
    in_switch_reduction: bool = Field(
        default=False, description="the switches of a scale-up domain add up what passes (NVLink SHARP)"
    )
    curves: tuple[CollectiveCurve, ...] = Field(
        default=(),
        description="collectives inside one scale-up domain, measured, or computed from its links where provenance says assumed; "
        "operations without a curve are estimated from bandwidth, efficiency and latency alone",
    )

    @model_validator(mode="after")
    def _one_curve_per_operation_and_group(self) -> NetworkTechnology:
        keys = [(curve.op, curve.num_ranks) for curve in self.curves]
        for op, num_ranks in keys:
            if keys.count((op, num_ranks)) > 1:
                raise ValueError(f"two curves of {op} among {num_ranks}: keep one")
        return self


class LevelLink(Spec):
    """The network of one level inside a building.

    ``oversubscription_ratio`` o means 1:o: when every accelerator below sends across this level at once, each gets 1/o
    of its line rate.
    """

    technology: NetworkTechnology
    one_way_latency_s: Latency = Field(ge=0, description="latency of one message, sender to receiver, s")
    oversubscription_ratio: float = Field(default=1.0, ge=1.0, description="o of 1:o")
    num_planes: int | None = Field(
        default=None, ge=2, description="equal planes that share the traffic; states what the loss of one costs"
    )


class Trunk(SourcedSpec):
    """A link between two buildings (same region: ``campus``; else ``region``), per direction.

    Its capacity is ``bandwidth_bytes_per_s``. If that is not stated, it is the line rate of all accelerators in the
    smaller of the two buildings. Either is divided by ``oversubscription_ratio``.
    """

    between: tuple[Name, Name] = Field(description="names of the two buildings")
    bandwidth_bytes_per_s: LinkRate | None = Field(
        default=None, description="aggregate capacity per direction, bytes/s"
    )
    oversubscription_ratio: float = Field(default=1.0, ge=1.0, description="o of 1:o")
    one_way_latency_s: Latency = Field(ge=0, description="one-way latency of a message, s")
    efficiency_fraction: float = Field(
        default=1.0, gt=0, le=1, description="share of the capacity that the job's flows reach"
    )
    loss_fraction: float = Field(default=0.0, ge=0, lt=1, description="packets lost on the way")
    egress_price_per_byte: float | None = Field(
        default=None,
        ge=0,
        description="currency units per byte in either direction (0 where nothing is charged); needed by the cost objective",
    )
    price_per_hour: float = Field(
        default=0.0,
        ge=0,
        description="currency units per hour for the link as such (waves, dark fibre), both directions",
    )
    num_planes: int | None = Field(
        default=None, ge=2, description="equal planes that share the traffic; states what the loss of one costs"
    )
    transport: Transport | None = Field(
        default=None,
        description="what collective libraries cross it by: roce (RDMA) or tcp (sockets). Launch files follow it, the step time "
        "does not: state what flows reach in efficiency_fraction. None: RDMA, as inside buildings",
    )
