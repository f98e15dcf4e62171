"""The experiments of ``scaleacross testbed``: their folders, progress and testbeds, around the measurements of
``testbed``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from scaleacross.errors import InputError

if TYPE_CHECKING:
    from scaleacross.spec.testbed import CollectiveResults, Degraded, TrainingResults
    from scaleacross.spec.topology import Topology
    from scaleacross.testbed.session import Testbed


def run_job(
    job: str, baselines: Sequence[str], steps: int, output: Path | None, overrides: Sequence[str], name: str
) -> TrainingResults:
    """Calibrate, plan, train."""
    from scaleacross.spec.testbed import TrainingResults
    from scaleacross.testbed.conditions import conditions, load_average
    from scaleacross.testbed.training import calibrate, contest_of, resolved, train_all

    prepare()
    stated, before = resolved(job, overrides), load_average()
    with folder(output) as kept, testbed_of(stated.topology, name) as testbed:
        known = calibrate(testbed, stated, kept, say)
        setting = train_all(testbed, known, contest_of(known, baselines), steps, kept, say)
        where = conditions(before, testbed.fixed_shares)
    return TrainingResults(conditions=where, settings=(setting,), bars=())


def calibrated_topology(job: str, name: str) -> dict[str, str]:
    """Return the job's topology as measured: path in a catalogue -> YAML."""
    from scaleacross.catalogue.write import entry_text
    from scaleacross.testbed.training import calibrate, resolved

    prepare()
    stated = resolved(job)
    with folder(None) as kept, testbed_of(stated.topology, name) as testbed:
        known = calibrate(testbed, stated, kept, say)
    data = known.topology.model_dump(mode="json", exclude_none=True)
    text = entry_text(data, "written by scaleacross calibrate --testbed")
    return {f"topologies/{known.topology.name}.yaml": text}


def run_collectives(topology: str, quick: bool, output: Path | None, name: str) -> CollectiveResults:
    """Measure all settings, or with ``quick`` one."""
    from scaleacross.catalogue import load_topology
    from scaleacross.testbed.collectives import MIDDLE_BYTES_PER_S, SIZES_BYTES, measure_collectives

    prepare()
    few = {"rates": (MIDDLE_BYTES_PER_S,), "delays": (0.0,), "sizes": SIZES_BYTES[-1:]} if quick else {}
    with folder(output) as kept:
        return measure_collectives(load_topology(topology), name, kept, say, **few)  # type: ignore[arg-type]


def run_halved(job: str, steps: int, output: Path | None, name: str) -> Degraded:
    """Measure a run in which an inter-building link is halved."""
    from scaleacross.testbed.experiments import measure_halved
    from scaleacross.testbed.training import resolved

    prepare()
    with folder(output) as kept:
        return measure_halved(resolved(job), name, kept, steps, say)


def write_page(
    job: str, three: str | None, halved: str | None, steps: int, quick: bool, only: str | None, output: Path, name: str
) -> list[Path]:
    """Write testbed.md, .svg and .json after every setting, so that an interruption costs only the current one."""
    from scaleacross.emitters import write_files
    from scaleacross.report.testbed_page import results_json, results_of, results_page
    from scaleacross.report.testbed_plot import training_plot
    from scaleacross.testbed.collectives import MIDDLE_BYTES_PER_S, SIZES_BYTES, measure_collectives
    from scaleacross.testbed.experiments import THREE_BUILDINGS, TWO_BUILDINGS, measure_training
    from scaleacross.testbed.training import resolved

    prepare()
    stated, on_three = resolved(job), resolved(three) if three else None
    other = resolved(halved) if halved else None
    few = {"rates": (MIDDLE_BYTES_PER_S,), "delays": (0.0,), "sizes": SIZES_BYTES[-1:]} if quick else {}
    fewer = {"two": TWO_BUILDINGS[:1], "three": THREE_BUILDINGS[:1]} if quick else {}
    before = results_of(_text(output / "testbed.json")) if only else None
    command, written = shlex.join(["scaleacross", *sys.argv[1:]]), []
    with folder(None) as kept:
        if before is not None and only == "training":
            collectives = before[1]
        else:
            collectives = measure_collectives(stated.topology, name, kept / "collectives", say, **few)  # type: ignore[arg-type]
        trained = (
            [before[0]]
            if before is not None and only == "collectives"
            else measure_training(stated, on_three, name, kept / "training", steps, say, halved=other, **fewer)
        )
        for training in trained:
            pages = {
                "testbed.md": results_page(training, collectives, command),
                "testbed.svg": training_plot(training.settings),
                "testbed.json": results_json(training, collectives),
            }
            written = write_files(pages, output)
    return written


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; `--only` needs what was measured before") from None


def prepare() -> None:
    """Require torch, and enter private namespaces where an ordinary user must."""
    from scaleacross.runtime.requirement import require_torch
    from scaleacross.testbed.session import enter_private

    require_torch()
    enter_private()


def say(line: str) -> None:
    """Print progress on stderr."""
    typer.echo(line, err=True)


@contextmanager
def folder(output: Path | None) -> Iterator[Path]:
    """Yield ``output``, or a temporary folder that is removed after the run."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    with TemporaryDirectory(prefix="scaleacross-testbed-") as path:
        yield Path(path)


@contextmanager
def testbed_of(topology: Topology, name: str) -> Iterator[Testbed]:
    """Yield the testbed that is up, which stays; else one for the duration of the block."""
    from scaleacross.testbed import fabric, session

    if fabric.existing(session.prefix_of(name)):
        yield session.find(name)
        return
    with session.standing(topology, name) as testbed:
        yield testbed
