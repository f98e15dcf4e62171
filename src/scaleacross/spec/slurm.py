"""Options for submitting jobs to SLURM. They affect launch files only, never the plan."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from scaleacross.spec.base import Name, Spec

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:/@+=%-]*$", max_length=256)]
Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./][A-Za-z0-9_.,:/@+=%#-]*$", max_length=256)]
Option = Annotated[
    str, StringConstraints(pattern=r"^--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:/@+=%&|*\[\]-]+)?$", max_length=256)
]


class Slurm(Spec):
    """Options of the batch script. What is left out follows the cluster's defaults."""

    partition: Word | dict[Name, Word] | None = Field(
        default=None, description="one for all hosts, or building -> partition, which makes a heterogeneous job"
    )
    account: Word | None = None
    time: Annotated[str, StringConstraints(pattern=r"^(\d+-)?\d+(:\d+){0,2}$")] | None = Field(
        default=None, description="limit as SLURM writes it: minutes, hours:minutes:seconds, days-hours"
    )
    container: Image | None = Field(
        default=None,
        description="image that every task runs in, by srun's --container-image (the plugin pyxis): a path of a .sqsh file, or "
        "registry#image:tag",
    )
    extra: tuple[Option, ...] = Field(
        default=(), description="further options of sbatch, each as --name or --name=value"
    )

    def partition_of(self, building: str) -> str | None:
        """Partition of a building's hosts; None: the cluster's default."""
        return self.partition.get(building) if isinstance(self.partition, dict) else self.partition
