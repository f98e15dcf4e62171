"""Small sweeps from known parameters, written as files that a user would supply."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from scaleacross.calibration.collective_data import Measurement, read_collectives
from scaleacross.calibration.kernel_data import AttentionTimes, GemmTimes
from scaleacross.calibration.kernels import predict_attention_s, predict_gemm_s
from scaleacross.catalogue import load_accelerator
from scaleacross.cost_models.kernels import attention_model_of, gemm_model_of, machine_of
from scaleacross.spec.kernel_model import GemmModel
from scaleacross.spec.network import CurveOp

GEMM_HEAD = ("accelerator", "gemm_dtype", "m", "n", "k", "time_us")
ATTENTION_HEAD = ("accelerator", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "time_us")
OPS_HEAD = ("op", "n_gpus", "size_bytes", "time_us", "system")


def read_measurements(path: Path, op: CurveOp | None = None, num_ranks: int | None = None) -> list[Measurement]:
    """The rows of a file that can be used."""
    return list(read_collectives(path, op, num_ranks).rows)


def slower(efficiency: float = 0.5) -> GemmModel:
    """The bf16 kernel of the catalogue's H100 with another share of the peak and another launch time."""
    own = gemm_model_of(load_accelerator("h100-sxm"), "bf16")
    return own.model_copy(update={"compute_efficiency_fraction": efficiency, "launch_s": 9e-6})


def write_gemm(path: Path, label: str, model: GemmModel, num: int, scale: float = 1.0, bandwidth: float = 1.0) -> Path:
    """``num`` products timed by ``model`` on an H100, and multiplied by ``scale``.

    Rows, cols and depth are 512 to 8,192. With another ``bandwidth`` (times that of the H100) rows are 64 to 512.
    """
    sizes = np.random.default_rng(3).integers(2, 33, size=(3, num)) * 256.0
    sizes[0] /= 1.0 if bandwidth == 1.0 else 16.0
    machine = machine_of(load_accelerator("h100-sxm"), "bf16")
    machine = replace(machine, memory_bandwidth_bytes_per_s=bandwidth * machine.memory_bandwidth_bytes_per_s)
    seconds = predict_gemm_s(model, machine, 2.0, GemmTimes(*sizes, np.ones(num)))
    shapes = sizes.T.astype(int).tolist()
    return write(
        path, GEMM_HEAD, [[label, "bfloat16", *s, t * 1e6 * scale] for s, t in zip(shapes, seconds, strict=True)]
    )


def write_attention(path: Path, label: str, num: int, scale: float = 1.0) -> Path:
    """Causal calls timed by the catalogue's H100 and multiplied by ``scale``."""
    chip, draw = load_accelerator("h100-sxm"), np.random.default_rng(1)
    columns = [draw.integers(1, high, num) * unit for high, unit in ((9, 1.0), (9, 1024.0), (33, 1.0), (9, 1.0))]
    times = AttentionTimes(*columns, np.full(num, 128.0), np.ones(num))
    seconds = predict_attention_s(attention_model_of(chip), machine_of(chip, "bf16"), times)
    shapes = times.shapes().tolist()
    return write(path, ATTENTION_HEAD, [[label, *s, t * 1e6 * scale] for s, t in zip(shapes, seconds, strict=True)])


def write_collectives(path: Path, system: str = "", sizes: int = 12, op: str = "all_gather") -> Path:
    """20 µs + size / (200 GB/s) among 8, from 1 KiB on in factors of 4."""
    rows = [[op, 8, size, 20 + size / 2e5, system] for size in (1024 * 4**index for index in range(sizes))]
    return write(path, OPS_HEAD, rows)


def write(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A CSV file."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path
