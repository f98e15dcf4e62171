"""Catalogue entries behind the names that measurements carry; a name that there is not gets a short answer."""

from __future__ import annotations

from scaleacross import catalogue
from scaleacross.catalogue.find import Kind, names
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network import NetworkTechnology


def is_known(kind: Kind, name: str) -> bool:
    """Whether the catalogue has an entry of this name."""
    return name in dict(names(kind))


def known_accelerator(name: str) -> Accelerator:
    """The catalogue's accelerator of this name. Raises InputError."""
    return catalogue.load_accelerator(_checked("accelerators", name))


def known_network(name: str) -> NetworkTechnology:
    """The catalogue's link technology of this name. Raises InputError."""
    return catalogue.load_network(_checked("networks", name))


def _checked(kind: Kind, name: str) -> str:
    if not is_known(kind, name):
        raise InputError(f"not in the catalogue of {kind}; it has {', '.join(sorted(dict(names(kind))))}")
    return name
