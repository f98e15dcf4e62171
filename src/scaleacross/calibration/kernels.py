"""Fit the kernel-time models to benchmark sweeps, and measure their error on shapes that the fit has not seen.

The out-of-sample error leaves whole shapes out, NUM_FOLDS times. Every fold is fitted from the same cold starts as the
model that is kept. Few shapes cannot determine all parameters. Then, if the model of a similar accelerator is given,
only its rates and launch are fitted and the rest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleacross.calibration.kernel_data import AttentionTimes, GemmTimes
from scaleacross.calibration.robust_fit import Fitted, Parameter, fit_times
from scaleacross.cost_models.kernels import Machine, attention_kernel_s, gemm_call_s
from scaleacross.errors import TooFewError
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

Floats = NDArray[np.float64]
Model = TypeVar("Model", GemmModel, AttentionModel)

MIN_GEMM_FLOP: Final = 1e9
"""Smaller products are left out of fit and score: their time is mostly launch, and training has hardly any."""
NUM_FOLDS: Final = 5
LOSS_SCALE: Final = 0.02
"""Relative error beyond which a row pulls with constant force; it is small, so that the fit follows the median."""
SIGNIFICANT_DIGITS: Final = 4

_CREDIT_STARTS: Final = (0.3, 0.9)
"""Starting values of the credits: hardly any credit for part-filled waves, and nearly full credit."""
_TILES: Final = ((256, 128), (128, 256), (128, 128))
_MENUS: Final[tuple[dict[str, Any], ...]] = (
    {"tiles": _TILES, "splits": (1, 2, 4, 8)},
    {"tiles": (*_TILES, (128, 192), (192, 128)), "splits": (1, 2, 4)},
)
"""Tiles and splits that a library may choose from; the fit keeps the menu of least loss."""
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


_GEMM_RATES: Final = ("compute_efficiency_fraction", "memory_efficiency_fraction", "launch_s")
_ATTENTION_RATES: Final = ("compute_efficiency_fraction", "launch_s")
"""Parameters that few shapes can determine: the speed, and the time of an empty call."""
LEASH: Final = 3 * LOSS_SCALE
"""Pull towards the base while its rates are fitted: a factor e weighs as much as one row with an error of 6 %."""
SPARSE: Final = 4
"""Multiple of the shapes that a full fit needs.

With fewer shapes, the rates alone are fitted as well, and the better of the two fits is kept.
"""


class Times(Protocol):
    """Measured times and their shapes."""

    @property
    def time_s(self) -> Floats:
        """Seconds of every row."""

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Return the rows that a mask selects."""

    def shapes(self) -> NDArray[np.int64]:
        """Return the shapes as rows, (n, dims)."""


TimesT = TypeVar("TimesT", bound=Times)


@dataclass(frozen=True)
class Score:
    """Relative errors |predicted / measured − 1| over rows; ``bias`` is the mean of predicted / measured − 1."""

    num_rows: int
    median_abs_error: float
    p90_abs_error: float
    mean_abs_error: float
    bias: float


@dataclass(frozen=True)
class FitResult(Generic[Model]):
    """A fitted model, its error on the rows of the fit, and the error on shapes that were left out.

    ``fitted`` names the free parameters. ``rest_of_base``: the other parameters are those of the base.
    """

    model: Model
    in_sample: Score
    out_of_sample: Score
    fitted: tuple[str, ...]
    rest_of_base: bool


def predict_gemm_s(model: GemmModel, machine: Machine, element_bytes: float, times: GemmTimes) -> Floats:
    """Seconds of every product of ``times``, (n,), launch and conversion included."""
    return gemm_call_s(model, machine, element_bytes, times.rows, times.cols, times.depth)


