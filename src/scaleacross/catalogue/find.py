"""Find the file of a catalogue entry: by path, by name in the user's folder, or by name in the bundled ``configs/``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from scaleacross.catalogue.validation import nearest
from scaleacross.errors import InputError

Kind = Literal[
    "accelerators", "networks", "topologies", "graphs", "workloads", "recommendation", "jobs", "plans", "studies"
]
KINDS: Final[tuple[Kind, ...]] = (
    "accelerators",
    "networks",
    "topologies",
    "graphs",
    "workloads",
    "recommendation",
    "jobs",
    "plans",
    "studies",
)

CONFIGS_VARIABLE: Final = "SCALEACROSS_CONFIGS"
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""Name of a model on a hub: ORGANISATION/MODEL."""
_HUB_CONFIG: Final = "config.json"
"""File in a clone of a model's repository that describes the model."""
_WRITTEN: Final = {"jobs": "job.yaml", "topologies": "topology.yaml", "plans": "plan.json"}
"""Files that commands write into a directory, by kind."""


def config_folders() -> list[Path]:
    """Return the directories with ``<kind>/NAME.yaml`` in search order: ``$SCALEACROSS_CONFIGS``, then the bundled.

    The bundled directory is ``configs/`` next to ``src/`` in a checkout, and inside the package in a wheel.

    Raises:
        InputError: ``$SCALEACROSS_CONFIGS`` is set and no directory.
    """
    folders = []
    if own := os.environ.get(CONFIGS_VARIABLE):
        if not Path(own).is_dir():
            raise InputError(
                f"{CONFIGS_VARIABLE}={own!r} is no directory: unset it or point it to one with accelerators/, ..."
            )
        folders.append(Path(own))
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1] / "configs"
    folders.append(checkout if checkout.is_dir() and package.parent.name == "src" else package / "configs")
    return folders


def names(kind: Kind) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) of every entry of ``kind``; a name in ``$SCALEACROSS_CONFIGS`` replaces the bundled entry."""
    seen: set[str] = set()
    for folder in config_folders():
        for path in sorted((folder / kind).glob("*.yaml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path.stem, path


def hidden() -> list[str]:
    """Bundled entries, as ``kind/name``, that an entry in ``$SCALEACROSS_CONFIGS`` replaces."""
    folders = config_folders()
    own = {(kind, path.stem) for folder in folders[:-1] for kind in KINDS for path in (folder / kind).glob("*.yaml")}
    return sorted(f"{kind}/{name}" for kind, name in own if (folders[-1] / kind / f"{name}.yaml").is_file())


def find(kind: Kind, ref: str, folder: Path | None = None) -> Path:
    """Return the file of ``ref``: a path (from ``folder``, then the working directory), else a catalogue name.

    Names may differ in case, hyphens and underscores. A model's name may follow its organisation
    (``Qwen/Qwen3-30B-A3B``). A model may be a directory that holds a ``config.json``.

    Raises:
        InputError: nothing there; the message names the nearest entries.
    """
    if not ref or any(ord(character) < 32 or ord(character) == 127 for character in ref):
        raise InputError(f"{ref!r} names no file of {kind}: control characters or nothing at all")
    candidates = [base / ref for base in (folder, Path()) if base is not None]
    looks_like_path = os.sep in ref or ref.endswith(_SUFFIXES)
    for candidate in candidates:
        try:
            if candidate.is_file():
                return candidate
            if kind == "workloads" and (candidate / _HUB_CONFIG).is_file():
                return candidate / _HUB_CONFIG
            if looks_like_path and candidate.is_dir():
                raise InputError(
                    f"{candidate} is a directory; name {_written_in(kind, candidate) or 'a YAML file in it'}"
                )
        except OSError as error:  # e.g. a name longer than the file system allows
            raise InputError(f"{kind}: '{ref[:100]}': {error.strerror}") from None
    known = dict(names(kind))
    of_hub = kind == "workloads" and not ref.endswith(_SUFFIXES) and _HUB_NAME.fullmatch(ref)
    if of_hub or not looks_like_path:
        alike = {letters(name): name for name in known}
        if name := ref if ref in known else alike.get(letters(ref)):
            return known[name]
        if written := next(filter(None, (_written_in(kind, candidate) for candidate in candidates)), None):
            raise InputError(f"{ref} is a directory; name {written}")
        folders = [candidate for candidate in candidates if candidate.is_dir()]
        here = f"{folders[0]} is a directory without {_WRITTEN[kind]}" if folders and kind in _WRITTEN else "no file"
        where = f"{here} and no name in the catalogue ({', '.join(f'{base}/{kind}' for base in config_folders())})"
    else:
        where = "no such file"
    word = next((ref.removesuffix(suffix) for suffix in _SUFFIXES if ref.endswith(suffix)), ref).rsplit("/", 1)[-1]
    raise InputError(f"{kind}: '{ref[:100]}': {where}; {nearest(word.lower(), known, 'name', 'names')}")


def _written_in(kind: Kind, folder: Path) -> Path | None:
    """Return the file of this kind that a command wrote into ``folder``; None if there is none."""
    written = folder / _WRITTEN[kind] if kind in _WRITTEN else None
    return written if written is not None and written.is_file() else None


def letters(name: str) -> str:
    """Normalised name: letters and digits in lower case, without the organisation."""
    return "".join(one for one in name.rsplit("/", 1)[-1].lower() if one.isalnum())
