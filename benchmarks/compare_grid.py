"""Our plan against every baseline on a published grid of fleets, models and sizes; resumable, one JSON line per point.

    python benchmarks/compare_grid.py --sample 100 --seed 0 -o build/compare_grid.jsonl        run (again: only what is missing)
    python benchmarks/compare_grid.py --summary -o build/compare_grid.jsonl --docs docs/results/compare_grid.md

The grid (2,560 points): sites 2, 3, 4, 6, 8 × oversubscription between sites 1:1, 1:2.8, 1:7, 1:16 × one-way latency 25 us,
0.25, 2.5, 25 ms × Llama 3.1 8B, 70B, 405B, DeepSeek-V3 × 1,024 … 131,072 GPUs in powers of two. Sites are buildings of one
region below 1 ms and regions above. Each holds an equal share of H100 hosts (one host more in the first ones where the number
does not divide) in zones of 3,072 with 1:2.8 between zones; a trunk joins every two sites, a site's trunks together carry its
line rate over the oversubscription. A step has 16 Mi tokens up to 16,384 GPUs (Llama 3) and 1,024 per GPU beyond.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import scaleacross as sa
from scaleacross.errors import ScaleAcrossError

SITES = (2, 3, 4, 6, 8)
OVERSUBSCRIPTION = (1.0, 2.8, 7.0, 16.0)
LATENCY_MS = (0.025, 0.25, 2.5, 25.0)
MODELS = {"llama3.1-8b": 8192, "llama3.1-70b": 8192, "llama3.1-405b": 8192, "deepseek-v3": 4096}  # tokens per sequence
GPUS = tuple(1024 * 2**power for power in range(8))
AXES = ("sites", "oversubscription", "latency_ms", "model", "gpus")
REGIONAL_FROM_MS = 1.0
SLOWER = 1 + 1e-9
"""Beyond floating-point noise."""

Point = dict[str, Any]


def grid() -> list[Point]:
    """All points."""
    return [
        dict(zip(AXES, values, strict=True)) for values in product(SITES, OVERSUBSCRIPTION, LATENCY_MS, MODELS, GPUS)
    ]


def job_of(point: Point) -> dict[str, Any]:
    """The job of a point, as a YAML file would hold it."""
    tokens = max(2**24, 1024 * point["gpus"])
    length = MODELS[point["model"]]
    return {
        "name": key_of(point),
        "workload": point["model"],
        "topology": topology_of(point),
        "sequence_length": length,
        "global_batch_sequences": tokens // length,
    }


def topology_of(point: Point) -> dict[str, Any]:
    """The fleet of a point."""
    hosts, sites = point["gpus"] // 8, point["sites"]
    buildings = [{"name": f"site-{i}", "num_hosts": hosts // sites + (i < hosts % sites)} for i in range(sites)]
    apart = point["latency_ms"] >= REGIONAL_FROM_MS
    groups = [[building] for building in buildings] if apart else [buildings]
    inside = {"technology": "roce-400g", "oversubscription_ratio": 1}
    return {
        "name": "grid",
        "building_defaults": {
            "accelerator": "h100-sxm",
            "accelerators_per_host": 8,
            "hosts_per_rack": 2,
            "racks_per_zone": 192,
            "links": {
                "scale_up": {"technology": "nvlink4", "one_way_latency_us": 1},
                "rack": inside | {"one_way_latency_us": 3},
                "zone": inside | {"one_way_latency_us": 7},
                "building": inside | {"one_way_latency_us": 12, "oversubscription_ratio": 2.8},
            },
        },
        "regions": [{"name": f"region-{i}", "buildings": group} for i, group in enumerate(groups)],
        "trunks": [
            {
                "between": [f"site-{i}", f"site-{j}"],
                "oversubscription_ratio": point["oversubscription"] * (sites - 1),
                "one_way_latency_ms": point["latency_ms"],
            }
            for i in range(sites)
            for j in range(i + 1, sites)
        ],
    }


def key_of(point: Point) -> str:
    """A name for a point."""
    return "_".join(str(point[axis]) for axis in AXES)


def run(point: Point, time_limit_s: float) -> dict[str, Any]:
    """One line of the result file."""
    began = time.perf_counter()
    line: dict[str, Any] = {"key": key_of(point), **point}
    try:
        found = sa.compare(sa.load_job(job_of(point)), time_limit_s=time_limit_s)
    except ScaleAcrossError as error:
        return line | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    report = found.plan.report
    return line | {
        "step_s": found.plan.cost.step_s,
        "degrees": str(found.plan.degrees),
        "across": found.across,
        "status": report.status,
        "gap": report.gap,
        "matched": found.matched,
        "seconds": time.perf_counter() - began,
        "rivals": {
            rival.name: {
                "step_s": rival.step_s,
                "speed_up": rival.speed_up,
                "is_tie": rival.is_tie,
                "complete": rival.complete,
                "across": rival.across,
                "reason": rival.reason,
            }
            for rival in found.rivals
        },
    }


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The points that are done; a line that was cut off counts as not done."""
    done = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            done.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return done


def run_missing(points: Sequence[Point], path: Path, time_limit_s: float, processes: int) -> None:
    """Every point that the file lacks, appended as soon as it is done."""
    known = {line["key"] for line in lines_of(path)}
    missing = [point for point in points if key_of(point) not in known]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file, ProcessPoolExecutor(processes) as pool:
        running = [pool.submit(run, point, time_limit_s) for point in missing]
        for index, done in enumerate(as_completed(running), start=1):
            line = done.result()
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{index} of {len(missing)}: {line['key']} {line.get('seconds', 0):.0f} s", file=sys.stderr)


