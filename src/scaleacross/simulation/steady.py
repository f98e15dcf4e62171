"""Step time of many micro-batches from a simulation of fewer, since equal micro-batches repeat in the steady state.

A simulation's only memory is its state: each rank class's place in its row of actions, and the tasks in flight with
their start times. Suppose that the state at a moment t equals the state Λ seconds earlier with every micro-batch P
further on. Suppose also that class r went A_r actions on, and that its row repeats these A_r actions from there. Then
the run repeats, too: j·P more micro-batches take j·Λ more seconds.

The short simulation must show all of this, to rounding, before anything is extrapolated:

* starts, ends and arrivals of all tasks since before the oldest in flight at t − Λ or t were the same Λ seconds earlier
* every class began as many actions in [t − 2Λ, t − Λ) as in [t − Λ, t)
* the rows of all micro-batches equal those of the few up to t, go on with the period, and end as those of the few do

Where no period is found, all micro-batches are simulated. Replicas of different pace have no common period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.schedules.pipeline import ROUNDS, Action, Kind, PipelineSchedule, chosen
from scaleacross.schedules.pipeline.interleaved_1f1b import microbatches_per_round
from scaleacross.simulation.fabric import Floats, Ints
from scaleacross.simulation.step_run import Disturbance, StepRun, no_collection, simulate_step
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import Problem

FEW: Final = ((3, 2.0), (6, 4.0))
"""Attempts until a period shows: (micro-batches simulated per pipeline rank, least ratio of all micro-batches to
these).

