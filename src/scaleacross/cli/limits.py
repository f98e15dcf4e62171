"""Options that limit a search: wall-clock seconds, CPU seconds, or work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

CpuLimit = Annotated[
    float | None,
    typer.Option(
        "--cpu-limit",
        metavar="S",
        min=0,
        help="CPU seconds of search at most, in place of --time-limit. Simulating and checking the plan come on top.",
    ),
]
WorkLimit = Annotated[
    int | None,
    typer.Option(
        "--work-limit",
        metavar="N",
        min=1,
        help="Step times that are computed at most, in place of seconds: the same plan on every machine. For tables: "
        "rounds of the search, and hundredths of a second of its constraint programs by their own count of operations.",
    ),
]
SpaceName = Literal["quick", "full"]  # that of ``spec.job``, whose import --help need not wait for
Space = Annotated[
    SpaceName,
    typer.Option(
        "--space",
        help="What the search may decide where the job does not say. quick leaves out recomputation by module, shard levels "
        "gradients (ZeRO-2) and parameters_once (no reshard after forward), context exchange gather, and offload of activations "
        "and optimizer states; full has them all and takes longer. A list that the job states stays as it is.",
    ),
]


def limits(time_limit_s: float, cpu_limit_s: float | None, work_limit: int | None) -> dict[str, Any]:
    """Return ``time_limit_s``, ``clock`` and ``work_limit`` as keyword arguments for functions of ``scaleacross.api``.

    Raises:
        typer.BadParameter: both CPU seconds and work are given.
    """
    if work_limit is not None and cpu_limit_s is not None:
        raise typer.BadParameter("--work-limit counts step times, --cpu-limit seconds: give one of them")
    clock: Callable[[], float] = time.perf_counter if cpu_limit_s is None else time.process_time
    limit_s = time_limit_s if cpu_limit_s is None else cpu_limit_s
    return {"time_limit_s": limit_s, "clock": clock, "work_limit": work_limit}


def wide(space: SpaceName) -> list[str]:
    """Return the override of a job that ``--space`` means; none for the default."""
    return [] if space == "quick" else [f"space={space}"]
