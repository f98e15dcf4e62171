"""collective: every way to run one collective on a topology, like nccl-tests without the cluster."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from scaleacross.cli.frame import display
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
    topology: Annotated[str, typer.Option("--topology", metavar="NAME", help="A catalogue name, or a path.")],
    num_ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Ranks per group. Default: all accelerators at that stride.")
    ] = None,
    stride: Annotated[int, typer.Option("--stride", min=1, help="Positions between neighbours of a group.")] = 1,
    most: Annotated[int, typer.Option("--top", min=1, help="Rows to show.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print all options as JSON and nothing else.")] = False,
) -> None:
    """Price every way to run one collective: algorithm, chunks, time, bytes per network level, and how far from the bound.

    \b
    Examples:
      scaleacross collective --op all_reduce --size 512MiB --topology two_buildings_unequal
      scaleacross collective --op all_gather --size 4GiB --topology region_five_buildings --ranks 16 --stride 512
      scaleacross collective --op all_to_all --size 64MiB --topology one_building --ranks 64 --json
    """
    from scaleacross.api import collective
    from scaleacross.report.collective import collective_report
    from scaleacross.units import parse_bytes

    try:
        size_bytes = parse_bytes(size)
    except ValueError as error:
        raise InputError(f"--size: {error}") from None
    study = collective(op, size_bytes, topology, num_ranks=num_ranks, stride=stride)
    if as_json:
        typer.echo(study.model_dump_json(indent=2))
    else:
        display(collective_report(study, most))