def predict_attention_s(model: AttentionModel, machine: Machine, times: AttentionTimes) -> Floats:
    """Seconds of every call of ``times``, (n,), launch included."""
    dim: Any = times.head_dim
    shape = (times.sequences, times.length, times.length, times.heads, times.kv_heads)
    return attention_kernel_s(model, machine, *shape, dim, dim) + model.launch_s


def score_gemm(model: GemmModel, machine: Machine, element_bytes: float, times: GemmTimes) -> Score:
    """Error of ``model`` on the products of at least MIN_GEMM_FLOP. Raises TooFewError if there is none."""
    times = large(times)
    return score(predict_gemm_s(model, machine, element_bytes, times), times.time_s)


def score_attention(model: AttentionModel, machine: Machine, times: AttentionTimes) -> Score:
    """Error of ``model`` on ``times``."""
    return score(predict_attention_s(model, machine, times), times.time_s)


def score(predicted_s: Floats, measured_s: Floats) -> Score:
    """Statistics of the relative errors of predictions."""
    return score_of(predicted_s / measured_s - 1.0)


def score_of(relative: Floats) -> Score:
    """Statistics of relative errors, predicted / measured − 1; at least one is needed."""
    size = np.abs(relative)
    return Score(
        num_rows=len(size),
        median_abs_error=float(np.median(size)),
        p90_abs_error=float(np.quantile(size, 0.9)),
        mean_abs_error=float(size.mean()),
        bias=float(relative.mean()),
    )


def fit_gemm(
    times: GemmTimes, machine: Machine, element_bytes: float, *, base: GemmModel | None = None
) -> FitResult[GemmModel]:
    """Fit a GemmModel to ``times`` (products of at least MIN_GEMM_FLOP); returns it with both errors.

    Operands narrower than 16 bit are converted inside the measured call. So ``cast_bytes`` is fitted for them, and
    ``unaligned_passes`` if some rows are no multiple of 4.

    Args:
        base: model of a similar accelerator; with few shapes only its efficiencies and launch are fitted.

    Raises:
        TooFewError: fewer distinct shapes than free parameters times NUM_FOLDS.
    """
    times = large(times)
    narrow = element_bytes < 2.0
    free = _GEMM_PARAMETERS + ((_CAST, _UNALIGNED) if narrow and np.any(times.rows % 4) else (_CAST,) if narrow else ())

    starts = [
        _Start(tuple(replace(p, start=credit) if p.name.endswith("_credit_fraction") else p for p in free), menu)
        for menu in _MENUS
        for credit in _CREDIT_STARTS
    ]
    few = _rates_of(base, free, _GEMM_RATES) if base else None
    return _fit(GemmModel, times, starts, few, lambda model, part: predict_gemm_s(model, machine, element_bytes, part))


def fit_attention(
    times: AttentionTimes, machine: Machine, *, base: AttentionModel | None = None
) -> FitResult[AttentionModel]:
    """Fit an AttentionModel; returns it with both errors. ``base`` and TooFewError are as in ``fit_gemm``."""
    few = _rates_of(base, _ATTENTION_PARAMETERS, _ATTENTION_RATES) if base else None
    starts = [_Start(_ATTENTION_PARAMETERS, {})]
    return _fit(AttentionModel, times, starts, few, lambda model, part: predict_attention_s(model, machine, part))


@dataclass(frozen=True)
class _Start:
    """Free parameters with starting values, and values of the fixed fields (``of_base``: those of a base)."""

    free: tuple[Parameter, ...]
    fixed: Mapping[str, Any]
    of_base: bool = False


def _rates_of(base: GemmModel | AttentionModel, free: Sequence[Parameter], names: Sequence[str]) -> _Start:
    """Start at ``base`` with only the parameters ``names`` free."""
    own = base.model_dump()
    rates = tuple(replace(p, start=_inside(p, own[p.name])) for p in free if p.name in names)
    return _Start(rates, {name: value for name, value in own.items() if name not in names}, of_base=True)


