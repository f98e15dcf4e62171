"""Kernels timed for calibration: calibrate reads what the bench writes. The test uses a processor and small shapes."""

from __future__ import annotations

import csv
import io
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scaleacross.calibration.kernel_data import read_attention_times, read_gemm_times
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.runtime.kernel_bench import (
    CALLS,
    LAYERS,
    TOKENS,
    _bf16_call,
    _products,
    attention_rows,
    bench_csv,
    bench_of,
    gemm_rows,
)

torch = pytest.importorskip("torch")


def test_calibrate_reads_what_bench_writes(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    bench = replace(bench_of("cpu", "mine", lambda *one: told.append(one)), scale=1 / 64, most=2)
    gemm, attention = tmp_path / "gemm.csv", tmp_path / "attention.csv"
    gemm.write_text(bench_csv(gemm_rows(bench)))
    attention.write_text(bench_csv(attention_rows(bench)))
    products = read_gemm_times(gemm)
    assert set(products) == {("mine", "bf16")}
    assert len(products["mine", "bf16"].time_s) == 2 * 2 * 3
    assert len(read_attention_times(attention)["mine"].time_s) == 2
    assert told[0] == ("products", 0, 12) and told[-1] == ("attention", 1, 2)
    rows = list(csv.DictReader(io.StringIO(gemm.read_text())))
    assert [row["layout"] for row in rows[:3]] == ["TN", "NN", "NT"]
    assert rows[0]["device"] == "cpu" and rows[0]["software"].startswith("torch ")
    assert {row["host"] for row in rows} == {socket.gethostname()}


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_operands_lie_in_memory_as_training_has_them(layout: str) -> None:
    """Operands are in memory as in training.

    Both by rows is NN for a product by rows. The weight gradient reads its left operand transposed, the forward pass
    its right one.
    """
    bench = bench_of("cpu")
    call = _bf16_call(bench, layout, 6, 4, 8)
    left, right = (cell.cell_contents for cell in call.__closure__ or ())
    assert (left.shape, right.shape) == ((6, 8), (8, 4))
    assert (left.is_contiguous(), right.is_contiguous()) == (layout != "NT", layout != "TN")
    assert call().shape == (6, 4)


def test_a_linear_layer_is_three_products() -> None:
    assert dict(_products(16, 32, 64)) == {"TN": (16, 64, 32), "NN": (16, 32, 64), "NT": (64, 32, 16)}


def test_a_full_sweep_has_the_shapes_that_a_fit_needs() -> None:
    """A full sweep has the shapes that a fit needs.

    Eleven parameters and five folds need 55 shapes of 1 GFLOP or more. Attention has seven parameters and 35 shapes.
    """
    shapes = {shape for t in TOKENS for i, o in LAYERS for _, shape in _products(t, i, o)}
    assert len([shape for shape in shapes if 2 * np.prod(np.array(shape, dtype=float)) >= 1e9]) >= 2 * 55
    assert len(set(CALLS)) >= 35


def test_command_writes_two_files_and_refuses_what_does_not_go_together(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "--attention", "--device", "cpu", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "attention.csv").exists() and not (tmp_path / "gemm.csv").exists()
    for wrong in (["bench"], ["bench", "x.json", "--gemm"], ["bench", "x.json", "--device", "cpu"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
    with pytest.raises(InputError, match="no device 'tpu': choose cuda or cpu"):
        bench_of("tpu")
