"""Times products and attention of a training step on this accelerator, for ``calibrate --gemm`` and ``--attention``.

A linear layer y = x · wᵀ of t tokens, i inputs and o outputs is three products, each with the layout that its operands
have in memory (BLAS names; PyTorch keeps x as t × i and w as o × i, row by row):

    TN   forward          t × o, depth i
    NN   input gradient   t × i, depth o
    NT   weight gradient  o × i, depth t

Every shape is called back to back for SUSTAINED_S after a warm-up of the whole chip, so that clocks are those that a
step keeps and not those of a cold kernel. Operands rotate through more memory than any cache holds. 8-bit products take
their operands as the hardware wants them (TN, both converted beforehand), whichever gradient they are.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scaleacross.errors import InputError
from scaleacross.runtime.requirement import require_torch
from scaleacross.spec.csv_table import csv_text

if TYPE_CHECKING:
    import torch

LABELS: Final = (
    ("H200", "h200_sxm"), ("H100 80GB HBM3", "h100_sxm"), ("A100-SXM4-80GB", "a100_sxm"), ("GB300", "gb300"),
    ("GB200", "gb200"), ("B300", "b300_sxm"), ("B200", "b200_sxm"),
)  # fmt: skip
"""(part of the name that a driver gives a device, label that ``calibrate`` knows it by); the first match counts."""
TOKENS: Final = (2048, 4096, 8192)
LAYERS: Final = (
    (1024, 4096), (2048, 1536), (2048, 8192), (2880, 5120), (3072, 8192), (4096, 2048), (4096, 4096), (4096, 6144),
    (4096, 28672), (5120, 1280), (7168, 4096), (8192, 8192), (8192, 10240), (14336, 4096), (16384, 2304),
)  # fmt: skip
"""(inputs, outputs) of linear layers, whole or divided over tp ranks: as narrow as experts, as wide as 70B models."""
CALLS: Final = (
    *((1, length, 32, 8, 128) for length in (1024, 2048, 4096, 8192, 16384)),
    *((batch, 4096, 32, 8, 128) for batch in (2, 4, 8)),
    *((1, 8192, heads, groups, 128) for heads, groups in ((4, 1), (8, 1), (8, 8), (16, 2), (64, 8))),
    *((1, 4096, heads, groups, 64) for heads, groups in ((8, 8), (16, 16), (64, 8))),
    *((2, 2048, heads, heads, 128) for heads in (8, 16, 32)),
    *((batch, 1024, 32, 32, 128) for batch in (4, 16, 32)),
    *((batch, 2048, 64, 8, 128) for batch in (1, 4, 8)),
    *((1, length, 8, 8, 128) for length in (2048, 4096, 16384)),
    *((1, length, 16, 16, 64) for length in (2048, 8192, 16384)),
    *((4, length, 16, 4, 128) for length in (1024, 2048, 4096, 8192)),
)
"""(sequences, tokens, heads, key-value heads, head size) of causal calls."""
SMALL: Final = 1.0 / 32.0
FEW: Final = 5
"""Largest number of layers and of calls that are timed without a GPU. Their sizes are multiplied by ``SMALL``."""
WARM_UP_S: Final = 3.0
SUSTAINED_S: Final = 0.15
CACHE_BYTES: Final = 2**29
"""More bytes than any accelerator's cache holds."""


@dataclass(frozen=True)
class GemmRow:
    """One product (m × k) · (k × n): the columns that ``calibrate --gemm`` reads, and the measurement's conditions."""

    accelerator: str
    gemm_dtype: str
    m: int
    n: int
    k: int
    time_us: float
    layout: str
    clock_mhz: int | None
    device: str
    software: str
    host: str


@dataclass(frozen=True)
class AttentionRow:
    """One causal forward call in bf16: the columns that ``calibrate --attention`` reads, and the conditions."""

    accelerator: str
    batch_size: int
    isl: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    time_us: float
    clock_mhz: int | None
    device: str
    software: str
    host: str


