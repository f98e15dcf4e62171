"""Weeks of training under failures, for all draws at once; ``long_run`` returns the useful share of the time.

The state of a draw is: when every fault unit is back, when the common stall ends, when missing hosts are repaired, and
the seconds not yet saved. Between two failures only time changes it, so an interval's useful part is summed exactly:

    Units are sorted by the time at which they begin to train. With k of R units the job runs at 1 − ℓ(R − k), or at the
    sum of their shares where these differ. For k < R this is multiplied by the pace of a smaller group.

Where spells slow all units down (``slow_spells``), seconds at full speed replace seconds.

A failure stops its units for D and stalls the others for s. If no unit is left, the job returns to the last checkpoint.
A later failure starts both windows anew. A failed host is replaced by a spare. The spare of failure k is free again
when the host of failure k − S is repaired. Units that lack hosts lend theirs to one another, so that the fewest wait.
Of R units u wait while more than (u − 1)/R of the job's hosts are missing. Failures are drawn as for a job with all its
hosts. A failure of a missing host does not happen. A failure in a waiting unit takes a host and stalls no unit
(``idle_hosts_fail``), or does not happen either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scaleacross.errors import InputError
from scaleacross.simulation.slow_spells import Speeds
from scaleacross.spec.goodput import LOSS_CAUSES, FaultModel, LongRun, LossCause, TracedFailure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SECONDS_PER_DAY: Final = 86_400.0
PARTS: Final = 60
"""Equal parts of the time that the timeline shows."""
MAX_FAILURES: Final = 20_000_000
"""Failures of all draws together that fit in memory as arrays."""


@dataclass(frozen=True)
class Failings:
    """Failures of all draws in order of time, arrays of (draws, most failures of a draw).

    Attributes:
        time_s: when it happens; inf where a draw has fewer failures.
        strike: index into ``FaultModel.strikes``.
        first_unit: lowest fault unit that it hits.
        swap: whether a host has to be replaced.
    """

    time_s: Floats
    strike: Ints
    first_unit: Ints
    swap: Bools
    at: Floats
    """Place of the failed host among the job's hosts, 0 to 1: first missing hosts, then those of waiting units, then
    all others. 1 is always a host of a unit that trains."""


def long_run(
    model: FaultModel,
    *,
    days: float,
    draws: int,
    seed: int = 0,
    trace: Sequence[TracedFailure] | None = None,
    closed_form: float | None = None,
    paces: Sequence[float] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LongRun:
    """Simulate ``draws`` draws of the failures of ``days`` and return the distribution of the useful share.

    Args:
        trace: failures with their times, instead of draws by rate; a failure without a unit hits a drawn one.
        closed_form: the expected share by formula, copied to the result.
        paces: useful seconds per second without spells; draws take them in turn. None given: 1.

    Raises:
        InputError: no time, no draws, or more failures than fit.
    """
    if not 0 < days < np.inf or draws < 1:
        raise InputError(f"{days:g} days and {draws} draws simulate nothing: give finite numbers above 0")
    end_s = days * SECONDS_PER_DAY
    failures = model.rate_per_s * end_s if trace is None else len(trace)
    events = failures + sum(one.rate_per_s for one in model.slow_spells) * end_s
    if draws * max(events, model.num_units) > MAX_FAILURES:
        raise InputError(
            f"{events:.4g} failures and slow spells of {model.num_units:,} fault units in each of {draws:,} draws of "
            f"{days:g} days; draws times either are at most {MAX_FAILURES:,}: take fewer days or draws"
        )
    rng = np.random.default_rng(seed)
    failings = drawn(model, end_s, draws, rng) if trace is None else traced(model, trace, end_s, draws, rng)
    slow = bool(model.slow_spells or paces)
    speeds = Speeds.drawn(model.slow_spells, paces, end_s, draws, rng) if slow else None
    run = _Run(model, draws, end_s, speeds)
    total = failings.time_s.shape[1]
    happened = np.zeros(failings.time_s.shape, dtype=bool)
    for event in range(total):
        at_s = failings.time_s[:, event]
        run.advance(np.minimum(at_s, end_s))
        happened[:, event] = run.strike(
            at_s,
            failings.strike[:, event],
            failings.first_unit[:, event],
            failings.swap[:, event],
            failings.at[:, event],
        )
        if event % 256 == 0:
            progress(event, total)
    run.advance(np.full(draws, end_s))
    return _result(model, run, happened, failings.strike, days, seed, closed_form)


def drawn(model: FaultModel, end_s: float, draws: int, rng: np.random.Generator) -> Failings:
    """Draw Poisson failures by the rates of the model."""
    counts = rng.poisson(model.rate_per_s * end_s, draws)
    shape = (draws, int(counts.max(initial=0)))
    times = rng.uniform(0, end_s, shape)
    times[np.arange(shape[1]) >= counts[:, None]] = np.inf
    times.sort(axis=1)
    if not model.rate_per_s:
        none = np.zeros(shape, dtype=np.int64)
        return Failings(times, none, none, none.astype(bool), none.astype(np.float64))
    share = np.array([one.rate_per_s for one in model.strikes]) / model.rate_per_s
    strike = rng.choice(len(model.strikes), size=shape, p=share / share.sum())
    fraction = np.array([one.host_swap_fraction for one in model.strikes])
    swap = rng.random(shape) < fraction[strike]
    first_unit = rng.integers(0, model.num_units, shape)
    at = np.ones(shape) if model.spares is None else rng.random(shape)
    return Failings(times, strike, first_unit, swap, at)


def traced(
    model: FaultModel, trace: Sequence[TracedFailure], end_s: float, draws: int, rng: np.random.Generator
) -> Failings:
    """Repeat the failures of a trace in every draw.

    A class may have several strikes that hit different numbers of units; one of them is drawn in proportion to its
    rate.

    Raises:
        InputError: the trace has a class or a unit that the model does not know.
    """
    inside = sorted((one for one in trace if one.time_s < end_s), key=lambda one: one.time_s)
    known = {one.cause for one in model.strikes}
    unknown = sorted({one.cause for one in inside} - known)
    if unknown:
        raise InputError(
            f"the trace has failures of class {', '.join(unknown)}; the plan's failures are of class "
            f"{', '.join(sorted(known)) or '(none)'}: state their times between failures or rename them"
        )
    if beyond := [one.unit for one in inside if one.unit is not None and one.unit >= model.num_units]:
        raise InputError(f"the trace hits fault unit {beyond[0]}; there are {model.num_units}, counted from 0")
    shape = (draws, len(inside))
    strike = np.zeros(shape, dtype=np.int64)
    for column, one in enumerate(inside):
        alike = [index for index, other in enumerate(model.strikes) if other.cause == one.cause]
        rates = np.array([model.strikes[index].rate_per_s for index in alike])
        chance = rates / rates.sum() if rates.sum() else None
        strike[:, column] = rng.choice(alike, size=draws, p=chance)
    times = np.tile(np.array([one.time_s for one in inside], dtype=np.float64), (draws, 1))
    swap = np.tile(np.array([one.host_swap for one in inside], dtype=bool), (draws, 1))
    first_unit = rng.integers(0, model.num_units, shape)
    for column, one in enumerate(inside):
        if one.unit is not None:
            first_unit[:, column] = one.unit
    return Failings(times.reshape(shape), strike, first_unit, swap.reshape(shape), np.ones(shape))


@dataclass
class _Run:
    """State of all draws; arrays are (draws,) or (draws, units).

    Attributes:
        back_s: when each unit is back.
        stall_s: end of the common stall.
        unsaved_s: useful seconds that no checkpoint has saved yet.
        phase_s: running time in the current checkpoint period.
        waiting_s: until when each unit waits for a host; −inf: it does not wait.
        taken_s: ring buffer of the times of the last host failures.
        lost: cause -> seconds lost.
        first_draw: (time, useful seconds) of draw 0, for the timeline.
    """

    model: FaultModel
    draws: int
    end_s: float
    speeds: Speeds | None
    now_s: Floats = field(init=False)
    back_s: Floats = field(init=False)
    stall_s: Floats = field(init=False)
    useful_s: Floats = field(init=False)
    unsaved_s: Floats = field(init=False)
    phase_s: Floats = field(init=False)
    waiting_s: Floats = field(init=False)
    num_swaps: Ints = field(init=False)
    taken_s: Floats = field(init=False)
    lost: dict[LossCause, Floats] = field(init=False)
    first_draw: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])

    def __post_init__(self) -> None:
        units, spares, hosts = self.model.num_units, self.model.spares or 0, self.model.num_hosts
        self.back_s = np.zeros((self.draws, units))
        self.waiting_s = np.full((self.draws, units), -np.inf)
        # the u-th unit waits once all spares and u/R of the job's hosts, which waiting units lend, are used up
        spared = np.arange(units if hosts else 1) * (hosts or 0) // units
        self._awaited: Ints = spares + spared
        self.taken_s = np.full((self.draws, int(self._awaited[-1]) + 1 + (hosts or 0) // units), -np.inf)
        for name in ("now_s", "stall_s", "useful_s", "unsaved_s", "phase_s"):
            setattr(self, name, np.zeros(self.draws))
        self.num_swaps = np.zeros(self.draws, dtype=np.int64)
        self.lost = {cause: np.zeros(self.draws) for cause in LOSS_CAUSES}
        missing = np.arange(units - 1, -1, -1)
        self._paces: Floats = np.where(missing > 0, self.model.short_pace, 1.0)
        self._rates: Floats = np.maximum(0.0, 1 - self.model.unit_loss * missing) * self._paces
        self._rows: Ints = np.arange(self.draws)
        self._unit_loss = 1.0 if units == 1 else self.model.unit_loss

    def advance(self, to_s: Floats) -> None:
        """Advance every draw to its ``to_s`` without a failure, and book the interval as useful or lost by cause."""
        now, first = self.now_s, self.back_s.min(axis=1)
        # a unit trains from the latest of: it is back, now, the end of the stall
        begins = np.maximum(self.back_s, np.maximum(now, self.stall_s)[:, None])
        begins = np.minimum(begins, to_s[:, None])
        rates = self._rates_of(begins)
        begins = np.sort(begins, axis=1)
        each = np.diff(begins, axis=1, append=to_s[:, None])
        run, whole = to_s - begins[:, 0], (each * rates).sum(axis=1)
        raw = whole if self.speeds is None else (self.speeds.between(begins, to_s) * rates).sum(axis=1)
        down = np.clip(first, now, to_s) - now
        each_waits = np.clip(self.waiting_s, now[:, None], to_s[:, None]) - now[:, None]
        all_wait = np.minimum(each_waits.min(axis=1), down)
        some_wait = np.clip(self._unit_loss * each_waits.sum(axis=1) - all_wait, 0.0, run - whole)
        blocked, useful = self._checkpoints(run, raw)
        self.lost["waiting_for_host"] += all_wait + some_wait
        self.lost["restart"] += down - all_wait
        self.lost["units_out"] += run - whole - some_wait
        self.lost["stall"] += to_s - now - down - run
        self.lost["slow_steps"] += whole - raw
        self.lost["checkpoint"] += blocked
        self.useful_s += useful
        self.now_s = to_s
        self.first_draw.append((float(to_s[0]), float(self.useful_s[0])))

    def _rates_of(self, begins: Floats) -> Floats:
        """Return useful seconds per second with one, two, … units, in the order in which they begin to train."""
        if not self.model.unit_shares:
            return self._rates
        shares = np.array(self.model.unit_shares)[np.argsort(begins, axis=1)]
        return np.cumsum(shares, axis=1) * self._paces

    def _checkpoints(self, run: Floats, raw: Floats) -> tuple[Floats, Floats]:
        """Return (draws,) useful seconds that checkpoints block and that remain; advance ``unsaved_s`` and ``phase_s``.

        Args:
            run: seconds of the interval in which at least one unit trains.
            raw: useful seconds of these without checkpoints.
        """
        every, writes = self.model.checkpoint_interval_s, self.model.checkpoint_blocking_s
        if every is None:
            return np.zeros(self.draws), raw
        period = every + writes
        rate = np.divide(raw, run, out=np.zeros_like(raw), where=run > 0)
        ends = self.phase_s + run
        # a period is ``every`` seconds of training, then ``writes`` seconds of blocking
        whole, rest = np.floor(ends / period), np.mod(ends, period)
        stops = whole * writes + np.maximum(0.0, rest - every) - np.maximum(0.0, self.phase_s - every)
        useful = raw - rate * stops
        self.unsaved_s = np.where(whole > 0, rate * np.minimum(rest, every), self.unsaved_s + useful)
        self.phase_s = rest
        return rate * stops, useful

    def strike(self, at_s: Floats, strike: Ints, first_unit: Ints, swap: Bools, at: Floats) -> Bools:
        """Apply the next failure of every draw that has not ended; return (draws,) whether it happens."""
        model, units = self.model, self.model.num_units
        active = at_s < self.end_s
        if not model.idle_hosts_fail and units == 1:
            active &= self.back_s[:, 0] <= at_s
        if not active.any():
            return active
        at_s = np.where(active, at_s, 0.0)
        waits = self.waiting_s > at_s[:, None]
        active, alone = self._falls_on(at_s, active, waits, at)
        number = np.array([one.units_hit for one in model.strikes])[strike]
        every = number == units
        after_s = np.where(every, model.restart_s, model.recover_s)
        first_unit = self._going(first_unit, waits)
        hit = ((np.arange(units) - first_unit[:, None]) % units < number[:, None]) & (active & ~alone)[:, None]
        self.back_s = np.where(hit, (at_s + after_s)[:, None], self.back_s)
        self.stall_s = np.where(active & ~alone & ~every, at_s + min(model.stall_s, model.recover_s), self.stall_s)
        if model.spares is not None:
            self._take_hosts(at_s, active & swap, first_unit)
            self._hold_absent(at_s, active, after_s)
        stopped = active & (self.back_s > at_s[:, None]).all(axis=1)
        self.lost["lost_work"] += np.where(stopped, self.unsaved_s, 0.0)
        self.useful_s -= np.where(stopped, self.unsaved_s, 0.0)
        self.unsaved_s = np.where(stopped, 0.0, self.unsaved_s)
        self.phase_s = np.where(stopped, 0.0, self.phase_s)
        return active

    def _falls_on(self, at_s: Floats, active: Bools, waits: Bools, at: Floats) -> tuple[Bools, Bools]:
        """Return (draws,) whether the failure happens, and whether it only hits a host of a waiting unit."""
        model, units = self.model, self.model.num_units
        if model.spares is None:
            return active, np.zeros_like(active)
        in_repair = (self.taken_s + model.repair_s > at_s[:, None]).sum(axis=1)
        # shares of the job's hosts: ``at`` is counted from the missing hosts on, then the waiting units
        missing = np.maximum(0, in_repair - model.spares) / (model.num_hosts or np.inf)
        waiting = waits.sum(axis=1) / units
        happens = active & (at >= (missing if model.idle_hosts_fail else waiting))
        return happens, happens & (at < waiting)

    def _going(self, unit: Ints, waits: Bools) -> Ints:
        """Return each draw's ``unit``, or the next one that does not wait for a host."""
        if not waits.any():
            return unit
        order = (unit[:, None] + np.arange(self.model.num_units)) % self.model.num_units
        first: Ints = np.argmin(np.take_along_axis(waits, order, axis=1), axis=1)
        return np.take_along_axis(order, first[:, None], axis=1)[:, 0]

    def _take_hosts(self, at_s: Floats, taken: Bools, unit: Ints) -> None:
        """Take a spare for every failed host. Where there is none, units wait for the next repairs.

        The units that wait already come first, in order of their waiting ends (latest first), then the unit that is
        hit.
        """
        rows, size, units = self._rows[taken], self.taken_s.shape[1], self.model.num_units
        self.taken_s[rows, self.num_swaps[rows] % size] = at_s[rows]
        # the u-th unit waits for the repair of the host that was replaced ``_awaited[u]`` swaps before this one
        slots = (self.num_swaps[rows, None] - self._awaited) % size
        until_s = self.taken_s[rows[:, None], slots] + self.model.repair_s
        self.num_swaps += taken
        short = until_s[:, 0] > at_s[rows]
        rows, until_s = rows[short], until_s[short]
        turn = (np.arange(units) - unit[rows, None]) % units
        waits = np.where(self.waiting_s[rows] > at_s[rows, None], self.waiting_s[rows], -np.inf)
        order = np.lexsort((turn, -waits))[:, : until_s.shape[1]]
        still_s = np.where(until_s > at_s[rows, None], until_s, -np.inf)
        self.waiting_s[rows] = -np.inf
        self.waiting_s[rows[:, None], order] = still_s

    def _hold_absent(self, at_s: Floats, active: Bools, after_s: Floats) -> None:
        """Postpone ``back_s`` of units that wait: a unit is back no sooner than D after it has its host."""
        waits = active[:, None] & (self.waiting_s > at_s[:, None])
        if waits.any():
            least = np.where(waits, self.waiting_s + after_s[:, None], -np.inf)
            self.back_s = np.maximum(self.back_s, least)


