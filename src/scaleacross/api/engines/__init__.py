"""Run the points of a study in processes of this machine, or on the workers of a Dask or Ray cluster.

A *task* is a picklable function from a point to its record; no point makes it raise. An engine calls ``on_done(index,
record)`` in this process as points end, in any order. A worker that dies fails its point (status ``failed``, run again
when the study is resumed), but not the study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from scaleacross.api.engines.outcome import OnDone, Record, Task
from scaleacross.errors import InputError

PACKAGES: Final[Mapping[str, str]] = {"dask": "distributed", "ray": "ray"}
"""Engine -> the package that talks to its cluster. The extra of this package that installs it has the engine's name."""
NAMES: Final = ("local", *PACKAGES)


@dataclass(frozen=True)
class Engine:
    """Where points run.

    Attributes:
        name: ``local``, ``dask`` or ``ray``.
        processes: points at the same time (local); a cluster runs as many as it has workers.
        address: address of the cluster: Dask's scheduler (``tcp://host:8786``); Ray's head (``host:6379``,
            ``ray://host:10001``, or ``auto`` for that of this machine).
    """

    name: str = "local"
    processes: int = 1
    address: str | None = None

    def check(self) -> None:
        """Raise InputError when points cannot run here."""
        if self.name not in NAMES:
            raise InputError(f"no engine '{self.name}'; engines: {', '.join(NAMES)}")
        if self.processes < 1:
            raise InputError(f"{self.processes} processes: at least 1 is needed")
        if self.name == "local":
            if self.address is not None:
                raise InputError(f"an address ({self.address}) needs an engine: {' or '.join(PACKAGES)}")
            return
        if find_spec(PACKAGES[self.name]) is None:
            raise InputError(
                f"engine {self.name}: its package is not installed here; pip install 'scaleacross[{self.name}]', on the "
                "workers of the cluster too"
            )
        if not self.address:
            example = "tcp://HOST:8786" if self.name == "dask" else "HOST:6379, ray://HOST:10001 or auto"
            raise InputError(f"engine {self.name} needs the address of a running cluster, e.g. {example}")


def run_points(task: Task, points: Sequence[Any], engine: Engine, on_done: Callable[[int, Record], None]) -> None:
    """Run every point on the engine. Raises InputError when the cluster cannot be used."""
    engine.check()
    if not points:
        return
    if engine.address is None:
        from scaleacross.api.engines.local import run_points as run_locally

        run_locally(task, points, engine.processes, on_done)
        return
    cluster = import_module(f"scaleacross.api.engines.{engine.name}_cluster")
    run_there: Callable[[Task, Sequence[Any], str, OnDone], None] = cluster.run_points
    run_there(task, points, engine.address, on_done)
