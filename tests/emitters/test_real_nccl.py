"""Properties of NCCL itself that can be checked without a GPU.

The library comes from the ``nvidia-nccl-cu12`` or ``-cu13`` wheel. ``SCALEACROSS_NCCL_LIBRARY`` names a
``libnccl.so.2`` (``make consumers`` sets it). Otherwise an installed wheel is used. Without one the tests skip, because
the wheel is 300 MB.

The library must load. It must read every emitted variable of stock NCCL and know every algorithm and protocol of the
tuner files. It must also load tuner plugins with the interface of NCCL's example plugin.

A communicator with a tuner plugin and our ``nccl_tuner.conf`` is not tested. The wheel ships no plugin; the example is
built from NCCL's sources (plugins/tuner/example). NCCL calls a plugin when a communicator starts, which needs a GPU.
The docstring of ``emitters.tuner_grammar`` says what that plugin does with unknown names.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaleacross.emitters.nccl_variables import VARIABLES
from scaleacross.emitters.tuner_grammar import ALGORITHMS, PROTOCOLS

pytestmark = pytest.mark.consumer

OLDEST = 22700  # 2.27, as ncclGetVersion says it
NCCLX_ONLY = {
    "NCCLX_TUNER_CONFIG_FILE",
    "NCCL_COLLTRACE_SLOW_COLL_THRESHOLD_BY_PG",
    "NCCL_CTRAN_IB_QP_CONFIG_XDC",
    "NCCL_CTRAN_IB_QP_CONFIG_XZONE",
    "NCCL_LAZY_SETUP_CHANNELS",
    "NCCL_TOPO_FILE_PATH",
}
OWN_NAMES = {
    **{"tree": "Tree", "ring": "Ring", "collnet_direct": "CollNetDirect", "collnet_chain": "CollNetChain"},
    **{"nvls": "NVLS", "nvls_tree": "NVLSTree", "pat": "PAT", "ll": "LL", "ll128": "LL128", "simple": "Simple"},
}


@pytest.fixture(scope="module")
def path() -> Path:
    installed = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    found = Path(os.environ.get("SCALEACROSS_NCCL_LIBRARY") or installed)
    if not found.is_file():
        pytest.skip(f"no NCCL at {found}: pip install nvidia-nccl-cu13 (300 MB), or set SCALEACROSS_NCCL_LIBRARY")
    return found


@pytest.fixture(scope="module")
def image(path: Path) -> Iterator[mmap.mmap]:
    """The library's bytes."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped


def holds(image: mmap.mmap, text: str) -> bool:
    """Whether ``text`` is a whole string of the library."""
    return image.find(b"\0" + text.encode() + b"\0") >= 0


def test_it_loads_without_a_gpu_and_is_recent_enough(path: Path) -> None:
    version = ctypes.c_int()
    assert ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(version)) == 0
    assert version.value >= OLDEST


def test_every_variable_is_read_by_nccl_or_belongs_to_ncclx(image: mmap.mmap) -> None:
    assert {name for name in VARIABLES if not holds(image, name)} == NCCLX_ONLY


def test_names_of_the_tuner_files_are_algorithms_and_protocols_of_nccl(image: mmap.mmap) -> None:
    assert {name for name in (*ALGORITHMS, *PROTOCOLS) if not holds(image, OWN_NAMES[name])} == set()


def test_tuner_files_reach_nccl_through_a_plugin_only(image: mmap.mmap) -> None:
    assert holds(image, "NCCL_TUNER_PLUGIN") and holds(image, "ncclTunerPlugin_v5")
    assert image.find(b"NCCL_TUNER_CONFIG_FILE") < 0  # the plugin reads it, not the library
