"""Load studies and expand them into points, each a self-contained job (with a decision if settings are evaluated)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from scaleacross.catalogue.find import find
from scaleacross.catalogue.jobs import job_from, job_source, load_plan_or_decision
from scaleacross.catalogue.kinds import require_kind
from scaleacross.catalogue.load import Reference, read
from scaleacross.catalogue.overrides import Overrides
from scaleacross.catalogue.recommendation import is_recommendation, recommendation_job_from
from scaleacross.catalogue.validation import validate
from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.recommendation import RecommendationJob
from scaleacross.spec.study import Study


class Base(NamedTuple):
    """A base: its name, its job as a file states it, so that a point is what ``--set`` makes of it, and a decision."""

    name: str
    source: Source
    decision: Decision | None
    is_training: bool


@dataclass(frozen=True)
class Point:
    """One point of a study.

    Attributes:
        base: name of its base.
        fields: dotted path -> value, in the order of ``Study.paths``.
        job: self-contained; None if the values are refused.
        decision: decision to evaluate (``evaluate``), else None.
        refusal: reason why there is no job.
    """

    base: str
    fields: Mapping[str, Any]
    job: Job | RecommendationJob | None
    decision: Decision | None = None
    refusal: str = ""


def load_study(ref: Reference | Study) -> tuple[Study, Path | None]:
    """Load a study by catalogue name, path or mapping; return it with the folder at which its paths start.

    Raises:
        InputError: not found, not valid, or a design space.
    """
    if isinstance(ref, Study):
        return ref, None
    source = read("studies", ref)
    if source.data.get("command") == "reproduce":
        raise InputError(f"{source.label} is a design space: run it with 'scaleacross reproduce'")
    require_kind(source, "study")
    return validate(Study, source), source.folder


def points_of(study: Study, folder: Path | None = None) -> list[Point]:
    """Return all points; the base varies slowest.

    If a job refuses the values, the point has no job but a reason. That is an ordinary result of a study.

    Raises:
        InputError: a base cannot be read, bases differ in kind, or no point has a job (a path or value is misspelt).
    """
    bases = [_base(study, ref, folder) for ref in study.base]
    points = [_point(study, base, fields) for base in _distinct_names(bases) for fields in _combinations(study)]
    kinds = {base.is_training for base in bases}
    if len(kinds) > 1:
        raise InputError(
            f"study '{study.name}': bases of language models and of recommendation models: they have no speed in common; "
            "make a study of each"
        )
    if study.work_limit is not None and False in kinds:
        raise InputError(
            f"study '{study.name}': work_limit counts step times of language models; give recommendation jobs time_limit_s"
        )
    if all(point.job is None for point in points):
        raise InputError(f"study '{study.name}': none of {len(points)} points is a job; the first: {points[0].refusal}")
    return points


def _base(study: Study, ref: str | dict[str, Any], folder: Path | None) -> Base:
    if study.command == "plan":
        source = read("jobs", ref, folder)
        job = _job(source)
        return Base(job.name, source, None, isinstance(job, Job))
    if not isinstance(ref, str):
        raise InputError(f"study '{study.name}': a base of 'evaluate' is the name or path of settings, not a mapping")
    path = find("plans", ref, folder)
    loaded = load_plan_or_decision(path)
    decision = loaded.decision if isinstance(loaded, Plan) else loaded[1]
    return Base(path.stem, job_source(path), decision, is_training=True)


def _job(source: Source, overrides: Overrides = ()) -> Job | RecommendationJob:
    return (
        recommendation_job_from(source, overrides)[0] if is_recommendation(source.data) else job_from(source, overrides)
    )


def _distinct_names(bases: list[Base]) -> Iterator[Base]:
    """Yield the bases; those that share a name get a number appended."""
    names = [base.name for base in bases]
    for index, base in enumerate(bases):
        yield base if names.count(base.name) == 1 else base._replace(name=f"{base.name}#{index}")


def _combinations(study: Study) -> Iterator[dict[str, Any]]:
    """Path -> value of every point; the first grid field varies slowest."""
    choices: list[list[dict[str, Any]]] = [[{path: value} for value in values] for path, values in study.grid.items()]
    for group in study.zipped:
        rows = zip(*group.values(), strict=True)
        choices.append([dict(zip(group, row, strict=True)) for row in rows])
    for parts in product(*choices):
        yield {path: value for part in parts for path, value in part.items()}


def _point(study: Study, base: Base, fields: dict[str, Any]) -> Point:
    overrides = {
        path: json.dumps(fields[path], ensure_ascii=False) for path in sorted(fields, key=lambda path: path.count("."))
    }
    source = replace(base.source, label=f"study '{study.name}'", data=deepcopy(base.source.data))
    try:
        return Point(base.name, fields, _job(source, overrides), base.decision)
    except InputError as error:
        return Point(base.name, fields, None, base.decision, str(error))
