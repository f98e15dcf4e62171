"""Programs that read emitted files, kept outside the repository. They are unpacked once, or the test skips."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

READERS = Path(os.environ.get("SCALEACROSS_READERS", Path(__file__).parents[3] / "shared" / "readers"))
COLLECTIVES = {"broadcast": 0, "reduce": 1, "allgather": 2, "reducescatter": 3, "allreduce": 4}
IGNORED, NUM_ALGORITHMS, NUM_PROTOCOLS, RING, SIMPLE = -1.0, 7, 3, 1, 2


def unpacked(pattern: str, folder: Path) -> Path:
    """The folder of the archive that ``pattern`` names, unpacked into ``folder``; skips if there is none."""
    found = sorted(READERS.glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in {READERS}: SCALEACROSS_READERS names the folder")
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
    with tarfile.open(found[0]) as archive:
        archive.extractall(folder, **safely)
    return folder


def compiled_tuner(folder: Path) -> Path:
    """NCCL's example tuner plugin as a library."""
    root = unpacked("nccl-tuner-*.tar.xz", folder)
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for NCCL's tuner plugin")
    source = next(root.rglob("example/plugin.c")).parent
    out = folder / "tuner.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-I.", "-Inccl", "-o", str(out), "plugin.c"], cwd=source, check=True)
    return out


class Tuner(ctypes.Structure):
    """The first fields of ncclTuner_v6_t: name, init, getCollInfo."""

    _fields_ = [("name", ctypes.c_char_p), ("init", ctypes.c_void_p), ("ask", ctypes.c_void_p)]


@contextmanager
def tuner(library: Path, config: Path, num_ranks: int, num_nodes: int) -> Iterator[object]:
    """A function (collective, bytes) -> (channels, [(algorithm, protocol) preferred]) of a communicator of that size."""
    os.environ["NCCL_TUNER_CONFIG_FILE"] = str(config)
    plugin = Tuner.in_dll(ctypes.CDLL(str(library)), "ncclTunerPlugin_v6")
    context = ctypes.c_void_p()
    log = ctypes.c_void_p(None)
    init = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    )(plugin.init)  # fmt: skip
    assert init(ctypes.byref(context), 0, num_ranks, num_nodes, log, None, None) == 0
    ask = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
        ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int),
    )(plugin.ask)  # fmt: skip

    def answer(collective: str, num_bytes: int) -> tuple[int, list[tuple[int, int]]]:
        table = ((ctypes.c_float * NUM_PROTOCOLS) * NUM_ALGORITHMS)(
            *((ctypes.c_float * NUM_PROTOCOLS)(*([1.0] * NUM_PROTOCOLS)) for _ in range(NUM_ALGORITHMS))
        )
        rows = (ctypes.POINTER(ctypes.c_float * NUM_PROTOCOLS) * 1)(ctypes.pointer(table[0]))
        channels = ctypes.c_int(-7)
        pointer = ctypes.cast(rows[0], ctypes.c_void_p)
        done = ask(
            context,
            COLLECTIVES[collective],
            num_bytes,
            1,
            pointer,
            NUM_ALGORITHMS,
            NUM_PROTOCOLS,
            0,
            ctypes.byref(channels),
        )
        assert done == 0
        chosen = [(a, p) for a in range(NUM_ALGORITHMS) for p in range(NUM_PROTOCOLS) if table[a][p] == 0.0]
        return channels.value, chosen

    try:
        yield answer
    finally:
        os.environ.pop("NCCL_TUNER_CONFIG_FILE")
