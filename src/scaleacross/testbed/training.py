"""Trains a job in emulated buildings: plans, emits, launches and times it; our plan and baselines on the same links."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from scaleacross import api
from scaleacross.catalogue import load_job, resolve
from scaleacross.emitters.launch import launch_config, launch_json
from scaleacross.errors import InputError
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.spec.testbed import TrainedPlan, TrainingSetting
from scaleacross.spec.topology import Topology
from scaleacross.testbed.cases import time_cases
from scaleacross.testbed.core_figures import PROGRAM, fitted_accelerator, train_alone, with_accelerator
from scaleacross.testbed.link_figures import link_cases, link_figures, measured_topology
from scaleacross.testbed.model_shape import ModelShape
from scaleacross.testbed.ranks import TASK_VARIABLE, run_plan
from scaleacross.testbed.session import Testbed
from scaleacross.testbed.trainable import why_untrainable
from scaleacross.units import human_seconds

OURS: Final = "ours"
GAP_TOLERANCE: Final = 0.005
Say = Callable[[str], None]
Watch = Callable[[float], None]


@dataclass(frozen=True)
class Calibrated:
    """A topology with measured figures, and the job on it."""

    job: Job
    topology: Topology
    shape: ModelShape


def resolved(job: str | Path | Job, overrides: Sequence[str] = ()) -> Calibrated:
    """Return the job as stated. Raises InputError for one that the testbed does not train."""
    problem = resolve(load_job(job, overrides))
    shape = ModelShape.of(problem.workload.model_dump())
    return Calibrated(problem.job, problem.topology, shape)


def calibrate(testbed: Testbed, stated: Calibrated, folder: Path, say: Say, core: Topology | None = None) -> Calibrated:
    """Measure links, and the computation of a core unless ``core`` is a topology that has it measured.

    Raises:
        EmulationError: a rank failed, or a measurement makes no sense.
    """
    say("measuring links")
    source = f"scaleacross calibrate --testbed, {datetime.now(UTC).date().isoformat()}"
    figures = link_figures(time_cases(testbed, link_cases(testbed), folder / "links"))
    topology = measured_topology(testbed.topology, figures, source)
    if core is None:
        say("measuring computation")
        alone = train_alone(testbed, stated.shape.model_dump(), stated.job.sequence_length, folder / "core")
        topology = with_accelerator(topology, fitted_accelerator(stated.job, topology, alone, source))
    else:
        launch = topology.buildings[0].accelerator.collective_launch_s
        same = core.buildings[0].accelerator.model_copy(update={"collective_launch_s": launch})
        topology = with_accelerator(topology, same)
    return on_topology(stated, topology)


def on_topology(stated: Calibrated, topology: Topology) -> Calibrated:
    """Return the same job on ``topology``."""
    job = stated.job.model_copy(update={"topology": topology.model_dump(mode="json")})
    return Calibrated(job, topology, stated.shape)


@dataclass(frozen=True)
class Contest:
    """The plans that are trained on the same links.

    Attributes:
        plans: plans by name, ours first.
        refused: baselines that are not trained, and why.
    """

    plans: dict[str, Plan]
    refused: dict[str, str]


def contest_of(known: Calibrated, baselines: Sequence[str] | None) -> Contest:
    """Return our plan and those of the baselines named; None: of all baselines that there are.

    Raises:
        InputError: a baseline that is named does not exist, or has no plan that the testbed trains.
    """
    found = api.compare(known.job, gap_tolerance=GAP_TOLERANCE)
    by_name = {result.name: result for result in found.rivals}
    plans, refused = {OURS: found.plan}, {}
    for name in sorted(by_name) if baselines is None else baselines:
        if name not in by_name:
            raise InputError(f"no baseline '{name}': choose from {', '.join(sorted(by_name))}")
        decision = by_name[name].decision
        plan = None if decision is None else api.evaluate((known.job, decision))
        reason = by_name[name].reason if plan is None else why_untrainable(launch_config(plan))
        if plan is not None and reason is None:
            plans[name] = plan
        elif baselines is None:
            refused[name] = reason or "no plan"
        else:
            raise InputError(f"{name} has no plan for {known.job.name} to train: {reason}")
    return Contest(plans, refused)


def train(
    testbed: Testbed,
    shape: ModelShape,
    name: str,
    plan: Plan,
    num_steps: int,
    folder: Path,
    *,
    watch: Watch | None = None,
    traces: Path | None = None,
) -> tuple[TrainedPlan, list[float]]:
    """Launch a plan, train one step more than ``num_steps``, and time all but the first.

    Args:
        name: name of the plan.
        folder: folder for launch.json, task and logs.
        watch: called repeatedly while the ranks run.
        traces: folder for the flight recorder dumps of the ranks.

    Returns:
        (what was measured, seconds of every timed step).
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, launch = launch_config(plan), folder / "launch.json"
    launch.write_text(launch_json(config), encoding="utf-8")
    task, out = folder / "task.json", folder / "steps.json"
    stated: dict[str, Any] = {"shape": shape.model_dump(), "steps": num_steps + 1, "out": str(out)}
    task.write_text(json.dumps({**stated, "traces": traces and str(traces)}), encoding="utf-8")
    run_plan(testbed, config, launch, PROGRAM, folder, {TASK_VARIABLE: str(task)}, watch)
    rows = json.loads(out.read_text(encoding="utf-8"))
    ends = [max(column) for column in zip(*(row["ends"] for row in rows), strict=True)]
    steps = [after - before for before, after in pairwise(ends)]
    losses = zip(*(row["losses"] for row in rows if row["losses"]), strict=True)
    spans = plan.placement.spans.items()
    trained = TrainedPlan(
        name=name,
        degrees=degrees_of(plan),
        across=", ".join(axis for axis, level in spans if level in ("campus", "region")) or "nothing",
        schedule=f"{plan.decision.pipeline.schedule}, {plan.num_micro_batches} × {plan.decision.pipeline.micro_batch_sequences}",
        predicted_s=plan.cost.step_s,
        measured_s=statistics.median(steps),
        fastest_s=min(steps),
        slowest_s=max(steps),
        num_steps=len(steps),
        losses=tuple(statistics.mean(values) for values in losses),
    )
    return trained, steps


