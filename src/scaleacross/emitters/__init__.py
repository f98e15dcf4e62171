"""Turn a plan into files that other programs read. Emitters never decide; they refuse by name what a target cannot
express.

``render(plan)`` of a target is pure and returns file names, relative to the output folder, with their text. ``launch``
and ``nccl`` write at the top of it. ``torchrun``, ``torchtitan`` and ``megatron`` have a folder each, because their
rank orders differ and their hosts.txt must not be mixed up. ``pipeline_csv`` has one too, because its file names are
general.
"""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final, cast

from scaleacross.emitters import (
    embedding_launch,
    hostfiles,
    kubernetes,
    launch,
    megatron,
    nccl,
    ncclx,
    pipeline_csv,
    recovery,
    torchrec,
    torchrun,
    torchtitan,
)
from scaleacross.errors import InputError, PluginError
from scaleacross.plugins import Plugin, Registry, expect, guarded
from scaleacross.spec.plan import Plan
from scaleacross.spec.recommendation import RecommendationPlan

Emitter = Callable[[Plan], dict[str, str]]

_BUNDLED: Final[Mapping[str, Emitter]] = {
    "launch": launch.render,
    "torchrun": torchrun.render,
    "torchtitan": torchtitan.render,
    "megatron": megatron.render,
    "nccl": nccl.render,
    "ncclx": ncclx.render,
    "pipeline_csv": pipeline_csv.render,
    "kubernetes": kubernetes.render,
    "hostfiles": hostfiles.render,
    "recovery": recovery.render,
}


TABLE_EMITTERS: Final[Mapping[str, Callable[[RecommendationPlan], dict[str, str]]]] = {
    "launch": embedding_launch.render,
    "torchrec": torchrec.render,
}
"""Targets of recommendation plans."""


def _accept(plugin: Plugin, render: Any) -> Emitter:
    """Wrap a package's emitter so that its result is checked: texts by relative names inside the output folder."""

    def rendered(plan: Plan) -> dict[str, str]:
        files = render(plan)
        for name, text in expect(files, dict).items():
            parts = PurePath(name).parts
            if not isinstance(text, str) or not parts or PurePath(name).is_absolute() or ".." in parts:
                raise PluginError(f"{plugin}: {str(name)[:60]!r}: a relative file name with its text is expected")
        if not files:
            raise PluginError(f"{plugin}: it returns no file; raise EmitError with the reason where it has none")
        return cast(dict[str, str], files)

    if not callable(render):
        raise TypeError(f"{render!r} cannot be called")
    return guarded(plugin, rendered)


EMITTERS: Final = Registry[str, Emitter]("emitters", _BUNDLED, _accept)
"""Every target by name: the bundled ones, then those of installed packages."""


def emit(plan: Plan, target: str, directory: str | os.PathLike[str]) -> list[Path]:
    """Write the files of ``target`` below ``directory`` (created if needed) and return their paths.

    Everything is rendered and staged first. Then the files are moved into place, each in one step. So an error or an
    interruption leaves every file either old or new, never partial.

    Raises:
        InputError: unknown target, or a place that cannot be written.
        EmitError: the target cannot express the plan.
    """
    require_targets([target])
    return write_files(EMITTERS[target](plan), Path(directory))


def require_targets(targets: Sequence[str]) -> None:
    """Raise InputError for an unknown target name, and suggest the nearest one."""
    for target in targets:
        if target not in EMITTERS:
            near = difflib.get_close_matches(target, EMITTERS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InputError(f"unknown target '{target}': there are {', '.join(EMITTERS)}{hint}")


def write_files(files: Mapping[str, str | bytes], directory: Path) -> list[Path]:
    """Write ``files`` (relative name -> content) below ``directory``, all or none where possible; return their paths.

    Scripts (``.sh``, ``.sbatch``) are made executable.

    Raises:
        InputError: ``directory`` or a folder below it is a file, a file is a folder, or writing fails.
    """
    require_place(directory)
    paths = [directory / name for name in files]
    made: list[Path] = []
    staging: Path | None = None
    try:
        for folder in dict.fromkeys([directory, *(path.parent for path in paths)]):
            made += _make_folder(folder)
        for path in paths:
            if path.is_dir():
                raise InputError(
                    f"{path} is a folder: a file of that name is to be written; remove it or choose another place"
                )
        staging = Path(tempfile.mkdtemp(prefix=".scaleacross-", dir=directory))
        staged = [_stage(staging / str(index), name, content) for index, (name, content) in enumerate(files.items())]
        for source, path in zip(staged, paths, strict=True):
            source.replace(path)
        made.clear()
    except OSError as error:
        raise InputError(f"cannot write to {directory}: {error.strerror or error}") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        for folder in reversed(made):
            _remove_if_empty(folder)
    return paths


def require_place(directory: Path) -> None:
    """Raise InputError where no folder can be: at the root of the file system, or below a file.

    Fast enough to call before a search.
    """
    if directory.resolve() == Path(directory.resolve().anchor):
        raise InputError(f"{directory} is the root of the file system: choose a folder of its own")
    for path in [*directory.parents, directory]:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: a folder is needed there; remove it or choose another place")


def _make_folder(folder: Path) -> list[Path]:
    """Create ``folder`` and its parents; return the new ones, outermost first."""
    missing = [path for path in [*reversed(folder.parents), folder] if not path.exists()]
    require_place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _stage(path: Path, name: str, content: str | bytes) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content, encoding="utf-8", newline="\n")
    path.chmod(0o755 if name.endswith((".sh", ".sbatch")) else 0o644)
    return path


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
