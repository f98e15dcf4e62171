"""A what-if study: base jobs, and the job fields that vary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from scaleacross.spec.base import Name, Spec, one_is_a_list

MAX_POINTS = 100_000
"""Largest study accepted: beyond it the grid is more likely a slip than a question."""

SPEEDS: Final[Mapping[str, str]] = {"tokens_per_s": "tokens/s", "samples_per_s": "samples/s"}
"""Key of the speed in a point's row -> its unit; samples/s is for recommendation models."""

Values = tuple[Any, ...]


def speed_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Key of ``SPEEDS`` that the rows of a study contain; tokens_per_s if none does."""
    return next((name for row in rows for name in SPEEDS if name in row), "tokens_per_s")


class Study(Spec):
    """Every base with every combination of ``grid`` values and of the rows of each group in ``zipped``.

    Keys are the dotted paths of ``--set``: any field of the job, or of its workload and topology. Values are what may
    follow the ``=``. Shorter paths are applied first, so ``topology`` may vary together with
    ``topology.trunks.0.one_way_latency_ms``.
    """

    name: Name
    description: str = ""
    command: Literal["plan", "evaluate"] = Field(
        default="plan", description="search the best plan of every point, or evaluate given settings"
    )
    base: tuple[str | dict[str, Any], ...] = Field(
        min_length=1,
        description="plan: jobs (name, path or mapping); evaluate: settings or plans (name or path)",
    )
    grid: dict[str, Values] = Field(default_factory=dict, description="dotted path -> values, all combined")
    zipped: tuple[dict[str, Values], ...] = Field(
        default=(), description="groups of paths that vary together: value lists of equal length"
    )
    time_limit_s: PositiveFloat = Field(default=60.0, description="search per point at most (plan), s")
    work_limit: PositiveInt | None = Field(
        default=None,
        description="step times that are computed per point, in place of seconds: the same everywhere (plan)",
    )
    gap_tolerance: float = Field(default=0.0, ge=0, le=1, description="relative gap at which a search stops (plan)")
    seed: int = Field(default=0, ge=0, description="of the solver (plan)")

    _lists = field_validator("base", mode="before")(one_is_a_list)

    @model_validator(mode="after")
    def _lists_agree(self) -> Study:
        for path, values in self.grid.items():
            if not values:
                raise ValueError(f"grid '{path}' has no value: leave it out or name one")
        seen = set(self.grid)
        for group in self.zipped:
            lengths = {path: len(values) for path, values in group.items()}
            if len(set(lengths.values())) != 1 or 0 in lengths.values():
                raise ValueError(f"a zipped group needs lists of one length, at least 1: {lengths or 'an empty group'}")
            if twice := seen & set(group):
                raise ValueError(f"'{min(twice)}' varies twice: keep one")
            seen |= set(group)
        if self.num_points > MAX_POINTS:
            raise ValueError(f"{self.num_points:,} points; at most {MAX_POINTS:,} are run as one study")
        return self

    @property
    def num_points(self) -> int:
        """Number of points: bases × grid values × rows of each zipped group."""
        points = len(self.base)
        for values in self.grid.values():
            points *= len(values)
        for group in self.zipped:
            points *= len(next(iter(group.values())))
        return points

    @property
    def paths(self) -> tuple[str, ...]:
        """Dotted paths that vary, as stated: grid first, then the groups."""
        return (*self.grid, *(path for group in self.zipped for path in group))
