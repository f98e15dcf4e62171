"""The command line: arguments in, report out. Every decision is made behind ``api``; imports are late so that --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import date
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, ParamSpec

import typer

from scaleacross.errors import ScaleAcrossError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scaleacross.spec.plan import Plan

P = ParamSpec("P")
EXIT_UNEXPECTED, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 130, 141
EXIT_CODES = "Exit codes: 0 done, 1 unexpected error, 2 bad input, 3 no plan fits, 4 time limit, 5 verification failed."

app = typer.Typer(
    help="Plan AI training across buildings and regions: parallel degrees, placement, schedule, launch files.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Directory = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", file_okay=False, help="Write plan.json and launch files to DIR."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a field of the job, e.g. sequence_length=4096. Repeatable."
    ),
]
Targets = Annotated[
    str | None,
    typer.Option("--emit", metavar="TARGET,...", help="With -o: only these, and fail if one cannot be made."),
]


def _guarded(command: Callable[P, None]) -> Callable[P, None]:
    """``command`` with every failure turned into one message on stderr and its exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.BadParameter):
            raise
        except ScaleAcrossError as error:
            _fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            _fail("interrupted", EXIT_INTERRUPTED)
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # so that the interpreter's last flush is silent
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except Exception as error:
            if os.environ.get("SCALEACROSS_DEBUG"):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            _fail(f"unexpected {reason} (rerun with SCALEACROSS_DEBUG=1 for the traceback)", EXIT_UNEXPECTED)

    return run


@app.command("plan", short_help="Find the fastest plan and write its launch files.")
@_guarded
def plan_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job YAML, or the name of a job of the catalogue.")],
    output: Directory = None,
    as_json: Json = False,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="Seconds of search at most.")
    ] = 60.0,
    overrides: Overrides = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Seed of the solver; equal seeds give equal plans.")
    ] = 0,
    emit: Targets = None,
) -> None:
    """Find the fastest plan for a job, with proof, and write its launch files.

    \b
    Examples:
      scaleacross plan configs/jobs/llama3_405b_two_buildings.yaml -o build/llama3_405b
      scaleacross plan llama3_405b_two_buildings --set degrees.tp=8 --set global_batch_sequences=4096
      scaleacross plan job.yaml --json | jq .cost.step_s
    """
    from scaleacross.api import plan
    from scaleacross.report.console import PlainConsole
    from scaleacross.report.progress import ProgressDisplay

    targets = _targets(emit, output)
    with ProgressDisplay(PlainConsole(stderr=True)) as progress:
        found = plan(job, time_limit_s=time_limit_s, seed=seed, overrides=overrides or (), progress=progress)
    _deliver(found, as_json, output, targets)


@app.command("evaluate", short_help="Price settings that you bring.")
@_guarded
def evaluate_command(
    source: Annotated[
        str, typer.Argument(metavar="PLAN", help="A YAML with job and decision, a plan.json, or a catalogue name.")
    ],
    output: Directory = None,
    as_json: Json = False,
    overrides: Overrides = None,
    emit: Targets = None,
) -> None:
    """Price settings that you bring: the same breakdown, nothing searched.

    \b
    Examples:
      scaleacross evaluate llama3_table4_row1
      scaleacross evaluate my_settings.yaml
      scaleacross evaluate build/llama3_405b/plan.json --set global_batch_sequences=4096
    """
    from scaleacross.api import evaluate

    targets = _targets(emit, output)
    _deliver(evaluate(source, overrides=overrides or ()), as_json, output, targets)


@app.command("emit", short_help="Write launch files of a plan.")
@_guarded
def emit_command(
    source: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")],
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET,...", help="launch, torchrun, torchtitan, megatron, nccl.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", file_okay=False, help="Where to write.")
    ] = Path(),
) -> None:
    """Write launch files of a plan for one or more targets. The plan is verified first.

    \b
    Example:
      scaleacross emit build/llama3_405b/plan.json --to torchrun,nccl -o build/launch
    """
    from scaleacross.bundle import write_bundle
    from scaleacross.catalogue import load_plan

    for path in write_bundle(load_plan(source), output, _split(to), with_plan=False).files:
        typer.echo(path)


