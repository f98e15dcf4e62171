"""Result of ``diagnose``: one root fault, its consequences, and the dumps that could not be read."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.network import LinkLevel

Verdict = Literal[
    "all_good",
    "not_judged",
    "process_dead",
    "not_joined",
    "stuck_outside",
    "stuck_before",
    "stuck_inside",
    "stuck_link",
    "type_mismatch",
    "order_mismatch",
    "size_mismatch",
    "dtype_mismatch",
    "deadlock",
    "slow_rank",
    "slow_link",
]

MEANINGS: Final[dict[Verdict, str]] = {
    "all_good": "every operation that was issued has ended, and nobody was slow",
    "not_judged": "nothing is seen to be wrong, but dumps are missing, unreadable or without operations",
    "process_dead": "others wait for a rank that left no readable dump",
    "not_joined": "a rank never issued an operation that others wait in, and went on with other things",
    "stuck_outside": "a rank issues nothing any more: its program stands outside of communication",
    "stuck_before": "a rank issued the operation but never started it",
    "stuck_inside": "all joined and started; a rank does not move its chunks on",
    "stuck_link": "all joined and started; chunks of one link left and did not arrive",
    "type_mismatch": "a rank issued another collective than its group",
    "order_mismatch": "a rank issued the group's collectives in another order",
    "size_mismatch": "a rank's tensors have other sizes than its group's",
    "dtype_mismatch": "a rank's tensors have another element type than its group's",
    "deadlock": "ranks wait for each other in a circle",
    "slow_rank": "a rank comes late to its collectives because of its own work",
    "slow_link": "a link moves fewer bytes per second than predicted, or than its equals",
}


class Fault(Spec):
    """One fault with the evidence for it."""

    verdict: Verdict
    ranks: tuple[int, ...] = Field(description="ranks at fault; of a deadlock in the order of the circle")
    link: tuple[int, int] | None = Field(default=None, description="sender and receiver, where a link is at fault")
    level: LinkLevel | None = Field(default=None, description="what that link crosses, where launch.json was given")
    group: str | None = Field(default=None, description="process group in which it shows")
    sequence: int | None = Field(default=None, description="number of the operation within the group")
    op: str | None = None
    num_victims: int = Field(ge=0, description="other ranks that wait, directly or not, because of it")
    since_ns: int | None = Field(default=None, description="wall clock at which the first victim began to wait")
    lost_s: float | None = Field(default=None, description="seconds lost to a slow rank or link within the trace")
    explanation: str = Field(description="the evidence in words and numbers")


class UnreadableDump(Spec):
    """A file that was refused, cut short or damaged."""

    file: str
    rank: int | None
    reason: str


class Diagnosis(Spec):
    """The verdict on a set of dumps. ``verdict`` is that of the root; ``others`` are independent faults."""

    verdict: Verdict
    root: Fault | None
    others: tuple[Fault, ...] = ()
    num_dumps: int = Field(ge=0)
    world_size: int = Field(ge=0, description="ranks that the dumps speak of")
    num_operations: int = Field(ge=0)
    num_stuck_operations: int = Field(ge=0, description="issued and not complete, over all ranks")
    num_waiting_ranks: int = Field(ge=0, description="ranks with such an operation")
    missing_ranks: tuple[int, ...] = ()
    unreadable: tuple[UnreadableDump, ...] = ()
    hosts: dict[int, str] = Field(default_factory=dict, description="host of the ranks at fault, where known")
    places: dict[int, str] = Field(
        default_factory=dict,
        description="host, building and region that launch.json gives the ranks at fault",
    )
    notes: tuple[str, ...] = ()
