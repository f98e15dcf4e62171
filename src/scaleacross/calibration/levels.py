"""Fit the network levels beyond one scale-up domain to measurements of ``scaleacross bench`` on the groups of a plan.

The time of a group depends on every level that it crosses, so levels are fitted from the innermost outwards. Each bench
belongs to the outermost level of its groups. The rate and latency of that level are free; inner levels keep their
fitted values. The prediction is the planner's own time of the collective as the plan runs it, on the topology that is
written. If several buildings or inter-building links have the level, all of them get the same share of their stated
rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.calibration.kernels import score, score_of
from scaleacross.calibration.result import Residual
from scaleacross.calibration.robust_fit import Parameter, fit_times
from scaleacross.cost_models.axes import group_of, network_of
from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow
from scaleacross.errors import InputError, TooFewError
from scaleacross.spec.base import Provenance
from scaleacross.spec.network import LINK_LEVELS, LevelLink, LinkLevel
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Building, Topology, trunk_bytes_per_s
from scaleacross.workloads.equal_copies import EVERY_COPY

MIN_SIZES: Final = 4
"""Two sizes remain on either side when every second one is left out."""
SCALE: Final = 0.1
START_LATENCY_S: Final = 1e-6
"""Start of a fit for a latency that is stated as 0."""


@dataclass(frozen=True)
class Bench:
    """Times of one collective on the groups of one communicator, one per size.

    Attributes:
        source: the file, as provenance quotes it.
    """

    op: str
    communicator: str
    size_bytes: tuple[float, ...]
    time_s: tuple[float, ...]
    source: str


@dataclass(frozen=True)
class LevelFit:
    """Fitted figures of one level: share of the stated rate that is reached, one-way latency (s), and the errors."""

    level: LinkLevel
    rate_share: float
    latency_s: float
    residual: Residual
    sources: tuple[str, ...]


def fit_levels(
    topology: Topology,
    decision: Decision,
    shapes: Mapping[str, GroupShape],
    benches: Sequence[Bench],
    launch_s: float,
    date: str,
) -> tuple[Topology, tuple[LevelFit, ...]]:
    """Fit every level that ``benches`` cover; returns the changed topology and the fits, innermost level first.

    Raises:
        InputError: a bench of groups that stay in one scale-up domain.
        TooFewError: fewer than MIN_SIZES sizes on a level.
    """
    by_level: dict[LinkLevel, list[Bench]] = {}
    for bench in benches:
        level = LINK_LEVELS[int(shapes[bench.communicator].span)]
        if level == "scale_up":
            raise InputError(
                f"{bench.source}: groups of {bench.communicator} stay in one scale-up domain; fit its curves with --collectives"
            )
        by_level.setdefault(level, []).append(bench)
    fits = []
    for level in (level for level in LINK_LEVELS if level in by_level):
        own = by_level[level]
        rows = _Rows(topology, decision, shapes, level, launch_s)
        fit = _fit(rows, own)
        fits.append(fit)
        topology = with_figures(topology, decision, level, fit.rate_share, fit.latency_s, _origin(fit, date))
    return topology, tuple(fits)


@dataclass(frozen=True)
class _Rows:
    """Predictions on a topology in which the figures of one level are free."""

    topology: Topology
    decision: Decision
    shapes: Mapping[str, GroupShape]
    level: LinkLevel
    launch_s: float

    def predict(self, benches: Sequence[Bench], keep: Ints, rate_share: float, latency_s: float) -> Floats:
        """Seconds of the benches' times that ``keep`` selects, (kept,), with these figures of the level."""
        changed = with_figures(self.topology, self.decision, self.level, rate_share, latency_s, None)
        links = links_of(build_levels(changed, self.decision.placed.fill))
        seconds = []
        for bench in benches:
            shape = one_row(self.shapes[bench.communicator])
            group = group_of(network_of(self.decision), bench.communicator, shape, links, self.launch_s)
            payload = self._payload(bench)
            for size in bench.size_bytes:
                flow = Flow("dp_shard", bench.op, payload, bench.communicator, size, {})  # type: ignore[arg-type]
                seconds.append(float(time_of(flow, group, EVERY_COPY).time_s[0]))
        predicted: Floats = np.array(seconds)[keep]
        return predicted

    def _payload(self, bench: Bench) -> str:
        """Payload of the plan's choice for this collective, so that the choice applies; '' if there is none."""
        for choice in self.decision.network or ():
            if (choice.communicator, choice.op) == (bench.communicator, bench.op):
                return choice.payload
        return ""

    def latency(self) -> float:
        """One-way latency that the level states, s."""
        return float(build_levels(self.topology, self.decision.placed.fill).latency[LINK_LEVELS.index(self.level)])


