"""Fit the kernel figures of one accelerator to a user's sweep: check, fit, and state origin and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scaleacross.calibration.accelerator_entry import ATTENTION, PRODUCTS, FittedFigure
from scaleacross.calibration.kernel_data import AttentionTimes, GemmTimes
from scaleacross.calibration.kernels import (
    FitResult,
    Score,
    fit_attention,
    fit_gemm,
    large,
    score_attention,
    score_gemm,
)
from scaleacross.calibration.plausible import check_attention, check_gemm
from scaleacross.calibration.result import Residual
from scaleacross.cost_models.kernels import ELEMENT_BYTES, attention_model_of, gemm_model_of, machine_of
from scaleacross.spec.accelerator import Accelerator, GemmKind
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

AT_LIMIT: Final = 0.94
"""A fraction that a fit raises above this, against the pull of the base, shows that the base states too low a rate."""
WORSE: Final = 1.1
"""Ratio of the held-out error to that of the base above which the fit is in doubt; below it the two count as equal."""


@dataclass(frozen=True)
class KernelFit:
    """A figure for the catalogue, its errors, and remarks for its reader."""

    field: str
    figure: FittedFigure
    residual: Residual
    remarks: tuple[str, ...]


def fit_products(label: str, kind: GemmKind, times: GemmTimes, base: Accelerator, source: str, date: str) -> KernelFit:
    """Fit the product model of ``kind``, starting from that of ``base``.

    Args:
        source: the file, as provenance is to quote it.

    Raises:
        InputError: times that cannot be of this accelerator, no product large enough, or too few shapes.
    """
    machine, model, each = machine_of(base, kind), gemm_model_of(base, kind), ELEMENT_BYTES[kind]
    used = large(times)
    check_gemm(label, kind, used, machine, base.name)
    result = fit_gemm(used, machine, each, base=model)
    before = score_gemm(model, machine, each, used)
    return _kernel_fit(f"{PRODUCTS}.{kind}", f"gemm {kind}", label, result, model, before, base, source, date)


def fit_calls(label: str, times: AttentionTimes, base: Accelerator, source: str, date: str) -> KernelFit:
    """Fit the attention model, starting from that of ``base``; arguments and errors are those of ``fit_products``."""
    machine, model = machine_of(base, "bf16"), attention_model_of(base)
    check_attention(label, times, machine, base.name)
    result = fit_attention(times, machine, base=model)
    before = score_attention(model, machine, times)
    return _kernel_fit(ATTENTION, "attention", label, result, model, before, base, source, date)


def _kernel_fit(
    field: str,
    what: str,
    label: str,
    result: FitResult[GemmModel] | FitResult[AttentionModel],
    model: GemmModel | AttentionModel,
    before: Score,
    base: Accelerator,
    source: str,
    date: str,
) -> KernelFit:
    residual = Residual(what, result.fitted, before, result.in_sample, {"shapes": result.out_of_sample})
    part = f"only {', '.join(result.fitted)} are fitted, the rest is that of {base.name}" if result.rest_of_base else ""
    source = (
        f"{source}, {result.in_sample.num_rows} rows of {label}, fitted {date}: error (median, p90) "
        f"{percents(result.in_sample)}, on shapes left out {percents(result.out_of_sample)}"
        + (f"; {part}" if part else "")
    )
    remarks = (*([part] if part else []), *_doubts(result, model, before, base))
    return KernelFit(field, FittedFigure(result.model, source), residual, remarks)


def _doubts(
    result: FitResult[GemmModel] | FitResult[AttentionModel],
    model: GemmModel | AttentionModel,
    before: Score,
    base: Accelerator,
) -> list[str]:
    """Signs that ``base`` is another machine, or that more shapes are needed."""
    doubts = [
        f"{name} is near its limit of 1: {base.name} states less {rate} than these rows show; name another --base"
        for name, rate in (("compute_efficiency_fraction", "peak"), ("memory_efficiency_fraction", "memory bandwidth"))
        if result.rest_of_base and getattr(result.model, name, 0.0) > max(AT_LIMIT, getattr(model, name, 0.0))
    ]
    if result.out_of_sample.median_abs_error > WORSE * before.median_abs_error:
        doubts.append(
            f"on shapes left out the fit is off by {percents(result.out_of_sample)}, the figures of {base.name} by "
            f"{percents(before)}: measure more shapes, or keep those"
        )
    return doubts


def percents(score: Score) -> str:
    """Median and 90th percentile of absolute errors as text: ``3.8 %, 11.3 %``."""
    return f"{100 * score.median_abs_error:.1f} %, {100 * score.p90_abs_error:.1f} %"
