"""Fit the kernel-time models to benchmark sweeps, and say how well they hold on shapes that the fit has not seen.

Two inputs, plain or gzip CSV:

* GEMM: ``accelerator, gemm_dtype, m, n, k, time_us`` (gemm_dtype bfloat16, float16, fp8, fp8_block or nvfp4)
* attention: ``accelerator, batch_size, isl, num_heads, num_key_value_heads, head_dim, time_us`` (causal, forward, 16 bit)

The out-of-sample error leaves whole shapes out, NUM_FOLDS times; every fold is fitted from the same cold starts as the
model that is kept.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleacross.calibration.robust_fit import Fitted, Parameter, fit_times
from scaleacross.cost_models.kernels import Machine, attention_kernel_s, gemm_call_s
from scaleacross.errors import InputError
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

Floats = NDArray[np.float64]
Model = TypeVar("Model", GemmModel, AttentionModel)

MIN_GEMM_FLOP: Final = 1e9
"""Products below it are left out of fit and score: their time is launch, and training hardly has any."""
NUM_FOLDS: Final = 5
LOSS_SCALE: Final = 0.02
"""Relative error beyond which a row pulls with constant force; small, so that the fit follows the median."""
SIGNIFICANT_DIGITS: Final = 4
DTYPE_KINDS: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float16": "fp16"}
"""Names of ``gemm_dtype`` that differ from the catalogue's; the others are taken as they are."""

_GEMM_COLUMNS: Final = ("m", "n", "k")
_ATTENTION_COLUMNS: Final = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")

_CREDIT_STARTS: Final = (0.3, 0.9)
"""Where the search starts: hardly any credit for part-filled waves, and nearly full credit."""
_TILES: Final = ((256, 128), (128, 256), (128, 128))
_MENUS: Final[tuple[dict[str, Any], ...]] = (
    {"tiles": _TILES, "splits": (1, 2, 4, 8)},
    {"tiles": (*_TILES, (128, 192), (192, 128)), "splits": (1, 2, 4)},
)
"""What a library may choose from; the fit takes the menu of least loss."""
_GEMM_PARAMETERS: Final = (
    Parameter("compute_efficiency_fraction", 0.8, "fraction"),
    Parameter("memory_efficiency_fraction", 0.8, "fraction"),
    Parameter("launch_s", 3e-6, "positive"),
    Parameter("tile_overhead_s", 1e-6, "positive"),
    Parameter("narrow_tile_slowdown", 0.1, "positive"),
    Parameter("wave_credit_fraction", 0.5, "fraction"),
    Parameter("first_wave_credit_fraction", 0.5, "fraction"),
    Parameter("split_passes", 1.0, "positive"),
    Parameter("slowdown_fraction", 0.1, "fraction"),
    Parameter("slowdown_s", 3e-4, "positive"),
    Parameter("overlap_exponent", 3.0, "above_one"),
)
_CAST: Final = Parameter("cast_bytes", 5.0, "positive")
_UNALIGNED: Final = Parameter("unaligned_passes", 0.3, "positive")
_ATTENTION_PARAMETERS: Final = (
    Parameter("compute_efficiency_fraction", 0.6, "fraction"),
    Parameter("launch_s", 8e-6, "positive"),
    Parameter("tile_overhead_s", 4e-6, "positive"),
    Parameter("drain_tiles", 0.5, "positive"),
    Parameter("unhidden_passes", 2.0, "positive"),
    Parameter("slowdown_fraction", 0.1, "fraction"),
    Parameter("slowdown_s", 5e-3, "positive"),
)


class Times(Protocol):
    """Measured times with the shapes that they belong to."""

    @property
    def time_s(self) -> Floats:
        """Seconds of every row."""

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """The rows of a mask."""

    def shapes(self) -> NDArray[np.int64]:
        """Shapes as rows, (n, dims)."""


TimesT = TypeVar("TimesT", bound=Times)


