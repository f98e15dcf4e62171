"""Options for submission to SLURM, in place of the job's ``slurm:``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from scaleacross.errors import InputError

SlurmPartition = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm-partition", metavar="NAME", help="Partition of all hosts; BUILDING=NAME for one. Repeatable."
    ),
]
SlurmAccount = Annotated[str | None, typer.Option("--slurm-account", metavar="NAME", help="Account that is charged.")]
SlurmTime = Annotated[
    str | None, typer.Option("--slurm-time", metavar="LIMIT", help="Time limit as SLURM writes it: 90, 2:00:00, 2-00.")
]
SlurmContainer = Annotated[
    str | None, typer.Option("--slurm-container", metavar="IMAGE", help="Image for srun's --container-image (pyxis).")
]
SlurmExtra = Annotated[
    list[str] | None,
    typer.Option("--slurm-extra", metavar="OPTION", help="Further option of sbatch, e.g. --qos=high. Repeatable."),
]


def slurm_fields(
    partition: list[str] | None, account: str | None, time: str | None, container: str | None, extra: list[str] | None
) -> dict[str, Any]:
    """Return the fields of ``slurm:`` that the options state.

    Raises:
        InputError: a partition for all hosts together with partitions of buildings, or two for all.
    """
    stated: dict[str, Any] = {"account": account, "time": time, "container": container, "extra": extra or None}
    pairs = [text.partition("=") for text in partition or ()]
    named = {building.strip(): name for building, equals, name in pairs if equals}
    alone = [text for text, equals, _ in pairs if not equals]
    if len(alone) > 1 or (alone and named) or len(named) + len(alone) < len(pairs):
        raise InputError(
            f"--slurm-partition {', '.join(partition or ())}: name one for all hosts, or BUILDING=NAME once for each building"
        )
    stated["partition"] = named or next(iter(alone), None)
    return {key: value for key, value in stated.items() if value is not None}


def slurm_overrides(fields: dict[str, Any]) -> list[str]:
    """Return the fields as ``--set`` writes them."""
    return [f"slurm.{key}={json.dumps(value)}" for key, value in fields.items()]
