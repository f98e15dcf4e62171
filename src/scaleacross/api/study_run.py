"""Run the points of a study that its directory lacks, and store each as soon as it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaleacross.api.engines import Engine, run_points
from scaleacross.api.engines.outcome import FAILED, Record, Task
from scaleacross.api.study_store import Store
from scaleacross.spec.progress import Progress, telling


def run_open(
    points: Mapping[str, Any],
    task: Task,
    label: Callable[[Any], Record],
    where: Engine,
    store: Store | None,
    progress: Callable[[Progress], None] | None,
) -> tuple[Mapping[str, Record], int]:
    """Return records of all points by key, and the number of points run now.

    Points in the store are not run again, except those that met an unexpected error.

    Args:
        points: key -> point; equal keys are equal points.
        task: function from a point to its record.
        label: fields that a stored line has in addition to the record.
        where: engine that runs the points.
        store: where records are kept; None keeps nothing.
        progress: called before the first point and after every one.
    """
    records: dict[str, Record] = store.records if store else {}
    todo = {key: point for key, point in points.items() if _is_open(records.get(key))}
    tell, done, keys = telling(progress), len(points) - len(todo), list(todo)

    def on_done(index: int, outcome: Record) -> None:
        nonlocal done
        key, done = keys[index], done + 1
        records[key] = {"key": key, **label(todo[key]), **outcome}
        if store:
            store.append(records[key])
        tell("points", done, len(points))

    tell("points", done, len(points))
    run_points(task, list(todo.values()), where, on_done)
    return records, len(todo)


def _is_open(record: Record | None) -> bool:
    return record is None or record["status"] == FAILED
