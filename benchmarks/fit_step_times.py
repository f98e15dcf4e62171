"""Fit the step-time parameters of ``configs/accelerators`` to measured runs and write them back, with their provenance.

    python benchmarks/fit_step_times.py RUNS.csv            print what would change
    python benchmarks/fit_step_times.py RUNS.csv --write    change configs/accelerators/*.yaml

Criterion, priors and generations: ``scaleacross.validation.fitting``. Run it again after any change of a cost model.
"""

from __future__ import annotations

import argparse
import re
from datetime import date
from pathlib import Path

import numpy as np

from scaleacross import catalogue
from scaleacross.errors import InputError
from scaleacross.validation.fitting import GENERATIONS, KNOBS, PARENTS, fit, generation_of
from scaleacross.validation.mapping import Case, case_of
from scaleacross.validation.runs import read_runs
from scaleacross.validation.score import measured_s

UNMOVED = 1e-3  # a value this close to its prior was not determined by any row
FOLDER = Path(__file__).parent.parent / "configs" / "accelerators"

# field -> key in the file and factor from SI to its unit
KEYS = {
    "kernel_launch_s": ("kernel_launch_us", 1e6),
    "host_moe_pass_s": ("host_moe_pass_us", 1e6),
    "step_overhead_s": ("step_overhead_ms", 1e3),
}


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = _cases(arguments.runs)
    fitted = fit(cases, np.array([measured_s(case) for case in cases]))
    rows = {name: [case for case in cases if generation_of(case) == name] for name in fitted}
    for generation, values in fitted.items():
        for name in GENERATIONS.get(generation, ()):
            text = _changed(name, values, rows[generation], generation)
            print(
                f"# {name}\n"
                + "\n".join(line for line in text.splitlines() if "step times of" in line or "_ratio" in line)
            )
            if arguments.write:
                (FOLDER / f"{name}.yaml").write_text(text, encoding="utf-8")


def _cases(path: Path) -> list[Case]:
    out = []
    for run in read_runs(path):
        try:
            out.append(case_of(run))
        except InputError as error:
            print(f"skipped {run.id}: {error}")
    return out


def _changed(name: str, values: np.ndarray, cases: list[Case], generation: str) -> str:
    """The text of an accelerator's file with the values fitted on ``cases`` in place of the old ones."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    accelerator = catalogue.load_accelerator(FOLDER / f"{name}.yaml")
    ratios: dict[str, str] = {}
    lines: dict[str, tuple[str, bool]] = {}
    for knob, value in zip(KNOBS, values, strict=True):
        field, _, precision = knob.name.partition(".")
        if precision:
            for each in ("fp16", "bf16") if precision == "bf16" else (precision,):
                if each in accelerator.peak_flop_per_s:
                    ratios[each] = f"{value:.4g}"
        elif knob.applies(accelerator):
            key, factor = KEYS.get(field, (field, 1.0))
            seen = any(knob.matters(case) and knob.applies(case.topology.buildings[0].accelerator) for case in cases)
            lines[key] = (f"{value * factor:.4g}", seen and abs(value / knob.prior - 1) > UNMOVED)
    lines["training_gemm_ratio"] = ("{" + ", ".join(f"{key}: {value}" for key, value in ratios.items()) + "}", True)
    origin = f"step times of {len(cases)} reported runs on {generation}, benchmarks/fit_step_times.py, {date.today()}"
    for key, (value, moved) in lines.items():
        parent = f", {PARENTS[generation][0]}'s value" if generation in PARENTS else ""
        unseen = f"prior of the fit to step times{parent}: no row determines it"
        source = (origin, "fitted") if moved else (unseen, "assumed")
        text = _replaced(text, key, value, f'{{source: "{source[0]}", status: {source[1]}}}')
    return text


def _replaced(text: str, key: str, value: str, provenance: str) -> str:
    head, marker, tail = text.partition("provenance:\n")
    for part, line in ((0, f"{key}: {value}\n"), (1, f"  {key}: {provenance}\n")):
        indent = "  " if part else ""
        pattern = re.compile(rf"^{indent}{key}:.*\n", re.MULTILINE)
        block = tail if part else head
        block = pattern.sub(lambda _, line=line: line, block) if pattern.search(block) else block + line
        head, tail = (head, block) if part else (block, tail)
    return head + marker + tail


if __name__ == "__main__":
    main()
