"""Candidates at stated placements, priced in arrays from exact group shapes.

The figure is the cost model's step time except for pipeline messages, which take their closed-form lower bound
(``cost_models.axes.axis_terms``): so it is never above the exact step time, and equal to it without a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from scaleacross.cost_models.axes import Terms, axis_terms
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import stacked_links
from scaleacross.cost_models.settings import Floats, Ints, Settings
from scaleacross.solvers.candidates import Priced, Pricing, communication_s
from scaleacross.solvers.fleets import Fill, shares
from scaleacross.spec.parallelism import GridAxis

AxisOrder = tuple[GridAxis, ...]


@dataclass(frozen=True)
class PlacedRows:
    """Per candidate: step time in seconds (n,), terms of every axis, and the outermost level that each axis crosses, (n,)."""

    step_s: Floats
    terms: Mapping[str, Terms]
    spans: Mapping[str, Ints]


@dataclass
class RowPlacer:
    """Prices candidates on one fleet; remembers levels and group shapes."""

    pricing: Pricing
    _levels: dict[Fill, Levels] = field(default_factory=dict)
    _shapes: dict[tuple[Fill, int, int], GroupShape] = field(default_factory=dict)

    def price(self, priced: Priced, order: AxisOrder, fills: Sequence[Fill]) -> PlacedRows:
        """Candidates on one axis order (fastest first), each on the fill of the same index.

        Raises:
            ValueError: a fill does not hold as many accelerators as its candidate uses.
        """
        settings = priced.settings
        volumes = self.pricing.volumes(settings, priced.work)
        links = stacked_links([self.levels(fill) for fill in fills])
        terms: dict[str, Terms] = {}
        spans: dict[str, Ints] = {}
        stride = np.ones(len(settings), dtype=np.int64)
        for axis in order:
            degree = getattr(settings, axis)
            shape, expert, ep = self._stacked(degree, stride, fills), None, None
            if axis == "dp_shard":
                expert = self._stacked(degree // settings.ep, stride * settings.ep, fills)
                ep = self._stacked(settings.ep, stride, fills)
                spans["ep"] = ep.span
            terms[axis] = axis_terms(axis, volumes, shape, links, expert, ep, network="library")
            spans[axis] = shape.span
            stride = stride * degree
        return PlacedRows(priced.free_s + communication_s(volumes, *terms.values()), terms, spans)

    def shapes(self, settings: Settings, row: int, order: AxisOrder, fill: Fill) -> dict[str, GroupShape]:
        """The shapes of one candidate, as ``plan_cost`` takes them."""
        at = {axis: int(getattr(settings, axis)[row]) for axis in (*order, "ep")}
        out, stride = {}, 1
        for axis in order:
            out[str(axis)] = self._shape(at[axis], stride, fill)
            if axis == "dp_shard":
                out["ep"] = self._shape(at["ep"], stride, fill)
                out["expert"] = self._shape(at[axis] // at["ep"], stride * at["ep"], fill)
            stride *= at[axis]
        return out

    def levels(self, fill: Fill) -> Levels:
        """Link figures of a fill."""
        if fill not in self._levels:
            fleet = self.pricing.fleet
            self._levels[fill] = build_levels(fleet.topology, shares(fill), fleet.graph)
        return self._levels[fill]

    def _shape(self, degree: int, stride: int, fill: Fill) -> GroupShape:
        key = (fill, degree, stride)
        if key not in self._shapes:
            self._shapes[key] = exact_shape(degree, stride, self.levels(fill))
        return self._shapes[key]

    def _stacked(self, degree: Ints, stride: Ints, fills: Sequence[Fill]) -> GroupShape:
        keys = list(zip(degree.tolist(), stride.tolist(), fills, strict=True))
        place = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        alike = stacked([self._shape(*key) for key in place])
        rows = np.array([place[key] for key in keys])
        return GroupShape(*(getattr(alike, f.name)[rows] for f in fields(GroupShape)))


def stacked(shapes: Sequence[GroupShape]) -> GroupShape:
    """One shape per candidate as arrays."""
    return GroupShape(*(np.stack([getattr(shape, f.name) for shape in shapes]) for f in fields(GroupShape)))
