"""Limits of a target, as laws over candidates. The search masks rows by them; emitters and the checker quote them.

A law is written once. ``allows`` evaluates a million candidates or one; ``says`` words the refusal of one decision,
with the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scaleacross.spec.job import Job
from scaleacross.spec.offloading import OFFLOADS, millionths
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, SCHEDULE_NAMES, SHARD_LEVELS, ScheduleName
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import RECOMPUTES, Recompute
from scaleacross.workloads.layer_profile import ModelProfile

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Scope = Literal["partial", "split"]
"""Columns that a law reads: ``partial``, those of a partial candidate; ``split``, also the split of dp and the shard
level.
"""


class Subject(NamedTuple):
    """The job, and its model as layers."""

    job: Job
    profile: ModelProfile


class Columns(Protocol):
    """Candidates as columns of shape (n,). Codes as in ``cost_models.settings``."""

    @property
    def tp(self) -> Ints: ...
    @property
    def cp(self) -> Ints: ...
    @property
    def dp_shard(self) -> Ints: ...
    @property
    def dp_replicate(self) -> Ints: ...
    @property
    def pp(self) -> Ints: ...
    @property
    def ep(self) -> Ints: ...
    @property
    def expert_lanes(self) -> Ints: ...
    @property
    def num_micro_batches(self) -> Ints: ...
    @property
    def num_chunks(self) -> Ints: ...
    @property
    def schedule(self) -> Ints: ...
    @property
    def recompute(self) -> Ints: ...
    @property
    def shard(self) -> Ints: ...
    @property
    def context(self) -> Ints: ...
    @property
    def activation_offload(self) -> Ints: ...
    @property
    def optimizer_offload(self) -> Ints: ...


@dataclass(frozen=True)
class Row:
    """One decision as columns of shape (1,)."""

    tp: Ints
    cp: Ints
    dp_shard: Ints
    dp_replicate: Ints
    pp: Ints
    ep: Ints
    expert_lanes: Ints
    num_micro_batches: Ints
    num_chunks: Ints
    schedule: Ints
    recompute: Ints
    shard: Ints
    context: Ints
    activation_offload: Ints
    optimizer_offload: Ints

    @classmethod
    def of(cls, job: Job, decision: Decision) -> Row:
        """Return the row of a decision; micro-batches are the mean of the replicas."""
        degrees, pipeline = decision.degrees, decision.pipeline
        values = {
            **degrees.model_dump(),
            "num_micro_batches": decision.mean_micro_batches(job.global_batch_sequences),
            "num_chunks": pipeline.num_chunks,
            "schedule": SCHEDULE_NAMES.index(pipeline.schedule),
            "recompute": RECOMPUTES.index(decision.recompute),
            "shard": SHARD_LEVELS.index(decision.shard),
            "context": CONTEXT_EXCHANGES.index(decision.context_exchange) if degrees.cp > 1 else 0,
            **{name: millionths(getattr(decision, name)) for name in OFFLOADS},
        }
        return cls(**{field.name: np.array([values[field.name]], dtype=np.int64) for field in fields(cls)})


class Case(NamedTuple):
    """One refused decision, for its message; m is the number of micro-batches of a replica."""

    subject: Subject
    decision: Decision
    m: int


@dataclass(frozen=True)
class Law:
    """One thing that a target cannot express.

    Attributes:
        about: one or two words, under which refused candidates are counted.
        scope: columns that it reads.
        allows: (subject, candidates) → True where the target expresses them, shape (n,); scalars broadcast.
        says: refusal of one decision: what is wrong, by how much, the way out.
    """

    about: str
    scope: Scope
    allows: Callable[[Subject, Columns], Bools]
    says: Callable[[Case], str]


@dataclass(frozen=True)
class JobLaw:
    """One thing that a target cannot express under any decision.

    ``holds`` tests job and model; ``says`` words the refusal.
    """

    holds: Callable[[Subject], bool]
    says: Callable[[Subject], str]


@dataclass(frozen=True)
class Target:
    """A program that runs plans.

    Attributes:
        name: its name in a job.
        title: its name for users.
        job_laws: limits on jobs, whatever is decided.
        laws: limits on candidates.
        details: refusals that depend on the whole decision (its order, its shares); no law covers them.
        equal_batches: every data-parallel replica runs equally many micro-batches.
        behaviour: dotted fields of a job that the target fixes, with the value that the cost model uses.
        groups: axis → descriptions of its process groups, by which NCCLX selects communicators.
    """

    name: str
    title: str
    job_laws: tuple[JobLaw, ...]
    laws: tuple[Law, ...]
    details: Callable[[Subject, Decision], list[str]]
    equal_batches: bool
    behaviour: Mapping[str, Any]
    groups: Mapping[str, tuple[str, ...]]

    def group_names(self, axis: str) -> tuple[str, ...]:
        """Return the target's descriptions of an axis's process groups; the axis itself where it names none."""
        return self.groups.get(axis, (axis,))


def refusals(target: Target, subject: Subject, decision: Decision) -> list[str]:
    """Return why ``target`` cannot express a decision, in words; empty when it can."""
    out = job_refusals(target, subject)
    row = Row.of(subject.job, decision)
    case = Case(subject, decision, int(row.num_micro_batches[0]))
    out += [law.says(case) for law in target.laws if not bool(np.all(law.allows(subject, row)))]
    return out + target.details(subject, decision)


def job_refusals(target: Target, subject: Subject) -> list[str]:
    """Return what ``target`` refuses of a job under any decision: precision, optimizer, model."""
    return [law.says(subject) for law in target.job_laws if not law.holds(subject)]


def in_codes(column: Ints, codes: set[int]) -> Bools:
    """Return the mask of rows whose code is one of ``codes``, shape (n,)."""
    return np.isin(column, sorted(codes))


def schedule_codes(names: tuple[ScheduleName, ...]) -> set[int]:
    """Codes of schedules."""
    return {SCHEDULE_NAMES.index(name) for name in names}


def recompute_codes(names: Iterable[Recompute]) -> set[int]:
    """Codes of recompute policies."""
    return {RECOMPUTES.index(name) for name in names}


RING, GATHER, ALL_TO_ALL, ALL_TO_ALL_RING = range(len(CONTEXT_EXCHANGES))
SHARD_NONE, SHARD_OPTIMIZER, SHARD_PARAMETERS, SHARD_GRADIENTS, SHARD_ONCE = range(len(SHARD_LEVELS))
