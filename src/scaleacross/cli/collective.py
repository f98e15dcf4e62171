"""The command collective: the times of all algorithms for one collective on a topology, or a synthesized schedule."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from scaleacross.cli.frame import answer, searching
from scaleacross.errors import InputError


def collective_command(
    op: Annotated[
        Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"], typer.Option("--op", help="What to run.")
    ],
    size: Annotated[
        str,
        typer.Option(
            "--size", metavar="SIZE", help="512MiB, 4GB, ...: full tensor; of an all_to_all what a rank sends."
        ),
    ],
    topology: Annotated[
        str | None, typer.Option("--topology", metavar="NAME", help="A topology: catalogue name, or a path.")
    ] = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="NAME", help="A graph of links in its place; implies --synthesize.")
    ] = None,
    num_ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Ranks per group. Default: all accelerators at that stride.")
    ] = None,
    stride: Annotated[int, typer.Option("--stride", min=1, help="Global ranks between neighbours of a group.")] = 1,
    most: Annotated[int, typer.Option("--top", min=1, help="Rows to show.")] = 12,
    synthesize: Annotated[
        bool, typer.Option("--synthesize", help="Route chunks one by one instead (small groups), with a proof.")
    ] = False,
    chunks: Annotated[
        int | None, typer.Option("--chunks", min=1, help="Synthesis: chunks per rank. Default: tries 1, 2, 4, ...")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Synthesis: seconds to search.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Synthesis: seed of the search.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all options (or all messages) as JSON and nothing else.")
    ] = False,
) -> None:
    """Estimate every way to run one collective: algorithm, chunks, time, bytes per network level, and how far from the bound.

    On a small irregular network --synthesize finds a schedule of its own, message by message, and proves how good it is.

    \b
    Examples:
      scaleacross collective --op all_reduce --size 512MiB --topology two_buildings_unequal
      scaleacross collective --op all_gather --size 4GiB --topology region_five_buildings --ranks 16 --stride 512
      scaleacross collective --op all_to_all --size 64MiB --topology one_building --ranks 64 --json
      scaleacross collective --op all_gather --size 1GB --graph ndv2_two_chassis
      scaleacross collective --op all_reduce --size 1GB --topology two_buildings_unequal --ranks 4 --stride 4096 --synthesize
    """
    from scaleacross.api import collective
    from scaleacross.report.collective import collective_report
    from scaleacross.units import parse_bytes

    try:
        size_bytes = parse_bytes(size)
    except ValueError as error:
        raise InputError(f"--size: {error}") from None
    if (graph is None) == (topology is None):
        raise typer.BadParameter("give --topology or --graph, one of the two")
    if graph is None and not synthesize:
        found = collective(op, size_bytes, str(topology), num_ranks=num_ranks, stride=stride)
        answer(found, as_json, lambda study: collective_report(study, most))
        return
    if op == "all_to_all":
        raise InputError(
            "an all_to_all has nothing to synthesize: every block has one receiver; use --topology without it"
        )
    if graph is not None and (num_ranks is not None or stride != 1):
        raise typer.BadParameter("--ranks and --stride choose a group of a topology; a graph is used whole")
    _synthesized(op, size_bytes, graph, topology, (num_ranks, stride, chunks, seed), time_limit, as_json)


def _synthesized(
    op: Literal["all_reduce", "all_gather", "reduce_scatter"],
    size_bytes: float,
    graph: str | None,
    topology: str | None,
    numbers: tuple[int | None, int, int | None, int],
    time_limit: float,
    as_json: bool,
) -> None:
    from scaleacross.api import synthesize
    from scaleacross.report.synthesis import synthesis_report

    num_ranks, stride, chunks, seed = numbers
    with searching() as progress:
        found = synthesize(
            op,
            size_bytes,
            graph=graph,
            topology=topology,
            num_ranks=num_ranks,
            stride=stride,
            num_chunks=chunks,
            time_limit_s=time_limit,
            seed=seed,
            progress=progress,
        )
    answer(found.study, as_json, synthesis_report)
