"""List what installed packages add to this one, and whether it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scaleacross.emitters import EMITTERS
from scaleacross.errors import PluginError
from scaleacross.plugins import Kind, Registry, plugins
from scaleacross.schedules.collective import PHASES
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.solvers.baselines import BASELINES
from scaleacross.workloads import FAMILIES

REGISTRIES: Final[Mapping[Kind, Registry[Any, Any]]] = {
    "schedules": SCHEDULES,
    "collectives": PHASES,
    "baselines": BASELINES,
    "emitters": EMITTERS,
    "workloads": FAMILIES,
}


def extensions() -> list[tuple[str, str, str]]:
    """Return (kind, name, sentence) of everything that packages add.

    Each is loaded; the sentence states what is wrong with it, if anything.
    """
    return [(f"added {one.kind}", one.name, _said(REGISTRIES[one.kind], one.name, one.package)) for one in plugins()]


def _said(registry: Registry[Any, Any], name: str, package: str) -> str:
    if registry.hides(name):
        return f"{package}; ignored: a bundled one has this name"
    try:
        registry[name]
    except PluginError as error:
        return f"broken: {error}"
    return package