def _fit(rows: _Rows, benches: Sequence[Bench]) -> LevelFit:
    measured = np.array([seconds for bench in benches for seconds in bench.time_s])
    place = np.array([index for bench in benches for index in range(len(bench.size_bytes))])
    if len({size for bench in benches for size in bench.size_bytes}) < MIN_SIZES:
        raise TooFewError(
            f"{rows.level}: {len(measured)} times; {MIN_SIZES} sizes are needed: bench with a smaller --factor or a larger --max"
        )
    before = rows.latency()
    # a latency below the library's protocol overhead does not change the prediction, so there is no slope to follow: a
    # second fit starts from a latency that shows
    starts = (before or START_LATENCY_S, float(measured.min()) / 4)

    def fitted(keep: Ints) -> dict[str, float]:
        fits = (
            fit_times(
                lambda at: rows.predict(benches, keep, at["rate_share"], at["latency_s"]),
                measured[keep],
                [Parameter("rate_share", 1.0, "positive"), Parameter("latency_s", start, "positive")],
                scale=SCALE,
            )
            for start in starts
        )
        return min(fits, key=lambda fit: fit.loss).values

    everything = np.arange(len(measured))
    found = fitted(everything)
    unseen = []
    # fit every second size and predict the others, then the other way round
    for parity in (0, 1):
        kept, left = (np.flatnonzero(place % 2 == which) for which in (parity, 1 - parity))
        unseen.append(rows.predict(benches, left, **fitted(kept)) / measured[left] - 1)
    residual = Residual(
        what=f"collectives across {rows.level}",
        fitted=("rate_share", "latency_s"),
        base=score(rows.predict(benches, everything, 1.0, before), measured),
        in_sample=score(rows.predict(benches, everything, **found), measured),
        left_out={"sizes": score_of(np.concatenate(unseen))},
    )
    sources = tuple(dict.fromkeys(bench.source for bench in benches))
    return LevelFit(rows.level, found["rate_share"], found["latency_s"], residual, sources)


def _origin(fit: LevelFit, date: str) -> Provenance:
    own, unseen = fit.residual.in_sample, fit.residual.left_out["sizes"]
    source = (
        f"{', '.join(fit.sources)}; fitted {date} to {own.num_rows} times of scaleacross bench; median error "
        f"{own.median_abs_error:.1%}, on sizes left out {unseen.median_abs_error:.1%}"
    )
    return Provenance(source=source, status="fitted")


def with_figures(
    topology: Topology,
    decision: Decision,
    level: LinkLevel,
    rate_share: float,
    latency_s: float,
    origin: Provenance | None,
) -> Topology:
    """Return the topology in which ``level`` reaches ``rate_share`` of its stated rate at ``latency_s``.

    Only buildings that the plan uses are changed.

    Args:
        origin: provenance of the figures; None leaves provenance unchanged.
    """
    used = {share.building for share in decision.placement.fill} if decision.placement else set()
    if level in ("campus", "region"):
        return _with_trunks(topology, used, level, rate_share, latency_s, origin)
    regions = tuple(
        region.model_copy(
            update={
                "buildings": tuple(
                    _with_level(building, level, rate_share, latency_s, origin) if building.name in used else building
                    for building in region.buildings
                )
            }
        )
        for region in topology.regions
    )
    stated = dict(_stated(topology.provenance, f"links.{level}.", ("one_way_latency",), origin))
    return topology.model_copy(update={"regions": regions, "provenance": stated})


def _with_level(
    building: Building, level: LinkLevel, rate_share: float, latency_s: float, origin: Provenance | None
) -> Building:
    link: LevelLink = getattr(building.links, level)
    old = link.technology
    reached = old.efficiency_fraction * rate_share
    figures = {
        "name": f"{old.name}-{level}"[:64],
        # the efficiency may not exceed 1, so a faster link raises the stated bandwidth instead
        "bandwidth_bytes_per_s": old.bandwidth_bytes_per_s * max(1.0, reached),
        "efficiency_fraction": min(1.0, reached),
        "provenance": dict(_stated(old.provenance, "", ("efficiency", "bandwidth" if reached > 1 else "-"), origin)),
    }
    technology = old.model_copy(update=figures)
    changed = link.model_copy(update={"technology": technology, "one_way_latency_s": latency_s})
    stated = dict(_stated(building.provenance, f"links.{level}.", ("one_way_latency",), origin))
    links = building.links.model_copy(update={level: changed})
    return building.model_copy(update={"links": links, "provenance": stated if building.provenance else {}})


def _with_trunks(
    topology: Topology, used: set[str], level: LinkLevel, rate_share: float, latency_s: float, origin: Provenance | None
) -> Topology:
    mine = [
        trunk
        for trunk in topology.trunks
        if set(trunk.between) <= used
        and (topology.region_of(trunk.between[0]) == topology.region_of(trunk.between[1])) == (level == "campus")
    ]
    longest = max((trunk.one_way_latency_s for trunk in mine), default=0.0)
    trunks = []
    for trunk in topology.trunks:
        if trunk in mine:
            # the fitted latency is that of the longest link; shorter ones keep their ratio to it
            latency = latency_s * (trunk.one_way_latency_s / longest if longest else 1.0)
            rate = trunk_bytes_per_s(topology, trunk) * rate_share
            trunk = trunk.model_copy(update={"bandwidth_bytes_per_s": rate, "one_way_latency_s": latency})
        trunks.append(trunk)
    stated = dict(_stated(topology.provenance, "trunks.", ("bandwidth", "one_way_latency"), origin))
    return topology.model_copy(update={"trunks": tuple(trunks), "provenance": stated})


def _stated(
    old: Mapping[str, Provenance], prefix: str, names: Sequence[str], origin: Provenance | None
) -> Iterator[tuple[str, Provenance]]:
    """Provenance in which the origins of fitted figures are replaced, under their SI keys."""
    if origin is None:
        yield from old.items()
        return
    gone = tuple(f"{prefix}{name}" for name in names)
    yield from ((key, one) for key, one in old.items() if not key.startswith(gone))
    keys = {
        "efficiency": "efficiency_fraction",
        "bandwidth": "bandwidth_bytes_per_s",
        "one_way_latency": "one_way_latency_s",
    }
    yield from ((f"{prefix}{keys[name]}", origin) for name in names if name in keys)