def _inside(parameter: Parameter, value: float) -> float:
    """Return ``value``, moved to where its unbounded coordinate is finite."""
    return min(max(value, 0.05), 0.95) if parameter.kind == "fraction" else value or parameter.start


def _fit(
    kind: type[Model],
    times: TimesT,
    starts: Sequence[_Start],
    few: _Start | None,
    predict: Callable[[Model, TimesT], Floats],
) -> FitResult[Model]:
    """Fit all parameters from ``starts`` if there are enough shapes, and those of ``few`` if shapes are sparse.

    The result with the smaller out-of-sample error is returned.
    """
    num_shapes = len(np.unique(times.shapes(), axis=0))
    options = [option for option in (starts, [few] if few else []) if option and _least(option) <= num_shapes]
    if not options:
        least = _least([few] if few else starts)
        raise TooFewError(
            f"a fit of {least // NUM_FOLDS} parameters with {NUM_FOLDS} folds needs {least} distinct shapes; there are "
            f"{num_shapes}: measure more shapes, or keep the stated model and only score it"
        )
    # many shapes determine all parameters, so the rates alone need no fit
    if num_shapes >= SPARSE * _least(starts):
        options = options[:1]
    results = [_cross_validated(kind, times, option, predict) for option in options]
    return min(results, key=lambda result: result.out_of_sample.median_abs_error)


def _least(starts: Sequence[_Start]) -> int:
    """Number of distinct shapes that a cross-validated fit needs."""
    return len(starts[0].free) * NUM_FOLDS


def _cross_validated(
    kind: type[Model], times: TimesT, starts: Sequence[_Start], predict: Callable[[Model, TimesT], Floats]
) -> FitResult[Model]:
    def best(part: TimesT) -> Model:
        tried = [(_fitted(kind, part, start, predict), start.fixed) for start in starts]
        fitted, fixed = min(tried, key=lambda pair: pair[0].loss)
        return kind.model_validate({**fixed, **{name: rounded(value) for name, value in fitted.values.items()}})

    fold = folds(times.shapes())
    model = best(times)
    left_out = np.empty_like(times.time_s)
    for number in range(NUM_FOLDS):
        left_out[fold == number] = predict(best(times.take(fold != number)), times.take(fold == number))
    free = tuple(parameter.name for parameter in starts[0].free)
    return FitResult(
        model, score(predict(model, times), times.time_s), score(left_out, times.time_s), free, starts[0].of_base
    )


def _fitted(kind: type[Model], part: TimesT, start: _Start, predict: Callable[[Model, TimesT], Floats]) -> Fitted:
    def seconds(values: Mapping[str, float]) -> Floats:
        stated: dict[str, Any] = {**start.fixed, **values}
        return predict(kind.model_construct(None, **stated), part)  # unchecked: in range by construction

    return fit_times(seconds, part.time_s, start.free, scale=LOSS_SCALE, leash=LEASH if start.of_base else 0.0)


def rounded(value: float) -> float:
    """``value`` to SIGNIFICANT_DIGITS."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def folds(shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fold of every row, 0 to NUM_FOLDS − 1, (n,).

    Rows of one shape share a fold; sizes of folds differ by at most one shape.
    """
    distinct, number = np.unique(shapes, axis=0, return_inverse=True)
    # a fixed seed: the stated errors must be reproducible
    shuffled = np.random.default_rng(0).permutation(len(distinct)) % NUM_FOLDS
    fold: NDArray[np.int64] = shuffled[number.reshape(-1)]
    return fold


def large(times: GemmTimes) -> GemmTimes:
    """Return the products of at least MIN_GEMM_FLOP. Raises TooFewError if there is none."""
    large = times.take(times.flop >= MIN_GEMM_FLOP)
    if not len(large.time_s):
        raise TooFewError(
            f"no product of at least {MIN_GEMM_FLOP / 1e9:g} GFLOP among {len(times.time_s)}: measure larger"
        )
    return large
