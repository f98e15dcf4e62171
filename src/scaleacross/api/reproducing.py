"""The verb reproduce: every point of a published design space, resumable, and the table behind its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scaleacross.api.ablation import ABLATIONS
from scaleacross.api.assemble import versions
from scaleacross.api.design_run import RIVALS, design_key, run_design_point
from scaleacross.api.engines import Engine
from scaleacross.api.engines.outcome import Record
from scaleacross.api.study_run import run_open
from scaleacross.api.study_store import Store, kept_in, write_tables
from scaleacross.catalogue import DesignPoint, design_points, load_design_space
from scaleacross.spec.design_space import DesignSpace
from scaleacross.spec.progress import Progress


@dataclass(frozen=True)
class Reproduction:
    """Outcome of a design space.

    Attributes:
        space: as it was run.
        rows: one per point that is done, in the order of drawing: the axes, ``status``, ``reason``, figures of our plan,
            ``NAME_s`` of every contender.
        num_drawn: points asked for; those that are not in ``rows`` are open.
        num_run: points that were run now.
        rivals, ablations: names of the contenders beside ours.
        versions: of the packages that the figures depend on.
        files: what was written; ``note``: what was not, and why.
    """

    space: DesignSpace
    rows: tuple[Record, ...]
    num_drawn: int
    num_run: int
    rivals: tuple[str, ...]
    ablations: tuple[str, ...]
    versions: Mapping[str, str]
    files: tuple[Path, ...] = ()
    note: str = ""

    @property
    def statuses(self) -> dict[str, int]:
        """Points that are done, by status."""
        return dict(Counter(row["status"] for row in self.rows))


def reproduce(
    space: DesignSpace | str | Path | Mapping[str, Any],
    *,
    directory: str | Path,
    points: int | None = None,
    run: bool = True,
    processes: int = 1,
    engine: str = "local",
    address: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Reproduction:
    """Hold our plan against production, one dimension at a time and every rival, on the points of a design space.

    Each finished point is one line of ``points.jsonl`` in the directory; points that stand there already (same package version)
    are not run again. Tidy tables are written at the end.

    Args:
        space: a DesignSpace, a path, a name of the catalogue's studies, or a mapping.
        directory: where results are kept.
        points: so many instead of what the space says; fewer are the first ones of more.
        run: False runs and writes nothing, and reads what the directory holds, even beside a run.
        processes, engine, address: as of ``sweep``.
        progress: called after every point.

    Raises:
        InputError: the space is wrong, the directory cannot be written, or the cluster cannot be used.
    """
    where = Engine(engine, processes, address)
    where.check()
    loaded, folder = load_design_space(space)
    drawn = design_points(loaded, folder, points)
    keyed = {design_key(loaded, point, version("scaleacross")): point for point in drawn}
    if not run:
        rows = _rows(keyed, kept_in(Path(directory)))
        return Reproduction(loaded, rows, len(drawn), 0, RIVALS, tuple(ABLATIONS), versions())
    with Store(Path(directory)) as store:
        records, num_run = run_open(keyed, partial(run_design_point, loaded), _label, where, store, progress)
        rows = _rows(keyed, records)
        files, note = write_tables(rows, Path(directory))
    kept = (store.path, *files)
    return Reproduction(loaded, rows, len(drawn), num_run, RIVALS, tuple(ABLATIONS), versions(), kept, note)


def _label(point: DesignPoint) -> Record:
    return {"fields": dict(point.fields)}


def _rows(keyed: Mapping[str, DesignPoint], records: Mapping[str, Record]) -> tuple[Record, ...]:
    """A line of the tidy table for every point that is done."""
    return tuple(_row(point, records[key]) for key, point in keyed.items() if key in records)


def _row(point: DesignPoint, record: Record) -> Record:
    ends = {name: record[name] for name in ("status", "reason", "seconds")}
    return {**point.fields, **ends, "cpu_s": record.get("cpu_s"), **record["figures"]}
