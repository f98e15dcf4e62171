"""Load studies and expand them into points, each a self-contained job (with a decision if settings are evaluated)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from scaleacross.catalogue.find import find
from scaleacross.catalogue.jobs import job_from, load_plan_or_decision
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

Base = tuple[str, Job | RecommendationJob, Decision | None]


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
    points = [
        _point(study, name, job, decision, fields, folder)
        for name, job, decision in _distinct_names(bases)
        for fields in _combinations(study)
    ]
    kinds = {type(job) for _, job, _ in bases}
    if len(kinds) > 1:
        raise InputError(
            f"study '{study.name}': bases of language models and of recommendation models: they have no speed in common; "
            "make a study of each"
        )
    if study.work_limit is not None and RecommendationJob in kinds:
        raise InputError(
            f"study '{study.name}': work_limit counts step times of language models; give recommendation jobs time_limit_s"
        )
    if all(point.job is None for point in points):
        raise InputError(f"study '{study.name}': none of {len(points)} points is a job; the first: {points[0].refusal}")
    return points


def _base(study: Study, ref: str | dict[str, Any], folder: Path | None) -> Base:
    if study.command == "plan":
        job = _job(read("jobs", ref, folder))
        return job.name, job, None
    if not isinstance(ref, str):
        raise InputError(f"study '{study.name}': a base of 'evaluate' is the name or path of settings, not a mapping")
    path = find("plans", ref, folder)
    loaded = load_plan_or_decision(path)
    job, decision = (loaded.job, loaded.decision) if isinstance(loaded, Plan) else loaded
    return path.stem, job, decision


def _job(source: Source, overrides: Overrides = ()) -> Job | RecommendationJob:
    return (
        recommendation_job_from(source, overrides)[0] if is_recommendation(source.data) else job_from(source, overrides)
    )


def _distinct_names(bases: list[Base]) -> Iterator[Base]:
    """Yield the bases; those that share a name get a number appended."""
    names = [name for name, *_ in bases]
    for index, (name, job, decision) in enumerate(bases):
        yield (name if names.count(name) == 1 else f"{name}#{index}"), job, decision


def _combinations(study: Study) -> Iterator[dict[str, Any]]:
    """Path -> value of every point; the first grid field varies slowest."""
    choices: list[list[dict[str, Any]]] = [[{path: value} for value in values] for path, values in study.grid.items()]
    for group in study.zipped:
        rows = zip(*group.values(), strict=True)
        choices.append([dict(zip(group, row, strict=True)) for row in rows])
    for parts in product(*choices):
        yield {path: value for part in parts for path, value in part.items()}


def _point(
    study: Study,
    base: str,
    job: Job | RecommendationJob,
    decision: Decision | None,
    fields: dict[str, Any],
    folder: Path | None,
) -> Point:
    overrides = {
        path: json.dumps(fields[path], ensure_ascii=False) for path in sorted(fields, key=lambda path: path.count("."))
    }
    source = Source(f"study '{study.name}'", job.model_dump(mode="json", exclude_none=True), folder=folder)
    try:
        return Point(base, fields, _job(source, overrides), decision)
    except InputError as error:
        return Point(base, fields, None, decision, str(error))
