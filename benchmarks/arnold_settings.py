"""Weighted spread on Arnold's three settings (arXiv 2509.15940): ours against four ways to hand out hosts.

    python benchmarks/arnold_settings.py --draws 50

The paper gives minipods, free hosts in all, and degrees; hosts per minipod are not published, so they are drawn (every host falls
into a random minipod). Rivals are measured twice: in the framework's rank order, and in the better of two rank orders.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from statistics import mean

from host_packing import PACKERS, in_rank_order, pipeline_first
from host_spread import least_spread, solve_milp, weighted_spread

from scaleacross.solvers.baselines.minipods import HostMatrix

# minipods, free hosts, DP, TP, PP
SETTINGS = ((3, 18, 12, 4, 2), (5, 438, 24, 4, 8), (11, 1019, 46, 8, 8))
WEIGHTS = {"dense": (0.0, 1.0), "experts": (0.3, 0.7), "even": (0.5, 0.5)}


def capacities_of(num_minipods: int, num_hosts: int, rng: random.Random) -> list[int]:
    """Free hosts of every minipod."""
    unequal = [rng.random() + 0.1 for _ in range(num_minipods)]
    where = rng.choices(range(num_minipods), weights=unequal, k=num_hosts)
    return [where.count(j) for j in range(num_minipods)]


def matrix_of(dp: int, tp: int, pp: int) -> HostMatrix:
    """The paper's matrix: DP/(8/TP) rows and PP columns."""
    return HostMatrix(dp * tp // 8, pp)


def measure(setting: Sequence[int], weights: tuple[float, float], seed: int) -> dict[str, float]:
    """Weighted spread of ours, of the solved form by CP-SAT, of every rival in both ways, and seconds."""
    num_minipods, num_hosts, dp, tp, pp = setting
    rng = random.Random(f"{setting} {seed}")
    matrix, capacities = matrix_of(dp, tp, pp), capacities_of(num_minipods, num_hosts, rng)
    began = time.perf_counter()
    ours = weighted_spread(least_spread(matrix, capacities, *weights), *weights)
    out = {"ours": ours, "seconds": time.perf_counter() - began}
    for name, packer in PACKERS.items():
        hosts = packer(matrix, capacities, rng)
        default = weighted_spread(in_rank_order(matrix, hosts), *weights)
        out[name] = default
        out[f"{name} better"] = min(default, weighted_spread(pipeline_first(matrix, hosts), *weights))
    return out


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=50)
    draws = parser.parse_args().draws
    print(
        "| setting | weights | over the best rival: mean, max, worse | the same, better of two rank orders | s, slowest |"
    )
    print("|---|---|---|---|---|")
    over: list[float] = []
    over_better: list[float] = []
    for setting in SETTINGS:
        for label, weights in WEIGHTS.items():
            rows = [measure(setting, weights, seed) for seed in range(draws)]
            default = [min(row[name] for name in PACKERS) / row["ours"] for row in rows]
            better = [min(row[f"{name} better"] for name in PACKERS) / row["ours"] for row in rows]
            over += default
            over_better += better
            slowest = max(row["seconds"] for row in rows)
            print(f"| {setting} | {label} | {_figures(default)} | {_figures(better)} | {slowest:.3f} |")
    print(f"| all | | {_figures(over)} | {_figures(over_better)} | |")
    matrix = matrix_of(*SETTINGS[2][2:])
    capacities = capacities_of(*SETTINGS[2][:2], random.Random(0))
    began = time.perf_counter()
    solve_milp(matrix, capacities, 0.3, 0.7)
    print(f"\nThe paper's integer program on the largest setting by CP-SAT: {time.perf_counter() - began:.2f} s")


def _figures(ratios: Sequence[float]) -> str:
    return f"{mean(ratios):.2f}x, {max(ratios):.2f}x, {sum(ratio < 1 - 1e-9 for ratio in ratios)}"


if __name__ == "__main__":
    main()
