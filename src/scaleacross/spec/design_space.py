"""A design space: accelerator pools, distances, models and sizes on which our plan is compared with baselines."""

from __future__ import annotations

from itertools import product
from typing import Any, Final, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Name, Spec

AXES = ("model", "accelerators", "fleet", "buildings", "distance", "oversubscription")
"""Axes that vary, in the order of ``DesignSpace.values``."""
OURS: Final = "ours"
"""Name of our plan among the contenders."""
START: Final = "production"
"""Name of the baseline whose dimensions are improved one at a time."""


class Distance(Spec):
    """Number of regions and the latency between them."""

    num_regions: PositiveInt | None = Field(description="the buildings are dealt out evenly; null: each is a region")
    one_way_latency_s: NonNegativeFloat = Field(
        description="between regions; between buildings where there is one region"
    )


class TokensPerStep(Spec):
    """Tokens per step: ``per_accelerator`` times the accelerators, but at least ``least``."""

    least: PositiveInt
    per_accelerator: PositiveInt


class DesignSpace(Spec):
    """All combinations of the axes, from which ``points`` are drawn.

    Every building holds an equal share of the hosts; the first ones hold one more if the number does not divide. Every
    two buildings are joined by a link. A building's inter-building links together carry its line rate over the
    oversubscription.
    """

    name: Name
    description: str = ""
    command: Literal["reproduce"]
    model: dict[str, PositiveInt] = Field(min_length=1, description="workload -> tokens per sequence")
    accelerators: tuple[PositiveInt, ...] = Field(min_length=1, description="of all buildings together")
    fleet: tuple[tuple[Name, ...], ...] = Field(
        min_length=1, description="kinds that the buildings have in turn; a pool named twice is drawn twice as often"
    )
    buildings: tuple[PositiveInt, ...] = Field(min_length=1)
    distance: tuple[Distance, ...] = Field(min_length=1)
    oversubscription: tuple[PositiveFloat, ...] = Field(
        min_length=1, description="a building's line rate over the bandwidth that leaves it"
    )
    kinds: dict[Name, dict[str, Any]] = Field(description="name -> what a building of the kind has, as in a topology")
    building_defaults: dict[str, Any] = Field(default_factory=dict, description="as in a topology")
    latency_in_region_s: NonNegativeFloat = Field(
        description="one way between buildings of a region where there are several regions"
    )
    tokens_per_step: TokensPerStep
    job: dict[str, Any] = Field(default_factory=dict, description="further fields of every job")
    points: PositiveInt = Field(description="drawn so that every value of an axis stands about equally often")
    seed: int = Field(default=0, ge=0, description="of the drawing, and of the solver")
    time_limit_s: PositiveFloat = Field(default=60.0, description="processor seconds of our search at most")
    rival_time_limit_s: PositiveFloat = Field(
        default=60.0, description="processor seconds of each baseline, and of each search for one dimension, at most"
    )
    work_limit: PositiveInt | None = Field(
        default=None,
        description="step times that our search, each baseline and each search for one dimension may compute, in place of limits "
        "in seconds: the same plans on every machine",
    )
    finalists: PositiveInt | None = Field(
        default=None,
        description="of our search, among which the simulation decides (and what baselines found, if faster); null: the "
        "estimate does",
    )
    gap_tolerance: float = Field(default=0.01, ge=0, le=1, description="relative gap at which a search stops")
    tie_tolerance: float = Field(default=0.005, ge=0, description="relative difference of step times that is a tie")

    @model_validator(mode="after")
    def _fleets_have_known_kinds(self) -> DesignSpace:
        for kind in {kind for fleet in self.fleet for kind in fleet}:
            if kind not in self.kinds:
                raise ValueError(f"a pool has buildings of kind '{kind}'; kinds: {', '.join(self.kinds)}")
        if not self.combinations:
            raise ValueError("every combination has more regions or kinds than buildings")
        return self

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Values of every axis, in the order of ``AXES``; a repeated value is drawn more often."""
        return {axis: tuple(getattr(self, axis)) for axis in AXES}

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """All distinct combinations that can be built; the first axis varies slowest."""
        different = [tuple(dict.fromkeys(values)) for values in self.values.values()]
        every = (dict(zip(AXES, values, strict=True)) for values in product(*different))
        return [values for values in every if can_be_built(values)]


def can_be_built(values: dict[str, Any]) -> bool:
    """Whether a combination has at least one building for each region and each kind."""
    return max(values["distance"].num_regions or 1, len(values["fleet"])) <= int(values["buildings"])
