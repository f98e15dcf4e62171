"""How far estimated step times agree with the simulation, on a committed table of decisions; nothing is searched.

    python benchmarks/agreement.py [--kind planned|shuffled] [--worst 10] [--simulated FILE] [--runs CSV] [--write docs/results]

``decisions.jsonl`` holds 120 decisions on points of ``configs/studies/scale_across.yaml``. The planner chose 60 of them (every
fourth point, 3 s of CPU each, at f07074f). The other 60 have axis order, schedule and shard level shuffled: nobody would choose
them, and anybody may evaluate them. The script prints estimate over simulation, and the same without computation, which both
share, and the CPU seconds of both. ``evaluate`` and ``plan`` state the simulation (``api.stated``); measured here is what a
search compares with. ``--runs`` adds measured runs: how far simulation and estimate of each are apart, and both from what was
measured. It takes about four minutes of CPU; ``--simulated`` keeps what was simulated for the next run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from scaleacross.api import evaluation
from scaleacross.api.problems import problem_of
from scaleacross.api.simulating import simulated_step_s
from scaleacross.api.stated import AGREEMENT
from scaleacross.catalogue import design_points, load_design_space
from scaleacross.cost_models.plan_cost import plan_cost, simulated_work
from scaleacross.simulation import clock
from scaleacross.simulation.steady import steady_step
from scaleacross.simulation.tasks import TaskGraph
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision, Plan
from scaleacross.validation.predict import predict
from scaleacross.validation.runs import read_runs
from scaleacross.validation.score import measured_s, usable_cases
from scaleacross.workloads.problem import Problem

TABLE = Path(__file__).parent / "decisions.jsonl"
KINDS = ("planned", "shuffled")
WITHIN, AT_MOST = AGREEMENT, 0.08
CPU_S = 0.1
DRAWN = "## Drawn anew"


class Row(NamedTuple):
    """One decision of the table, what both say of it, s, and the CPU seconds that saying it takes."""

    number: int
    kind: str
    point: dict[str, str]
    decision: Decision
    step_s: float
    compute_s: float
    simulated_s: float
    step_cpu_s: float
    simulated_cpu_s: float

    @property
    def off(self) -> float:
        """Step time over simulation, less 1."""
        return self.step_s / self.simulated_s - 1

    @property
    def off_beyond_computation(self) -> float:
        """The same on what is not computation."""
        return (self.step_s - self.compute_s) / max(self.simulated_s - self.compute_s, 1e-9) - 1


def decisions(kind: str | None = None) -> Iterator[tuple[int, dict[str, Any], Job]]:
    """Number, row and job of every decision of the table, of one ``kind`` or of all."""
    space, folder = load_design_space("scale_across")
    jobs = {_key(point.fields): point.job for point in design_points(space, folder)}
    for number, line in enumerate(TABLE.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        if kind in (None, row["kind"]):
            yield number, row, jobs[_key(row["point"])]


def _key(point: Any) -> str:
    return json.dumps({name: str(value) for name, value in point.items()}, sort_keys=True)


def evaluated(row: dict[str, Any], job: Job) -> Plan:
    """The plan of a row of the table, its step time an estimate."""
    return evaluation.evaluated(problem_of(job, ()), Decision(**row["decision"]))


def rows(kind: str | None, simulated: Path | None, first: int | None = None) -> Iterator[Row]:
    """The ``first`` rows of the table, or all, with the seconds of both; ``simulated`` keeps those of the simulation by row."""
    known = json.loads(simulated.read_text()) if simulated and simulated.exists() else {}
    for number, row, job in decisions(kind):
        if first is not None and number >= first:
            return
        began = time.process_time()
        plan = evaluated(row, job)
        step_cpu_s = time.process_time() - began
        if str(number) not in known:
            began = time.process_time()
            step_s = simulated_step_s(plan)
            known[str(number)] = step_s, time.process_time() - began
            if simulated:
                simulated.write_text(json.dumps(known))
        both = plan.cost.step_s, plan.cost.compute_s, known[str(number)][0], step_cpu_s, known[str(number)][1]
        found = Row(number, row["kind"], row["point"], plan.decision, *both)
        print(f"{number:4d} {found.off:+8.1%}", file=sys.stderr, flush=True)
        yield found


def summary(found: list[Row]) -> str:
    """One line: how many agree, and how far the rest is off."""
    off = np.abs([row.off for row in found])
    beyond = np.abs([row.off_beyond_computation for row in found])
    return (
        f"{len(off)} decisions: within {WITHIN:.0%} {np.mean(off <= WITHIN):.1%}, beyond {AT_MOST:.0%} "
        f"{int((off > AT_MOST).sum())}, median {np.median(off):.2%}, p90 {np.quantile(off, 0.9):.1%}, worst "
        f"{off.max():.0%}; "
        f"without computation within {WITHIN:.0%} {np.mean(beyond <= WITHIN):.1%}, median "
        f"{np.median(beyond):.2%}"
    )


def speed(found: list[Row]) -> str:
    """One line: CPU seconds of both."""
    words = []
    for name, seconds in (
        ("an estimated plan", [row.step_cpu_s for row in found]),
        ("a simulated step", [row.simulated_cpu_s for row in found]),
    ):
        within = np.mean(np.array(seconds) <= CPU_S)
        words.append(
            f"{name} median {np.median(seconds):.2f}, p90 {np.quantile(seconds, 0.9):.2f}, worst {max(seconds):.1f}, "
            f"{within:.0%} within {CPU_S:g}"
        )
    return "CPU seconds: " + "; ".join(words)


class Measured(NamedTuple):
    """One measured run: estimated, simulated and measured step, s."""

    estimated_s: float
    simulated_s: float
    measured_s: float


def measured(path: Path) -> Iterator[Measured]:
    """Every run of a file that can be predicted, with the decision that ``validate`` takes for it."""
    cases, _ = usable_cases(read_runs(path))
    for case in cases:
        found = predict(case)
        cost = plan_cost(case.job, case.profile, case.topology, found.decision)
        work = simulated_work(case.job, case.profile, case.topology, found.decision)
        decision = found.decision.model_copy(update={"placement": cost.placement})
        plan = SimpleNamespace(  # what a simulation reads of a plan
            job=case.job,
            decision=decision,
            degrees=decision.degrees,
            placement=cost.placement,
            layers_per_stage=cost.layers_per_stage,
            num_micro_batches=cost.num_micro_batches,
            collectives=cost.collectives,
            work=work,
        )
        problem = SimpleNamespace(job=case.job, topology=case.topology, profile=case.profile)
        step_s = steady_step(cast(Plan, plan), cast(Problem, problem)).step_s
        yield Measured(found.step_s, step_s * found.step_s / cost.cost.step_s, measured_s(case))


def of_runs(found: list[Measured]) -> list[str]:
    """Lines of the page on measured runs."""
    estimated, simulated, real = np.array(found).T
    lines = [f"On {len(found)} measured runs, each with the decision that `validate` takes for it:", ""]
    pairs = {
        "estimate against simulation": estimated / simulated - 1,
        "estimate against measured": estimated / real - 1,
        "simulation against measured": simulated / real - 1,
    }
    lines += ["| in sample | median | p90 | worst | bias |", "|---|--:|--:|--:|--:|"]
    for name, off in pairs.items():
        far = np.abs(off)
        lines.append(
            f"| {name} | {np.median(far):.2%} | {np.quantile(far, 0.9):.1%} | {far.max():.0%} | {off.mean():+.1%} |"
        )
    return [*lines, ""]


def main() -> None:
    """Print both summaries and the rows that are farthest off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument("--simulated", type=Path)
    parser.add_argument("--first", type=int, help="rows of the table; all")
    parser.add_argument("--runs", type=Path, help="CSV of measured runs")
    parser.add_argument("--write", type=Path, help="folder of the page agreement.md")
    options = parser.parse_args()
    clock.run(TaskGraph((), *(np.zeros(n, dtype=np.int64) for n in (0, 0, 1))), np.zeros(0))  # compiles once
    found = list(rows(options.kind, options.simulated, options.first))
    text = page(found, options.worst, ["RUNS.csv" if one == str(options.runs) else one for one in sys.argv[1:]])
    if options.runs:
        text += "\n" + "\n".join(of_runs(list(measured(options.runs))))
    print(text)
    if options.write:
        file = options.write / "agreement.md"
        # what ``drawn_decisions.py`` measured stands below and stays
        below = "".join(file.read_text(encoding="utf-8").partition(f"\n{DRAWN}")[1:]) if file.exists() else ""
        file.write_text(text + below, encoding="utf-8")


