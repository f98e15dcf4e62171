"""Seconds of a step of many micro-batches from the replay of fewer: equal micro-batches in a steady state repeat.

A replay has no memory but its state: where in its row of actions every class of ranks is, and what is in flight since
when. If the state at a moment t is that of a moment Λ earlier with every micro-batch P further on, all classes having gone
A_r actions on, and the rows repeat with these A_r from there, then so does the run: j·P more micro-batches take j·Λ more
seconds.

Shown on the short replay, to rounding, before anything is carried over:

* starts, ends and arrivals of all tasks since before the oldest in flight at t − Λ or t were the same Λ seconds earlier
* every class began as many actions in [t − 2Λ, t − Λ) as in [t − Λ, t)
* the rows of all micro-batches are those of the few up to t, go on with the period, and end as those of the few do

Where no period is found (replicas of unlike pace have none in common) the replay is that of all micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.schedules.pipeline import ROUNDS, Action, Kind, PipelineSchedule, chosen
from scaleacross.schedules.pipeline.interleaved_1f1b import microbatches_per_round
from scaleacross.simulation.fabric import Floats, Ints
from scaleacross.simulation.replay import Disturbance, Replay, no_collection, replay
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import Problem

FEW: Final = ((3, 2.0), (6, 4.0))
"""Micro-batches that are played, over pipeline ranks, one after the other until a period shows; each where all micro-batches are
so many times as many. The second has to be cheap: of 56 plans of ``scale_across`` with four micro-batches a rank and more two got
one, and showed no period then either."""
FEW_ROUNDS: Final = ((5, 1.5), (10, 4.0))
"""The same where rows go through as many micro-batches as ranks at a time: two of these periods fit between fill and drain, and
showed one in all of seven replays of 8 rounds."""
LEAST: Final = 8
"""Micro-batches that are played at least."""
ROUNDING: Final = 1e-11
"""Of the seconds of a replay: moments closer than this are one."""
KINDS: Final = {kind: number for number, kind in enumerate(Kind)}
"""Number of every kind of action."""


class Period(NamedTuple):
    """So many micro-batches more take so many seconds more, as the last seconds before ``moment`` passed."""

    micro_batches: int
    seconds: float
    moment: float


class SteadyStep(NamedTuple):
    """A step of which a part was played: ``played``, and ``times`` more what passed in the window before."""

    played: Replay
    times: int = 0
    window: tuple[float, float] = (0.0, 0.0)

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.played.step_s + self.times * (self.window[1] - self.window[0])

    @property
    def components_s(self) -> dict[str, float]:
        """``Replay.components_s`` of the whole step."""
        played = self.played.components_s
        if not self.times:
            return played
        more = self.played.components_in(self.window)
        return {name: seconds + self.times * more[name] for name, seconds in played.items()}


@no_collection()
def steady_step(plan: Plan, problem: Problem) -> SteadyStep:
    """``replay(plan, problem)``, of which as few micro-batches are played as show that they repeat.

    Raises:
        InputError: as ``replay``.
    """
    count, ranks = plan.num_micro_batches, plan.degrees.pp
    if plan.decision.batch_shares is not None or plan.decision.pipeline.order is not None:
        return SteadyStep(replay(plan, problem))
    in_rounds = plan.decision.pipeline.schedule in ROUNDS
    unit = microbatches_per_round(ranks, count) if in_rounds else ranks
    for times, worth in FEW_ROUNDS if in_rounds else FEW:
        few = max(times, LEAST // ranks) * unit + count % unit
        if few * worth > count:
            break
        played = replay(plan, problem, Disturbance(micro_batches=few))
        period = period_of(played, few, chosen(plan.decision.pipeline, ranks, count))
        if period is not None:
            window = period.moment - period.seconds, period.moment
            return SteadyStep(played, (count - few) // period.micro_batches, window)
    return SteadyStep(replay(plan, problem))


def period_of(played: Replay, few: int, whole: PipelineSchedule) -> Period | None:
    """The period with which a replay of ``few`` micro-batches goes on in the schedule of all; None where it shows none."""
    rows = [_coded(row) for row in whole.actions]
    short = {who: _coded(rank.schedule.actions[rank.pipeline_rank]) for who, rank in played.graph.ranks.items()}
    begun = {who: played.nodes.start_s[played.graph.begins[who]] for who in short}
    if any(len(begun[who]) != len(row) for who, row in short.items()):
        return None
    all_rows = {who: rows[played.graph.ranks[who].pipeline_rank] for who in short}
    common = {who: _common(row, all_rows[who]) for who, row in short.items()}
    limit = min((float(begun[who][at]) for who, at in common.items() if at < len(begun[who])), default=np.inf)
    line = played.timeline
    events = np.unique(np.concatenate([line.start_s, line.end_s, line.arrival_s]))
    events = events[events < limit]
    more = whole.num_microbatches - few
    for micro_batches in (one for one in range(1, few // 3 + 1) if more % one == 0):
        moment, seconds = _moment(events, begun, short, micro_batches)
        if seconds and _recurs(played, moment, seconds):
            at = [
                {who: int(np.searchsorted(begun[who], moment - back * seconds)) for who in short} for back in (2, 1, 0)
            ]
            repeats = (few, whole.num_microbatches, micro_batches)
            if all(_goes_on(short[w], all_rows[w], (at[0][w], at[1][w], at[2][w]), *repeats) for w in short):
                return Period(micro_batches, seconds, moment)
    return None


def _coded(row: Sequence[Action]) -> Ints:
    """(actions, 2): kind with chunk as a number, and micro-batch."""
    cells = [(KINDS[action.kind] + len(KINDS) * action.chunk, action.microbatch) for action in row]
    return np.array(cells, dtype=np.int64).reshape(-1, 2)


def _common(row: Ints, other: Ints) -> int:
    """Actions with which both rows begin."""
    length = min(len(row), len(other))
    differ = (row[:length] != other[:length]).any(axis=1)
    return int(differ.argmax()) if differ.any() else length


def _moment(
    events: Floats, begun: Mapping[int, Floats], short: Mapping[int, Ints], micro_batches: int
) -> tuple[float, float]:
    """A moment in the widest gap between two of the last events, and the seconds of a period by the first class's last action;
    (0, 0) where its micro-batch has no predecessor."""
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


def _recurs(played: Replay, moment: float, seconds: float) -> bool:
    """Whether everything since before the oldest task in flight happened one period earlier too."""
    line, close = played.timeline, ROUNDING * played.step_s
    oldest = seconds
    for at in (moment - seconds, moment):
        flying = (line.start_s < at) & (line.arrival_s > at)
        oldest = max(oldest, at - float(line.start_s[flying].min(initial=at)))
    first = moment - seconds * (np.ceil(oldest / seconds) + 1)
    return first >= 0 and all(
        _shifted(times, first, moment - seconds, seconds, close) for times in (line.start_s, line.end_s, line.arrival_s)
    )


def _shifted(times: Floats, first: float, last: float, seconds: float, close: float) -> bool:
    """Whether what happened in [first, last) happened again ``seconds`` later."""
    once = np.sort(times[(times >= first) & (times < last)])
    again = np.sort(times[(times >= first + seconds) & (times < last + seconds)])
    return len(once) == len(again) and bool((np.abs(again - once - seconds) <= close).all())


def _goes_on(row: Ints, whole: Ints, at: tuple[int, int, int], few: int, many: int, micro_batches: int) -> bool:
    """Whether a row of all micro-batches goes through the actions between the last two positions again and again, and ends as the
    row of the few does.

    Args:
        at: positions at t − 2Λ, t − Λ and t.
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
