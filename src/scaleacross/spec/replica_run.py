"""Result of a run among replicas, computed from its coordinator's log (``scaleacross goodput``)."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from scaleacross.spec.base import Spec


class Stall(Spec):
    """A change of members that made a step late."""

    step: NonNegativeInt = Field(description="the step that was late")
    seconds: NonNegativeFloat = Field(
        description="beyond the median step, of those with fewer members where some were out"
    )
    why: str = Field(description="what happened before it was committed")


class ReplicaRun(Spec):
    """Committed work of a run, and its lost time by cause."""

    log: str
    seconds: NonNegativeFloat = Field(description="from the first commit to the last")
    steps: NonNegativeInt = Field(description="committed")
    samples: NonNegativeInt = Field(description="of all committed steps")
    tokens: NonNegativeInt | None = Field(description="samples times the plan's sequence length; None: no plan")
    epochs: NonNegativeInt
    most_members: NonNegativeInt
    lost: dict[str, NonNegativeInt] = Field(description="replicas lost, by word: dead, silent, left, replaced")
    joined: NonNegativeInt = Field(description="replicas that caught up and became members")
    median_step_s: NonNegativeFloat = Field(description="of steps with all members and no change of them")
    mean_step_s: NonNegativeFloat = Field(description="of the same steps")
    useful_fraction: float = Field(
        description="samples over those that the most members would have had in the time, at the mean step"
    )
    simulated_fraction: float = Field(
        description="the share that simulate gives for losses of the same replicas at the same times, with the mean time out, "
        "the mean stall and the pace meanwhile of this run, or of an earlier one"
    )
    stall_fraction: float = Field(description="of the time: steps that a change of members made late")
    missing_fraction: float = Field(description="of the time: replicas that were out")
    short_pace: float = Field(description="steps per second while replicas are out, over those of all")
    stalls: tuple[Stall, ...]
    failures: tuple[str, ...] = Field(description="sums that failed, and whom they name")
    predicted_fraction: float | None = Field(description="goodput of the plan, if it states one")
    predicted_stall_s: float | None = Field(description="stall per loss of the plan")
