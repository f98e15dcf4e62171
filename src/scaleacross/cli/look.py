"""show, catalogue, schema: what can be named, and what stands behind the names."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from scaleacross.cli.frame import display


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

        display(topology_report(catalogue.load_topology(name)))
    elif kind == "workload":
        from scaleacross.report.workload import workload_report

        display(workload_report(catalogue.load_workload(name), sequence_length))
    elif kind == "accelerator":
        from scaleacross.report.accelerator import accelerator_report

        display(accelerator_report(catalogue.load_accelerator(name)))
    else:
        from scaleacross.report.network import network_report

        display(network_report(catalogue.load_network(name)))


def catalogue_command() -> None:
    """List everything that can be named instead of given as a file.

    \b
    Example:
      scaleacross catalogue
    """
    from scaleacross.catalogue import entries
    from scaleacross.report.catalogue import catalogue_report

    display(catalogue_report(entries()))


def schema_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="job, topology, graph, workload, accelerator, network, decision, plan, launch, study, explanation.",
        ),
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
