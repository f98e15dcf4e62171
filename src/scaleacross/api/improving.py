"""The verb improve: plan the same job as settings that somebody runs, and evaluate each difference alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleacross import verification as checks
from scaleacross.api.evaluation import evaluated, runs
from scaleacross.api.planning import plan
from scaleacross.api.problems import problem_of
from scaleacross.api.reading import Present, present_settings
from scaleacross.api.stated import stated
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.improvement import Change, Improvement
from scaleacross.spec.job import Job
from scaleacross.spec.offloading import OFFLOADS
from scaleacross.spec.parallelism import PipelineChoice, has_chunks
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import Problem

KEPT = ("sequence_length", "global_batch_sequences", "precision", "prediction_layers", "optimizer.")
"""Fields of a job that state what is trained and in which precision. The plan keeps them as the settings have them."""


class _Difference(NamedTuple):
    """One difference: a changed decision (``decide``), fields of the job (``overrides``), or the network (neither)."""

    what: str
    before: str
    after: str
    decide: Callable[[Decision], Decision] | None = None
    overrides: tuple[str, ...] = ()


def improve_settings(
    framework: str,
    settings: str | Path,
    job: Job | str | Path,
    *,
    hosts: str | Path | None = None,
    world: int | None = None,
    overrides: Sequence[str] = (),
    **search: Any,
) -> Improvement:
    """Return the best plan for the job that the settings train, and the step time that each change saves alone.

    Batch, sequence length, precision and gradient type stay as the settings have them. Overlap, exchange of keys and
    values, expert dispatch and graphs are the job's.

    Args:
        framework: megatron or torchtitan, as in ``evaluate_settings``.
        settings: the file of settings that runs today.
        job: a Job, its path or its catalogue name; it states the model and the topology.
        hosts: file of hosts in node-rank order.
        world: number of processes, where ``hosts`` is not given.
        overrides: ``a.b.c=value`` on any field of the job; they win over the settings.
        search: further keyword arguments of ``plan``.

    Returns:
        An Improvement: the present settings evaluated, the plan, and the changes with the seconds per step that each
        saves alone. Largest savings come first; changes that cannot be made alone come last, with a reason.

    Raises:
        InputError, InfeasibleError, TimeLimitError: as ``evaluate_settings`` and ``plan``.
    """
    now = present_settings(framework, settings, job, hosts=hosts, world=world, overrides=overrides)
    same = [one for one in now.stated if one.startswith(KEPT)]
    size = f"num_accelerators={now.plan.degrees.world_size}"
    problem = problem_of(job, (f"target={framework}", *same, size, *overrides))
    planned = plan(problem, incumbents=_incumbents(problem, now.plan.decision), **search)
    changes = [_alone(now, one) for one in _differences(now, planned)]
    # changes without a step time sort after all others
    changes.sort(key=lambda change: -1e300 if change.saved_s is None else change.saved_s, reverse=True)
    return Improvement(framework=framework, present=now.plan, planned=planned, changes=tuple(changes))


def _incumbents(problem: Problem, decision: Decision) -> tuple[Decision, ...]:
    """Return the present decision if the job allows it, so that the plan is never slower."""
    bare = decision.model_copy(update={"network": None})
    return (bare,) if runs(problem, bare) else ()


def _alone(now: Present, one: _Difference) -> Change:
    """Evaluate one difference alone on the present settings.

    A change that cannot run has no step time and states the reason.
    """
    step_s: float | None = None
    fits, reason = True, ""
    try:
        decision = one.decide(now.plan.decision) if one.decide else now.plan.decision
        problem = now.problem(decision, one.overrides)
        if one.decide is None and not one.overrides:
            decision = with_network(problem, decision).decision
        found = stated(evaluated(problem, decision, degraded=False), problem)
        step_s = found.cost.step_s
        short = list(checks.does_not_fit(found.memory))
        fits, reason = not short, short[0] if short else ""
    except (InputError, InfeasibleError, ValueError) as error:
        reason = " ".join(str(error).split())
    saved_s = None if step_s is None else now.plan.cost.step_s - step_s
    return Change(
        what=one.what, before=one.before, after=one.after, step_s=step_s, saved_s=saved_s, fits=fits, reason=reason
    )


def _differences(now: Present, planned: Plan) -> Iterator[_Difference]:
    before, after = now.plan.decision, planned.decision
    if before.degrees != after.degrees:
        yield _Difference("degrees", str(before.degrees), str(after.degrees), lambda old: _redegreed(old, after))
    was, becomes = before.pipeline, after.pipeline
    if (was.schedule, was.num_chunks) != (becomes.schedule, becomes.num_chunks) and before.degrees.pp > 1:
        changed = {"schedule": becomes.schedule, "num_chunks": becomes.num_chunks, "order": becomes.order}
        yield _Difference("schedule", _schedule(was), _schedule(becomes), lambda old: _with_pipeline(old, changed))
    if was.micro_batch_sequences != becomes.micro_batch_sequences:
        size = {"micro_batch_sequences": becomes.micro_batch_sequences}
        old_size, new_size = (f"{one.micro_batch_sequences} sequences" for one in (was, becomes))
        yield _Difference("micro-batch", old_size, new_size, lambda old: _with_pipeline(old, size, keep_layers=True))
    for field in ("recompute", "shard", *OFFLOADS, *(["context_exchange"] if after.degrees.cp > 1 else [])):
        if getattr(before, field) != getattr(after, field):
            of_stages = {"stage_recompute": after.stage_recompute} if field == "recompute" else {}
            one = {field: getattr(after, field), **of_stages}
            yield _Difference(field, str(getattr(before, field)), str(getattr(after, field)), partial(_bare, **one))
    same_shape = before.degrees == after.degrees and was.num_chunks == becomes.num_chunks
    if same_shape and now.plan.layers_per_stage != planned.layers_per_stage:
        cut = planned.layers_per_stage
        yield _Difference(
            "layers per stage", _cut(now.plan), _cut(planned), lambda old: _bare(old, layers_per_stage=cut)
        )
    if now.placed and _order(before) != _order(after):
        yield _Difference(
            "placement",
            _order(before),
            f"{_order(after)}, or the best one of other degrees",
            lambda old: _bare(old, placement=None),
        )
    yield from _job_differences(now, planned)
    if after.network is not None and before.network is None:
        yield _Difference(
            "communicators", "the library's defaults", f"{len(after.network)} settings chosen by the plan"
        )


def _job_differences(now: Present, planned: Plan) -> Iterator[_Difference]:
    """Yield fields of the job that the settings set differently from the job itself, such as overlaps they switch off."""
    for path in (one.partition("=")[0] for one in now.stated):
        if path.startswith(KEPT) or "." not in path:
            continue
        old, new = _field(now.plan, path), _field(planned, path)
        if old != new and _matters(path, now.plan):
            asked = [path, *(_ASKS_FOR.get(path, ()) if new else ())]
            overrides = tuple(f"{one}={json.dumps(_field(planned, one))}" for one in asked)
            placed_anew = None if now.placed else partial(_bare, placement=None)
            yield _Difference(" with ".join(asked), str(old), str(new), placed_anew, overrides)


_ASKS_FOR: Final = {"overlap.parameter_gather": ("overlap.gradient_reduce",)}
"""Fields of a job, and the other fields that a framework requires with them."""


def _matters(path: str, plan: Plan) -> bool:
    """Return whether a field affects the present plan: expert exchange needs more than one expert rank."""
    exchanged = ("experts.dispatch", "experts.overlap_fraction", "experts.shared_overlap")
    return path not in exchanged or plan.degrees.expert_ranks > 1


def _field(plan: Plan, path: str) -> Any:
    value: Any = plan.job
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _bare(decision: Decision, **changes: Any) -> Decision:
    """Return the decision with ``changes`` and without its network.

    The result is validated, which ``model_copy`` does not do.
    """
    return Decision.model_validate({**dict(decision), "network": None, **changes})


def _with_pipeline(decision: Decision, changes: dict[str, Any], *, keep_layers: bool = False) -> Decision:
    choice = PipelineChoice.model_validate({**dict(decision.pipeline), **changes})
    return _bare(decision, pipeline=choice, layers_per_stage=decision.layers_per_stage if keep_layers else None)


def _redegreed(decision: Decision, after: Decision) -> Decision:
    """Return the old decision with the plan's degrees and placement, and equal stages.

    A single stage has no chunks, so its schedule becomes 1F1B. A single data-parallel rank has nothing to shard.
    """
    pipeline = decision.pipeline
    if after.degrees.pp == 1 and not has_chunks("1F1B", pipeline.num_chunks):
        pipeline = PipelineChoice(schedule="1F1B", micro_batch_sequences=pipeline.micro_batch_sequences)
    placement = after.placement
    shard = "none" if after.degrees.dp_shard * after.degrees.cp == 1 else decision.shard
    return _bare(
        decision, degrees=after.degrees, pipeline=pipeline, placement=placement, layers_per_stage=None, shard=shard,
        context_exchange=after.context_exchange,
    )  # fmt: skip


def _schedule(pipeline: PipelineChoice) -> str:
    return f"{pipeline.schedule} × {pipeline.num_chunks}" if pipeline.num_chunks > 1 else pipeline.schedule


def _cut(plan: Plan) -> str:
    counts = [sum(stage) for stage in plan.layers_per_stage]
    return f"{counts[0]} each" if len(set(counts)) == 1 else ", ".join(map(str, counts))


def _order(decision: Decision) -> str:
    placement = decision.placement
    if placement is None:
        return "any"
    axes = [axis for axis in placement.axis_order if decision.degrees.of(axis) > 1]
    return f"{' '.join(axes)} over {', '.join(share.building for share in placement.fill)}"