def page(found: list[Row], worst: int, arguments: list[str]) -> str:
    """Both summaries, and the rows that are farthest off, as Markdown."""
    lines = [
        "# Estimated step time against simulation",
        "",
        f"`python benchmarks/agreement.py {' '.join(arguments)}`",
        "",
    ]
    lines += [
        f"* {kind}: {summary([one for one in found if one.kind == kind])}"
        for kind in KINDS
        if any(one.kind == kind for one in found)
    ]
    lines += [f"* all: {summary(found)}", f"* {speed(found)}", "", *farthest(found, worst)]
    return "\n".join(lines) + "\n"


def farthest(found: list[Row], worst: int) -> list[str]:
    """The rows that are farthest off, as lines of Markdown."""
    lines = [
        f"The {worst} decisions that are farthest off:",
        "",
        "| estimate over simulation | simulation | kind | model, accelerators, pool, buildings, regions, ms, ratio | decision |",
        "|--:|--:|---|---|---|",
    ]
    for row in sorted(found, key=lambda one: -abs(one.off))[:worst]:
        order = row.decision.placement.axis_order if row.decision.placement else ()
        chosen = f"{row.decision.pipeline.schedule}, shard {row.decision.shard}, {' '.join(order)}"
        point = ", ".join(row.point.values())
        lines.append(f"| {row.off:+.1%} | {row.simulated_s:.3f} s | {row.kind} | {point} | {chosen} |")
    return lines


if __name__ == "__main__":
    main()
