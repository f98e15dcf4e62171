"""Anytime search: a relaxation, plans built from it, then the constraint program whole (small) or part by part (large).

``shard_embeddings`` is the entry point. The search minimises the seconds of the busiest rank.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem, busiest, fits
from scaleacross.solvers.embeddings.bound import Relaxation
from scaleacross.solvers.embeddings.choices import Alike, alike_tables, closed
from scaleacross.solvers.embeddings.configurations import MOST_KINDS, Configurations
from scaleacross.solvers.embeddings.construct import fill, pack, relabelled, rounded
from scaleacross.solvers.embeddings.exact import size_of, solve_part, whole_part
from scaleacross.solvers.embeddings.fastest_memory import in_fastest_memory
from scaleacross.solvers.embeddings.hosts import inside_hosts
from scaleacross.solvers.embeddings.level import level_plan
from scaleacross.solvers.embeddings.neighbourhoods import merged, next_part
from scaleacross.solvers.embeddings.patterns import MOST_TABLES, Answer, PatternSearch
from scaleacross.solvers.embeddings.random_keys import MOST_PLACES, RandomKeys
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.until import Until
from scaleacross.spec.progress import Progress

EXACT_SIZE = 12_000
"""Integer variables up to which the program of all tables is worth its time."""
_WEIGHTS = (0.0, 0.1, 0.5, 2.0)
_TIGHT_WEIGHTS = (1.0, 3.0, 10.0, 30.0, 1e2, 1e4)
_PART_WORK, _PLACE_WORK = 1.0, 3.0
"""Deterministic work of the constraint program on a part, and on shards of whole options."""
_PATIENCE = 60
"""Rounds of ``_improve`` without an improvement before it ends."""
_TRIED, _LEAST_TRIED_S, _LEAST_S = 0.2, 3.0, 0.5
"""Share of the remaining time that every way to a proof gets for a trial, and two limits in seconds.

A trial gets at least the first, and nothing begins with less than the second.
"""
_KEYED = 0.2
"""Share of the time for plans by random keys, where tables and ranks are few enough."""
_CONFIGURED = 0.7
"""Share of the time for configurations of ranks, where there are many tables of few kinds."""
_OVER, _NEARER, _CLOSE, _FARTHEST = 0.1, 0.4, 0.005, 2.0
"""Distances of T above the bound in the search by configurations, as shares of the bound.

