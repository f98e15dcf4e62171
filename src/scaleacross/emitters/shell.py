"""Shared parts of shell files, hosts.txt, and run_node.sh (torchrun, once per host).

run_node.sh exists to keep the rank order: the static rendezvous gives node R the ranks after those of nodes 0..R-1. The
c10d rendezvous sorts nodes by address text and ignores --node-rank (torch 2.13,
distributed/elastic/rendezvous/dynamic_rendezvous.py), so it is not used.

User text never enters a script unchecked. Host names are refused unless they are plain. Everything else is quoted by
``shlex.quote`` or reduced to one comment line.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Final

from scaleacross.emitters.filling import filled
from scaleacross.emitters.rank_order import RankOrder
from scaleacross.errors import EmitError
from scaleacross.spec.launch import DEFAULT_PORT, EnvVariable
from scaleacross.spec.slurm import Slurm

PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Launch:
    """What is started on every rank.

    Attributes:
        plan_name: name of the job, free text.
        framework: framework whose rank order is used, for messages.
        torchrun_command: words after torchrun's own options, as shell text (already quoted).
        task_command: command line of one process when it is started without torchrun, as shell text (already quoted).
        preamble: shell lines run before either command; $here is the folder of these files.
        slurm: how the job is submitted.
        folder: folder of these files inside the launch folder.
        required: environment variables that the commands need, and what each means.
        settings: environment of every process.
        left_out: inputs that the program needs and no plan states, for SUBMIT.md: a sentence with an example.
    """

    plan_name: str
    framework: str
    torchrun_command: str
    task_command: str
    preamble: str = ""
    slurm: Slurm = field(default_factory=Slurm)
    folder: str = "torchrun"
    required: tuple[tuple[str, str], ...] = ()
    settings: tuple[EnvVariable, ...] = ()
    left_out: str = ""


def one_line(text: str) -> str:
    """Return ``text`` fit for a comment: control characters and line breaks become spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def plain(name: str) -> str:
    """Return ``name`` if it is safe as a host name in files that know no quoting.

    Raises:
        EmitError: anything but letters, digits, dot, underscore and hyphen, or a leading punctuation mark.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise EmitError(
            f"host name {name!r} cannot be written to a host file: rename the building to letters, digits, '.', '_' and '-' only"
        )
    return name


def hosts_file(order: RankOrder, launch: Launch) -> str:
    """Return hosts in node-rank order with their process counts; the user edits the first column."""
    lines = [
        f"# Hosts of plan {one_line(launch.plan_name)} in the rank order of {launch.framework}: line k is node rank k.",
        "# Column 1: host name, to be replaced by the real one. Column 2: processes. Column 3: the host's name in the plan.",
        *(f"{plain(host.name)} {host.num_ranks} {host.name}" for host in order.hosts),
        *(f"# Spare hosts of {name}: {' '.join(spares)}" for name, spares in order.spares.items()),
    ]
    return "\n".join(lines) + "\n"


def settings_file(launch: Launch) -> str:
    """Return settings.env, which all scripts source. Empty ones are written too, so that none of an earlier plan stays."""
    lines = [f"# Environment of every process of plan {one_line(launch.plan_name)}."]
    lines += [f"# {one_line(one.why)}\n{one.name}={shlex.quote(one.value)}" for one in launch.settings]
    return "\n".join(lines) + "\n"


def header(launch: Launch, purpose: str) -> str:
    """Return the comment that states the purpose of a script."""
    return f"# Plan {one_line(launch.plan_name)}: {purpose}"


def run_node(order: RankOrder, launch: Launch) -> str:
    """Return run_node.sh.

    Where the ranks of a host are not one block, it prints that and exits, because torchrun needs blocks.
    """
    split = order.split_host()
    if split is not None:
        message = (
            f"The ranks of host {plain(split)} are not consecutive in the rank order of {launch.framework}, and torchrun gives "
            "every host one block of ranks: use slurm.sbatch, which starts each rank by itself."
        )
        return f"#!/usr/bin/env bash\nset -euo pipefail\necho {shlex.quote(message)} >&2\nexit 2\n"
    return filled(
        "run_node.sh",
        header=header(launch, "starts the processes of this host. Run it on every host, with the same files."),
        read_hosts=read_hosts(order),
        num_hosts=len(order.hosts),
        port=DEFAULT_PORT,
        preamble=launch.preamble,
        command=launch.torchrun_command,
    )


def read_hosts(order: RankOrder) -> str:
    """Return shell lines, shared by all scripts, that read hosts.txt into names[] and counts[] by node rank."""
    return filled("read_hosts.sh", num_hosts=len(order.hosts), world_size=len(order))
