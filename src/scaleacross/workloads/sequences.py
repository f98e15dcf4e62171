"""Layers over user histories of unequal length (HSTU, arXiv 2402.17152), and the distribution of the lengths."""

from __future__ import annotations

import math
from typing import Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Spec

_NEEDS: Final = {
    "constant": ("longest",),
    "uniform": ("longest",),
    "lognormal": ("longest", "mean_log", "deviation_log"),
    "zipf_picks": ("longest", "exponent"),
    "measured": ("values",),
}


class Lengths(Spec):
    """Distribution of tokens per sample: a law, or measured values from which samples are drawn."""

    kind: Literal["constant", "uniform", "lognormal", "zipf_picks", "measured"] = Field(
        description="uniform: 1 to longest; lognormal: cut at longest; zipf_picks: rank k of 1 to longest in random order is "
        "picked in proportion to k^−exponent, drawn anew for every batch; measured: one of values"
    )
    longest: PositiveInt | None = None
    mean_log: float | None = Field(default=None, description="mean of the natural logarithm")
    deviation_log: PositiveFloat | None = None
    exponent: PositiveFloat | None = None
    values: tuple[PositiveFloat, ...] = ()

    @model_validator(mode="after")
    def _kind_has_its_figures(self) -> Lengths:
        for name in ("longest", "mean_log", "deviation_log", "exponent", "values"):
            stated = bool(self.values) if name == "values" else getattr(self, name) is not None
            if stated != (name in _NEEDS[self.kind]):
                what = "has no" if stated else "needs"
                raise ValueError(f"kind {self.kind} {what} {name}; it takes {', '.join(_NEEDS[self.kind])}")
        return self

    def moment(self, power: Literal[1, 2]) -> float:
        """E[L] or E[L²]. For ``zipf_picks`` the mean over all orders, which equals that of a uniform law."""
        top = float(self.longest or 0)
        if self.kind == "measured":
            return sum(value**power for value in self.values) / len(self.values)
        if self.kind == "constant":
            return top**power
        if self.kind != "lognormal" or self.mean_log is None or self.deviation_log is None:
            return (top + 1) / 2 if power == 1 else (top + 1) * (2 * top + 1) / 6
        mean, deviation = self.mean_log, self.deviation_log
        # partial moments of the law below the cut; all mass above it sits at ``longest``
        at = (math.log(top) - mean) / deviation
        inside = math.exp(power * mean + (power * deviation) ** 2 / 2) * _normal(at - power * deviation)
        return inside + top**power * (1 - _normal(at))


def _normal(value: float) -> float:
    return (1 + math.erf(value / math.sqrt(2))) / 2


class SequenceLayers(Spec):
    """Layers that every token of a history passes.

    Forward 10·h² FLOP per token, and 2·h·L² per history of length L, causal.
    """

    num_layers: PositiveInt
    hidden_size: PositiveInt
    attention_slowdown: PositiveFloat = Field(
        default=1.0, description="how much longer a FLOP of attention takes than one of a product"
    )
    lengths: Lengths | None = Field(default=None, description="of histories; a job's lengths take its place")

    @property
    def num_weights(self) -> int:
        """Weights of all layers: four input projections and one output projection each."""
        return 5 * self.hidden_size**2 * self.num_layers

    def flop(self) -> tuple[float, float]:
        """(a, b): a history of length L needs a·L + b·L² FLOP forward; b includes ``attention_slowdown``."""
        return (
            10.0 * self.hidden_size**2 * self.num_layers,
            2.0 * self.hidden_size * self.num_layers * self.attention_slowdown,
        )
