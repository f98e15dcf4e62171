"""The command line: arguments in, report out. All decisions are made in ``api``; imports are late so that --help is
quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from scaleacross.cli.calibrate import calibrate_command
from scaleacross.cli.codec import codec_command
from scaleacross.cli.collective import collective_command
from scaleacross.cli.compare import compare_command
from scaleacross.cli.diagnose import diagnose_command
from scaleacross.cli.explain import explain_command
from scaleacross.cli.frame import EXIT_CODES, guarded
from scaleacross.cli.imports import import_command
from scaleacross.cli.look import catalogue_command, schema_command, show_command
from scaleacross.cli.pareto import pareto_command
from scaleacross.cli.plan import emit_command, evaluate_command, plan_command
from scaleacross.cli.quick import init_command
from scaleacross.cli.replicas import coordinate_command, goodput_command
from scaleacross.cli.reproduce import reproduce_command
from scaleacross.cli.run import bench_command, run_command
from scaleacross.cli.schedule import schedule_command
from scaleacross.cli.simulate import simulate_command
from scaleacross.cli.sweep import sweep_command
from scaleacross.cli.testbed import testbed_app
from scaleacross.cli.validate import validate_command
from scaleacross.cli.verify import verify_command
from scaleacross.machine_code import when_compiling

COMMANDS: Final[tuple[tuple[str, Callable[..., None], str], ...]] = (
    ("plan", plan_command, "Find the fastest plan and write its launch files."),
    ("init", init_command, "Write a job and a topology to edit."),
    ("import", import_command, "Read a cluster's own description: SLURM, Kubernetes, clouds."),
    ("evaluate", evaluate_command, "Estimate the step time of settings that you state."),
    ("compare", compare_command, "Hold our plan against what others would run."),
    ("emit", emit_command, "Write launch files of a plan."),
    ("pareto", pareto_command, "Find plans between two objectives."),
    ("explain", explain_command, "Say why a plan is as it is, and what would change it."),
    ("simulate", simulate_command, "Simulate one step of a plan, event by event."),
    ("verify", verify_command, "Check what a plan states, without the solver."),
    ("sweep", sweep_command, "Run every point of a study: what-if over any fields."),
    (
        "reproduce",
        reproduce_command,
        "Run a published design space: our plan, one dimension at a time, every baseline.",
    ),
    ("validate", validate_command, "Hold predictions against measured runs."),
    ("calibrate", calibrate_command, "Fit accelerators and links to your measurements."),
    ("schedule", schedule_command, "Show one pipeline step, of a plan or of a schedule by name."),
    ("collective", collective_command, "Estimate every way to run one collective."),
    ("codec", codec_command, "Measure how short embedding vectors get within error bounds."),
    ("diagnose", diagnose_command, "Name the rank or link behind a hang or a slow run."),
    ("coordinate", coordinate_command, "Coordinate replicas that train on when some are lost."),
    ("goodput", goodput_command, "Say what a run among replicas has committed, and what losses cost."),
    ("run", run_command, "Run a training program as a plan says."),
    ("bench", bench_command, "Time a collective of a plan, or this GPU's kernels."),
    ("show", show_command, "Show a topology, workload, accelerator or network."),
    ("catalogue", catalogue_command, "List what can be given by name."),
    ("schema", schema_command, "Print the JSON Schema of a kind of file."),
)

app = typer.Typer(
    help="Plan AI training across buildings and regions: parallel degrees, placement, schedule, launch files.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _name, _command, _short_help in COMMANDS:
    app.command(_name, short_help=_short_help)(guarded(_command))
app.add_typer(testbed_app, name="testbed", short_help="Emulate buildings on this machine; run a plan in them.")


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


def main() -> None:
    """Run the ``scaleacross`` command. Output is UTF-8 in any locale, because JSON is UTF-8 and tables need it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    when_compiling(lambda: typer.echo("note: compiling loops, once after an installation (half a minute)", err=True))
    app(prog_name="scaleacross")
