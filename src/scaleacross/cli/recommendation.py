"""plan, emit, simulate, compare, explain and verify for recommendation models: the same commands and options, other
reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scaleacross.cli.frame import answer, display, searching
from scaleacross.cli.stopping import first_interrupt
from scaleacross.cli.view import RECOMMENDATION_SECTIONS, View, view_of

if TYPE_CHECKING:
    from scaleacross.spec.recommendation import RecommendationPlan


def plan_tables_command(
    context: typer.Context,
    job: str | None,
    output: Path | None,
    as_json: bool,
    limit: Mapping[str, Any],
    overrides: Sequence[str],
    seed: int,
    gap: float,
    shown: tuple[bool, Sequence[str] | None, bool],
) -> bool:
    """Plan a recommendation or an inference job; return False where ``job`` is neither.

    Args:
        limit: result of ``cli.limits.limits``.
        shown: --full, --section and --quiet.
    """
    from scaleacross.catalogue import is_inference, is_recommendation

    if job is None or not (is_inference(job) or is_recommendation(job)):
        return False
    search = {"seed": seed, "gap_tolerance": gap, "overrides": overrides, **limit}
    if is_inference(job):
        _refuse_others(context, _PLAN_OPTIONS, "an inference job")
        _plan_inference(job, output, as_json, view_of(*shown, ()), search)
    else:
        _refuse_others(context, _PLAN_OPTIONS, "a recommendation job")
        _plan_recommendation(job, output, as_json, view_of(*shown, RECOMMENDATION_SECTIONS), search)
    return True


_PLAN_OPTIONS = frozenset(
    {"job", "output", "as_json", "time_limit_s", "cpu_limit_s", "work_limit", "overrides", "seed", "gap"}
    | {"full", "sections", "quiet"}
)


def _refuse_others(context: typer.Context, known: frozenset[str], what: str) -> None:
    """Refuse an option that has no meaning here, rather than ignore it. Raises typer.BadParameter."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name) if parameter.name is not None else None
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in known:
            raise typer.BadParameter(f"{parameter.opts[0]} does not apply to {what}: leave it out")


def _plan_recommendation(job: str, output: Path | None, as_json: bool, view: View, search: Mapping[str, Any]) -> None:
    """Plan, write plan.json, launch.json and TorchRec's files below ``output``, and print.

    Args:
        search: keyword arguments of ``plan_recommendation``.
    """
    from scaleacross.api import plan_recommendation
    from scaleacross.emitters import write_files
    from scaleacross.report.recommendation import (
        recommendation_line,
        recommendation_report,
        recommendation_sections,
        recommendation_summary,
    )

    with searching() as progress, first_interrupt() as stopped:
        plan = plan_recommendation(job, progress=progress, stopped=stopped, **search)
    if output:
        files = {"plan.json": plan.model_dump_json(indent=2) + "\n"} | emitted(plan)
        written = write_files(files, output)
    view.show(
        plan,
        as_json,
        first=recommendation_summary,
        whole=recommendation_report,
        parts=recommendation_sections,
        line=recommendation_line,
    )
    if output:
        typer.echo(f"wrote {len(written)} files to {output}: {', '.join(files)}", err=True)


def emitted(plan: RecommendationPlan) -> dict[str, str]:
    """Return the files of every target that can be written; print the reason for the others."""
    from scaleacross.emitters import TABLE_EMITTERS
    from scaleacross.errors import EmitError

    files: dict[str, str] = {}
    for render in TABLE_EMITTERS.values():
        try:
            files |= render(plan)
        except EmitError as error:
            typer.echo(f"not written: {error}", err=True)
    return files


def emit_recommendation_command(source: Path, targets: Sequence[str], output: Path, for_hosts: bool) -> None:
    """Verify the plan and write the files of ``targets``, all or none.

    Args:
        for_hosts: host names or Slurm options are given, which no file of a recommendation plan can contain.
    """
    from scaleacross.api import verify_recommendation
    from scaleacross.bundle import left_by_others, left_over
    from scaleacross.catalogue import load_recommendation_plan
    from scaleacross.emitters import TABLE_EMITTERS, write_files

    if for_hosts:
        raise typer.BadParameter(
            "--hosts and --slurm-… are of language models: leave them out for a recommendation plan"
        )
    if unknown := [name for name in targets if name not in TABLE_EMITTERS]:
        known = ", ".join(TABLE_EMITTERS)
        raise typer.BadParameter(f"--to {unknown[0]}: a recommendation plan is written for {known}")
    plan = load_recommendation_plan(source)
    verify_recommendation(plan)
    files = {name: text for target in dict.fromkeys(targets) for name, text in TABLE_EMITTERS[target](plan).items()}
    left = left_by_others(plan, TABLE_EMITTERS, targets, output)
    for path in write_files(files, output):
        typer.echo(path)
    if left:
        typer.echo(left_over(left, output), err=True)