def summary(lines: Sequence[dict[str, Any]], num_drawn: int, command: str) -> str:
    """The result page (Markdown)."""
    priced = [line for line in lines if "error" not in line]
    head = _head(lines, priced, num_drawn, command)
    return "\n".join([*head, *_by_rival(priced), *_by_axis(priced), *_slower(priced)]) + "\n"


def speed_up(line: dict[str, Any], name: str) -> float | None:
    """Over one rival, or over the ``best`` one."""
    rivals = line["rivals"]
    if name != "best":
        return rivals[name]["speed_up"] if name in rivals else None
    return min((rival["speed_up"] for rival in rivals.values() if rival["speed_up"]), default=None)


def _head(
    lines: Sequence[dict[str, Any]], priced: Sequence[dict[str, Any]], num_drawn: int, command: str
) -> Iterator[str]:
    kept = sum(line["status"] == "time_limit" for line in priced)
    gaps = [line["gap"] for line in priced]
    cut = sum(not rival["complete"] for line in priced for rival in line["rivals"].values())
    yield f"# Our plan against the baselines: {len(priced)} of {len(grid()):,} points of the grid\n"
    yield "Written by the command below; the grid and what a point is stand in its docstring. All plans of a point are priced by"
    yield "the same exact cost model. Degrees that a rule leaves open are tuned with that model too, but for Sailor and Atlas,"
    yield "which have time models of their own; so the best rival is a strong one.\n"
    yield f"```bash\n{command}\n```\n"
    yield f"- Points drawn: {num_drawn:,}; done: {len(lines):,} (the command goes on with the others)"
    failed = [line for line in lines if "error" in line]
    yield f"- Points without any plan: {len(failed)}" + "".join(f"; {x['key']}: {x['error']}" for x in failed[:5])
    if priced:
        yield f"- Gap of our plan: median {median(gaps):.2%}, largest {max(gaps):.2%}; time limit reached on {kept} points"
        yield f"- Rivals cut short by the time limit: {cut} of {sum(len(line['rivals']) for line in priced)}\n"


def _by_rival(priced: Sequence[dict[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for line in priced for name in sorted(line["rivals"])))
    yield "| over | points | median speed-up | maximum | ties | no plan |\n|---|---|---|---|---|---|"
    for name in ("best", *names):
        values = [value for line in priced if (value := speed_up(line, name)) is not None]
        if not values:
            yield f"| {name} | 0 | – | – | – | {len(priced)} |"
            continue
        ties = sum(_is_tie(line, name) for line in priced)
        label = "the best rival" if name == "best" else name
        yield (
            f"| {label} | {len(values)} | {median(values):.3f} | {max(values):.2f} | {ties} | {len(priced) - len(values)} |"
        )


def _is_tie(line: dict[str, Any], name: str) -> bool:
    if name != "best":
        return bool(line["rivals"][name]["is_tie"])
    return any(rival["is_tie"] for rival in line["rivals"].values())


def _by_axis(priced: Sequence[dict[str, Any]]) -> Iterator[str]:
    head = "| | points | over production: median, maximum, ties | over the best rival: median, maximum, ties |"
    yield f"\n{head}\n|---|---|---|---|"
    for axis in AXES:
        for value in dict.fromkeys(line[axis] for line in sorted(priced, key=lambda line: str(line[axis]).zfill(9))):
            rows = [line for line in priced if line[axis] == value]
            yield f"| {axis} {value} | {len(rows)} | {_figures(rows, 'production')} | {_figures(rows, 'best')} |"


def _figures(rows: Sequence[dict[str, Any]], name: str) -> str:
    values = [value for line in rows if (value := speed_up(line, name)) is not None]
    return f"{median(values):.3f}, {max(values):.2f}, {sum(_is_tie(line, name) for line in rows)}" if values else "–"


def _slower(priced: Sequence[dict[str, Any]]) -> Iterator[str]:
    lost = [
        f"{line['key']} against {name} ({rival['speed_up']:.4f})"
        for line in priced
        for name, rival in line["rivals"].items()
        if rival["speed_up"] is not None and rival["speed_up"] * SLOWER < 1
    ]
    from_rival = sum(line["matched"] is not None for line in priced)
    yield f"\nPoints where our plan is slower than a rival: {len(lost)}" + "".join(f"\n- {text}" for text in lost)
    yield f"\nPoints where the search found nothing faster than a rival's own plan, and kept it: {from_rival}"


def main() -> None:
    """Parse arguments; run, or summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many points, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for our search, and for each rival")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/compare_grid.jsonl"))
    parser.add_argument("--summary", action="store_true", help="run nothing, print the summary of what is there")
    parser.add_argument("--docs", type=Path, help="write the summary to this file too")
    options = parser.parse_args()
    points = grid()
    random.Random(options.seed).shuffle(points)
    points = points[: options.sample]
    if not options.summary:
        run_missing(points, options.output, options.time_limit, options.processes)
    keys = {key_of(point) for point in points}
    limits = f"--seed {options.seed} --time-limit {options.time_limit:g}"
    done = [line for line in lines_of(options.output) if line["key"] in keys]
    sample = f"--sample {options.sample} " if options.sample else ""
    page = summary(done, len(points), f"python benchmarks/compare_grid.py {sample}{limits}")
    print(page)
    if options.docs:
        options.docs.parent.mkdir(parents=True, exist_ok=True)
        options.docs.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
