"""The command testbed: emulated buildings on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scaleacross.cli.frame import Json, Overrides, answer, guarded, output_folder
from scaleacross.errors import InputError

Part = Literal["training", "collectives"]

testbed_app = typer.Typer(
    help="""Watch a plan hold in miniature: emulated buildings on this machine, real training processes in them.

\b
Every host of a topology becomes a network namespace with a network adapter
and a share of a core, every building a router, every trunk a link of the
stated rate and distance. Nothing outside those namespaces is touched, and
`down` leaves nothing.

\b
  scaleacross testbed up examples/testbed/two_buildings.yaml    make it (needs root, or see below)
  scaleacross testbed exec east-h00000 -- ip address            run anything on one of its hosts
  scaleacross testbed trunk east west --gbit 0.1                thinner, --cut, --restore: while it is in use
  scaleacross testbed down                                      take it away

\b
  scaleacross testbed run examples/testbed/job.yaml             calibrate, plan, train, our plan and production's
  scaleacross testbed collectives examples/testbed/two_buildings.yaml    every way to run an all-reduce
  scaleacross testbed report examples/testbed/job.yaml -o docs/results   all of it as a page (15 minutes)

\b
An ordinary user whose kernel allows `unshare -Urnm` needs no root; delays
then need netem or a /dev/net/tun open to all.""",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

TopologyFile = Annotated[
    str, typer.Argument(metavar="TOPOLOGY", help="A topology YAML, or the name of one of the catalogue.")
]
TestbedName = Annotated[str, typer.Option("--name", metavar="NAME", help="For several testbeds side by side.")]


def up_command(topology: TopologyFile, name: TestbedName = "one") -> None:
    """Make the buildings of a topology on this machine.

    \b
    Examples:
      scaleacross testbed up examples/testbed/two_buildings.yaml
      scaleacross testbed up examples/testbed/three_buildings.yaml --name three
    """
    from scaleacross.catalogue import load_topology
    from scaleacross.testbed import session
    from scaleacross.testbed.machine import machine
    from scaleacross.units import human_seconds

    here = machine()
    if not here.is_root and here.can_unshare:
        raise InputError(
            "what an ordinary user makes lives as long as one command: run it with sudo, or let "
            "`scaleacross testbed run` make the buildings and take them away again"
        )
    made = session.up(load_topology(topology), name)
    for building in made.layout.buildings:
        for host in building.hosts:
            typer.echo(f"host   {host.name:<24} {host.address:<14} {host.rate_bytes_per_s * 8e-9:g} Gbit/s")
    for trunk in made.layout.trunks:
        loss = f", loses {trunk.loss_fraction:.3%}" if trunk.loss_fraction else ""
        distance = f"{human_seconds(trunk.delay_s)} one way{loss}"
        typer.echo(f"trunk  {trunk.name:<24} {distance:<14} {trunk.rate_bytes_per_s * 8e-9:g} Gbit/s")
    if not made.fixed_shares:
        typer.echo("no cpu control group can be written: hosts on one core take time from each other", err=True)


def down_command(name: TestbedName = "one") -> None:
    """Take a testbed away: its processes, namespaces and control groups, however far it was made.

    \b
    Example:
      scaleacross testbed down
    """
    from scaleacross.testbed import session

    removed = session.down(name)
    typer.echo(f"took away {len(removed)} namespaces" if removed else f"no testbed '{name}' is up")


def status_command() -> None:
    """Name the testbeds that are up.

    \b
    Example:
      scaleacross testbed status
    """
    from scaleacross.testbed import fabric, session

    for name in session.names():
        prefix = session.prefix_of(name)
        running = sum(len(fabric.processes_in(namespace)) for namespace in fabric.existing(prefix))
        typer.echo(f"{name}: {len(fabric.existing(prefix))} namespaces, {running} processes")
    if not session.names():
        typer.echo("no testbed is up")


def exec_command(
    host: Annotated[str, typer.Argument(metavar="HOST", help="As `up` lists them, e.g. east-h00000.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...")],
    name: TestbedName = "one",
) -> None:
    """Run a command on an emulated host: its network, its core, its share of that core.

    \b
    Example:
      scaleacross testbed exec east-h00000 -- python3 -m http.server --bind 10.77.1.1
    """
    from scaleacross.testbed import session
    from scaleacross.testbed.ranks import run_on

    raise typer.Exit(run_on(session.find(name), host, command))


def trunk_command(
    one: Annotated[str, typer.Argument(metavar="BUILDING")],
    other: Annotated[str, typer.Argument(metavar="BUILDING")],
    gbit: Annotated[float | None, typer.Option("--gbit", min=1e-5, help="Rate per direction from now on.")] = None,
    cut: Annotated[bool, typer.Option("--cut", help="Let nothing through, and tell nobody: a cut fibre.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="As the topology states it.")] = False,
    name: TestbedName = "one",
) -> None:
    """Change a trunk that is in use.

    \b
    Examples:
      scaleacross testbed trunk east west --gbit 0.1
      scaleacross testbed trunk east west --cut
      scaleacross testbed trunk east west --restore
    """
    from scaleacross.testbed import fabric, session

    if (gbit is not None) + cut + restore != 1:
        raise InputError("say one of --gbit RATE, --cut and --restore")
    trunk = session.find(name).layout.trunk(one, other)
    rate = trunk.rate_bytes_per_s if gbit is None else gbit * 1e9 / 8
    fabric.set_trunk(trunk, rate, is_cut=cut)
    typer.echo(f"trunk {trunk.name}: " + ("cut" if cut else f"{rate * 8e-9:g} Gbit/s"))


JobFile = Annotated[
    str, typer.Argument(metavar="JOB", help="A job YAML whose topology fits one machine: examples/testbed/job.yaml.")
]
Steps = Annotated[int, typer.Option("--steps", min=2, help="Timed steps of every plan.")]
Folder = Annotated[Path | None, output_folder("Keep launch files and logs there.")]


def run_command(
    job: JobFile,
    against: Annotated[
        str,
        typer.Option(
            "--against", metavar="NAME,...", help="Baselines whose plans are trained too; none for ours alone."
        ),
    ] = "production",
    steps: Steps = 21,
    output: Folder = None,
    overrides: Overrides = None,
    name: TestbedName = "one",
    as_json: Json = False,
) -> None:
    """Train a job in the buildings of its topology: measured and predicted steps of our plan and production's.

    Links and computation are measured first, so predictions are about this machine. If the testbed is up it is used and stays,
    with whatever was done to its trunks; else it is made for the run.

    \b
    Examples:
      scaleacross testbed run examples/testbed/job.yaml
      scaleacross testbed run examples/testbed/job.yaml --against production,atlas --steps 40
      scaleacross testbed run examples/testbed/job.yaml --set topology=examples/testbed/three_buildings.yaml
    """
    from scaleacross.cli.testbed_runs import run_job
    from scaleacross.report.testbed import training_report

    names = [] if against == "none" else [each.strip() for each in against.split(",") if each.strip()]
    results = run_job(job, names, steps, output, overrides or (), name)
    answer(results, as_json, training_report)


def collectives_command(
    topology: TopologyFile,
    quick: Annotated[bool, typer.Option("--quick", help="One rate, no delay, one size.")] = False,
    output: Folder = None,
    name: TestbedName = "one",
    as_json: Json = False,
) -> None:
    """Time every algorithm for an all-reduce over links of 0.1 to 1 Gbit/s, and compare with the prediction.

    \b
    Examples:
      scaleacross testbed collectives examples/testbed/two_buildings.yaml
      scaleacross testbed collectives examples/testbed/two_buildings.yaml --quick --json
    """
    from scaleacross.cli.testbed_runs import run_collectives
    from scaleacross.report.testbed import collectives_report

    results = run_collectives(topology, quick, output, name)
    answer(results, as_json, collectives_report)


def halve_command(
    job: JobFile,
    steps: Steps = 16,
    output: Folder = None,
    name: TestbedName = "one",
    as_json: Json = False,
) -> None:
    """Halve an inter-building link in mid-run: does the trace name it, and does planning with the measured rate pay?

    The rate to begin with is that at which halving makes most difference between plans.

    \b
    Example:
      scaleacross testbed halve examples/testbed/long_sequences.yaml
    """
    from scaleacross.cli.testbed_runs import run_halved
    from scaleacross.report.testbed import degraded_report

    found = run_halved(job, steps, output, name)
    answer(found, as_json, degraded_report)


def report_command(
    job: JobFile,
    three: Annotated[
        str | None, typer.Option("--three", metavar="JOB", help="A job on three buildings, for more settings.")
    ] = None,
    halved: Annotated[
        str | None, typer.Option("--halve", metavar="JOB", help="A job for `halve`; none: no trunk is halved.")
    ] = None,
    steps: Steps = 20,
    quick: Annotated[bool, typer.Option("--quick", help="One setting of each kind: to see that all works.")] = False,
    only: Annotated[
        Part | None,
        typer.Option("--only", help="Measure this part again; the other one as testbed.json of the folder has it."),
    ] = None,
    output: Annotated[Path, output_folder("Where testbed.md and testbed.json go.")] = Path("docs/results"),
    name: TestbedName = "one",
) -> None:
    """Run all experiments and write the page: protocol, machine, tables, bars. Takes about 35 minutes of a quiet machine.

    \b
    Example:
      scaleacross testbed report examples/testbed/job.yaml --three examples/testbed/three_job.yaml \\
        --halve examples/testbed/long_sequences.yaml -o docs/results
    """
    from scaleacross.cli.testbed_runs import write_page

    for path in write_page(job, three, halved, steps, quick, only, output, name):
        typer.echo(path)


for _name, _command in (
    ("up", up_command),
    ("down", down_command),
    ("status", status_command),
    ("exec", exec_command),
    ("trunk", trunk_command),
    ("run", run_command),
    ("collectives", collectives_command),
    ("halve", halve_command),
    ("report", report_command),
):
    testbed_app.command(_name)(guarded(_command))