The first T is _OVER above it. Later ones are above the last T that failed, by _NEARER of its distance to the best plan.
The search ends at a step below _CLOSE, or beyond _FARTHEST.
"""
Way = Callable[[float], None]
"""Raises the bound or improves the plan, within the given seconds."""


@dataclass
class Found:
    """The best plan so far, the seconds of its busiest rank, and the bound proved so far."""

    assignment: Assignment | None = None
    objective_s: float = float("inf")
    bound_s: float = 0.0
    methods: list[str] = field(default_factory=list)
    out_of_time: bool = False
    relaxation_fits: bool = True

    @property
    def gap(self) -> float:
        """(objective − bound) / objective, at least 0."""
        return max(0.0, 1 - self.bound_s / self.objective_s) if self.objective_s > 0 else 0.0

    def take(self, problem: ShardingProblem, assignment: Assignment | None, method: str) -> bool:
        """Keep a plan if it fits and is faster, after moving shards that must share a host into one."""
        if assignment is not None:
            assignment = inside_hosts(problem, assignment)
        if assignment is None or not fits(problem, assignment):
            return False
        seconds = busiest(problem, assignment)
        if seconds >= self.objective_s * (1 - 1e-12):
            return False
        self.assignment, self.objective_s = assignment, seconds
        if method not in self.methods:
            self.methods.append(method)
        return True


def shard_embeddings(
    problem: ShardingProblem,
    *,
    time_limit_s: float,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    incumbents: Sequence[Assignment] = (),
    report: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
) -> Found:
    """The plan with the least seconds on the busiest rank found in the time, and a lower bound on all plans.

    Args:
        time_limit_s: seconds by ``clock``; the relaxation and the first plans are made even beyond it.
        gap_tolerance: relative gap at which the search stops.
        incumbents: plans that ours must not be slower than.
        stopped: polled as often as the clock; once true, the search ends as if its time were over.
    """
    until, stated = Until.within(time_limit_s, clock, stopped), problem
    begin, found, left = clock(), Found(), until.left

    def tell(stage: str, done: int) -> None:
        best = found.objective_s if found.assignment else None
        report(Progress(stage, done, None, best, found.bound_s or None, clock() - begin))

    groups: Sequence[Alike] = alike_tables(problem)
    tell("enumerating", len(groups))
    if any(not group.options for group in groups):
        found.relaxation_fits = False
        return found
    relaxation = Relaxation(groups, problem.fleet)
    bound_s = relaxation.bound_s()
    if bound_s is None:
        found.relaxation_fits = False
        return found
    found.bound_s = bound_s
    for incumbent in incumbents:
        found.take(problem, incumbent, "baseline")
    target = max(gap_tolerance, 1e-9)
    chosen: Sequence[Sequence[int]] = _construct(problem, groups, relaxation, bound_s, found, left)
    found.take(problem, level_plan(problem, groups), "equal ranks")
    problem, groups, chosen = _narrowed(problem, groups, relaxation, found, chosen)
    relaxation = Relaxation(groups, problem.fleet)
    # budgets are given as the time that must be left when a method ends
    unkeyed_s = (1 - _KEYED) * left()
    _keyed(RandomKeys(problem, groups, seed), chosen, found, lambda: left() - unkeyed_s, target)
    if len(problem.tables) > MOST_TABLES and len(groups) <= MOST_KINDS and _alike(problem):
        rest_s = (1 - _CONFIGURED) * left()
        _configured(problem, groups, relaxation, found, lambda: left() - rest_s, target)
    for weight in _TIGHT_WEIGHTS if found.assignment is None else ():
        if found.assignment is None or left() > 0:
            found.take(problem, fill(problem, weight), "largest first, by seconds and fullness")
    problem, groups, _ = _narrowed(problem, groups, relaxation, found, ())
    tell("placing", 1)
    small = size_of(groups, problem) <= EXACT_SIZE
    patterns, ways = _patterns_of(problem, found, until), list[Way]()
    if patterns is not None:
        ways.append(patterns.narrow)
    if small:
        ways.append(lambda seconds: _exact(problem, found, seconds, seed, target, until))
    ways = _tried(ways, found, left, target)
    tell("placing", 2)
    # half of the time stays for the proof, if there is any way to one
    proof_s = left() / 2 if ways else 0.0
    _improve(problem, found, lambda: left() - proof_s, random.Random(seed), target, tell, until)
    for others, way in zip(reversed(range(len(ways))), ways, strict=True):
        if found.gap > target and left() > _LEAST_S:
            way(left() / (1 + others))
    if found.assignment is not None:
        found.assignment = in_fastest_memory(stated, found.assignment)
        found.objective_s = min(found.objective_s, busiest(stated, found.assignment))
    found.out_of_time = found.gap > target
    return found


def _tried(ways: Sequence[Way], found: Found, left: Callable[[], float], target: float) -> list[Way]:
    """Give every way to a proof a share of the time; return them by the gap closed per second, best first."""
    closed = []
    for way in ways:
        seconds, gap = left(), found.gap
        if gap > target and seconds > _LEAST_S:
            way(min(seconds, max(_TRIED * seconds, _LEAST_TRIED_S)))
        closed.append((gap - found.gap) / max(seconds - left(), _LEAST_S))
    return [ways[at] for at in np.argsort(-np.array(closed), kind="stable").tolist()]


def _construct(
    problem: ShardingProblem,
    groups: Sequence[Alike],
    relaxation: Relaxation,
    bound_s: float,
    found: Found,
    left: Callable[[], float],
) -> list[Sequence[int]]:
    """Keep plans made from the relaxation; return the options of every table for each of its solutions."""
    out: list[Sequence[int]] = []
    for limit in relaxation.limits(bound_s):
        solved = relaxation.solve(limit)
        if solved is None:
            continue
        out.append(rounded(groups, solved[1], len(problem.tables)))
        for weight in _WEIGHTS:
            for first in (False, True):
                found.take(problem, pack(problem, out[-1], weight, first), "relaxation, longest first")
                if found.assignment is not None and (left() < 0 or found.gap < 1e-6):
                    return out
    return out


def _narrowed(
    problem: ShardingProblem,
    groups: Sequence[Alike],
    relaxation: Relaxation,
    found: Found,
    chosen: Sequence[Sequence[int]],
) -> tuple[ShardingProblem, Sequence[Alike], Sequence[Sequence[int]]]:
    """Problem, groups and choices without options that no plan faster than the best can use.

    Choices that use a removed option are dropped; the options of the best plan stay.
    """
    if found.assignment is None:
        return problem, groups, chosen
    kept = relaxation.within(found.objective_s)
    used = found.assignment.option
    kept |= {(number, used[table]) for number, group in enumerate(groups) for table in group.tables}
    if all((number, index) in kept for number, group in enumerate(groups) for index, _ in group.options):
        return problem, groups, chosen
    left = closed(problem, groups, kept)
    groups = alike_tables(left)
    listed = {table: {index for index, _ in group.options} for group in groups for table in group.tables}
    return left, groups, [one for one in chosen if all(index in listed[table] for table, index in enumerate(one))]


def _keyed(
    keys: RandomKeys, chosen: Sequence[Sequence[int]], found: Found, left: Callable[[], float], target: float
) -> None:
    starts = [*chosen, found.assignment.option] if found.assignment else chosen
    if not starts or keys.places > MOST_PLACES or found.gap <= target:
        return
    for plan in keys.plans(starts, found.objective_s, left):
        found.take(keys.problem, plan, "random keys")
        if found.gap <= target:
            return


def _configured(
    problem: ShardingProblem,
    groups: Sequence[Alike],
    relaxation: Relaxation,
    found: Found,
    left: Callable[[], float],
    target: float,
) -> None:
    """Plans by configurations of ranks: the limit T rises until a plan is found, then falls below the best plan."""
    programs, over, failed = Configurations(problem, groups, left), _OVER, 0.0
    while left() > 0 and over - failed > _CLOSE:
        limit_s = found.bound_s * (1 + over)
        solved = relaxation.solve(limit_s) if limit_s < found.objective_s else None
        # configurations cover single ranks only, so the relaxation decides which tables are on all ranks
        spread = {pair: round(many) for pair, many in solved[1].items()} if solved else {}
        everywhere = {(g, at): many for (g, at), many in spread.items() if dict(groups[g].options)[at].spread == "all"}
        if solved is None or not found.take(problem, programs.plan(limit_s, everywhere), "configurations of ranks"):
            failed = over
        if found.gap <= target or (found.assignment is None and over > _FARTHEST):
            return
        reached = found.objective_s / found.bound_s - 1
        over = 2 * over if found.assignment is None else failed + _NEARER * (reached - failed)


def _exact(
    problem: ShardingProblem,
    found: Found,
    limit_s: float,
    seed: int,
    gap: float,
    until: Until,
) -> None:
    start = relabelled(problem, found.assignment) if found.assignment else None
    upper = found.objective_s if found.assignment else _worst(problem)
    solved = solve_part(problem, whole_part(problem), upper, limit_s, seed, start, found.bound_s, gap, **until.limits)
    if solved.found is not None:
        own = [solved.found[table] for table in range(len(problem.tables))]
        plan = Assignment(tuple(index for index, _ in own), tuple(ranks for _, ranks in own))
        found.take(problem, plan, "constraint program")
    if solved.bound_s > found.bound_s:
        found.bound_s = min(solved.bound_s, found.objective_s)
        found.methods.append("bound of the constraint program")


@dataclass(frozen=True)
class _Patterns:
    """The search by patterns of whole shards, which remembers its patterns between calls."""

    problem: ShardingProblem
    found: Found
    until: Until

    @cached_property
    def _search(self) -> PatternSearch:
        return PatternSearch(alike_tables(self.problem), self.problem.fleet, self._placed)

    def narrow(self, limit_s: float) -> None:
        """Raise the bound and improve the plan within ``limit_s`` seconds."""
        found, left = self.found, self.until.part(limit_s).left
        raised = self._search.narrowed(found.bound_s, found.objective_s, left)
        if raised > found.bound_s:
            found.bound_s = min(raised, found.objective_s)
            found.methods.append("bound by patterns of whole shards")

    def _placed(self, counts: Sequence[Sequence[int]], limit_s: float) -> tuple[Answer, float]:
        """Pack the shards of whole options below ``limit_s`` if possible; any plan faster than the best is kept."""
        problem, found, chosen = self.problem, self.found, [0] * len(self.problem.tables)
        for group, own in zip(alike_tables(problem), counts, strict=True):
            picks = [index for (index, _), many in zip(group.options, own, strict=True) for _ in range(many)]
            for table, index in zip(group.tables, picks, strict=True):
                chosen[table] = index
        fixed = tuple((options[index],) for options, index in zip(problem.options, chosen, strict=True))
        only, packed = replace(problem, options=fixed), pack(problem, chosen, 0.0)
        found.take(problem, packed, "patterns of whole shards")
        start = relabelled(only, Assignment((0,) * len(chosen), packed.ranks)) if packed else None
        part, limits = whole_part(only), self.until.limits
        solved = solve_part(
            only, part, found.objective_s, self.until.left(), 0, start, limit_s, work=_PLACE_WORK, **limits
        )
        if solved.found is not None:
            plan = Assignment(tuple(chosen), tuple(solved.found[table][1] for table in range(len(chosen))))
            found.take(problem, plan, "patterns of whole shards")
        if found.objective_s <= limit_s * (1 + 1e-4):
            return "placed", found.objective_s
        return ("refuted" if solved.bound_s > limit_s * (1 + 1e-4) else "open"), found.objective_s


def _patterns_of(problem: ShardingProblem, found: Found, until: Until) -> _Patterns | None:
    """The search by patterns; None where there are too many tables, no plan, or ranks that differ."""
    if len(problem.tables) > MOST_TABLES or found.assignment is None or not _alike(problem):
        return None
    return _Patterns(problem, found, until)


def _alike(problem: ShardingProblem) -> bool:
    """Whether all ranks have equal costs and capacities."""
    fleet = problem.fleet
    return fleet.num_classes == 1 and not (fleet.capacity != fleet.capacity[0]).any()


def _worst(problem: ShardingProblem) -> float:
    """Seconds of every table's slowest option on one rank: an upper bound on any plan."""
    return sum(max(float(o.seconds.max()) * o.num_shards for o in options) for options in problem.options)


def _improve(
    problem: ShardingProblem,
    found: Found,
    left: Callable[[], float],
    dice: random.Random,
    target: float,
    tell: Callable[[str, int], None],
    until: Until,
) -> None:
    """Free the tables of the busiest ranks and some others, and place them better, while that helps."""
    quiet, rounds = 0, 0
    while found.assignment is not None and found.gap > target and left() > 0 and quiet < _PATIENCE:
        part = next_part(problem, found.assignment, dice, rounds)
        rounds += 1
        if not part.tables:
            quiet += 1
            continue
        best, seed = found.assignment, dice.randrange(2**31)
        solved = solve_part(
            problem, part, found.objective_s, left(), seed, best, found.bound_s, work=_PART_WORK, **until.limits
        )
        better = solved.found is not None and found.take(problem, merged(best, solved.found), "neighbourhoods")
        quiet = 0 if better else quiet + 1
        tell("placing", rounds)
