"""The verb diagnose: find the rank or link at fault from the dumps of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from scaleacross.api.arguments import instance, numbers, path
from scaleacross.diagnosis.perfetto import perfetto_json
from scaleacross.diagnosis.planned import add_predictions, in_plan
from scaleacross.diagnosis.read import find_dumps, read_dumps, without_collector
from scaleacross.diagnosis.verdict import DEFAULT_SLOW_RATIO, diagnosis
from scaleacross.errors import InputError
from scaleacross.spec.diagnosis import Diagnosis
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.progress import Progress, telling


def diagnose(
    *dumps: str | Path,
    slow_ratio: float = DEFAULT_SLOW_RATIO,
    perfetto: str | Path | None = None,
    launch: LaunchConfig | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Diagnosis:
    """Return the root cause of a hang or slow run. Needs no torch, and executes nothing that a dump holds.

    Args:
        dumps: directories or files: flight-recorder dumps (pickle or JSON) of our runtime or of PyTorch's own groups.
        slow_ratio: how many times slower than predicted, or than its peers, a link must be to be called slow.
        perfetto: write measured and predicted times of all ranks to this file, in Perfetto's format.
        launch: launch.json of the job: names hosts and the level of a link, and gives predictions to dumps that have
            none.
        progress: called now and then.

    Raises:
        InputError: nothing to read, or none of it is readable; ``slow_ratio`` is not above 1; ``launch`` is of another
            job.
    """
    how = "a directory of dumps, or a dump's file,"
    listed = [path("dumps", one, how) for one in dumps]
    if launch is not None:
        instance("launch", launch, LaunchConfig, "a LaunchConfig (LaunchConfig.model_validate_json reads launch.json)")
    numbers(slow_ratio=slow_ratio)
    if not slow_ratio > 1:
        raise InputError(f"slow_ratio is {slow_ratio}: a link as fast as predicted has 1, so give more than 1")
    report, files = telling(progress), find_dumps(listed)
    with without_collector():
        traces, unreadable = read_dumps(files, lambda done: report("reading dumps", done, len(files)))
        report("looking for the root", 0, None)
        if launch is not None:
            add_predictions(traces, launch)
        found = diagnosis(traces, unreadable, slow_ratio)
        if launch is not None:
            found = in_plan(found, launch)
        if perfetto is not None:
            report("writing the trace", 0, None)
            _write(Path(perfetto), perfetto_json(traces))
    return found


def _write(path: Path, pieces: Iterable[str]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.writelines(pieces)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
