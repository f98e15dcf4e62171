"""The commands show, catalogue and schema: named entries and their contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scaleacross.cli.frame import display
from scaleacross.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from scaleacross.catalogue.find import Kind
    from scaleacross.spec.base import SourcedSpec

_WITH_SOURCES: Final = ("topology", "accelerator", "network")
_REPORTED: Final = ("topology", "workload", "accelerator", "network")
_FOLDERS: Final[dict[str, Kind]] = {
    "topology": "topologies",
    "workload": "workloads",
    "accelerator": "accelerators",
    "network": "networks",
    "graph": "graphs",
    "job": "jobs",
    "plan": "plans",
    "study": "studies",
}


def show_command(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="topology, workload, accelerator or network.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A catalogue name, or a path (a config.json for a workload).")
    ] = None,
    sequence_length: Annotated[
        int, typer.Option(min=1, help="Tokens per sequence, for the FLOP of a workload.")
    ] = 8192,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the file itself, to copy and edit; jobs and studies too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures in SI units as JSON, with their origin.")
    ] = False,
    read_as: Annotated[
        str | None, typer.Option("--as", metavar="TYPE", help="Read a config.json of unknown type as one of this type.")
    ] = None,
) -> None:
    """Show a topology, workload, accelerator or network, with the origin of its figures.

    \b
    Examples:
      scaleacross show topology two_buildings_unequal
      scaleacross show workload llama3.1-405b --sequence-length 131072
      scaleacross show workload models/mine/config.json --as llama
      scaleacross show accelerator h100-sxm
      scaleacross show accelerator h100-sxm --json | jq .peak_flop_per_s
      scaleacross show two_buildings_unequal --yaml > topology.yaml
    """
    from scaleacross import catalogue

    if as_yaml and as_json:
        raise typer.BadParameter("--yaml prints the file, --json its figures in SI units: give one")
    if as_yaml:
        stated = name is not None and kind in _FOLDERS
        kinds = (_FOLDERS[kind],) if stated else tuple(_FOLDERS.values())
        typer.echo(catalogue.bundled_text(kind if name is None else name, kinds), nl=False)
        return
    if kind not in _REPORTED or name is None:
        raise InputError(
            f"show {kind[:60]}: write KIND NAME with a kind of {', '.join(_REPORTED)}, "
            "e.g. show topology two_buildings_unequal; or NAME --yaml for the file"
        )
    if read_as is not None and kind != "workload":
        raise InputError(f"--as says how to read the config.json of a workload, not a {kind}")
    workload = name if read_as is None else {"config_json": name, "read_as": read_as}
    if kind == "workload" and as_json:
        from scaleacross.report.workload import workload_data

        _say(workload_data(catalogue.load_workload(workload), sequence_length))
    elif as_json:
        loaders = (catalogue.load_topology, catalogue.load_accelerator, catalogue.load_network)
        load: Callable[[str], SourcedSpec] = dict(zip(_WITH_SOURCES, loaders, strict=True))[kind]
        _say(load(name).model_dump(mode="json"))
    elif kind == "topology":
        from scaleacross.report.topology import topology_report

        display(topology_report(catalogue.load_topology(name)))
    elif kind == "workload":
        from scaleacross.report.workload import workload_report

        display(workload_report(catalogue.load_workload(workload), sequence_length))
    elif kind == "accelerator":
        from scaleacross.report.accelerator import accelerator_report

        display(accelerator_report(catalogue.load_accelerator(name)))
    else:
        from scaleacross.report.network import network_report

        display(network_report(catalogue.load_network(name)))


def catalogue_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print kinds, names and summaries as JSON.")] = False,
) -> None:
    """List everything that can be named instead of given as a file, and what installed packages add.

    \b
    Example:
      scaleacross catalogue
    """
    from scaleacross.api import extensions
    from scaleacross.catalogue import entries
    from scaleacross.report.catalogue import catalogue_report

    files = [(kind, name, summary) for kind, name, _, summary in entries()]
    rows = [*files, *extensions()]
    if as_json:
        _say([{"kind": kind, "name": name, "summary": summary} for kind, name, summary in rows])
    else:
        display(catalogue_report(rows))


def schema_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="job, recommendation_job, inference_job, topology, graph, workload, accelerator, network, decision, plan, "
            "recommendation, recommendation_plan, inference_plan, launch, study, design_space, comparison, explanation.",
        ),
    ],
) -> None:
    """Print the JSON Schema of a kind of file.

    \b
    Example:
      scaleacross schema job > job.schema.json
    """
    from scaleacross.catalogue import schema

    _say(schema(kind))


def _say(data: Any) -> None:
    """Print JSON on standard output; characters outside ASCII are kept."""
    import json

    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