@dataclass(frozen=True)
class Bench:
    """A device on which kernels are timed, and how long each shape is repeated.

    Attributes:
        device: ``cuda`` or ``cpu``.
        accelerator: label of the rows.
        scale: factor on all sizes.
        most: largest number of layers and of calls that are timed.
        sustained_s, warm_up_s: seconds per shape, and before the first.
        told: called with (what is being timed, shapes done, shapes in all).
    """

    device: str
    accelerator: str
    scale: float
    most: int
    sustained_s: float
    warm_up_s: float
    told: Callable[[str, int, int], None] = lambda _what, _done, _total: None

    @property
    def name(self) -> str:
        """Name of the device according to the driver."""
        import torch

        return torch.cuda.get_device_name() if self.device == "cuda" else "cpu"

    @property
    def software(self) -> str:
        """Name and version of the software that runs the kernels."""
        import torch

        return f"torch {torch.__version__}"

    @property
    def host(self) -> str:
        """Name of this machine: rows of several machines may lie in one file."""
        return socket.gethostname()


def bench_of(
    device: str | None = None,
    accelerator: str | None = None,
    told: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> Bench:
    """Return the bench of this machine's first GPU, or of its processor with sizes multiplied by ``SMALL``.

    Args:
        device: ``cuda`` or ``cpu``; None: a GPU if there is one.
        accelerator: label of the rows; None: that of the device's name in LABELS, else the name itself.
        told: see ``Bench``.

    Raises:
        InputError: torch is missing, or there is no such device.
    """
    require_torch()
    import torch

    if device not in (None, "cuda", "cpu"):
        raise InputError(f"no device '{device}': choose cuda or cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch sees no GPU: check nvidia-smi, or time the processor with --device cpu")
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if found == "cpu":
        return Bench("cpu", accelerator or "cpu", SMALL, FEW, 0.0, 0.0, told)
    name = torch.cuda.get_device_name()
    label = next((label for part, label in LABELS if part in name), name.replace(" ", "-").replace(",", ""))
    return Bench("cuda", accelerator or label, 1.0, len(CALLS), SUSTAINED_S, WARM_UP_S, told)


def gemm_rows(bench: Bench) -> list[GemmRow]:
    """Time the three products of every shape of TOKENS and LAYERS, in bf16 and, if the device has it, in fp8."""
    import torch

    kinds = ["bfloat16", *(["fp8"] if _has_fp8(bench) else [])]
    shapes = [
        (layout, *shape)
        for tokens in TOKENS[: bench.most]
        for inputs, outputs in LAYERS[: bench.most]
        for layout, shape in _products(*(max(16, int(size * bench.scale)) for size in (tokens, inputs, outputs)))
    ]
    out: list[GemmRow] = []
    total = len(kinds) * len(shapes)
    with torch.no_grad():
        _warm_up(bench)
        for kind in kinds:
            call = _fp8_call if kind == "fp8" else _bf16_call
            for layout, m, n, k in shapes:
                bench.told("products", len(out), total)
                operands = _rotating(partial(call, bench, layout, m, n, k), 2 * (m + n) * k)
                seconds = _seconds_per_call(bench, operands)
                out.append(_gemm_row(bench, kind, (m, n, k), seconds, "TN" if kind == "fp8" else layout))
    return out


def attention_rows(bench: Bench) -> list[AttentionRow]:
    """Time CALLS, causal and forward, by the kernel that PyTorch chooses."""
    import torch

    out: list[AttentionRow] = []
    calls = [(b, max(16, int(s * bench.scale)), h, g, d) for b, s, h, g, d in CALLS[: bench.most]]
    with torch.no_grad():
        _warm_up(bench)
        for shape in calls:
            bench.told("attention", len(out), len(calls))
            batch, tokens, heads, groups, size = shape
            # bytes of q, k and v in bf16
            moved = 2 * batch * tokens * size * (heads + 2 * groups)
            seconds = _seconds_per_call(bench, _rotating(partial(_attention_call, bench, *shape), moved))
            out.append(
                AttentionRow(
                    bench.accelerator, *shape, seconds * 1e6, _clock(bench), bench.name, bench.software, bench.host
                )
            )
    return out


def bench_csv(rows: Sequence[GemmRow] | Sequence[AttentionRow]) -> str:
    """Return the rows as CSV with a header line; times in microseconds, four digits."""
    return csv_text(
        [{name: f"{one:.4g}" if isinstance(one, float) else one for name, one in vars(row).items()} for row in rows]
    )


def _gemm_row(bench: Bench, kind: str, shape: tuple[int, int, int], seconds: float, layout: str) -> GemmRow:
    return GemmRow(
        bench.accelerator, kind, *shape, seconds * 1e6, layout, _clock(bench), bench.name, bench.software, bench.host
    )


def _products(tokens: int, inputs: int, outputs: int) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield (layout, (m, n, k)) of the three products of a linear layer."""
    yield "TN", (tokens, outputs, inputs)
    yield "NN", (tokens, inputs, outputs)
    yield "NT", (outputs, inputs, tokens)


def _bf16_call(bench: Bench, layout: str, m: int, n: int, k: int) -> Callable[[], object]:
    """Return a product whose operands lie in memory as ``layout`` says.

    BLAS counts by columns, so the first letter of ``layout`` is that of the right operand.
    """
    left = _random(bench, k, m).t() if layout == "NT" else _random(bench, m, k)
    right = _random(bench, n, k).t() if layout == "TN" else _random(bench, k, n)
    return lambda: left @ right


def _fp8_call(bench: Bench, layout: str, m: int, n: int, k: int) -> Callable[[], object]:
    import torch

    left = _random(bench, m, k).to(torch.float8_e4m3fn)
    right = _random(bench, n, k).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=bench.device)
    return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _attention_call(bench: Bench, batch: int, tokens: int, heads: int, groups: int, size: int) -> Callable[[], object]:
    import torch

    q = _random(bench, batch, heads, tokens, size)
    k, v = (_random(bench, batch, groups, tokens, size) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=True, enable_gqa=groups != heads)


def _random(bench: Bench, *shape: int) -> torch.Tensor:
    """Return normal values, because the power that a product draws depends on its data."""
    import torch

    return torch.randn(shape, device=bench.device, dtype=torch.bfloat16)


def _rotating(make: Callable[[], Callable[[], object]], moved_bytes: float) -> list[Callable[[], object]]:
    """Return calls with operands of their own, as many as no cache holds together, but at most eight."""
    return [make() for _ in range(max(1, min(8, round(CACHE_BYTES / moved_bytes))))]


def _has_fp8(bench: Bench) -> bool:
    import torch

    return bench.device == "cuda" and torch.cuda.get_device_capability() >= (8, 9) and hasattr(torch, "_scaled_mm")


def _warm_up(bench: Bench) -> None:
    """Load the whole chip until its clock has settled."""
    call, end = _bf16_call(bench, "TN", *(max(16, int(8192 * bench.scale)),) * 3), time.monotonic() + bench.warm_up_s
    call()
    while time.monotonic() < end:
        for _ in range(20):
            call()
        _synchronise(bench)


def _seconds_per_call(bench: Bench, calls: Sequence[Callable[[], object]]) -> float:
    """Return the mean seconds of calls in a row, repeated for ``sustained_s``. On a GPU its own clock measures them."""
    calls[0]()
    _synchronise(bench)
    once = _timed(bench, [calls[0]])
    return _timed(bench, [calls[i % len(calls)] for i in range(max(1, round(bench.sustained_s / max(once, 1e-6))))])


def _timed(bench: Bench, calls: Sequence[Callable[[], object]]) -> float:
    import torch

    if bench.device == "cpu":
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / len(calls)


def _synchronise(bench: Bench) -> None:
    import torch

    if bench.device == "cuda":
        torch.cuda.synchronize()


def _clock(bench: Bench) -> int | None:
    """Return the clock of the multiprocessors in MHz right after a measurement (nvidia-smi), or None."""
    if bench.device != "cuda":
        return None
    import torch

    ask = ["nvidia-smi", f"--id={_uuid(torch.cuda.get_device_properties(0))}", "--query-gpu=clocks.sm"]
    try:
        said = subprocess.run(
            [*ask, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=5, check=True
        )
        return int(said.stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def _uuid(properties: Any) -> str:
    return f"GPU-{properties.uuid}"
