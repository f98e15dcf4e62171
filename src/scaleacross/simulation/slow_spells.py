"""Slow spells of a long run, in which the whole job is slower, and the pace of every draw; used by ``long_run``.

A synchronous job runs at the pace of its slowest part, so the least speed of all current spells counts.
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
    """Equivalent seconds at full speed as a piecewise linear function of time, for every draw.

    All draws share one time axis, ``span_s`` apart, so that one interpolation serves all.

    Attributes:
        at_s: (points,) times at which the speed changes.
        full_s: (points,) seconds at full speed from the start of the draw to each of them.
    """

    at_s: Floats
    full_s: Floats
    span_s: float

    @classmethod
    def drawn(
        cls, spells: Sequence[SlowSpell], paces: Sequence[float], end_s: float, draws: int, rng: np.random.Generator
    ) -> Speeds:
        """Draw the spells by their rates; draw d runs at ``paces[d % len(paces)]`` (none given: 1)."""
        pieces = [_pieces(spells, end_s, rng) for _ in range(draws)]
        span_s = 2 * end_s
        at = np.concatenate([when + draw * span_s for draw, (when, _) in enumerate(pieces)])
        full = [done * (paces[draw % len(paces)] if paces else 1.0) for draw, (_, done) in enumerate(pieces)]
        return cls(at, np.concatenate(full), span_s)

    def between(self, begins_s: Floats, to_s: Floats) -> Floats:
        """(draws, n) full-speed seconds from each of ``begins_s`` (draws, n) to the next, or ``to_s`` (draws,)."""
        edges = np.concatenate([begins_s, to_s[:, None]], axis=1)
        base = np.arange(len(edges))[:, None] * self.span_s
        return np.diff(np.interp(edges + base, self.at_s, self.full_s), axis=1)


def _pieces(spells: Sequence[SlowSpell], end_s: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the times of one draw at which the speed changes, and the seconds at full speed up to each."""
    starts = []
    for one in spells:
        # a spell may have begun before the run, so starts are drawn from −lasts_s on
        count = rng.poisson(one.rate_per_s * (end_s + one.lasts_s))
        starts.append(np.sort(rng.uniform(-one.lasts_s, end_s, count)))
    ends = [begun + one.lasts_s for begun, one in zip(starts, spells, strict=True)]
    at = np.unique(np.clip(np.concatenate([[0.0, end_s], *starts, *ends]), 0.0, end_s))
    middle, speed = (at[:-1] + at[1:]) / 2, np.ones(len(at) - 1)
    for one, begun, ended in zip(spells, starts, ends, strict=True):
        under_way = np.searchsorted(begun, middle) > np.searchsorted(ended, middle)
        speed = np.where(under_way, np.minimum(speed, one.speed), speed)
    return at, np.concatenate([[0.0], np.cumsum(np.diff(at) * speed)])
