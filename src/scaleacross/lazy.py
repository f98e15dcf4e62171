"""Names of a package that are loaded on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def loaded_from(package: str, home: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``package`` that imports a name's module when the name is first used.

    ``home`` maps a module to the names that it defines. Other names raise AttributeError.
    """
    modules = {name: module for module, names in home.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(modules[name]), name)

    return attribute
