"""Group fits by the catalogue entry that they belong to, and write these entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleacross.api.names import AcceleratorTarget, NetworkTarget
from scaleacross.calibration.accelerator_entry import FittedFigure, accelerator_data
from scaleacross.calibration.file_scores import Skipped
from scaleacross.calibration.kernel_fits import KernelFit, percents
from scaleacross.calibration.kernels import score
from scaleacross.calibration.link_fits import LinkFit
from scaleacross.calibration.network_entry import network_text
from scaleacross.calibration.result import Calibration, FittedEntry, Residual
from scaleacross.catalogue.write import entry_text
from scaleacross.spec.accelerator import Accelerator
from scaleacross.validation.refit import Refit

KernelFits = list[tuple[AcceleratorTarget, KernelFit]]
LinkFits = list[tuple[NetworkTarget, LinkFit]]

CALIBRATED: Final = "written by scaleacross calibrate; what is not fitted is that of {}"


@dataclass(frozen=True)
class StepFits:
    """Fits of step times per generation, the label and date of their file, and the entries of their accelerators."""

    source: str
    date: str
    fits: tuple[Refit, ...]
    targets: Mapping[str, AcceleratorTarget]


def with_kernels(kernels: KernelFits) -> dict[str, Accelerator]:
    """Map each name to its accelerator with the fitted kernels."""
    out: dict[str, Accelerator] = {}
    for target, fit in kernels:
        accelerator = out.get(target.name) or target.base.model_copy(update={"name": target.name})
        owner, _, kind = fit.field.partition(".")
        value: Any = fit.figure.value
        value = {**accelerator.gemm_models, kind: value} if kind else value
        out[target.name] = accelerator.model_copy(update={owner: value})
    return out


def assembled(kernels: KernelFits, links: LinkFits, steps: StepFits | None, skipped: Sequence[Skipped]) -> Calibration:
    """Put every fit into its entry; return the entries with unused rows and notes."""
    targets = {target.name: target for target, _ in kernels} | dict(steps.targets if steps else {})
    entries: list[FittedEntry] = []
    notes: list[str] = []
    for target in targets.values():
        own = [fit for fitted_for, fit in kernels if fitted_for.name == target.name]
        generation = next((fit for fit in steps.fits if target.name in fit.figures), None) if steps else None
        figures = {fit.field: fit.figure for fit in own}
        residuals = [fit.residual for fit in own]
        if steps and generation:
            figures |= _step_figures(steps, generation, target.name)
            residuals += _step_residuals(generation, target.name)
        data, kept = accelerator_data(target.data, target.name, figures)
        text = entry_text(data, CALIBRATED.format(target.base.name))
        entries.append(FittedEntry("accelerators", target.name, target.base.name, text, tuple(residuals), kept))
        notes += _remarks(target, own, kept, refitted=generation is not None)
    for link, fit in links:
        text = network_text(fit.technology, CALIBRATED.format(link.base.name))
        kept = tuple(key for key in fit.technology.provenance if not key.startswith("curves."))
        entries.append(FittedEntry("networks", link.name, link.base.name, text, fit.residuals, kept))
        if fit.kept_ops:
            notes.append(f"{link.name}: curves of {', '.join(fit.kept_ops)} are those of {link.base.name}")
    unused = (*skipped, *(one for _, fit in links for one in fit.skipped))
    return Calibration(tuple(entries), unused, tuple(notes))


def _remarks(target: AcceleratorTarget, fits: Sequence[KernelFit], kept: Sequence[str], *, refitted: bool) -> list[str]:
    """Return what a reader needs to know before using the entry."""
    name, base = target.name, target.base.name
    out = [f"{name}, {fit.residual.what}: {remark}" for fit in fits for remark in fit.remarks]
    if name != base:
        out.append(
            f"{name}: {len(kept)} figures are taken over from {base} and called assumed, peak rates and memory among them: "
            "copy its file, state your own, and give the copy as --base"
        )
    if fits and not refitted:
        out.append(
            f"{name}: what a training step adds (training_gemm_ratio, ...) is that of {base} as it was; "
            "give --runs to fit it on top of these kernels"
        )
    return out


def _step_figures(steps: StepFits, fit: Refit, name: str) -> dict[str, FittedFigure]:
    source = (
        f"{steps.source}, step times of {len(fit.measured_s)} runs on {fit.generation}, fitted {steps.date}: error (median, p90) "
        f"{percents(score(fit.fitted_s, fit.measured_s))}"
        + "".join(f", {what} left out {percents(score(s, fit.measured_s))}" for what, s in fit.left_out_s.items())
    )
    runs = {
        "step_time_runs": FittedFigure(
            fit.runs[name], f"{steps.source}: rows of every model and precision, {steps.date}"
        )
    }
    return {field: FittedFigure(value, source) for field, value in fit.figures[name].items()} | runs


def _step_residuals(fit: Refit, name: str) -> list[Residual]:
    measured = fit.measured_s
    return [
        Residual(
            what=f"step time ({fit.generation})",
            fitted=tuple(fit.figures[name]),
            base=score(fit.before_s, measured),
            in_sample=score(fit.fitted_s, measured),
            left_out={what: score(seconds, measured) for what, seconds in fit.left_out_s.items()},
        )
    ]
