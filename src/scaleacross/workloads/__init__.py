"""Model families. Each produces a ``ModelProfile``; no other room asks for the family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scaleacross.plugins import Plugin, Registry, guarded
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.moe_transformer import MoeTransformer
from scaleacross.workloads.workload import Workload

_BUNDLED: Final[Mapping[str, type[Workload]]] = {
    "dense_transformer": DenseTransformer,
    "moe_transformer": MoeTransformer,
    "decoder": Decoder,
}


def _accept(plugin: Plugin, family: Any) -> type[Workload]:
    """Return a package's family with its ``profile`` guarded.

    It must be a subclass of Workload whose field ``family`` defaults to the plugin's name.
    """
    if not (isinstance(family, type) and issubclass(family, Workload)):
        raise TypeError(f"a subclass of {Workload.__module__}.Workload is expected, not {family!r}")
    if family.model_fields["family"].default != plugin.name:
        raise ValueError(f"field family has the default {family.model_fields['family'].default!r}, not '{plugin.name}'")
    return type(family.__name__, (family,), {"profile": guarded(plugin, family.profile), "__doc__": family.__doc__})


FAMILIES: Final = Registry[str, type[Workload]]("workloads", _BUNDLED, _accept)
"""Model families by name: bundled ones, then those of installed packages."""
