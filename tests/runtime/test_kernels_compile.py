"""Every kernel compiles for every target, with 128-bit accesses to memory, and without flushing small numbers to zero."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")
pytest.importorskip("triton", reason="the kernels need triton, which exists for Linux")

SCRIPT = Path(__file__).with_name("compile_kernels.py")
TARGETS = ("80", "90", "100", "gfx942")
MOVES = {"scatter_rows", "gather_rows"}
WIDE_READS = {"encode_int8", "encode_fp8", "encode_int4", "bounded_widths"}
WIDE_WRITES = {"decode_int8", "decode_fp8", "decode_int4", "bounded_unpack"}
ROWS = {"rows_quantise", "rows_pack", "rows_unpack"}
KERNELS = sorted(WIDE_READS | WIDE_WRITES | {"bounded_pack", "rank_rows"} | MOVES | ROWS)


@pytest.fixture(scope="module")
def assembly() -> dict[tuple[str, str], str]:
    """(target, kernel) -> assembly, all from one process: importing triton costs more than a kernel."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), ",".join(TARGETS), *KERNELS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parts = re.split(r"^=== (\w+) (\w+)\n", done.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(zip(parts[::3], parts[1::3], strict=True), parts[2::3], strict=True))


def _accesses(text: str) -> tuple[Counter[str], Counter[str]]:
    """Loads and stores of global memory by their width, as either assembler writes them."""
    reads = re.findall(r"ld\.global\S*?((?:\.v\d)?\.b\d+)\b|(?:global|buffer)_load_(\w+)", text)
    writes = re.findall(r"st\.global\S*?((?:\.v\d)?\.b\d+)\b|(?:global|buffer)_store_(\w+)", text)
    return Counter("".join(pair) for pair in reads), Counter("".join(pair) for pair in writes)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_with_wide_accesses(kernel: str, target: str, assembly: dict[tuple[str, str], str]) -> None:
    text = assembly[target, kernel]
    assert ".ftz" not in text
    wide = "dwordx4" if target.startswith("gfx") else ".v4.b32"
    reads, writes = _accesses(text)
    assert reads and writes
    if kernel in WIDE_READS:
        assert set(reads) == {wide}
    if kernel in MOVES:
        assert wide in reads and set(writes) == {wide}  # slots are narrow
    if kernel in WIDE_WRITES:
        assert set(writes) == {wide}
    assert not {".b16", "ushort", "short"} & (set(reads) | set(writes))
