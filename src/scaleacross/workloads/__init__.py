"""Model families. Each lowers to ``ModelProfile``; nothing downstream asks which family it was."""

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
    """A package's family: a subclass of Workload whose field ``family`` is the plugin's name, its costs guarded."""
    if not (isinstance(family, type) and issubclass(family, Workload)):
        raise TypeError(f"a subclass of {Workload.__module__}.Workload is expected, not {family!r}")
    if family.model_fields["family"].default != plugin.name:
        raise ValueError(f"field family has the default {family.model_fields['family'].default!r}, not '{plugin.name}'")
    return type(family.__name__, (family,), {"profile": guarded(plugin, family.profile), "__doc__": family.__doc__})


FAMILIES: Final = Registry[str, type[Workload]]("workloads", _BUNDLED, _accept)
"""Every model family by name: the bundled ones, then those of installed packages."""
