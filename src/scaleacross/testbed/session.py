"""A testbed by name: one command makes it, later ones find it again, the last one removes it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleacross.errors import InputError
from scaleacross.spec.topology import Topology
from scaleacross.testbed import cpus, fabric
from scaleacross.testbed.layout import Layout, layout_of
from scaleacross.testbed.machine import INSIDE_VARIABLE, machine

STATE_FOLDER: Final = Path("/run/scaleacross-testbed")
DEFAULT_NAME: Final = "one"
TOPOLOGY_FILE: Final = "topology.json"


@dataclass(frozen=True)
class Testbed:
    """Emulated buildings that are up.

    Attributes:
        fixed_shares: whether every host has a fixed share of its core; otherwise hosts on one core take time from each
            other.
    """

    name: str
    topology: Topology
    layout: Layout
    fixed_shares: bool


def prefix_of(name: str) -> str:
    """Return the prefix of a testbed's namespaces. Raises InputError for a name that would clash or not fit."""
    if re.fullmatch(r"[a-z0-9]{1,16}", name) is None:
        raise InputError(f"testbed name {name!r}: 1 to 16 small letters and digits")
    return f"sat-{name}-"


def enter_private() -> None:
    """Run this very command again, for an ordinary user, as root of namespaces of its own, in which it may make others.

    It returns if that is not needed. Whatever is made there is removed when the command ends.

    Raises:
        InputError: this machine allows no testbed; the message says what is missing.
    """
    here = machine()
    if here.is_root or not here.can_unshare:
        here.require()
        return
    script = 'mount -t tmpfs tmpfs /run && exec "$@"'
    again = [sys.executable, "-c", "from scaleacross.cli import main; main()", *sys.argv[1:]]
    os.environ[INSIDE_VARIABLE] = "1"
    os.execvp("unshare", ["unshare", "-Urnm", "sh", "-c", script, "testbed", *again])


def up(topology: Topology, name: str = DEFAULT_NAME) -> Testbed:
    """Make a testbed.

    Raises:
        InputError: there is one of this name, the topology does not fit one machine, or this machine lacks something.
        EmulationError: a tool of this machine failed; nothing remains.
    """
    layout, here = layout_of(topology, prefix_of(name)), machine()
    here.require()
    if fabric.existing(layout.prefix):
        raise InputError(f"testbed '{name}' is up already: `scaleacross testbed down{_option(name)}` takes it away")
    folder = STATE_FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOPOLOGY_FILE).write_text(topology.model_dump_json(), encoding="utf-8")
    try:
        fabric.build(layout, here, folder / "relay.log")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _testbed(name, topology, layout)


def find(name: str = DEFAULT_NAME) -> Testbed:
    """Return the testbed of that name. Raises InputError if it is not up."""
    prefix, file = prefix_of(name), STATE_FOLDER / name / TOPOLOGY_FILE
    if not fabric.existing(prefix) or not file.exists():
        raise InputError(f"no testbed '{name}' is up: `scaleacross testbed up TOPOLOGY.yaml{_option(name)}` makes one")
    topology = Topology.model_validate_json(file.read_text(encoding="utf-8"))
    return _testbed(name, topology, layout_of(topology, prefix))


def names() -> list[str]:
    """Return the names of testbeds that are up, or of which something remains."""
    return sorted({name.split("-")[1] for name in fabric.existing("sat-") if name.count("-") > 1})


def down(name: str = DEFAULT_NAME) -> list[str]:
    """Remove a testbed, even an incomplete one; return its namespaces. Raises EmulationError if one remains."""
    removed = fabric.tear_down(prefix_of(name))
    shutil.rmtree(STATE_FOLDER / name, ignore_errors=True)
    return removed


@contextmanager
def standing(topology: Topology, name: str) -> Iterator[Testbed]:
    """Make a testbed for the time of a block, and remove it afterwards, on Ctrl-C too."""
    testbed = up(topology, name)
    try:
        yield testbed
    finally:
        down(name)


def _testbed(name: str, topology: Topology, layout: Layout) -> Testbed:
    return Testbed(name, topology, layout, fixed_shares=bool(cpus.groups_of(layout.prefix)))


def _option(name: str) -> str:
    return "" if name == DEFAULT_NAME else f" --name {name}"
