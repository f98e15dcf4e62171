"""Write a verified plan and its launch files into one directory: either all files are written or none.

``cli`` calls ``write_bundle``; recommendation plans share ``left_by_others`` and ``left_over``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from scaleacross import api
from scaleacross.emitters import EMITTERS, require_targets, write_files
from scaleacross.errors import EmitError, PluginError
from scaleacross.spec.plan import Plan

PlanT = TypeVar("PlanT")
PLAN_FILE = "plan.json"
SUBMIT_FILE = "SUBMIT.md"
PREFERRED = ("torchrun", "megatron", "torchtitan", "kubernetes", "hostfiles")
"""Order of preference among launchers for the submit command, where the job states no target."""


@dataclass(frozen=True)
class Bundle:
    """Files written, and for each target that refused the plan the reason.

    Attributes:
        left: targets not requested, whose files there differ from those that this plan would write.
    """

    files: tuple[Path, ...]
    refused: dict[str, str]
    left: tuple[str, ...] = ()

    def submit_command(self, target: str) -> str:
        """Return the shell command that submits the plan, or '' if no launcher was written.

        It is the command of ``target`` if that was written, else of the first launcher of ``PREFERRED``.
        """
        pages = {path.parent.name: path for path in self.files if path.name == SUBMIT_FILE}
        name = next((name for name in (target, *PREFERRED) if name in pages), None)
        if name is None:
            return ""
        block = pages[name].read_text(encoding="utf-8").partition("```bash\n")[2].partition("```")[0]
        real = [line for line in block.splitlines() if "--test-only" not in line and "--dry-run" not in line]
        return f"cd {shlex.quote(str(pages[name].parent))} && {real[0].partition('  #')[0].rstrip()}"


def write_bundle(
    plan: Plan,
    directory: Path,
    targets: Sequence[str] | None = None,
    *,
    with_plan: bool = True,
    also: Mapping[str, str] = MappingProxyType({}),
) -> Bundle:
    """Write launch files (and ``plan.json``) below ``directory``; files of the same names are replaced.

    Args:
        plan: it is verified first.
        directory: created when missing.
        targets: None writes every target that can express the plan and reports the others.
        with_plan: write ``plan.json`` too.
        also: further files, written with the others.

    Raises:
        EmitError: one of the stated ``targets`` cannot express the plan; nothing is written.
        InputError: an unknown target, or ``directory`` cannot be written.
        VerificationError: the plan's figures do not recompute; nothing is written.
    """
    require_targets(targets or ())
    api.verify(plan)
    files = {PLAN_FILE: plan.model_dump_json(indent=2) + "\n"} if with_plan else {}
    refused: dict[str, str] = {}
    for target in EMITTERS if targets is None else targets:
        try:
            files |= EMITTERS[target](plan)
        except (EmitError, PluginError) as error:
            if targets is not None:
                raise
            folder = directory / target
            refused[target] = f"{error} ({folder} is of an earlier plan)" if folder.is_dir() else str(error)
    left = () if targets is None else left_by_others(plan, EMITTERS, targets, directory)
    return Bundle(tuple(write_files({**files, **also}, directory)), refused, left)


def left_by_others(
    plan: PlanT, emitters: Mapping[str, Callable[[PlanT], dict[str, str]]], written: Sequence[str], directory: Path
) -> tuple[str, ...]:
    """Targets not in ``written`` whose files in ``directory`` differ from those that ``plan`` would write.

    A target that refuses the plan counts if ``directory`` has a folder of its name.
    """
    out = []
    for target in emitters if directory.is_dir() and any(directory.iterdir()) else ():
        if target in written:
            continue
        try:
            files = emitters[target](plan)
        except (EmitError, PluginError):
            files = {}
        paths = {directory / name: text for name, text in files.items()}
        there = (directory / target).is_dir() or any(path.exists() for path in paths)
        if there and not (files and all(path.is_file() and _holds(path, text) for path, text in paths.items())):
            out.append(target)
    return tuple(out)


def left_over(left: Sequence[str], directory: Path) -> str:
    """Message to the user about the targets that ``left_by_others`` found."""
    return f"{directory} also holds {', '.join(left)} of another plan or other options: emit them too, or remove them"


def _holds(path: Path, text: str) -> bool:
    return path.read_bytes() == text.encode()
