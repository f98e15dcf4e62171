"""The commands plan, evaluate and emit, which end in a plan and its launch files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaleacross.cli.frame import Directory, Json, Overrides, Targets, answer, names_of, output_folder, searching
from scaleacross.cli.limits import CpuLimit, Space, WorkLimit, limits, wide
from scaleacross.cli.page import Charts, page_files, timeline_of, write_charts
from scaleacross.cli.quick import (
    Gpus,
    InterBuildingLink,
    Kilometres,
    Model,
    SequenceLength,
    Target,
    Tokens,
    TopologyFile,
    job_or_start,
)
from scaleacross.cli.slurm_options import (
    SlurmAccount,
    SlurmContainer,
    SlurmExtra,
    SlurmPartition,
    SlurmTime,
    slurm_fields,
    slurm_overrides,
)
from scaleacross.cli.stopping import first_interrupt
from scaleacross.cli.view import (
    PLAN_SECTIONS,
    Full,
    PlanSections,
    Quiet,
    View,
    show_plan,
    view_of,
)

if TYPE_CHECKING:
    from scaleacross.spec.improvement import Improvement
    from scaleacross.spec.job import Job
    from scaleacross.spec.plan import Plan

Refine = Annotated[
    float, typer.Option("--refine", metavar="S", min=0, help="Seconds to search better orders of the best pipelines.")
]
Referee = Annotated[
    int | None,
    typer.Option(
        "--referee",
        metavar="N",
        min=1,
        help="Simulate the N best estimates, two at first of the same degrees and schedule; the fastest simulation is the plan. "
        "Default: at most 4 within 1 % of the best, within 10 % where that simulates over 5 % slower; 1 after a stop.",
    ),
]
TimeLimit = Annotated[float, typer.Option("--time-limit", metavar="S", min=0, help="Seconds of search at most.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the solver; equal seeds give equal plans.")]
Gap = Annotated[
    float, typer.Option("--gap", metavar="FRACTION", min=0, max=1, help="Stop at this gap; 0 proves the optimum.")
]
Improve = Annotated[
    Path | None,
    typer.Option("--improve", metavar="FILE", help="Settings that you run today: what each change to them is worth."),
]
Framework = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FRAMEWORK", help="What reads the settings: megatron (arguments), torchtitan (.py, .toml)."
    ),
]
Hosts = Annotated[
    Path | None,
    typer.Option("--hosts", metavar="FILE", help="With --from: hosts.txt in node-rank order, or slurm_hostfile."),
]
World = Annotated[
    int | None, typer.Option("--world", metavar="N", min=1, help="With --from: processes, without --hosts.")
]


def plan_command(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="A job YAML, - for standard input, or a name of the catalogue."),
    ] = None,
    model: Model = None,
    gpus: Gpus = None,
    topology: TopologyFile = None,
    trunk: InterBuildingLink = None,
    km: Kilometres = None,
    tokens: Tokens = None,
    sequence: SequenceLength = None,
    target: Target = None,
    output: Directory = None,
    as_json: Json = False,
    time_limit_s: TimeLimit = 60.0,
    cpu_limit_s: CpuLimit = None,
    work_limit: WorkLimit = None,
    space: Space = "quick",
    overrides: Overrides = None,
    seed: Seed = 0,
    emit: Targets = None,
    gap: Gap = 0.0,
    refine_s: Refine = 0.0,
    referee: Referee = None,
    improve: Improve = None,
    framework: Framework = None,
    hosts: Hosts = None,
    world: World = None,
    slurm_partition: SlurmPartition = None,
    slurm_account: SlurmAccount = None,
    slurm_time: SlurmTime = None,
    slurm_container: SlurmContainer = None,
    slurm_extra: SlurmExtra = None,
    full: Full = False,
    sections: PlanSections = None,
    quiet: Quiet = False,
    charts: Charts = None,
) -> None:
    """Find the fastest plan for a job, with proof, and write its launch files.

    The first lines of the report are printed; --full prints all of it, --section a part of it.

    The first Ctrl-C ends the search and prints the best plan so far with its gap. The second one aborts.

    \b
    Examples:
      scaleacross plan llama3_405b_two_buildings -o build/llama3_405b
      scaleacross plan --model config.json --gpus h100:512,h100:256 --trunk 4x400G --km 50 --tokens 4M --seq 8192
      scaleacross plan job.yaml --set degrees.tp=8 --section memory --section proof
      scaleacross plan job.yaml --work-limit 200   # the same plan on a loaded and an idle machine
      scaleacross plan job.yaml --refine 60   # then search better orders of the best pipelines
      scaleacross plan examples/recommendation/mlperf_dcnv2.yaml   # embedding tables over ranks and memories
      scaleacross plan examples/recommendation/six_cards.yaml      # inference cards: queries/s under a latency bound
      scaleacross plan job.yaml --improve megatron_args.sh --from megatron --hosts hosts.txt   # what would you change?
    """
    from scaleacross.api.problems import written_for
    from scaleacross.cli.recommendation import plan_tables_command

    shown, limit = (full, sections, quiet), limits(time_limit_s, cpu_limit_s, work_limit)
    if plan_tables_command(context, job, output, as_json, limit, overrides or (), seed, gap, shown):
        return
    targets, view = targets_of(emit, output), view_of(*shown, PLAN_SECTIONS)
    slurm = slurm_fields(slurm_partition, slurm_account, slurm_time, slurm_container, slurm_extra)
    changes = [*wide(space), *(overrides or ()), *slurm_overrides(slurm)]
    asked = job_or_start(job, model, gpus, trunk, km, tokens, sequence, target, topology)
    refuse_together(refine_s, improve, referee, work_limit)
    source = candidate_of(improve, framework, hosts, world)
    asked, overridden = written_for(asked, changes, targets or ())
    search: dict[str, Any] = {"seed": seed, "gap_tolerance": gap, "overrides": overridden}
    search["referee"] = 1 if refine_s and referee is None else referee  # orders are refined by estimates
    search |= limit
    if source:
        deliver_improvement(_improved(source, asked, hosts, world, search), as_json, output, targets)
    else:
        deliver(_planned(asked, refine_s, search), as_json, output, targets, view, charts)


def _planned(asked: str | Job, refine_s: float, search: dict[str, Any]) -> Plan:
    """Search a plan, with progress on stderr; the first Ctrl-C ends the search."""
    from scaleacross.api import plan, refine_finalists

    with searching() as progress, first_interrupt() as stopped:
        found = plan(asked, progress=progress, stopped=stopped, simulated=True, **search)
        if not refine_s:
            return found
        return refine_finalists(found, refine_s, seed=search["seed"], progress=progress, stopped=stopped)


def _improved(
    source: tuple[str, Path], asked: str | Job, hosts: Path | None, world: int | None, search: dict[str, Any]
) -> Improvement:
    """Improve settings that somebody runs, with progress on stderr; the first Ctrl-C ends the search."""
    from scaleacross.api import improve_settings

    with searching() as progress, first_interrupt() as stopped:
        return improve_settings(*source, asked, hosts=hosts, world=world, progress=progress, stopped=stopped, **search)


def refuse_together(refine_s: float, improve: Path | None, referee: int | None, work_limit: int | None) -> None:
    """Refuse options that contradict each other. Raises typer.BadParameter with the way out."""
    if refine_s and improve:
        raise typer.BadParameter("--refine searches orders of one plan: write the plan with -o, then refine that job")
    if referee and refine_s:
        raise typer.BadParameter("--refine decides by estimated step time, --referee by simulation: give one of them")
    if work_limit is not None and refine_s:
        raise typer.BadParameter("--work-limit counts step times, --refine seconds: give one of them")


def evaluate_command(
    source: Annotated[
        str, typer.Argument(metavar="PLAN", help="A YAML with job and decision, a plan.json, or a catalogue name.")
    ],
    output: Directory = None,
    as_json: Json = False,
    overrides: Overrides = None,
    emit: Targets = None,
    framework: Framework = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="With --from: names model and topology.")
    ] = None,
    hosts: Hosts = None,
    world: World = None,
    full: Full = False,
    sections: PlanSections = None,
    quiet: Quiet = False,
    charts: Charts = None,
) -> None:
    """Estimate the step time of settings that you state: the same breakdown, nothing searched.

    \b
    Examples:
      scaleacross evaluate llama3_table4_row1
      scaleacross evaluate my_settings.yaml
      scaleacross evaluate build/llama3_405b/plan.json --set global_batch_sequences=4096
      scaleacross evaluate megatron_args.sh --from megatron --job my_job.yaml --hosts hosts.txt
    """
    from scaleacross.api import evaluate, evaluate_settings

    targets, view = targets_of(emit, output), view_of(full, sections, quiet, PLAN_SECTIONS)
    if framework is not None:
        if job is None:
            raise typer.BadParameter("--from reads settings: say with --job which model and topology they are for")
        read = evaluate_settings(framework, source, job, hosts=hosts, world=world, overrides=overrides or ())
        deliver(read, as_json, output, targets, view, charts)
        return
    if job is not None or hosts is not None or world is not None:
        raise typer.BadParameter("--job, --hosts and --world belong to --from megatron or --from torchtitan")
    deliver(evaluate(source, overrides=overrides or ()), as_json, output, targets, view, charts)


def emit_command(
    source: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET,...",
            help="launch, torchrun, torchtitan, megatron, nccl, ncclx, pipeline_csv, kubernetes, hostfiles, recovery.",
        ),
    ],
    output: Annotated[Path, output_folder("Where to write.")] = Path(),
    hosts: Annotated[
        Path | None,
        typer.Option("--hosts", metavar="FILE", dir_okay=False, help="Real names: a YAML of building: node[001-064]."),
    ] = None,
    slurm_partition: SlurmPartition = None,
    slurm_account: SlurmAccount = None,
    slurm_time: SlurmTime = None,
    slurm_container: SlurmContainer = None,
    slurm_extra: SlurmExtra = None,
) -> None:
    """Write launch files of a plan for one or more targets. The plan is verified first.

    A recommendation plan is written for launch and torchrec.

    \b
    Example:
      scaleacross emit build/llama3_405b/plan.json --to torchrun,nccl -o build/launch
      scaleacross emit build/llama3_405b/plan.json --to torchrun --hosts hosts.yaml -o build/launch
      scaleacross emit build/llama3_405b/plan.json --to megatron --slurm-partition h100 --slurm-time 2-00 -o build/launch
      scaleacross emit build/dcnv2/plan.json --to torchrec -o build/dcnv2   # a recommendation plan
    """
    from scaleacross.bundle import left_over, write_bundle
    from scaleacross.catalogue import is_recommendation, load_plan, with_hosts, with_slurm
    from scaleacross.cli.recommendation import emit_recommendation_command

    slurm = slurm_fields(slurm_partition, slurm_account, slurm_time, slurm_container, slurm_extra)
    if is_recommendation(source):
        emit_recommendation_command(source, names_of(to), output, hosts is not None or bool(slurm))
        return
    plan = with_slurm(load_plan(source), slurm)
    named = plan if hosts is None else with_hosts(plan, hosts)
    bundle = write_bundle(named, output, names_of(to), with_plan=False)
    for path in bundle.files:
        typer.echo(path)
    if bundle.left:
        typer.echo(left_over(bundle.left, output), err=True)


def candidate_of(
    improve: Path | None, framework: str | None, hosts: Path | None, world: int | None
) -> tuple[str, Path] | None:
    """Return (framework, file) of ``--improve``; None where nothing is to be improved."""
    if improve is None:
        if framework is not None or hosts is not None or world is not None:
            raise typer.BadParameter(
                "--from, --hosts and --world belong to --improve FILE: the settings that you run today"
            )
        return None
    if framework is None:
        raise typer.BadParameter("--improve reads settings: say with --from megatron or --from torchtitan whose")
    return framework, improve


def deliver_improvement(found: Improvement, as_json: bool, directory: Path | None, targets: list[str] | None) -> None:
    """Write the files of the plan, then print what each change is worth."""
    from scaleacross.bundle import write_bundle
    from scaleacross.report.improvement import improvement_report

    bundle = write_bundle(found.planned, directory, targets) if directory else None
    answer(found, as_json, improvement_report)
    if bundle and directory:
        typer.echo(f"wrote {len(bundle.files)} files to {directory}", err=True)


def deliver(
    plan: Plan, as_json: bool, directory: Path | None, targets: list[str] | None, view: View, charts: Path | None = None
) -> None:
    """Write files, print the plan on stdout, then name the files on stderr. A closed pipe must not cost the files."""
    from scaleacross.api import summarise
    from scaleacross.bundle import left_over, write_bundle
    from scaleacross.report.page.pages import plan_page

    found = cache(lambda: summarise(plan))
    contents = cache(lambda: plan_page(plan, found(), timeline_of(plan)))
    also = page_files(contents, plan) if directory and targets is None else {}
    write_charts(contents, charts)
    bundle = write_bundle(plan, directory, targets, also=also) if directory else None
    show_plan(plan, as_json, view, found, bundle.submit_command(plan.job.target) if bundle else "")
    if bundle and directory:
        for target, reason in bundle.refused.items():
            typer.echo(f"not written: {target}: {reason}", err=True)
        if bundle.left:
            typer.echo(left_over(bundle.left, directory), err=True)
        names = dict.fromkeys(path.relative_to(directory).parts[0] for path in bundle.files)
        typer.echo(f"wrote {len(bundle.files)} files to {directory}: {', '.join(names)}", err=True)


def targets_of(emit: str | None, directory: Path | None) -> list[str] | None:
    """Return the targets that the user names. Invalid places and names are refused here, before the search."""
    from scaleacross.emitters import require_place, require_targets

    if directory is not None:
        require_place(directory)
    if emit and not directory:
        raise typer.BadParameter("--emit writes files: say where with -o DIR")
    targets = names_of(emit) if emit else None
    require_targets(targets or ())
    return targets
