"""Hold `plan` against decisions that somebody published with a measured run: same accelerators, our own estimate of both.

First every row whose source names recomputation, experts' tensor parallelism (folding) or virtual stages is listed by what
becomes of it: priced as stated, or not, with the reason. Then, for one row of each model, fleet and precision whose decision is
stated whole and fits, the search runs without knowing that decision, on the library's network, limited by work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.errors import InputError
from scaleacross.solvers.joint import search
from scaleacross.solvers.network_of_plan import with_library_network
from scaleacross.solvers.search_state import decision_of
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.spec.plan import Decision
from scaleacross.validation.mapping import Case, case_of
from scaleacross.validation.runs import Run, read_runs
from scaleacross.validation.workload_of import workload_of
from scaleacross.workloads.problem import Problem

WHOLE_POLICIES = ("none", "full", "selective")
"""Words of a source that say what is recomputed."""


def named(run: Run) -> tuple[str, ...]:
    """Decisions of this kind that the source of a row names."""
    recompute = run.recompute.split("(")[0].strip()
    named = [f"recompute {run.recompute}"] if recompute not in ("", "unknown") else []
    named += [f"etp {run.etp}"] if run.etp else []
    return (*named, *([f"vpp {run.vpp}"] if run.vpp and run.vpp > 1 else []))


def priced(run: Run) -> Case | str:
    """The row as questions, or why it is none."""
    try:
        return case_of(run)
    except InputError as error:
        return " ".join(str(error).split())


def stated_whole(case: Case) -> bool:
    """Whether a single decision is left, and it fits."""
    if len(case.decisions) != 1 or case.run.recompute.split("(")[0].strip() not in WHOLE_POLICIES:
        return False
    return all(stage.fits for stage in plan_cost(case.job, case.profile, case.topology, case.decisions[0]).memory)


def problem_without(case: Case) -> Problem:
    """The job of a row with everything open that the decision settles, in lists that hold its values."""
    decision, job = case.decisions[0], case.job
    opened = {
        "num_accelerators": case.run.n_gpus,
        "micro_batch_sequences": sorted({*job.micro_batch_sequences, decision.pipeline.micro_batch_sequences}),
        "num_chunks": sorted({*job.num_chunks, decision.pipeline.num_chunks}),
        "recompute": tuple(dict.fromkeys((*job.recompute, decision.recompute))),
        "shard": tuple(dict.fromkeys((*job.shard, decision.shard))),
        "memory_headroom_fraction": 0.0,  # as full as the published run may have been
    }
    workload = workload_of(case.run)
    return with_library_network(Problem(job.model_copy(update=opened), workload, case.topology, case.profile))


def found(case: Case, work: int, gap: float) -> tuple[float, Decision, float]:
    """Published step, our decision, and our step, s."""
    problem = problem_without(case)
    published = plan_cost(problem.job, case.profile, case.topology, case.decisions[0]).cost.step_s
    state = search(problem, time_limit_s=work, gap_tolerance=gap, clock=WorkClock())
    if state.best is None:
        raise RuntimeError(f"{case.run.id}: no plan, though the published one fits")
    ours = decision_of(state.best)
    return published, ours, plan_cost(problem.job, case.profile, case.topology, ours).cost.step_s


def distinct(cases: list[Case]) -> Iterator[Case]:
    """One of each model, fleet and precision, in the order of the file."""
    seen = set()
    for case in cases:
        key = case.run.model, case.run.gpu, case.run.n_gpus, case.job.precision
        if key not in seen and stated_whole(case):
            seen.add(key)
            yield case


def spread_over(cases: list[Case], count: int) -> list[Case]:
    """So many of them, evenly along the list."""
    return [cases[index * len(cases) // count] for index in range(min(count, len(cases)))]


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", help="measured runs, CSV")
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--work", type=int, default=100, help="step times that each search may compute")
    parser.add_argument("--gap", type=float, default=0.0)
    options = parser.parse_args()
    asked = [(run, named(run)) for run in read_runs(options.runs)]
    outcomes = [(run, said, priced(run)) for run, said in asked if said]
    cases = [case for _, _, case in outcomes if isinstance(case, Case)]
    kinds = Counter(what.split()[0] for _, said, case in outcomes if isinstance(case, Case) for what in said)
    print(
        f"{len(outcomes)} rows name recomputation, etp or chunks; {len(cases)} are priced ({dict(kinds)}). The others:"
    )
    for reason, names in sorted(_by_reason(outcomes).items()):
        print(f"  {len(names)}: {', '.join(names)}: {reason}")
    slower = 0
    print(f"\n{'row':7}{'model':22}{'fleet':22}{'published, s':>13}{'plan, s':>10}{'less':>8}  decisions")
    for case in spread_over(list(distinct(cases)), options.rows):
        published_s, ours, step_s = found(case, options.work, options.gap)
        slower += step_s > published_s * (1 + 1e-9)
        said, fleet = case.decisions[0], f"{case.run.n_gpus} {case.run.gpu}"
        print(
            f"{case.run.id:7}{case.run.model:22}{fleet:22}{published_s:13.3f}{step_s:10.3f}{1 - step_s / published_s:8.1%}  "
            f"{_told(said)} -> {_told(ours)}",
            flush=True,
        )
    print(f"\nslower than published: {slower}")
    raise SystemExit(slower > 0)


def _by_reason(outcomes: list[tuple[Run, tuple[str, ...], Case | str]]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for run, _, case in outcomes:
        if isinstance(case, str):
            out.setdefault(case, []).append(run.id)
    return out


def _told(decision: Decision) -> str:
    pipeline = decision.pipeline
    chunks = f" v{pipeline.num_chunks}" if pipeline.num_chunks > 1 else ""
    degrees = _above_one(decision)
    return f"{degrees}{chunks} b{pipeline.micro_batch_sequences} {decision.recompute} {decision.shard}"


def _above_one(decision: Decision) -> str:
    """The degrees above 1."""
    return " ".join(f"{axis}{degree}" for axis, degree in decision.degrees.model_dump().items() if degree > 1) or "1"


if __name__ == "__main__":
    main()
