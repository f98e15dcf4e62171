"""The verb reproduce: run every point of a published design space, resumably, and write the table behind its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from scaleacross.api.ablation import ABLATIONS
from scaleacross.api.arguments import whole_numbers
from scaleacross.api.assemble import versions
from scaleacross.api.design_replay import contest_of, replay_contest
from scaleacross.api.design_run import BASELINE_NAMES, design_key, run_design_point
from scaleacross.api.engines import Engine
from scaleacross.api.engines.outcome import Record
from scaleacross.api.study_run import run_open
from scaleacross.api.study_store import Store, kept_in, write_tables
from scaleacross.catalogue import DesignPoint, design_points, load_design_space
from scaleacross.spec.design_space import DesignSpace
from scaleacross.spec.progress import Progress

REPLAYS_FILE: Final = "replays.jsonl"
USED: Final[Mapping[str, str]] = {"accelerators": "accelerators_used"}
"""Figures of a plan whose name is also that of an axis, and their column in the table."""


@dataclass(frozen=True)
class Reproduction:
    """Outcome of a design space.

    Attributes:
        space: the design space as it was run.
        rows: one per finished point, in the order of drawing: the axes, ``status``, ``reason``, figures of our plan,
            and ``NAME_s``, the step time in seconds of every contender.
        num_drawn: points asked for; those that are not in ``rows`` are open.
        num_run: points that were run now.
        rivals, ablations: names of the baselines and ablations.
        versions: versions of the packages that the figures depend on.
        files: files written.
        note: what was not written, and why.
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
        """Number of finished points by status."""
        return dict(Counter(row["status"] for row in self.rows))


def reproduce(
    space: DesignSpace | str | Path | Mapping[str, Any],
    *,
    directory: str | Path,
    points: int | None = None,
    run: bool = True,
    replay: bool = False,
    overrides: Sequence[str] = (),
    processes: int = 1,
    engine: str = "local",
    address: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Reproduction:
    """Compare our plan with production, one-dimensional ablations and every baseline on the points of a design space.

    Each finished point is one line of ``points.jsonl`` in the directory. Points that are already there (same package
    version) are not run again. Tidy tables are written at the end.

    Args:
        space: a DesignSpace, a path, a name of the catalogue's studies, or a mapping.
        directory: where results are kept.
        points: number of points instead of that of the space; fewer points are the first ones of more.
        run: False runs and writes nothing; it reads what the directory holds, even during a run.
        replay: simulate every contender's plan of every finished point. Results go to ``replays.jsonl`` and are
            resumable too. Results that are already there are shown in any case.
        overrides: ``a.b=value`` on any field of the space.
        processes, engine, address: as in ``sweep``.
        progress: called after every point.

    Raises:
        InputError: the space is wrong, the directory cannot be written, or the cluster cannot be used.
    """
    whole_numbers(processes=processes, points=points)
    where = Engine(engine, processes, address)
    where.check()
    loaded, folder = load_design_space(space, overrides)
    drawn = design_points(loaded, folder, points)
    keyed = {design_key(loaded, point, version("scaleacross")): point for point in drawn}
    home = Path(directory)
    found = partial(Reproduction, loaded, num_drawn=len(drawn), rivals=BASELINE_NAMES, ablations=tuple(ABLATIONS))
    if not run:
        rows = _rows(keyed, kept_in(home), _replays_in(home))
        return found(rows=rows, num_run=0, versions=versions())
    with Store(home) as store:
        records, num_run = run_open(keyed, partial(run_design_point, loaded), _label, where, store, progress)
        replays = _replayed(keyed, records, home, where, progress) if replay else _replays_in(home)
        rows = _rows(keyed, records, replays)
        files, note = write_tables(rows, home)
    return found(rows=rows, num_run=num_run, versions=versions(), files=(store.path, *files), note=note)


def _replayed(
    keyed: Mapping[str, DesignPoint],
    records: Mapping[str, Record],
    home: Path,
    where: Engine,
    progress: Callable[[Progress], None] | None,
) -> Mapping[str, Record]:
    """Simulate the plans of all finished points; return the records by the keys of the points."""
    contests = {key: contest_of(point.job, records[key]) for key, point in keyed.items() if key in records}
    there = {key: contest for key, contest in contests.items() if contest is not None}
    with Store(home, REPLAYS_FILE) as store:
        return run_open(there, replay_contest, lambda contest: {"names": [*contest.decisions]}, where, store, progress)[
            0
        ]


def _replays_in(home: Path) -> Mapping[str, Record]:
    return kept_in(home, REPLAYS_FILE) if (home / REPLAYS_FILE).exists() else {}


def _label(point: DesignPoint) -> Record:
    return {"fields": dict(point.fields)}


def _rows(
    keyed: Mapping[str, DesignPoint], records: Mapping[str, Record], replays: Mapping[str, Record]
) -> tuple[Record, ...]:
    """Return a line of the tidy table for every finished point."""
    return tuple(_row(point, records[key], replays.get(key)) for key, point in keyed.items() if key in records)


def _row(point: DesignPoint, record: Record, replay: Record | None) -> Record:
    ends = {name: record[name] for name in ("status", "reason", "seconds")}
    figures = {USED.get(name, name): value for name, value in record["figures"].items()}
    figures |= replay["figures"] if replay else {}
    refused = {"referee": replay["reason"]} if replay and replay["reason"] else {}
    return {**point.fields, **ends, "cpu_s": record.get("cpu_s"), **figures, **refused}