def train_all(
    testbed: Testbed, known: Calibrated, contest: Contest, num_steps: int, folder: Path, say: Say
) -> TrainingSetting:
    """Train every plan on the same links, one after the other; plans with the same decision are trained once."""
    trained: dict[str, TrainedPlan] = {}
    plans = contest.plans
    for name, plan in plans.items():
        same = next((done for done in trained if plans[done].decision == plan.decision), None)
        if same is not None:
            trained[name] = trained[same].model_copy(update={"name": name, "same_as": same})
            continue
        say(f"training {name}: {degrees_of(plan)}, {human_seconds(plan.cost.step_s)} per step predicted")
        trained[name], _ = train(testbed, known.shape, name, plan, num_steps, folder / name)
    wires = testbed.layout.trunks
    return TrainingSetting(
        topology=testbed.topology.name,
        trunks=tuple(f"{w.rate_bytes_per_s * 8e-6:g} Mbit/s, {w.delay_s * 1e3:g} ms" for w in wires),
        thinnest_bytes_per_s=min((wire.rate_bytes_per_s for wire in wires), default=float("inf")),
        plans=tuple(trained.values()),
        refused=contest.refused,
    )


def degrees_of(plan: Plan) -> str:
    """Return the axes whose degree is above one, as text."""
    axes: Iterable[tuple[str, int]] = ((axis, plan.degrees.of(axis)) for axis in ("pp", "dp_shard", "dp_replicate"))
    return " ".join(f"{axis} {degree}" for axis, degree in axes if degree > 1) or "one rank"