@dataclass(frozen=True)
class GemmTimes:
    """Measured products (rows × depth)·(depth × cols), columns of shape (n,)."""

    rows: Floats
    cols: Floats
    depth: Floats
    time_s: Floats

    @property
    def flop(self) -> Floats:
        """Multiply-adds counted twice."""
        return 2.0 * self.rows * self.cols * self.depth

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """The rows of a mask."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))

    def shapes(self) -> NDArray[np.int64]:
        """(rows, cols, depth) of every measurement."""
        return np.stack([self.rows, self.cols, self.depth], axis=1).astype(np.int64)


@dataclass(frozen=True)
class AttentionTimes:
    """Measured causal forward calls, columns of shape (n,)."""

    sequences: Floats
    length: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    time_s: Floats

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """The rows of a mask."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))

    def shapes(self) -> NDArray[np.int64]:
        """(sequences, length, heads, key-value heads, head dim) of every measurement."""
        return np.stack([getattr(self, f.name) for f in fields(self)[:-1]], axis=1).astype(np.int64)


@dataclass(frozen=True)
class Score:
    """Relative errors |predicted / measured − 1| over rows; ``bias`` is the median of predicted / measured − 1."""

    num_rows: int
    median_abs_error: float
    p90_abs_error: float
    mean_abs_error: float
    bias: float


@dataclass(frozen=True)
class FitResult(Generic[Model]):
    """A fitted model, its error on the rows of the fit, and that of models fitted without the shapes they are scored on."""

    model: Model
    in_sample: Score
    out_of_sample: Score


def read_gemm_times(path: Path) -> dict[tuple[str, str], GemmTimes]:
    """(accelerator, kernel kind) -> measurements, kinds by the catalogue's names. Raises InputError."""
    out: dict[tuple[str, str], GemmTimes] = {}
    for (accelerator, dtype), columns in _read(path, ("accelerator", "gemm_dtype"), _GEMM_COLUMNS).items():
        out[accelerator, DTYPE_KINDS.get(dtype, dtype)] = GemmTimes(*columns)
    return out


def read_attention_times(path: Path) -> dict[str, AttentionTimes]:
    """accelerator -> measurements. Raises InputError."""
    return {
        key[0]: AttentionTimes(*columns) for key, columns in _read(path, ("accelerator",), _ATTENTION_COLUMNS).items()
    }


def _gemm_of(model: GemmModel, times: GemmTimes, machine: Machine, element_bytes: float) -> Floats:
    return predict_gemm_s(model, machine, element_bytes, times)


def _attention_of(model: AttentionModel, times: AttentionTimes, machine: Machine) -> Floats:
    return predict_attention_s(model, machine, times)


def predict_gemm_s(model: GemmModel, machine: Machine, element_bytes: float, times: GemmTimes) -> Floats:
    """Seconds of every product of ``times``, launch and conversion included."""
    return gemm_call_s(model, machine, element_bytes, times.rows, times.cols, times.depth)


def predict_attention_s(model: AttentionModel, machine: Machine, times: AttentionTimes) -> Floats:
    """Seconds of every call of ``times``, launch included."""
    dim: Any = times.head_dim
    shape = (times.sequences, times.length, times.length, times.heads, times.kv_heads)
    return attention_kernel_s(model, machine, *shape, dim, dim) + model.launch_s


def score_gemm(model: GemmModel, machine: Machine, element_bytes: float, times: GemmTimes) -> Score:
    """Error of ``model`` on the products of at least MIN_GEMM_FLOP. Raises InputError when there is none."""
    times = _large(times)
    return score(predict_gemm_s(model, machine, element_bytes, times), times.time_s)


def score_attention(model: AttentionModel, machine: Machine, times: AttentionTimes) -> Score:
    """Error of ``model`` on ``times``."""
    return score(predict_attention_s(model, machine, times), times.time_s)


def score(predicted_s: Floats, measured_s: Floats) -> Score:
    """Relative errors of predictions."""
    relative = predicted_s / measured_s - 1.0
    size = np.abs(relative)
    return Score(
        num_rows=len(size),
        median_abs_error=float(np.median(size)),
        p90_abs_error=float(np.quantile(size, 0.9)),
        mean_abs_error=float(size.mean()),
        bias=float(np.median(relative)),
    )


