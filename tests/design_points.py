"""Jobs of the published design space, and decisions placed on their buildings."""

from __future__ import annotations

from functools import cache
from typing import Any

from scaleacross.catalogue import load_design_space
from scaleacross.catalogue.design_spaces import DesignPoint, design_points
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision


def point(**fields: Any) -> Job:
    """The job of the published design space with these fields, the first of several."""
    return next(one.job for one in every_point() if all(one.fields[name] == value for name, value in fields.items()))


@cache
def every_point() -> tuple[DesignPoint, ...]:
    return tuple(design_points(load_design_space("scale_across")[0]))


def placed(
    pipeline: tuple[str, int], axis_order: str, allocation: tuple[int, ...], shard: str, **degrees: int
) -> Decision:
    shares = [{"building": f"building-{at}", "num_accelerators": count} for at, count in enumerate(allocation)]
    return Decision.model_validate(
        {
            "degrees": degrees,
            "pipeline": {"schedule": pipeline[0], "num_chunks": pipeline[1]},
            "recompute": "full" if shard == "parameters" else "none",
            "shard": shard,
            "placement": {"axis_order": axis_order.split(), "fill": shares},
        }
    )
