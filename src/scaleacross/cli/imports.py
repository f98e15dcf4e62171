"""The command import: convert a cluster's own description into a topology with real host names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from scaleacross.cli.quick import InterBuildingLink, Kilometres
from scaleacross.errors import InputError


def import_command(
    kind: Annotated[
        Literal["slurm", "kubernetes", "aws", "oci", "gcp", "hosts", "infragraph"], typer.Argument(help="The source.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Its files; slurm: topology.conf, topology.yaml, output of scontrol show topology and show node.",
        ),
    ],
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", metavar="TYPE", help="h100, b200, ...: where the source does not say."),
    ] = None,
    per_host: Annotated[
        int | None, typer.Option("--gpus-per-host", min=1, max=64, help="Where the source does not say.")
    ] = None,
    trunk: InterBuildingLink = None,
    km: Kilometres = None,
    building: Annotated[
        list[str] | None,
        typer.Option(
            "--building", metavar="NAME=HOSTS", help="These hosts are a building, e.g. east=node[001-064]. Repeatable."
        ),
    ] = None,
    with_down: Annotated[
        bool, typer.Option("--with-down", help="Also hosts that are down, drained, cordoned or not ready.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", dir_okay=False, help="Write here, not to stdout.")
    ] = None,
) -> None:
    """Read hosts, racks and buildings from a cluster's own description, and write a topology.

    No such source states links: those inside a building are a standard building's, those between buildings are yours to state.

    \b
    Examples:
      scaleacross import slurm /etc/slurm/topology.conf --accelerator h100 --trunk 4x400G --km 50 -o topology.yaml
      scontrol show node > nodes.txt; scaleacross import slurm topology.conf nodes.txt -o topology.yaml
      kubectl get nodes -o json > nodes.json; scaleacross import kubernetes nodes.json --trunk 1.6T --km 80
      aws ec2 describe-instance-topology > aws.json; scaleacross import aws aws.json
      scaleacross import hosts hosts.txt --accelerator h200 --building a=n[01-64] --building b=n[65-96] --trunk 8x400G --km 9
    """
    from scaleacross.catalogue import load_topology, topology_text
    from scaleacross.emitters import write_files
    from scaleacross.importers import IMPORTERS
    from scaleacross.importers.assemble import topology_of
    from scaleacross.importers.files import read_source

    found = IMPORTERS[kind]([read_source(kind, path) for path in files])
    topology, notes = topology_of(
        found,
        accelerator=accelerator,
        accelerators_per_host=per_host,
        trunk=trunk,
        km=km,
        buildings=dict(_named(text) for text in building or ()),
        with_down=with_down,
    )
    load_topology(topology)  # nothing is written that cannot be read
    text = topology_text(topology, "\n".join(notes))
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if output is None:
        sys.stdout.write(text)
    else:
        write_files({output.name: text}, output.parent)
        typer.echo(f"wrote {output}: {topology['description']}", err=True)


def _named(text: str) -> tuple[str, tuple[str, ...]]:
    from scaleacross.spec.hostlist import expand_hosts

    name, equals, hosts = text.partition("=")
    try:
        if not equals or not name.strip():
            raise ValueError("write NAME=HOSTLIST, e.g. east=node[001-064]")
        return name.strip(), expand_hosts(hosts)
    except ValueError as error:
        raise InputError(f"--building {text[:60]}: {error}") from None
