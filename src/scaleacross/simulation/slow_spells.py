"""Time in which all train more slowly: spells that come and go, and a pace of every draw.

A synchronous job goes at the pace of its slowest part, so at an instant the least speed of all spells under way counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleacross.spec.goodput import SlowSpell

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Speeds:
    """Seconds at full speed since the start, over time, of every draw: pieces one draw after the other, ``span_s`` apart."""

    at_s: Floats
    full_s: Floats
    span_s: float

    @classmethod
    def drawn(
        cls, spells: Sequence[SlowSpell], paces: Sequence[float], end_s: float, draws: int, rng: np.random.Generator
    ) -> Speeds:
        """Spells by their rates; draw d goes at ``paces[d % len(paces)]`` (none: 1)."""
        pieces = [_pieces(spells, end_s, rng) for _ in range(draws)]
        span_s = 2 * end_s
        at = np.concatenate([when + draw * span_s for draw, (when, _) in enumerate(pieces)])
        full = [done * (paces[draw % len(paces)] if paces else 1.0) for draw, (_, done) in enumerate(pieces)]
        return cls(at, np.concatenate(full), span_s)

    def between(self, begins_s: Floats, to_s: Floats) -> Floats:
        """Seconds at full speed from each moment to the next, the last one to ``to_s``: (draws, n) and (draws,) -> (draws, n)."""
        edges = np.concatenate([begins_s, to_s[:, None]], axis=1)
        base = np.arange(len(edges))[:, None] * self.span_s
        return np.diff(np.interp(edges + base, self.at_s, self.full_s), axis=1)


def _pieces(spells: Sequence[SlowSpell], end_s: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Moments of one draw at which the speed changes, and the seconds at full speed up to each."""
    starts = []
    for one in spells:
        count = rng.poisson(one.rate_per_s * (end_s + one.lasts_s))
        starts.append(np.sort(rng.uniform(-one.lasts_s, end_s, count)))
    ends = [begun + one.lasts_s for begun, one in zip(starts, spells, strict=True)]
    at = np.unique(np.clip(np.concatenate([[0.0, end_s], *starts, *ends]), 0.0, end_s))
    middle, speed = (at[:-1] + at[1:]) / 2, np.ones(len(at) - 1)
    for one, begun, ended in zip(spells, starts, ends, strict=True):
        under_way = np.searchsorted(begun, middle) > np.searchsorted(ended, middle)
        speed = np.where(under_way, np.minimum(speed, one.speed), speed)
    return at, np.concatenate([[0.0], np.cumsum(np.diff(at) * speed)])
