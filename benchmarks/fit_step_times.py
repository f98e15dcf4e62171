"""Fit the step-time parameters of ``configs/accelerators`` to measured runs and write them back, with their provenance.

    python benchmarks/fit_step_times.py RUNS.csv            print what would change
    python benchmarks/fit_step_times.py RUNS.csv --write    change configs/accelerators/*.yaml

The fit is that of ``scaleacross calibrate --runs`` (``validation.refit``), on the bundled entries in place of a fleet's own, and
from what is known without step times, not from what the entries state. A parameter that no row depends on stays as it is. Run
it again after any change of a cost model.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import numpy as np
import yaml

from scaleacross.calibration.accelerator_entry import FittedFigure, accelerator_data
from scaleacross.catalogue.write import entry_text
from scaleacross.validation.refit import Figure, Machines, Refit, cases_on, refit
from scaleacross.validation.runs import read_runs

FOLDER = Path(__file__).parent.parent / "configs" / "accelerators"


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases, skipped = cases_on(read_runs(arguments.runs), Machines({}, {}))
    for run, reason in skipped:
        print(f"skipped {run.id}: {reason}")
    for fit in refit(cases, lambda done, total: print(f"pass {done} of {total}", file=sys.stderr), from_scratch=True):
        print(f"# {fit.generation}: {_errors(fit)}")
        for name, figures in fit.figures.items():
            path = FOLDER / f"{name}.yaml"
            before = path.read_text(encoding="utf-8")
            after = rewritten(before, name, figures, fit)
            changed = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=0, lineterm="")
            print("\n".join(line for line in changed if "source:" not in line))
            if arguments.write:
                path.write_text(after, encoding="utf-8")


def rewritten(text: str, name: str, figures: Mapping[str, Figure], fit: Refit) -> str:
    """An entry's text with the fitted figures in place of its own, its comments above it kept."""
    rows = f"{len(fit.measured_s)} reported runs on {fit.generation}"
    origin = f"step times of {rows}, benchmarks/fit_step_times.py, {date.today()}"
    new = {field: FittedFigure(value, origin) for field, value in figures.items()}
    data, _ = accelerator_data(yaml.safe_load(text), name, new)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join([*comments, entry_text(data)])


def _errors(fit: Refit) -> str:
    shown = {"before": fit.before_s, "fitted": fit.fitted_s} | {f"{k} left out": v for k, v in fit.left_out_s.items()}
    return ", ".join(f"{what} {np.median(np.abs(s / fit.measured_s - 1)):.1%}" for what, s in shown.items())


if __name__ == "__main__":
    main()
