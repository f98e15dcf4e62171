"""Programs that run plans. Each target states what it can express and how it behaves; search, checker and emitters read
it here.

``scaleacross`` is launch.json for the package's own runtime, or the torchrun files for a user's program; it expresses
every decision. ``megatron`` and ``torchtitan`` are the frameworks of those names. A job that names none (``any``) is
planned without restriction, and the plan lists the targets that can express it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision
from scaleacross.targets import megatron, torchtitan
from scaleacross.targets.law import Bools, Columns, Scope, Subject, Target, job_refusals, refusals
from scaleacross.workloads.layer_profile import ModelProfile

OWN: Final = Target(
    "scaleacross", "scaleacross", (), (), lambda _subject, _decision: [], equal_batches=False, behaviour={}, groups={}
)
TARGETS: Final[Mapping[str, Target]] = {one.name: one for one in (OWN, megatron.TARGET, torchtitan.TARGET)}


def target_of(job: Job) -> Target | None:
    """Return the target that a job names; None for ``any``."""
    return None if job.target == "any" else TARGETS[job.target]


def needs_equal_batches(job: Job) -> bool:
    """Return whether the job's target runs equally many micro-batches on every replica."""
    target = target_of(job)
    return target is not None and target.equal_batches


def expressible(
    job: Job, profile: ModelProfile, rows: Columns, size: int, scopes: tuple[Scope, ...], counts: Counter[str]
) -> Bools | None:
    """Return the mask of rows that the job's target can express, shape (size,); None where no law applies.

    Each refused row is counted in ``counts`` under the first law that refuses it.
    """
    target = target_of(job)
    laws = [law for law in target.laws if law.scope in scopes] if target else []
    if target is None or not laws:
        return None
    subject, keep = Subject(job, profile), np.ones(size, dtype=np.bool_)
    for law in laws:
        allowed = keep & law.allows(subject, rows)
        lost = int(keep.sum()) - int(allowed.sum())
        if lost:
            counts[f"target {target.name}: {law.about}"] += lost
        keep = allowed
    return keep


def refused_by(name: str, job: Job, profile: ModelProfile, decision: Decision) -> list[str]:
    """Return why target ``name`` cannot express a decision of the job, in words; empty when it can."""
    return refusals(TARGETS[name], Subject(job, profile), decision)


def refused_by_own(job: Job, profile: ModelProfile, decision: Decision) -> list[str]:
    """Return why the job's own target cannot express a decision; empty when it can, and for ``any``."""
    return [] if job.target == "any" else refused_by(job.target, job, profile, decision)


def refused_job(job: Job, profile: ModelProfile) -> list[str]:
    """Return what the job's target refuses under any decision: precision, optimizer, model."""
    target = target_of(job)
    return job_refusals(target, Subject(job, profile)) if target else []


def behaving(job: Job) -> Job:
    """Return the job with the fields that its target fixes (``Target.behaviour``)."""
    target = target_of(job)
    parts: dict[str, dict[str, Any]] = {}
    for path, value in (target.behaviour if target else {}).items():
        part, _, field = path.partition(".")
        parts.setdefault(part, {})[field] = value
    changes = {part: getattr(job, part).model_copy(update=fields) for part, fields in parts.items()}
    return job.model_copy(update=changes) if changes else job