def _result(
    model: FaultModel,
    run: _Run,
    happened: Bools,
    strike: Ints,
    days: float,
    seed: int,
    closed_form: float | None,
) -> LongRun:
    share = run.useful_s / run.end_s
    p5, p50, p95 = np.percentile(share, [5, 50, 95])
    least, usual, most = np.percentile(happened.sum(axis=1), [5, 50, 95])
    by_cause: dict[str, float] = {}
    for index, one in enumerate(model.strikes):
        number = float((happened & (strike == index)).sum()) / run.draws
        by_cause[one.cause] = by_cause.get(one.cause, 0.0) + number
    when, useful = np.array(run.first_draw).T
    edges = np.linspace(0, run.end_s, PARTS + 1)
    parts = np.diff(np.interp(edges, when, useful)) / (run.end_s / PARTS)
    result: dict[str, Any] = {"p5": p5, "p50": p50, "p95": p95, "mean": share.mean()}
    return LongRun(
        days=days,
        draws=run.draws,
        seed=seed,
        goodput_fraction={name: float(value) for name, value in result.items()},
        closed_form_fraction=closed_form,
        lost={cause: float((run.lost[cause] / run.end_s).mean()) for cause in LOSS_CAUSES},
        interruptions=float(happened.sum()) / run.draws,
        interruptions_by_cause=by_cause,
        interruptions_range={"p5": float(least), "p50": float(usual), "p95": float(most)},
        slow_spells=model.slow_spells,
        timeline=tuple(float(part) for part in np.clip(parts, 0, 1)),
    )