def _plan_inference(job: str, output: Path | None, as_json: bool, view: View, search: Mapping[str, Any]) -> None:
    """Plan for inference cards, write plan.json below ``output``, print.

    Args:
        search: keyword arguments of ``plan_inference``.
    """
    from scaleacross.api import plan_inference
    from scaleacross.emitters import write_files
    from scaleacross.report.inference import inference_line, inference_report, inference_summary

    with searching() as progress, first_interrupt() as stopped:
        plan = plan_inference(job, progress=progress, stopped=stopped, **search)
    if output:
        write_files({"plan.json": plan.model_dump_json(indent=2) + "\n"}, output)
    view.show(
        plan,
        as_json,
        first=inference_summary,
        whole=inference_report,
        parts=lambda plan, _: inference_report(plan),
        line=inference_line,
    )
    if output:
        typer.echo(f"wrote plan.json to {output}", err=True)


def compare_recommendation_command(
    context: typer.Context,
    job: str,
    output: Path | None,
    as_json: bool,
    time_limit_s: float,
    overrides: Sequence[str],
    seed: int,
) -> None:
    """Compare and print; with ``output`` comparison.json and plan.json."""
    _refuse_others(
        context, frozenset({"job", "output", "as_json", "time_limit_s", "overrides", "seed"}), "a recommendation job"
    )
    from scaleacross.api import compare_recommendation
    from scaleacross.emitters import write_files
    from scaleacross.report.recommendation import recommendation_comparison

    with searching() as progress:
        found = compare_recommendation(
            job, time_limit_s=time_limit_s, seed=seed, overrides=overrides, progress=progress
        )
    if output:
        whole = {"comparison.json": found.model_dump_json(indent=2), "plan.json": found.plan.model_dump_json(indent=2)}
        write_files({name: text + "\n" for name, text in whole.items()}, output)
    answer(found, as_json, recommendation_comparison)
    if output:
        typer.echo(f"wrote {len(whole)} files to {output}", err=True)


def verify_recommendation_command(source: str, deep: bool, as_json: bool) -> None:
    """Verify the plan and print what was checked."""
    from scaleacross.api import verify_recommendation
    from scaleacross.catalogue import load_recommendation_plan

    if deep:
        raise typer.BadParameter("--deep simulates steps of language models: leave it out for a recommendation plan")
    plan = load_recommendation_plan(source)
    verify_recommendation(plan)
    checked = {
        "counted": ["every element of every table once", "weights of every rank", "ranks of every sharding"],
        "recomputed": ["seconds of every rank", "step time", "memory of every rank and tier", "bound below the plan"],
    }
    if as_json:
        typer.echo(json.dumps({"plan": plan.job.name, "verified": True, **checked}))
        return
    for how, what in checked.items():
        typer.echo(f"{how:12}{', '.join(what)}")
    typer.echo(f"{plan.job.name}: verified; the collectives and look-ups behind the seconds are the cost model's own")


def explain_recommendation_command(context: typer.Context, source: str, as_json: bool, time_limit_s: float) -> None:
    """Explain and print."""
    _refuse_others(context, frozenset({"source", "as_json", "time_limit_s"}), "a recommendation plan")
    from scaleacross.api import explain_recommendation
    from scaleacross.report.recommendation import recommendation_explanation

    found = explain_recommendation(source, time_limit_s=time_limit_s)
    answer(found, as_json, recommendation_explanation)


def simulate_recommendation_command(
    source: str, what_if: Sequence[str], given: Sequence[str], output: Path | None, as_json: bool
) -> None:
    """Simulate and print; with ``output`` write simulation.json.

    Args:
        given: options on the command line that apply to language models only.
    """
    from scaleacross.api import simulate_recommendation
    from scaleacross.emitters import write_files
    from scaleacross.report.recommendation import recommendation_simulation

    if given:
        raise typer.BadParameter(f"{given[0]} is of language models: leave it out for a recommendation plan")
    step = simulate_recommendation(source, what_if=what_if)
    text = step.model_dump_json(indent=2)
    if output is not None:
        written = write_files({"simulation.json": text + "\n"}, output)
    typer.echo(text) if as_json else display(recommendation_simulation(step))
    if output is not None:
        typer.echo(f"wrote {written[0]}", err=True)
