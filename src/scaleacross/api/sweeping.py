"""The verb sweep: run every point of a study, in parallel and resumably."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scaleacross.api.arguments import whole_numbers
from scaleacross.api.engines import Engine
from scaleacross.api.engines.outcome import Record
from scaleacross.api.study_run import run_open
from scaleacross.api.study_store import Store, write_tables
from scaleacross.api.sweep_neighbours import try_neighbours
from scaleacross.api.sweep_points import key_of, run_point
from scaleacross.catalogue import Point, load_study, points_of
from scaleacross.spec.progress import Progress
from scaleacross.spec.study import Study, speed_of


@dataclass(frozen=True)
class SweepResult:
    """Outcome of a study.

    Attributes:
        study: the study as it was run.
        rows: one per point, in the study's order: ``point``, ``base``, the varied paths, ``status``, ``reason``,
            figures of the plan, and ``seconds`` of its own search. ``step_of`` says whether ``step_s`` is simulated or
            estimated; ``gap`` refers to ``estimate_s``; ``found_by`` is search or neighbour.
        num_distinct: points that differ in what decides their figures.
        num_run: distinct points that were run now.
        num_reused: distinct points that were already in the directory.
        files: files written.
        note: what was not written, and why.
    """

    study: Study
    rows: tuple[Record, ...]
    num_distinct: int
    num_run: int
    num_reused: int
    files: tuple[Path, ...] = ()
    note: str = ""

    @property
    def statuses(self) -> dict[str, int]:
        """Number of points by status."""
        return dict(Counter(row["status"] for row in self.rows))

    @property
    def best(self) -> Record | None:
        """The point with the most tokens (samples) per second; None when no point has a plan."""
        speed = speed_of(self.rows)
        return max((row for row in self.rows if "step_s" in row), key=lambda row: float(row[speed]), default=None)


def sweep(
    study: Study | str | Path | Mapping[str, Any],
    *,
    directory: str | Path | None = None,
    processes: int = 1,
    engine: str = "local",
    address: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Run every point of a study.

    Equal points (same resolved job, decision and limits) run once. Then points that ran out of time in a search for the
    least step time try their neighbours' decisions (``sweep_neighbours``). With a directory, each finished point is one
    line of ``points.jsonl`` there. Points that are already there (same package version) are not run again, except those
    that met an unexpected error. Tidy tables are written at the end.

    Args:
        study: a Study, a path, a name of the catalogue, or a mapping.
        directory: where results are kept; None keeps them in memory only.
        processes: points that run at the same time, each in its own process; 1 runs them in this one.
        engine: ``local``, or the cluster whose workers run the points: ``dask``, ``ray``. Results are kept here in any
            case.
        address: address of the cluster (``Engine``).
        progress: called after every point.

    Raises:
        InputError: the study is wrong, none of its points is a job, the directory cannot be written, or the cluster
            cannot be used.
    """
    whole_numbers(processes=processes)
    where = Engine(engine, processes, address)
    where.check()
    loaded, folder = load_study(study)
    points = points_of(loaded, folder)
    keys = [key_of(loaded, point, version("scaleacross")) for point in points]
    distinct: dict[str, Point] = {}
    for key, point in zip(keys, points, strict=True):
        distinct.setdefault(key, point)  # the first of equal points stands for all
    with Store(Path(directory)) if directory is not None else nullcontext() as store:
        label = partial(_label, loaded)
        found, num_run = run_open(distinct, partial(run_point, loaded), label, where, store, progress)
        records = dict(found)
        if loaded.command == "plan":
            try_neighbours(loaded, points, keys, records, where, store, progress)
        rows = tuple(
            _row(index, point, records[key]) for index, (point, key) in enumerate(zip(points, keys, strict=True))
        )
        files, note = write_tables(rows, Path(directory)) if directory is not None else ([], "")
    kept = (*((store.path,) if store else ()), *files)
    return SweepResult(loaded, rows, len(distinct), num_run, len(distinct) - num_run, kept, note)


def _label(study: Study, point: Point) -> Record:
    return {"study": study.name, "base": point.base, "fields": dict(point.fields)}


def _row(index: int, point: Point, record: Record) -> Record:
    """Return a point's line of the table. Fields are the point's own, because equal points may state them differently."""
    ends = {name: record[name] for name in ("status", "reason")}
    return {
        "point": index,
        "base": point.base,
        **point.fields,
        **ends,
        **record["figures"],
        "seconds": record["seconds"],
    }
