"""What two own runs are worth on one fleet: every pair of measured runs calibrates it, and the others are predicted.

    python benchmarks/own_run_pairs.py docs/results/one_h100_steps.csv
    python benchmarks/own_run_pairs.py docs/results/one_h100_steps.csv --gemm docs/results/one_h100_gemm.csv \\
        --attention docs/results/one_h100_attention.csv

Each pair is what a user does: ``scaleacross calibrate``, then ``scaleacross validate`` with its entries (some seconds a pair).
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

Rows = Sequence[dict[str, str]]


def main() -> None:
    """Print the errors of every pair, then their medians and the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="measured runs of one fleet, CSV")
    parser.add_argument("--gemm", type=Path, help="the fleet's kernels, calibrated too")
    parser.add_argument("--attention", type=Path)
    arguments = parser.parse_args()
    kernels = [f"--{name}={path}" for name in ("gemm", "attention") if (path := getattr(arguments, name))]
    with arguments.runs.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    medians, worst = [], []
    for pair in combinations(range(len(rows)), 2):
        with tempfile.TemporaryDirectory() as folder:
            errors = errors_after(Path(folder), rows, pair, kernels)
        medians.append(statistics.median(errors))
        worst.append(max(errors))
        print(f"runs {pair[0]}, {pair[1]}: median {medians[-1]:.1%}, worst {worst[-1]:.1%}", flush=True)
    print(
        f"{len(medians)} pairs: median error {statistics.median(medians):.1%} (worst pair {max(medians):.1%}), ", end=""
    )
    print(f"worst row {statistics.median(worst):.1%} (worst pair {max(worst):.1%})")


def errors_after(folder: Path, rows: Rows, pair: tuple[int, int], kernels: list[str]) -> list[float]:
    """|predicted / measured − 1| of all rows but ``pair``, which calibrates."""
    own = written(folder / "own.csv", [rows[at] for at in pair])
    others = written(folder / "others.csv", [row for at, row in enumerate(rows) if at not in pair])
    scaleacross("calibrate", "--runs", own, *kernels, "-o", folder / "fleet")
    scaleacross("validate", others, "-o", folder / "out", configs=folder / "fleet")
    with (folder / "out" / "rows.csv").open(newline="", encoding="utf-8") as file:
        return [abs(float(row["error"])) for row in csv.DictReader(file)]


def written(path: Path, rows: Rows) -> Path:
    """The rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def scaleacross(*arguments: object, configs: Path | None = None) -> None:
    """Run a command; where it fails, end with its words."""
    environment = os.environ | ({"SCALEACROSS_CONFIGS": str(configs)} if configs else {})
    command = [sys.executable, "-m", "scaleacross", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


if __name__ == "__main__":
    main()
