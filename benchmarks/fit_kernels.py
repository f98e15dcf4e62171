"""Put kernel models fitted by ``scaleacross calibrate`` into ``configs/accelerators``, keeping comments and order of the files.

    python benchmarks/fit_kernels.py GEMM.csv ATTENTION.csv            print errors in and out of sample
    python benchmarks/fit_kernels.py GEMM.csv ATTENTION.csv --write    change configs/accelerators/*.yaml too

For maintainers: accelerators without a sweep of their own get the kernels of the chip that they carry. Two minutes on one core.
Afterwards ``fit_step_times.py`` has to be run again: what a training step adds is fitted on top of the kernels alone.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from scaleacross import api
from scaleacross.report.calibration import calibration_report
from scaleacross.report.console import PlainConsole

FOLDER = Path(__file__).parent.parent / "configs" / "accelerators"
SOURCE = "ai-dynamo/aiconfigurator 095f58a (Apache-2.0), TensorRT-LLM kernels"

# entries without a sweep of their own -> the entry whose chip they carry
SAME_CHIP = {"h100-96gb": "h100-sxm", "gb300-nvl72": "b300"}
# entries that differ from their chip's board by cooling and power alone -> such a pair of the generation before, both swept
LIKE_PAIR = {"gb300-nvl72": ("b200_sxm", "gb200")}
KINDS = {"bfloat16": "bf16"}
LARGE_S = 1e-4
"""Seconds from which a kernel fills the chip for so long that its clock, not its launch, decides."""


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gemm", type=Path)
    parser.add_argument("attention", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found = api.calibrate(gemm=arguments.gemm, attention=arguments.attention)
    PlainConsole().print(calibration_report(found))
    for entry in found.entries if arguments.write else ():
        data = yaml.safe_load(entry.text)
        _write(entry.name, {key: (model, _origin(data, key)) for key, model in _models(data).items()})
        for other in (other for other, chip in SAME_CHIP.items() if chip == entry.name):
            faster = pair_ratios(arguments.gemm, arguments.attention, *LIKE_PAIR[other]) if other in LIKE_PAIR else {}
            _write(other, _on_the_same_chip(other, data, faster))


def _models(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Key of its provenance -> kernel model."""
    return {
        **{f"gemm_models.{kind}": model for kind, model in data["gemm_models"].items()},
        "attention_model": data["attention_model"],
    }


def _origin(data: dict[str, Any], key: str) -> dict[str, str]:
    """The origin that calibrate states, after the publication that the file comes from."""
    origin = data["provenance"][key]
    return {"source": f"{SOURCE}; {origin['source']}", "status": origin["status"]}


def pair_ratios(gemm: Path, attention: Path, slow: str, fast: str) -> dict[str, float]:
    """Kind of kernel -> median time of large kernels on ``slow`` over that of the same ones on ``fast``."""
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for path in (gemm, attention):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for row in csv.DictReader(file):
                kind = KINDS.get(row.get("gemm_dtype", "attention_model"), row.get("gemm_dtype", "attention_model"))
                shape = tuple(v for key, v in row.items() if key not in ("accelerator", "time_us"))
                times.setdefault((kind, *shape), {})[row["accelerator"]] = float(row["time_us"]) * 1e-6
    found: dict[str, list[float]] = {}
    for (kind, *_), of in times.items():
        if of.get(fast, 0.0) >= LARGE_S and slow in of:
            found.setdefault(kind, []).append(of[slow] / of[fast])
    return {kind: median(ratios) for kind, ratios in found.items()}


def _on_the_same_chip(
    other: str, chip: dict[str, Any], faster: dict[str, float]
) -> dict[str, tuple[dict[str, Any], dict[str, str]]]:
    """The chip's kernels at its own speed, or as much ``faster``, as fractions of the peak that ``other`` states."""
    own = yaml.safe_load((FOLDER / f"{other}.yaml").read_text(encoding="utf-8"))
    out = {}
    for key, model in _models(chip).items():
        kind = key.removeprefix("gemm_models.")
        precision = {"attention_model": "bf16", "fp8_block": "fp8"}.get(kind, kind)
        ratio = chip["peak_tflop_per_s"][precision] / own["peak_tflop_per_s"][precision]
        speed = faster.get(kind, 1.0)
        efficiency = float(f"{model['compute_efficiency_fraction'] * ratio * speed:.4g}")
        source = f"not measured: the kernels of {chip['name']} at their speed there"
        if other in LIKE_PAIR:
            slow, fast = LIKE_PAIR[other]
            source += f", times {speed:.3f}, which large kernels of {fast} have over those of {slow} (median)"
        out[key] = ({**model, "compute_efficiency_fraction": efficiency}, {"source": source, "status": "assumed"})
    return out


def _write(name: str, models: dict[str, tuple[dict[str, Any], dict[str, str]]]) -> None:
    path = FOLDER / f"{name}.yaml"
    head, marker, tail = path.read_text(encoding="utf-8").partition("provenance:\n")
    head = re.sub(r"^gemm_models:\n(?:  .*\n)*|^attention_model:.*\n", "", head, flags=re.MULTILINE)
    tail = re.sub(r"^  (?:gemm_models\.\w+|attention_model):.*\n", "", tail, flags=re.MULTILINE)
    products = {key.partition(".")[2]: model for key, (model, _) in models.items() if key != "attention_model"}
    head += "gemm_models:\n" + "".join(f"  {kind}: {_flow(model)}\n" for kind, model in products.items())
    head += f"attention_model: {_flow(models['attention_model'][0])}\n"
    tail += "".join(f'  {k}: {{source: "{o["source"]}", status: {o["status"]}}}\n' for k, (_, o) in models.items())
    path.write_text(head + marker + tail, encoding="utf-8")


def _flow(model: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in model.items()) + "}"


if __name__ == "__main__":
    main()
