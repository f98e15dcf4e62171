"""Names of machines in public measurements -> the catalogue entries that describe them.

``*_sxm``, ``gb200``, ``gb300``: systems of ai-dynamo/aiconfigurator; ``DGX H100``: NVIDIA/dgxc-benchmarking; ``8xA100
node``: VIA-Research/vTrain. Other names are looked up in the catalogue unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ACCELERATOR_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "a100_sxm": "a100-80gb",
        "h100_sxm": "h100-sxm",
        "h200_sxm": "h200",
        "b200_sxm": "b200",
        "b300_sxm": "b300",
        "gb200": "gb200-nvl72",
        "gb300": "gb300-nvl72",
    }
)

SCALE_UP_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "a100_sxm": "nvlink3",
        "8xA100 node": "nvlink3",
        "h100_sxm": "nvlink4",
        "h200_sxm": "nvlink4",
        "DGX H100": "nvlink4",
        "b200_sxm": "nvlink5",
        "b300_sxm": "nvlink5",
        "gb200": "nvlink5",
        "gb300": "nvlink5",
    }
)
