"""Fit the kernel models of ``configs/accelerators`` to benchmark sweeps and write them back, with provenance and errors.

    python benchmarks/fit_kernels.py GEMM.csv ATTENTION.csv            print errors in and out of sample
    python benchmarks/fit_kernels.py GEMM.csv ATTENTION.csv --write    change configs/accelerators/*.yaml too

Formulas: ``scaleacross.cost_models.kernels``; fit and folds: ``scaleacross.calibration.kernels``. Two minutes on one core.
Afterwards ``fit_step_times.py`` has to be run again: what a training step adds is fitted on top of the kernels alone.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from scaleacross import catalogue
from scaleacross.calibration.kernels import (
    FitResult,
    Score,
    fit_attention,
    fit_gemm,
    read_attention_times,
    read_gemm_times,
)
from scaleacross.cost_models.kernels import ELEMENT_BYTES, machine_of
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

FOLDER = Path(__file__).parent.parent / "configs" / "accelerators"
SOURCE = "ai-dynamo/aiconfigurator 095f58a (Apache-2.0), TensorRT-LLM kernels"

# name in the sweeps -> catalogue entry
MEASURED = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200-nvl72",
}
# entries without a sweep of their own -> the entry whose chip they carry
SAME_CHIP = {"h100-96gb": "h100-sxm", "gb300-nvl72": "b300"}

Model = GemmModel | AttentionModel


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gemm", type=Path)
    parser.add_argument("attention", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    gemms, attentions = read_gemm_times(arguments.gemm), read_attention_times(arguments.attention)
    print(
        "| accelerator | kernel | rows | in sample: median, p90 | out of sample: median, p90 |\n|---|---|---|---|---|"
    )
    for measured, name in MEASURED.items():
        accelerator = catalogue.load_accelerator(FOLDER / f"{name}.yaml")
        fits: dict[str, FitResult[GemmModel] | FitResult[AttentionModel]] = {}
        for kind, bytes_each in ELEMENT_BYTES.items():
            if (measured, kind) in gemms:
                fits[kind] = fit_gemm(gemms[measured, kind], machine_of(accelerator, kind), bytes_each)
                _show(name, kind, fits[kind])
        fits["attention"] = fit_attention(attentions[measured], machine_of(accelerator, "bf16"))
        _show(name, "attention", fits["attention"])
        if arguments.write:
            own = {kind: (result.model, _origin(result, name)) for kind, result in fits.items()}
            _write(name, own)
            for other in (other for other, chip in SAME_CHIP.items() if chip == name):
                _write(other, _on_the_same_chip(other, accelerator, fits))


def _show(name: str, kind: str, result: FitResult[GemmModel] | FitResult[AttentionModel]) -> None:
    errors = " | ".join(_percent(score) for score in (result.in_sample, result.out_of_sample))
    print(f"| {name} | {kind} | {result.in_sample.num_rows:,} | {errors} |", flush=True)


def _percent(score: Score) -> str:
    return f"{100 * score.median_abs_error:.1f} %, {100 * score.p90_abs_error:.1f} %"


def _origin(result: FitResult[GemmModel] | FitResult[AttentionModel], name: str) -> tuple[str, str]:
    errors = f"error (median, p90) {_percent(result.in_sample)}, on shapes left out {_percent(result.out_of_sample)}"
    return f"{SOURCE} on {name}, {result.in_sample.num_rows} rows, fitted {date.today()}: {errors}", "fitted"


def _on_the_same_chip(
    other: str, chip: Accelerator, fits: Mapping[str, FitResult[GemmModel] | FitResult[AttentionModel]]
) -> dict[str, tuple[Model, tuple[str, str]]]:
    """The chip's kernels at the chip's own speed, as fractions of the peak that ``other`` states."""
    accelerator = catalogue.load_accelerator(FOLDER / f"{other}.yaml")
    out: dict[str, tuple[Model, tuple[str, str]]] = {}
    for kind, result in fits.items():
        precision = "bf16" if kind == "attention" else "fp8" if kind == "fp8_block" else kind
        ratio = chip.peak_flop_per_s[precision] / accelerator.peak_flop_per_s[precision]
        efficiency = float(f"{result.model.compute_efficiency_fraction * ratio:.4g}")
        model = result.model.model_copy(update={"compute_efficiency_fraction": efficiency})
        out[kind] = (model, (f"not measured: the kernels of {chip.name} at their speed there", "assumed"))
    return out


def _write(name: str, models: Mapping[str, tuple[Model, tuple[str, str]]]) -> None:
    path = FOLDER / f"{name}.yaml"
    head, marker, tail = path.read_text(encoding="utf-8").partition("provenance:\n")
    head = re.sub(r"^gemm_models:\n(?:  .*\n)*|^attention_model:.*\n", "", head, flags=re.MULTILINE)
    tail = re.sub(r"^  (?:gemm_models\.\w+|attention_model):.*\n", "", tail, flags=re.MULTILINE)
    products = {kind: model for kind, (model, _) in models.items() if kind != "attention"}
    head += "gemm_models:\n" + "".join(f"  {kind}: {_yaml(model)}\n" for kind, model in products.items())
    head += f"attention_model: {_yaml(models['attention'][0])}\n"
    for kind, (_, (source, status)) in models.items():
        key = "attention_model" if kind == "attention" else f"gemm_models.{kind}"
        tail += f'  {key}: {{source: "{source}", status: {status}}}\n'
    path.write_text(head + marker + tail, encoding="utf-8")


def _yaml(model: Model) -> str:
    """A flow mapping of the fields that differ from their defaults, times in µs."""
    stated = model.model_dump(mode="json", exclude_defaults=True)
    times = {key: f"{key[:-2]}_us" for key in stated if key.endswith("_s")}
    figures = {times.get(key, key): _number(value * 1e6) if key in times else value for key, value in stated.items()}
    return "{" + ", ".join(f"{key}: {value}" for key, value in figures.items()) + "}"


def _number(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
