"""Resolve the names in measurements to catalogue entries, or to base entries for names that the catalogue lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scaleacross import catalogue
from scaleacross.calibration.systems import ACCELERATOR_OF
from scaleacross.catalogue.find import Kind, names
from scaleacross.catalogue.load import read
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.base import NAME_PATTERN
from scaleacross.spec.network import NetworkTechnology

Text = TypeVar("Text", str, str | Path)


@dataclass(frozen=True)
class AcceleratorTarget:
    """An entry to write: its name, the entry that it starts from, and that entry's file as plain data."""

    name: str
    base: Accelerator
    data: Mapping[str, Any]


@dataclass(frozen=True)
class NetworkTarget:
    """An entry to write and the entry that it starts from."""

    name: str
    base: NetworkTechnology


@dataclass(frozen=True)
class Bases:
    """The entries that ``--base`` names: a catalogue name or a file per kind; None where none is given."""

    accelerator: str | None = None
    network: str | None = None

    def accelerator_targets(self, labels: Iterable[str]) -> dict[str, AcceleratorTarget]:
        """Map each label to the entry that its rows are fitted for. Raises InputError, naming all labels without one."""
        bases = _bases("accelerators", {label: ACCELERATOR_OF.get(label, label) for label in labels}, self.accelerator)
        return {
            label: AcceleratorTarget(name, catalogue.load_accelerator(base), read("accelerators", base).data)
            for label, (name, base) in bases.items()
        }

    def network_targets(self, links: Mapping[str, str]) -> dict[str, NetworkTarget]:
        """Map each label of collectives to the entry that its rows are fitted for.

        Args:
            links: label -> the link that it ran on, empty where nothing states it.

        Raises:
            InputError: a link is not stated, or has neither an entry nor a base.
        """
        names_of = dict(links)
        if "" in names_of.values():
            unknown = ", ".join(label for label, name in links.items() if label and not name)
            what = f"the link of {unknown} is not known" if unknown else "the collectives name no system"
            raise InputError(f"{what}: say which link they ran on with --network NAME")
        bases = _bases("networks", names_of, self.network)
        return {label: NetworkTarget(name, catalogue.load_network(base)) for label, (name, base) in bases.items()}


def _bases(kind: Kind, wanted: Mapping[str, str], stand_in: str | None) -> dict[str, tuple[str, str]]:
    """Map each label to (entry to write, entry to start from): itself where the catalogue has it, else ``stand_in``."""
    known = sorted(dict(names(kind)))
    new = [label for label, name in wanted.items() if name not in known]
    if new and stand_in is None:
        rest = [label for label in wanted if label not in new]
        raise InputError(
            f"not in the catalogue of {kind}: {', '.join(new)}. Name with --base the entry that supplies what is not fitted "
            f"({', '.join(known)}; or a file)" + (f", or leave them out with --only '{','.join(rest)}'" if rest else "")
        )
    for label in new:
        if re.fullmatch(NAME_PATTERN, wanted[label]) is None:
            raise InputError(
                f"'{wanted[label]}' cannot name an entry: use letters, digits, '.', '_' and '-', or leave it out with --only"
            )
    return {label: (name, name if name in known else str(stand_in)) for label, name in wanted.items()}


def listed(given: Text | Sequence[Text]) -> Sequence[Text]:
    """Wrap a single name or path in a list; return several unchanged."""
    return [given] if isinstance(given, str | Path) else given


def bases_of(given: Sequence[str]) -> Bases:
    """Return the bases for the given names or paths, at most one of each kind. Raises InputError."""
    found: dict[Kind, str] = {}
    for ref in given:
        kind = _kind_of(ref)
        if kind in found:
            raise InputError(f"--base {found[kind]} and --base {ref} are both {kind}: keep one")
        found[kind] = ref
    return Bases(found.get("accelerators"), found.get("networks"))


def _kind_of(ref: str) -> Kind:
    kinds: tuple[Kind, ...] = ("accelerators", "networks")
    for kind in kinds:
        if ref in dict(names(kind)):
            return kind
    if not Path(ref).is_file():
        listed = "; ".join(f"{kind}: {', '.join(sorted(dict(names(kind))))}" for kind in kinds)
        raise InputError(f"--base '{ref}' is no file and no name of the catalogue ({listed})")
    return "accelerators" if any(key.startswith("peak_") for key in read("accelerators", ref).data) else "networks"


def known_accelerator(name: str) -> Accelerator:
    """Return the catalogue's accelerator of this name. Raises InputError."""
    return catalogue.load_accelerator(_checked("accelerators", name))


def known_network(name: str) -> NetworkTechnology:
    """Return the catalogue's link technology of this name. Raises InputError."""
    return catalogue.load_network(_checked("networks", name))


def _checked(kind: Kind, name: str) -> str:
    known = dict(names(kind))
    if name not in known:
        raise InputError(f"not in the catalogue of {kind}; it has {', '.join(sorted(known))}")
    return name
