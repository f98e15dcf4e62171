"""Options in place of a job file, for ``plan`` and ``init``; and the command ``init``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from scaleacross.cli.slurm_options import (
    SlurmAccount,
    SlurmContainer,
    SlurmExtra,
    SlurmPartition,
    SlurmTime,
    slurm_fields,
)
from scaleacross.errors import InputError

if TYPE_CHECKING:
    from scaleacross.catalogue import Start
    from scaleacross.spec.job import Job

Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="A config.json or the directory of one, a YAML, or a catalogue name."
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="TYPE:N,...",
        help="Accelerators of each building, e.g. h100:512,east=b200:256. Fewer than a host has are one host of so many.",
    ),
]
TopologyFile = Annotated[
    str | None, typer.Option("--topology", metavar="FILE", help="A topology instead of --gpus, --trunk and --km.")
]
InterBuildingLink = Annotated[
    str | None,
    typer.Option("--trunk", metavar="NxRATE", help="Link between every two buildings, per direction, e.g. 4x400G."),
]
Kilometres = Annotated[
    float | None, typer.Option("--km", metavar="KM", help="Its length; latency follows from it (4.9 us/km).")
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="N", help="Tokens per step, e.g. 4M (K = 1,024, M = 1,048,576).")
]
SequenceLength = Annotated[str | None, typer.Option("--seq", metavar="N", help="Tokens per sequence, e.g. 8192 or 8K.")]
Target = Annotated[str | None, typer.Option("--target", metavar="NAME", help="The framework that will run the plan.")]

QUESTIONS: Final = {
    "--model": "Model (config.json, YAML, or a catalogue name)",
    "--gpus": "Accelerators of each building (e.g. h100:512,h100:256)",
    "--tokens": "Tokens per step (e.g. 4M)",
    "--seq": "Tokens per sequence (e.g. 8192)",
}
LINK_QUESTIONS: Final = {
    "--trunk": "Link between every two buildings, per direction (e.g. 4x400G)",
    "--km": "Its length in km",
}


KEYS: Final = {
    "--model": "workload=NAME",
    "--gpus": "topology=FILE",
    "--topology": "topology=FILE",
    "--trunk": "topology.trunks.0.bandwidth_gbit_per_s=N",
    "--km": "topology.trunks.0.one_way_latency_us=N",
    "--tokens": "global_batch_tokens=N",
    "--seq": "sequence_length=N",
    "--target": "target=NAME",
}
"""Overrides of a job that say what these options say without one."""


def job_or_start(
    job: str | None,
    model: str | None,
    gpus: str | None,
    trunk: str | None,
    km: float | None,
    tokens: str | None,
    sequence: str | None,
    target: str | None,
    topology: str | None = None,
) -> str | Job:
    """Return the job that the user names, or the one that the options state.

    Raises:
        InputError: both, neither, or incomplete options.
    """
    given: dict[str, str | None] = {"--model": model, "--gpus": gpus, "--tokens": tokens, "--seq": sequence}
    given |= {"--trunk": trunk, "--km": None if km is None else str(km), "--target": target}
    given |= {"--topology": topology}
    stated = [name for name, value in given.items() if value is not None]
    if job is not None:
        if stated:
            raise InputError(
                f"{', '.join(stated)}: a job is given ('{job[:60]}'), which states this; change it with "
                + " ".join(f"--set {KEYS[name]}" for name in stated)
            )
        return job
    if not stated:
        raise InputError(
            "no job: name one (scaleacross plan JOB.yaml), or state --model, --gpus, --tokens and --seq, e.g. "
            "scaleacross plan --model config.json --gpus h100:512,h100:256 --trunk 4x400G --km 50 --tokens 4M --seq 8192"
        )
    from scaleacross.catalogue import load_job, quick_job

    return load_job(quick_job(_start(given, km)))


def init_command(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to write.", file_okay=False)] = Path(),
    model: Model = None,
    gpus: Gpus = None,
    trunk: InterBuildingLink = None,
    km: Kilometres = None,
    tokens: Tokens = None,
    sequence: SequenceLength = None,
    target: Target = None,
    topology: TopologyFile = None,
    slurm_partition: SlurmPartition = None,
    slurm_account: SlurmAccount = None,
    slurm_time: SlurmTime = None,
    slurm_container: SlurmContainer = None,
    slurm_extra: SlurmExtra = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a commented job.yaml and topology.yaml to edit. What the options leave open is asked for.

    \b
    Examples:
      scaleacross init my_run
      scaleacross init my_run --model config.json --gpus h100:512,h100:256 --trunk 4x400G --km 50 --tokens 4M --seq 8K
    """
    from scaleacross.catalogue import load_job, quick_files, quick_job
    from scaleacross.emitters import write_files

    given: dict[str, str | None] = {"--model": model, "--gpus": gpus, "--tokens": tokens, "--seq": sequence}
    given |= {"--trunk": trunk, "--km": None if km is None else str(km), "--target": target}
    given |= {"--topology": topology}
    if sys.stdin.isatty():
        _ask(given, {name: text for name, text in QUESTIONS.items() if name != "--gpus" or topology is None})
        if "," in (given["--gpus"] or ""):
            _ask(given, LINK_QUESTIONS)
    slurm = slurm_fields(slurm_partition, slurm_account, slurm_time, slurm_container, slurm_extra)
    start = replace(_start(given, _number(given["--km"])), slurm=slurm)
    load_job(quick_job(start))  # nothing is written that cannot be read
    files = quick_files(start)
    there = [str(directory / name) for name in files if (directory / name).exists()]
    if there and not force:
        raise InputError(f"{', '.join(there)}: exists; choose another folder, or --force to replace")
    for path in write_files(files, directory):
        typer.echo(path)
    typer.echo(f"next: scaleacross plan {directory / 'job.yaml'} -o {directory / 'build'}", err=True)


def _ask(given: dict[str, str | None], questions: dict[str, str]) -> None:
    """Ask the user for every option that is not given."""
    given |= {name: str(typer.prompt(question)) for name, question in questions.items() if given[name] is None}


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InputError(f"--km {text!r}: a number of kilometres is expected") from None


def _start(given: dict[str, str | None], km: float | None) -> Start:
    """Return what the options state. Raises InputError where they are incomplete."""
    from scaleacross.catalogue import Start

    missing = [name for name in QUESTIONS if given[name] is None and (name != "--gpus" or given["--topology"] is None)]
    if missing:
        raise InputError(
            f"also needed without a job file: {', '.join(missing)} (scaleacross plan --help shows an example)"
        )
    return Start(
        model=given["--model"] or "",
        gpus=given["--gpus"],
        topology=given["--topology"],
        tokens=given["--tokens"] or "",
        sequence=given["--seq"] or "",
        trunk=given["--trunk"],
        km=km,
        target=given["--target"],
    )