The second attempt must save more time. Of 56 plans of ``scale_across`` with at least four micro-batches a rank, two got
a second attempt, and it showed no period either."""
FEW_ROUNDS: Final = ((5, 1.5), (10, 4.0))
"""The same for schedules that run in rounds (``ROUNDS``), per round of micro-batches. Two rounds fit between warm-up
and cool-down; in all of seven simulations of 8 rounds a period showed."""
LEAST: Final = 8
"""Fewest micro-batches that are simulated."""
ROUNDING: Final = 1e-11
"""Moments closer than this share of the simulated step time count as one."""
KINDS: Final = {kind: number for number, kind in enumerate(Kind)}
"""Number of every kind of action."""


class Period(NamedTuple):
    """``micro_batches`` more take ``seconds`` more, as observed in the short simulation up to ``moment``, s."""

    micro_batches: int
    seconds: float
    moment: float


class SteadyStep(NamedTuple):
    """A step that was simulated in part: ``step_run``, plus ``times`` repetitions of its ``window`` (start, end), s."""

    step_run: StepRun
    times: int = 0
    window: tuple[float, float] = (0.0, 0.0)

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.step_run.step_s + self.times * (self.window[1] - self.window[0])

    @property
    def components_s(self) -> dict[str, float]:
        """``StepRun.components_s`` of the whole step."""
        simulated_s = self.step_run.components_s
        if not self.times:
            return simulated_s
        more = self.step_run.components_in(self.window)
        return {name: seconds + self.times * more[name] for name, seconds in simulated_s.items()}


@no_collection()
def steady_step(plan: Plan, problem: Problem) -> SteadyStep:
    """Simulate only as many micro-batches of ``simulate_step(plan, problem)`` as show that they repeat.

    Raises:
        InputError: as ``simulate_step``.
    """
    count, ranks = plan.num_micro_batches, plan.degrees.pp
    if plan.decision.batch_shares is not None or plan.decision.pipeline.order is not None:
        return SteadyStep(simulate_step(plan, problem))
    in_rounds = plan.decision.pipeline.schedule in ROUNDS
    unit = microbatches_per_round(ranks, count) if in_rounds else ranks
    for times, worth in FEW_ROUNDS if in_rounds else FEW:
        few = max(times, LEAST // ranks) * unit + count % unit
        if few * worth > count:
            break
        step_run = simulate_step(plan, problem, Disturbance(micro_batches=few))
        period = period_of(step_run, few, chosen(plan.decision.pipeline, ranks, count))
        if period is not None:
            window = period.moment - period.seconds, period.moment
            return SteadyStep(step_run, (count - few) // period.micro_batches, window)
    return SteadyStep(simulate_step(plan, problem))


def period_of(step_run: StepRun, few: int, whole: PipelineSchedule) -> Period | None:
    """Return the period that extends a simulation of ``few`` micro-batches to the ``whole`` schedule, or None."""
    rows = [_coded(row) for row in whole.actions]
    short = {who: _coded(rank.schedule.actions[rank.pipeline_rank]) for who, rank in step_run.graph.ranks.items()}
    begun = {who: step_run.nodes.start_s[step_run.graph.begins[who]] for who in short}
    if any(len(begun[who]) != len(row) for who, row in short.items()):
        return None
    all_rows = {who: rows[step_run.graph.ranks[who].pipeline_rank] for who in short}
    common = {who: _common(row, all_rows[who]) for who, row in short.items()}
    limit = min((float(begun[who][at]) for who, at in common.items() if at < len(begun[who])), default=np.inf)
    line = step_run.timeline
    events = np.unique(np.concatenate([line.start_s, line.end_s, line.arrival_s]))
    # only before the first action that differs between the two schedules is the short run a run of the whole one
    events = events[events < limit]
    more = whole.num_microbatches - few
    for micro_batches in (one for one in range(1, few // 3 + 1) if more % one == 0):
        moment, seconds = _moment(events, begun, short, micro_batches)
        if seconds and _recurs(step_run, moment, seconds):
            at = [
                {who: int(np.searchsorted(begun[who], moment - back * seconds)) for who in short} for back in (2, 1, 0)
            ]
            repeats = (few, whole.num_microbatches, micro_batches)
            if all(_goes_on(short[w], all_rows[w], (at[0][w], at[1][w], at[2][w]), *repeats) for w in short):
                return Period(micro_batches, seconds, moment)
    return None


def _coded(row: Sequence[Action]) -> Ints:
    """Return (actions, 2): one number for kind and chunk, and the micro-batch."""
    cells = [(KINDS[action.kind] + len(KINDS) * action.chunk, action.microbatch) for action in row]
    return np.array(cells, dtype=np.int64).reshape(-1, 2)


def _common(row: Ints, other: Ints) -> int:
    """Return the length of the longest common beginning of two rows."""
    length = min(len(row), len(other))
    differ = (row[:length] != other[:length]).any(axis=1)
    return int(differ.argmax()) if differ.any() else length


def _moment(
    events: Floats, begun: Mapping[int, Floats], short: Mapping[int, Ints], micro_batches: int
) -> tuple[float, float]:
    """Return a candidate (moment, period length), s; (0, 0) if the last micro-batch has no predecessor
    ``micro_batches`` before.

    The length is the time between the first class's last action and its equal ``micro_batches`` earlier. The moment
    lies in the widest gap between events of the last period, where rounding moves no event across it.
    """
    who = min(short)
    last = int(np.searchsorted(begun[who], events[-1], "right")) - 1
    kind, micro_batch = short[who][last]
    before = np.flatnonzero((short[who] == (kind, micro_batch - micro_batches)).all(axis=1))
    seconds = float(begun[who][last] - begun[who][before[0]]) if len(before) else 0.0
    late = events[events >= events[-1] - seconds]
    if seconds <= 0 or len(late) < 2:
        return 0.0, 0.0
    widest = int(np.diff(late).argmax())
    return float(late[widest : widest + 2].mean()), seconds


def _recurs(step_run: StepRun, moment: float, seconds: float) -> bool:
    """Return whether all events since before the oldest task in flight also happened one period earlier."""
    line, close = step_run.timeline, ROUNDING * step_run.step_s
    oldest = seconds
    for at in (moment - seconds, moment):
        flying = (line.start_s < at) & (line.arrival_s > at)
        oldest = max(oldest, at - float(line.start_s[flying].min(initial=at)))
    first = moment - seconds * (np.ceil(oldest / seconds) + 1)
    return first >= 0 and all(
        _shifted(times, first, moment - seconds, seconds, close) for times in (line.start_s, line.end_s, line.arrival_s)
    )


def _shifted(times: Floats, first: float, last: float, seconds: float, close: float) -> bool:
    """Return whether the events in [first, last) happened again ``seconds`` later, to within ``close`` seconds."""
    once = np.sort(times[(times >= first) & (times < last)])
    again = np.sort(times[(times >= first + seconds) & (times < last + seconds)])
    return len(once) == len(again) and bool((np.abs(again - once - seconds) <= close).all())


def _goes_on(row: Ints, whole: Ints, at: tuple[int, int, int], few: int, many: int, micro_batches: int) -> bool:
    """Return whether the ``whole`` row repeats the actions of the last period and then ends as the short ``row`` does.

    Args:
        at: actions begun at t − 2Λ, t − Λ and t.
    """
    actions, times = at[2] - at[1], (many - few) // micro_batches
    if actions != at[1] - at[0] or len(whole) != len(row) + times * actions:
        return False
    step = np.array([0, micro_batches])
    middle = whole[at[0] : at[1] + times * actions]
    return (
        bool((whole[: at[2]] == row[: at[2]]).all())
        and bool((middle[actions:] == middle[:-actions] + step).all())
        and bool((whole[at[1] + times * actions :] == row[at[1] :] + times * step).all())
    )