def fit_gemm(times: GemmTimes, machine: Machine, element_bytes: float, *, seed: int = 0) -> FitResult[GemmModel]:
    """The GemmModel nearest to ``times`` (products of at least MIN_GEMM_FLOP), with both errors.

    Operands narrower than 16 bit are converted inside the measured call, so ``cast_bytes`` is fitted for them, and
    ``unaligned_passes`` where some rows are no multiple of 4.

    Raises:
        InputError: fewer distinct shapes than parameters times NUM_FOLDS.
    """
    times = _large(times)
    narrow = element_bytes < 2.0
    free = _GEMM_PARAMETERS + ((_CAST, _UNALIGNED) if narrow and np.any(times.rows % 4) else (_CAST,) if narrow else ())

    starts = [
        _Start(tuple(replace(p, start=credit) if p.name.endswith("_credit_fraction") else p for p in free), menu)
        for menu in _MENUS
        for credit in _CREDIT_STARTS
    ]
    predict = partial(_gemm_of, machine=machine, element_bytes=element_bytes)
    return _fit(GemmModel, times, starts, predict, seed)


def fit_attention(times: AttentionTimes, machine: Machine, *, seed: int = 0) -> FitResult[AttentionModel]:
    """The AttentionModel nearest to ``times``, with both errors. Raises InputError on too few shapes."""

    predict = partial(_attention_of, machine=machine)
    return _fit(AttentionModel, times, [_Start(_ATTENTION_PARAMETERS, {})], predict, seed)


@dataclass(frozen=True)
class _Start:
    """Free parameters with their starting values, and the fields that are not fitted."""

    free: tuple[Parameter, ...]
    fixed: Mapping[str, Any]


def _fit(
    kind: type[Model],
    times: TimesT,
    starts: Sequence[_Start],
    predict: Callable[[Model, TimesT], Floats],
    seed: int,
) -> FitResult[Model]:
    fold = folds(times.shapes(), seed)
    least = len(starts[0].free) * NUM_FOLDS
    if (num_shapes := len(np.unique(times.shapes(), axis=0))) < least:
        raise InputError(
            f"a fit of {len(starts[0].free)} parameters with {NUM_FOLDS} folds needs {least} distinct shapes; there are "
            f"{num_shapes}: measure more shapes, or keep the stated model and only score it"
        )

    def best(part: TimesT) -> Model:
        tried = [(_fitted(kind, part, start, predict), start.fixed) for start in starts]
        fitted, fixed = min(tried, key=lambda pair: pair[0].loss)
        return kind.model_validate({**fixed, **{name: _rounded(value) for name, value in fitted.values.items()}})

    model = best(times)
    left_out = np.empty_like(times.time_s)
    for number in range(NUM_FOLDS):
        left_out[fold == number] = predict(best(times.take(fold != number)), times.take(fold == number))
    return FitResult(model, score(predict(model, times), times.time_s), score(left_out, times.time_s))


def _fitted(kind: type[Model], part: TimesT, start: _Start, predict: Callable[[Model, TimesT], Floats]) -> Fitted:
    def seconds(values: Mapping[str, float]) -> Floats:
        stated: dict[str, Any] = {**start.fixed, **values}
        return predict(kind.model_construct(None, **stated), part)  # unchecked: in range by construction

    return fit_times(seconds, part.time_s, start.free, scale=LOSS_SCALE)


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def folds(shapes: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Fold of every row, 0 to NUM_FOLDS − 1: equal shapes share one, folds differ by one shape at most."""
    distinct, number = np.unique(shapes, axis=0, return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(len(distinct)) % NUM_FOLDS
    fold: NDArray[np.int64] = shuffled[number.reshape(-1)]
    return fold


def _large(times: GemmTimes) -> GemmTimes:
    large = times.take(times.flop >= MIN_GEMM_FLOP)
    if not len(large.time_s):
        raise InputError(
            f"no product of at least {MIN_GEMM_FLOP / 1e9:g} GFLOP among {len(times.time_s)}: measure larger"
        )
    return large


def _read(path: Path, keys: tuple[str, ...], sizes: tuple[str, ...]) -> dict[tuple[str, ...], list[Floats]]:
    """Rows grouped by ``keys``: columns ``sizes`` and the time in seconds."""
    groups: dict[tuple[str, ...], list[list[float]]] = {}
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            reader = csv.DictReader(file)
            needed = (*keys, *sizes, "time_us")
            if missing := [name for name in needed if name not in (reader.fieldnames or ())]:
                raise InputError(f"{path}: no column {', '.join(missing)}; needed: {', '.join(needed)}")
            for line, row in enumerate(reader, start=2):
                numbers = [_positive(row[name], f"{path}, line {line}, {name}") for name in (*sizes, "time_us")]
                groups.setdefault(tuple(row[key] for key in keys), []).append(numbers)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{path}: {error}") from None
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
