"""Measured kernel times, read from plain or gzip CSV.

* GEMM: ``accelerator, gemm_dtype, m, n, k, time_us`` (gemm_dtype bfloat16, float16, fp8, fp8_block or nvfp4)
* attention: ``accelerator, batch_size, isl, num_heads, num_key_value_heads, head_dim, time_us`` (causal, forward, 16 bit)
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleacross.calibration.data_file import read_data_file
from scaleacross.errors import InputError

Floats = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

DTYPE_KINDS: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float16": "fp16"}
"""Values of ``gemm_dtype`` that differ from the catalogue's names; other values are used unchanged."""

_GEMM_COLUMNS: Final = ("m", "n", "k")
_ATTENTION_COLUMNS: Final = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")


@dataclass(frozen=True)
class _Times:
    """Measured calls as columns of shape (n,), ``time_s`` the last."""

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Return the rows that a mask selects."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))

    def shapes(self) -> NDArray[np.int64]:
        """Shape of every measurement, (n, columns but the time)."""
        return np.stack([getattr(self, f.name) for f in fields(self)[:-1]], axis=1).astype(np.int64)


@dataclass(frozen=True)
class GemmTimes(_Times):
    """Measured products (rows × depth)·(depth × cols), columns of shape (n,)."""

    rows: Floats
    cols: Floats
    depth: Floats
    time_s: Floats

    @property
    def flop(self) -> Floats:
        """FLOP of every product, (n,): a multiply-add counts as two."""
        return 2.0 * self.rows * self.cols * self.depth


@dataclass(frozen=True)
class AttentionTimes(_Times):
    """Measured causal forward calls, columns of shape (n,)."""

    sequences: Floats
    length: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    time_s: Floats


def read_gemm_times(path: Path) -> dict[tuple[str, str], GemmTimes]:
    """Read (accelerator, kernel kind) -> measurements, with the catalogue's names of kinds. Raises InputError."""

    def key_of(row: Mapping[str, str]) -> tuple[str, str]:
        dtype = row["gemm_dtype"].strip()
        return row["accelerator"].strip(), DTYPE_KINDS.get(dtype, dtype)

    groups = _read(path, ("accelerator", "gemm_dtype"), _GEMM_COLUMNS, key_of)
    return {key: GemmTimes(*columns) for key, columns in groups.items()}


def read_attention_times(path: Path) -> dict[str, AttentionTimes]:
    """Read accelerator -> measurements. Raises InputError."""
    groups = _read(path, ("accelerator",), _ATTENTION_COLUMNS, lambda row: row["accelerator"].strip())
    return {key: AttentionTimes(*columns) for key, columns in groups.items()}


def _read(
    path: Path, keys: tuple[str, ...], sizes: tuple[str, ...], key_of: Callable[[Mapping[str, str]], Key]
) -> dict[Key, list[Floats]]:
    """Read the columns ``sizes`` and the time in seconds, grouped by ``key_of``.

    ``key_of`` reads the columns ``keys``.
    """
    groups: dict[Key, list[list[float]]] = {}
    reader = csv.DictReader(read_data_file(path).text.splitlines())
    needed, there = (*keys, *sizes, "time_us"), reader.fieldnames or ()
    if missing := [name for name in needed if name not in there]:
        raise InputError(
            f"{path}: no column {', '.join(missing)}; needed: {', '.join(needed)} (time_us in microseconds); "
            f"there are: {', '.join(there) or 'none'}"
        )
    for line, row in enumerate(reader, start=2):
        numbers = [_positive(row[name], f"{path}, line {line}, {name}") for name in (*sizes, "time_us")]
        groups.setdefault(key_of(row), []).append(numbers)
    if not groups:
        raise InputError(f"{path}: no rows")
    return {key: _columns(rows) for key, rows in groups.items()}


def _columns(rows: Iterable[Sequence[float]]) -> list[Floats]:
    *sizes, time_us = np.array(list(rows), dtype=np.float64).T
    return [*sizes, time_us * 1e-6]


def _positive(text: str, place: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InputError(f"{place}: {text!r} is no positive number")
    return value