@app.command("validate", short_help="Hold predictions against measured runs.")
@_guarded
def validate_command(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Measured training runs, one per row.")],
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP,...", help="Error tables per source, gpu, model, arch.")
    ] = "source,gpu",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", file_okay=False, help="Write rows.csv, scatter.svg, accuracy.json."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    docs: Annotated[
        Path | None, typer.Option("--docs", metavar="FILE", dir_okay=False, help="Write the accuracy page (Markdown).")
    ] = None,
) -> None:
    """Predict every run of a CSV without looking at what was measured, then compare.

    \b
    Examples:
      scaleacross validate runs.csv --by source,model
      scaleacross validate runs.csv --json | jq .median_abs_error
      scaleacross validate runs.csv -o build/accuracy
    """
    from scaleacross.api import cross_check, validate
    from scaleacross.report.accuracy import accuracy_report, grouped_by
    from scaleacross.report.accuracy_files import as_json as to_json
    from scaleacross.report.accuracy_files import write_accuracy
    from scaleacross.report.accuracy_page import accuracy_page

    groupings = grouped_by(_split(by))
    validation = validate(runs)
    page = (docs, accuracy_page(validation, cross_check(validation), date.today())) if docs else None
    written = write_accuracy(validation, groupings, output, page)
    if as_json:
        typer.echo(to_json(validation, groupings))
    else:
        _print(accuracy_report(validation, groupings))
    if written:
        typer.echo(f"wrote {', '.join(map(str, written))}", err=True)


@app.command("show", short_help="Show a topology, workload, accelerator or network.")
@_guarded
def show_command(
    kind: Annotated[Literal["topology", "workload", "accelerator", "network"], typer.Argument(help="What to show.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A catalogue name, or a path (a config.json for a workload).")
    ],
    sequence_length: Annotated[
        int, typer.Option(min=1, help="Tokens per sequence, for the FLOP of a workload.")
    ] = 8192,
) -> None:
    """Show a topology, workload, accelerator or network, with the origin of its figures.

    \b
    Examples:
      scaleacross show topology two_buildings_unequal
      scaleacross show workload llama3.1-405b --sequence-length 131072
      scaleacross show accelerator h100-sxm
    """
    from scaleacross import catalogue

    if kind == "topology":
        from scaleacross.report.topology import topology_report

        _print(topology_report(catalogue.load_topology(name)))
    elif kind == "workload":
        from scaleacross.report.workload import workload_report

        _print(workload_report(catalogue.load_workload(name), sequence_length))
    elif kind == "accelerator":
        from scaleacross.report.accelerator import accelerator_report

        _print(accelerator_report(catalogue.load_accelerator(name)))
    else:
        from scaleacross.report.network import network_report

        _print(network_report(catalogue.load_network(name)))


@app.command("catalogue", short_help="List what can be given by name.")
@_guarded
def catalogue_command() -> None:
    """List everything that can be named instead of given as a file.

    \b
    Example:
      scaleacross catalogue
    """
    from scaleacross.catalogue import entries
    from scaleacross.report.catalogue import catalogue_report

    _print(catalogue_report(entries()))


@app.command("schema", short_help="Print the JSON Schema of a kind of file.")
@_guarded
def schema_command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="job, topology, workload, accelerator, network, decision, plan.")
    ],
) -> None:
    """Print the JSON Schema of a kind of file.

    \b
    Example:
      scaleacross schema job > job.schema.json
    """
    import json

    from scaleacross.catalogue import schema

    typer.echo(json.dumps(schema(kind), indent=2, ensure_ascii=False))


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, help="Print the version and exit.", callback=lambda v: _version(v)),
    ] = False,
) -> None:
    """Options before the command."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"scaleacross {version('scaleacross')}")
        raise typer.Exit


def _deliver(plan: Plan, as_json: bool, directory: Path | None, targets: list[str] | None) -> None:
    """Files first (a closed pipe must not cost them), then the plan on stdout, then what was written on stderr."""
    from scaleacross.bundle import write_bundle
    from scaleacross.report.terminal import plan_report

    bundle = write_bundle(plan, directory, targets) if directory else None
    if as_json:
        typer.echo(plan.model_dump_json(indent=2))
    else:
        _print(plan_report(plan))
    if bundle and directory:
        for target, reason in bundle.refused.items():
            typer.echo(f"not written: {target}: {reason}", err=True)
        names = dict.fromkeys(path.relative_to(directory).parts[0] for path in bundle.files)
        typer.echo(f"wrote {len(bundle.files)} files to {directory}: {', '.join(names)}", err=True)


def _targets(emit: str | None, directory: Path | None) -> list[str] | None:
    if emit and not directory:
        raise typer.BadParameter("--emit writes files: say where with -o DIR")
    return _split(emit) if emit else None


def _split(targets: str) -> list[str]:
    names = [target.strip() for target in targets.split(",") if target.strip()]
    if not names:
        raise typer.BadParameter("name at least one target, e.g. launch")
    return names


def _print(renderable: RenderableType) -> None:
    from scaleacross.report.console import PlainConsole

    PlainConsole().print(renderable)


def _fail(message: str, exit_code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(exit_code)


def main() -> None:
    """Entry point of the ``scaleacross`` command. Output is UTF-8 whatever the locale: JSON is, and tables need it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    app(prog_name="scaleacross")
