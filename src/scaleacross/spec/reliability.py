"""Failure rates and recovery times, and the published figures that replace unstated ones."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, PositiveFloat, model_validator

from scaleacross.spec.base import SourcedSpec, Status

ACCELERATORS_PER_NODE: Final = 8
"""Accelerators per node in the published failure rates."""
NODE_DAYS_TO_ACCELERATOR_SECONDS: Final = 1000 * 86_400 * ACCELERATORS_PER_NODE
"""Accelerator-seconds in 1,000 node-days."""

MAX_SPARES: Final = 131_072
"""Hosts of the largest topology; sums over many more spares would take too long."""

PublishedRateName = Literal["rsc-1", "llama3-405b", "rsc-2"]
BatchPolicy = Literal["shrink", "keep"]
RecoveryPolicy = Literal["restart", "hot_spare", "shrink"]
FailureClass = Literal["accelerator", "host", "rack", "zone", "building", "inter_building_link"]


class Figure(NamedTuple):
    """A published or assumed constant with its origin."""

    value: float
    source: str
    status: Status


PUBLISHED_RATES: Final[dict[PublishedRateName, Figure]] = {
    "rsc-1": Figure(6.50, "arXiv 2410.21680, cluster RSC-1, failures per 1,000 node-days", "paper"),
    "llama3-405b": Figure(
        3.79, "arXiv 2407.21783 section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 accelerators", "paper"
    ),
    "rsc-2": Figure(2.34, "arXiv 2410.21680, cluster RSC-2, failures per 1,000 node-days", "paper"),
}
"""Failures per 1,000 node-days, highest first. They span a factor of 2.8: reports show the result at each."""

DEFAULTS: Final[dict[str, Figure]] = {
    "detect_s": Figure(60.0, "arXiv 2602.00277: detection takes a minute (second-hand)", "assumed"),
    "schedule_s": Figure(120.0, "arXiv 2602.00277: scheduling takes two minutes (second-hand)", "assumed"),
    "initialise_per_rank_s": Figure(
        200.0 / 98_304, "arXiv 2602.00277: 200 to 300 s of NCCL initialisation on 98,304 ranks (second-hand)", "assumed"
    ),
    "first_step_s": Figure(200.0, "arXiv 2602.00277: the first step takes 200 s (second-hand)", "assumed"),
    "regroup_s": Figure(120.0, "arXiv 2602.00277: everybody stalls for 3 min, detection of 1 min included", "assumed"),
    "load_bytes_per_s": Figure(
        2e12 / 2048, "arXiv 2407.21783 section 3.3.1: storage sustains 2 TB/s for 2,048 hosts", "paper"
    ),
    "stage_bytes_per_s": Figure(20e9, "one PCIe 5.0 x16 direction at a third of its line rate", "assumed"),
    "longest_checkpoint_interval_hours": Figure(
        24.0, "what no failure rate states (a bad step, a bug, a wrong command) costs a day of work at most", "assumed"
    ),
    "repair_hours": Figure(48.0, "time to drain, diagnose and replace a host, as public simulators take it", "assumed"),
    "host_swap_fraction": Figure(
        0.604, "arXiv 2407.21783 table 5: accelerator, HBM, SRAM, host, NIC, thermal, silent corruption", "paper"
    ),
}
"""Figures used if a job or a topology states none; the report names them."""


def default(name: str) -> float:
    """Default value of a figure of ``DEFAULTS``."""
    return DEFAULTS[name].value


class Slowdown(SourcedSpec):
    """Temporary slowdown without a failure: accelerators that throttle, busy hosts, links that flap."""

    of: Literal["accelerator", "host", "inter_building_link"] = Field(
        description="what is slower; a host as one of its accelerators, because the others wait for it"
    )
    mtbf_hours: PositiveFloat = Field(description="mean time between two times that one of them is slower")
    lasts_minutes: PositiveFloat = Field(description="how long")
    times: float = Field(gt=1, le=1e6, description="its computation, or a transfer, takes so many times as long")


class Failures(SourcedSpec):
    """How often parts of a topology fail.

    Either a rate per node-day, mean times between failures by class, or the sum of both.
    """

    published: PublishedRateName | None = Field(
        default=None, description="a published rate of all failures together: rsc-1, llama3-405b or rsc-2"
    )
    failures_per_1000_node_days: float | None = Field(
        default=None, ge=0, description="failures per 1,000 days of 8 accelerators; each takes the host that it hits"
    )
    accelerator_mtbf_hours: PositiveFloat | None = Field(default=None, description="of one accelerator")
    host_mtbf_hours: PositiveFloat | None = Field(default=None, description="of one host, accelerators left out")
    rack_mtbf_hours: PositiveFloat | None = Field(default=None, description="of one rack: its switch")
    zone_mtbf_hours: PositiveFloat | None = Field(default=None, description="of one zone: its power domain")
    building_mtbf_hours: PositiveFloat | None = Field(default=None, description="of one building")
    inter_building_link_mtbf_hours: PositiveFloat | None = Field(
        default=None, description="of one link between two buildings"
    )
    repair_hours: PositiveFloat | None = Field(default=None, description="until a failed host is back")
    slowdowns: tuple[Slowdown, ...] = Field(
        default=(), description="stragglers and link flaps; simulate --days counts them, the plan's goodput does not"
    )
    host_swap_fraction: float | None = Field(
        default=None, ge=0, le=1, description="share of the failures after which the host needs repair"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> Failures:
        if self.published is not None and self.failures_per_1000_node_days is not None:
            raise ValueError("state published or failures_per_1000_node_days, not both")
        return self

    @property
    def node_rate(self) -> float:
        """Failures per 1,000 node-days that hit one host each; classes with a mean time of their own are added to it.

        The default is Llama 3's rate if nothing is stated, and 0 if only mean times of classes are.
        """
        if self.published is not None:
            return PUBLISHED_RATES[self.published].value
        if self.failures_per_1000_node_days is not None:
            return self.failures_per_1000_node_days
        stated = any(name.endswith("_mtbf_hours") for name in self.model_fields_set)
        return 0.0 if stated else PUBLISHED_RATES["llama3-405b"].value

    def mtbf_s(self, level: FailureClass) -> float | None:
        """Mean time between failures of one unit of a class, seconds; None: not stated."""
        hours: float | None = getattr(self, f"{level}_mtbf_hours")
        return None if hours is None else hours * 3600.0


class Recovery(SourcedSpec):
    """Recovery of a job from failures. Times that are left out come from the plan and from ``DEFAULTS``."""

    detect_s: float | None = Field(default=None, ge=0, description="until a failure is noticed")
    schedule_s: float | None = Field(default=None, ge=0, description="until processes start on another host")
    initialise_per_rank_s: float | None = Field(
        default=None, ge=0, description="setting up the connections of a job, per rank that starts"
    )
    first_step_s: float | None = Field(default=None, ge=0, description="warm-up until steps have their usual length")
    regroup_s: float | None = Field(
        default=None, ge=0, description="all wait while the fault units agree who is left, after detection"
    )
    load_bytes_per_s: PositiveFloat | None = Field(default=None, description="storage or a peer to one host")
    recover_s: float | None = Field(
        default=None, ge=0, description="from a failure to the next useful step of what it took, instead of the parts"
    )
    stall_s: float | None = Field(
        default=None, ge=0, description="all wait when one fault unit leaves or joins, instead of the parts"
    )
    checkpoint_interval_s: PositiveFloat | Literal["auto"] = Field(
        default="auto",
        description="seconds of training between checkpoints, no less than storage takes for one; auto: the interval that loses "
        "least, a day at most",
    )
    checkpoint_blocking_s: float | None = Field(
        default=None, ge=0, description="seconds that a checkpoint stops training; None: staging to the host's memory"
    )
    checkpoint: Literal["asynchronous", "blocking"] = Field(
        default="asynchronous", description="blocking: training waits until storage has it"
    )
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] | Literal["auto"] = Field(
        default="auto", description="spare hosts; auto: as many as cover 99.9 % of the time, stated in the report"
    )
    batch_policy: BatchPolicy = Field(
        default="shrink", description="shrink: fewer tokens a step while a unit is out; keep: others take its share"
    )
    policy: RecoveryPolicy = Field(
        default="shrink",
        description="restart: all restart; hot_spare: all wait for a standby host; shrink: fault units that are left go on",
    )

    @model_validator(mode="after")
    def _stalls_no_longer_than_recovery(self) -> Recovery:
        if self.recover_s is not None and self.stall_s is not None and self.stall_s > self.recover_s:
            raise ValueError(
                f"stall_s {self.stall_s:g} is longer than recover_s {self.recover_s:g}: the unit that was hit is back before "
                "the others go on; recover_s counts from the failure, so state at least stall_s there"
            )
        return self

    def figure(self, name: str) -> float:
        """The stated time or rate called ``name``, or its default."""
        stated: float | None = getattr(self, name)
        return default(name) if stated is None else stated
