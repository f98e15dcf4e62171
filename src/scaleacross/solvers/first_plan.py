"""Find a first plan without a search, whatever the clock says, where a search ended before it had any.

A few choices nearly decide how much memory is filled. So the job is narrowed to those that hold least, while all
degrees stay. Partial candidates that fit are expanded, least bound first, until one of their candidates has a placement. If none
has, the job is narrowed less, the last time not at all. So nothing that fits is missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Ints, concatenate
from scaleacross.solvers.open_policies import closed, narrowed
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Search, forget
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import SHARD_LEVELS
from scaleacross.workloads.layer_profile import ModelProfile

EXPANDED: Final = 128
"""Partial candidates that are expanded together."""


def first_plan(state: Search, placers: Sequence[Placer], tries: int | None = None) -> None:
    """Make the first candidate that fits and can be placed the incumbent; there is none where nothing can.

    Args:
        tries: candidates to place at most, for placers that may refuse all (a goal with a limit that none meets); None: all.
    """
    jobs = _narrowed(state.problem.job, state.problem.profile)
    every = (done for job in jobs for placer in placers for done in _placed(state, job, placer))
    any(islice(every, tries))


def _narrowed(job: Job, profile: ModelProfile) -> Iterator[Job]:
    """Yield the job with ever more choices, starting with those that hold least memory."""
    lean = {
        "recompute": (min(job.recompute, key=lambda policy: _kept(profile, policy)),),
        "micro_batch_sequences": (min(job.micro_batch_sequences),),
        "shard": (max(job.shard, key=SHARD_LEVELS.index), *(["none"] if "none" in job.shard else [])),
        "context_exchange": job.context_exchange[:1],
    }
    plain = {"activation_offload": job.activation_offload[:1], "optimizer_offload": job.optimizer_offload[:1]}
    offloaded = {name: (max(getattr(job, name)),) for name in plain}
    schedule = "1F1B" if "1F1B" in job.schedules else job.schedules[0]
    schedules = {"schedules": (schedule,), "num_chunks": (min(job.num_chunks),)}
    for chosen in (lean | plain | schedules, lean | offloaded, {}):
        yield job.model_copy(update={name: tuple(dict.fromkeys(values)) for name, values in chosen.items()})


def _kept(profile: ModelProfile, policy: str) -> float:
    return sum(layer.kept(policy).sharded * count for layer, count in profile.blocks)


def _placed(state: Search, job: Job, placer: Placer) -> Iterator[bool]:
    """Yield for every candidate of the job that fits on the pool whether it could be placed."""
    bounder = placer.bounder
    space = narrowed(SearchSpace(job, state.problem.profile, placer.pool.num_accelerators, placer.pool.unit))
    parts, together = space.partials(Refusals()), 1 if space.policies_open else EXPANDED
    for partials in parts if job == state.problem.job else [concatenate(list(parts))]:
        fitting = (
            partials.take(bounder.partial_needed_bytes(partials) <= bounder.capacity_bytes)
            if len(partials)
            else partials
        )
        bounds = bounder.partial_bound_s(fitting) if len(fitting) else np.zeros(0)
        order: Ints = np.argsort(bounds, kind="stable")
        for start in range(0, len(order), together):
            rows = space.expand(fitting.take(order[start : start + together]), Refusals())
            rows = closed(space, rows.take(bounder.needed_bytes(rows) <= bounder.capacity_bytes), Refusals())
            rows = rows.take(bounder.needed_bytes(rows) <= bounder.capacity_bytes)
            if not len(rows):
                continue
            bounded = bounder.coarse(rows)
            for row in np.argsort(bounded.estimate_s, kind="stable").tolist():
                yield state.place(bounded, row, placer, left=forget, enough_s=np.inf) is not None
