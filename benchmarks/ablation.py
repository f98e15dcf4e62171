"""What every correction of a placed step time is worth: each switched off in turn on the decisions of ``agreement.py``.

    python benchmarks/ablation.py [--kind planned|shuffled] [--simulated FILE] [NAME ...]

A mechanism earns its lines when it moves at least 2 % of the decisions by more than 0.5 %. Printed are how many decisions each
moves, and how far the step times are from the simulation without it. About a minute of CPU a mechanism, after ``agreement.py``
has kept the seconds of the simulation (``--simulated``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from agreement import KINDS, Row, decisions, rows, summary

from scaleacross.api.evaluation import cost_of
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.plan_cost import groups_of, placed_shapes
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision

MOVED, LEAST_SHARE = 0.005, 0.02
GATHERED = np.array([1e9])


def _nothing_shared(volumes: Any, *_: Any) -> Any:
    return np.zeros((4, len(volumes.candidates)))


def _all_fullest(pipelines: Any) -> Any:
    """Every stage's layers the mean layer of the fullest rank."""
    volumes, stages = pipelines.volumes, len(pipelines.any_stages.rank)
    return volumes.take(np.zeros(stages, dtype=np.int64))


def _one_kind(shape: Any) -> Any:
    """All groups as one kind, which has the largest fanout and the fewest members of all."""
    parts = {name: getattr(shape, name)[None] for name in ("fanout", "members", "taken", "pairs")}
    return replace(shape, **parts)


COSTS = "scaleacross.cost_models."
MECHANISMS: dict[str, tuple[tuple[str, Any], ...]] = {
    "inter-building queue of pipeline ranks": ((f"{COSTS}replica_kinds.gradients_cross", lambda *_: False),),
    "HBM lost to traffic": ((f"{COSTS}step.hbm_lost_s", lambda volumes: np.zeros(len(volumes.candidates))),),
    "links shared with passes' calls": ((f"{COSTS}layer_overlap._sharing_links", _nothing_shared),),
    "waiting groups": ((f"{COSTS}replica_kinds.waiting_groups", lambda *_: {}),),
    "weight gradients apart": ((f"{COSTS}layer_overlap.LayerOverlap.in_chunks", lambda beside, _: beside),),
    "groups that cross farthest": ((f"{COSTS}groups.GroupShape.kinds", property(_one_kind)),),
    "crowded inter-building links": ((f"{COSTS}pipeline.placed.is_crowded", lambda *_: False),),
    "pipeline ranks' turns on them": ((f"{COSTS}replica_kinds.slowest_apart", lambda *_: {}),),
    "passes that gradients delay": (
        (f"{COSTS}replica_kinds.later_s", lambda of, *_: np.zeros((2, len(of.volumes.candidates)))),
    ),
    "messages that queue on one trunk": ((f"{COSTS}pipeline.timing._queued", lambda *given: given[-2:]),),
    "shards over each rank's own groups": ((f"{COSTS}replica_kinds.groups_of_ranks", lambda *_: {}),),
    "shards of every stage": ((f"{COSTS}pipeline.unplaced.UnplacedPipelines.stage_volumes", property(_all_fullest)),),
    "multiprocessors held by collectives": ((f"{COSTS}rank_seconds.contention_fraction", lambda _: 0.0),),
}


@contextmanager
def switched_off(*names: str) -> Iterator[None]:
    """Estimates without these mechanisms."""
    with ExitStack() as switched:
        for where, new in (change for name in names for change in MECHANISMS[name]):
            switched.enter_context(mock.patch(where, new))
        yield


def without(name: str, full: Iterable[tuple[Row, Job]]) -> list[Row]:
    """The rows, each with its job, with one mechanism switched off."""
    with switched_off(name):
        # without the checks of ``evaluate``: messages are cut as they are with everything on
        return [row._replace(step_s=cost_of(problem_of(job, ()), row.decision).cost.step_s) for row, job in full]


def unequal_groups() -> str:
    """One line: on how many decisions the fanouts of all groups make a communicator's gather of 1 GB over 5 % longer."""
    longest, every = [], list(decisions())
    for _, drawn, job in every:
        decision, topology = Decision(**drawn["decision"]), problem_of(job, ()).topology
        shapes = placed_shapes(topology, decision)
        levels, longer = build_levels(topology, decision.placement.fill), 1.0
        for group in groups_of(shapes, levels, "best").values():
            shape = replace(group.shape, farthest_fanout=group.shape.fanout, farthest_members=group.shape.members)
            own, other = (float(one.gather(GATHERED).time_s[0]) for one in (group, replace(group, shape=shape)))
            longer = max(longer, other / own if own > 0 else 1.0)
        longest += [longer] if longer > 1.05 else []
    least, most = (f"{one - 1:.0%}" for one in (min(longest), max(longest)))
    return f"with the fanouts of all groups a gather takes {least} to {most} longer on {len(longest)} of {len(every)}"


def main() -> None:
    """Print a line per mechanism, and one of groups that lie unlike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MECHANISMS)}; all")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--simulated", type=Path)
    options = parser.parse_args()
    full = list(rows(options.kind, options.simulated))
    jobs = {number: job for number, _, job in decisions()}
    print(f"everything on: {summary(full)}", flush=True)
    for name in options.names or MECHANISMS:
        off = without(name, [(row, jobs[row.number]) for row in full])
        moved = np.abs([a.step_s / b.step_s - 1 for a, b in zip(off, full, strict=True)]) > MOVED
        verdict = "earns its lines" if moved.mean() >= LEAST_SHARE else "does not earn its lines"
        print(
            f"without {name}: moves {moved.sum()} of {len(full)} by more than {MOVED:.1%} ({verdict}); {summary(off)}"
        )
    print(unequal_groups())


if __name__ == "__main__":
    main()
