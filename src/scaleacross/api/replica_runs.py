"""Measured goodput of a replicated run, from the log of ``scaleacross coordinate``, next to the plan's prediction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from scaleacross.api.arguments import path
from scaleacross.catalogue import load_plan
from scaleacross.errors import InputError, unreadable
from scaleacross.simulation.long_run import SECONDS_PER_DAY, long_run
from scaleacross.spec.goodput import FaultModel, Strike, TracedFailure
from scaleacross.spec.plan import Plan
from scaleacross.spec.replica_run import ReplicaRun, Stall

LOST: Final = ("dead", "silent", "left", "replaced")
CHANGES: Final = (*LOST, "failed", "epoch", "paused", "donor")
MAX_LOG_BYTES: Final = 1 << 30


def measured_goodput(
    log: str | Path, plan: Plan | str | Path | None = None, like: str | Path | None = None
) -> ReplicaRun:
    """Return the useful work that a replicated run committed: seconds, samples and fractions of time.

    Args:
        log: JSON-lines log of ``scaleacross coordinate``.
        plan: its sequence length converts samples to tokens; its goodput gives the predicted share and stall.
        like: log of an earlier run of the same replicas. The simulation takes three figures from it: how long a lost
            replica is out, how long it stalls the others, and how fast these run meanwhile. It then predicts this run,
            of which it knows only the losses. None: the figures come from this run.

    Raises:
        InputError: the log is missing, has fewer than three commits, or has a step missing or twice; or ``like`` has
            other replicas.
    """
    how = "the path of a log of scaleacross coordinate"
    run = _Log.read(path("log", log, how))
    other = run if like is None else _Log.read(path("like", like, how))
    found = None if plan is None else plan if isinstance(plan, Plan) else load_plan(plan)
    goodput = None if found is None else found.goodput
    samples = sum(sum(commit["samples"].values()) for commit in run.commits)
    sizes = [len(commit["samples"]) for commit in run.commits]
    return ReplicaRun(
        log=str(log),
        seconds=run.seconds,
        steps=len(run.commits),
        samples=samples,
        tokens=None if found is None else samples * found.job.sequence_length,
        epochs=sum(event["event"] == "epoch" for event in run.until_its_end),
        most_members=run.most,
        lost={word: count for word in LOST if (count := sum(event["event"] == word for event in run.until_its_end))},
        joined=sum(later > earlier for earlier, later in pairwise(sizes)),
        median_step_s=run.usual_s,
        mean_step_s=run.mean_s,
        useful_fraction=(samples - sum(run.commits[0]["samples"].values())) / (run.full * run.seconds / run.mean_s),
        simulated_fraction=_simulated(run, other),
        stall_fraction=run.lost_s / run.seconds,
        missing_fraction=run.missing_s / run.seconds,
        short_pace=run.short_pace,
        stalls=run.stalls,
        failures=tuple(dict.fromkeys(str(e["why"]) for e in run.events if e["event"] == "failed")),
        predicted_fraction=None if goodput is None else goodput.goodput_fraction,
        predicted_stall_s=None if goodput is None else goodput.model.stall_s,
    )


@dataclass(frozen=True)
class _Log:
    """A run as its log records it: the steps between commits, and how membership changes affected them.

    Attributes:
        most, full: number of members, and of samples, in a step with all members.
        usual_s, mean_s: median and mean seconds of steps with all members and no membership change.
        short_pace: mean_s divided by the mean time of steps with fewer members and no change; 1 where there are none.
        missing_s: sum over steps of step time times the share of samples that absent members would have computed.
        stalls: steps with a membership change that took longer than usual, with the excess in seconds.
    """

    events: list[dict[str, Any]]
    commits: list[dict[str, Any]]
    most: int
    full: int
    usual_s: float
    mean_s: float
    short_pace: float
    missing_s: float
    stalls: tuple[Stall, ...]

    @classmethod
    def read(cls, path: Path) -> _Log:
        """Read a log. Raises InputError as ``measured_goodput`` does."""
        events = _events(path)
        commits = [event for event in events if event["event"] == "commit"]
        if len(commits) < 3:
            raise InputError(f"{path}: {len(commits)} committed steps; three are needed to know how long one takes")
        for before, after in pairwise(commits):
            if after["step"] != before["step"] + 1:
                raise InputError(
                    f"{path}: step {after['step']} is committed after step {before['step']}: no log of one run"
                )
        if commits[-1]["time_s"] <= commits[0]["time_s"]:
            raise InputError(f"{path}: all steps are committed at once: no log of a run")
        changes = _changes(events)
        most = max(len(commit["samples"]) for commit in commits)
        full = max(sum(commit["samples"].values()) for commit in commits if len(commit["samples"]) == most)
        steps = [(b["time_s"] - a["time_s"], b, changes.get(b["step"], [])) for a, b in pairwise(commits)]
        quiet = [took for took, at, why in steps if len(at["samples"]) == most and not why] or [s[0] for s in steps]
        short = [took for took, at, why in steps if len(at["samples"]) < most and not why]
        usual_s, mean_s, short_s = median(quiet), fmean(quiet), median(short or quiet)
        late = [
            (at, took - (usual_s if len(at["samples"]) == most else short_s), why) for took, at, why in steps if why
        ]
        return cls(
            events,
            commits,
            most,
            full,
            usual_s,
            mean_s,
            short_pace=mean_s / fmean(short) if short else 1.0,
            missing_s=sum(min(took, usual_s) * (1 - sum(at["samples"].values()) / full) for took, at, _ in steps),
            stalls=tuple(
                Stall(step=at["step"], seconds=late_s, why="; ".join(dict.fromkeys(why)))
                for at, late_s, why in late
                if late_s > 0
            ),
        )

    @property
    def seconds(self) -> float:
        """Seconds from the first commit to the last."""
        return float(self.commits[-1]["time_s"] - self.commits[0]["time_s"])

    @property
    def until_its_end(self) -> list[dict[str, Any]]:
        """Events without what a finished run does after its last commit: its replicas leave, and epochs shrink."""
        last = max(place for place, event in enumerate(self.events) if event["event"] == "commit")
        return [
            event for place, event in enumerate(self.events) if place < last or event["event"] not in ("left", "epoch")
        ]

    @property
    def lost_s(self) -> float:
        """Total seconds of all stalls."""
        return sum(stall.seconds for stall in self.stalls)

    @property
    def shares(self) -> dict[str, float]:
        """Map every replica to its fraction of the samples in a step with all members."""
        whole = next(commit["samples"] for commit in self.commits if len(commit["samples"]) == self.most)
        return {name: count / sum(whole.values()) for name, count in sorted(whole.items())}

    @property
    def losses(self) -> list[tuple[str, float, float]]:
        """List every loss as (replica, last commit with it, last commit without it), times in seconds.

        Work since the replica's last commit is lost with it, so the outage begins there.
        """
        out, end_s = [], self.commits[-1]["time_s"]
        for event in self.events:
            if event["event"] not in LOST or not self.commits[0]["time_s"] < event["time_s"] < end_s:
                continue
            name, at_s = event["replica"], event["time_s"]
            begin_s = max(
                (c["time_s"] for c in self.commits if c["time_s"] <= at_s and name in c["samples"]), default=at_s
            )
            without = [c["time_s"] for c in self.commits if c["time_s"] > at_s and name not in c["samples"]]
            back = [c["time_s"] for c in self.commits if without and c["time_s"] > without[0] and name in c["samples"]]
            until_s = back[0] if back else end_s
            # a replica that never returns is out until the end of the log
            last_s = max((time_s for time_s in without if time_s < until_s), default=begin_s) if back else until_s
            out.append((name, float(begin_s), float(last_s)))
        return out


def hung_epochs(log: str | Path) -> tuple[str, ...]:
    """Return one line per event that held an epoch up, with the replica at fault, in the order of the log.

    Raises:
        InputError: the log is missing, or no epoch begins in it.
    """
    events, out = _events(Path(log)), list[str]()
    begins = {event["epoch"]: event for event in events if event["event"] == "epoch"}
    if not begins:
        raise InputError(
            f"{log}: no epoch begins in it, so nothing can be judged: give what `scaleacross coordinate --log` wrote; where it "
            "wrote no more, fewer replicas than --replicas have come"
        )
    for event in events:
        if event["event"] not in ("failed", "awaited", "silent"):
            continue
        number = event.get("epoch")
        where = ""
        if number in begins:
            at = begins[number]
            first = ", its first step" if at["begins"] == event["step"] else ""
            where = f"epoch {number} of replicas {', '.join(at['members'])}, step {event['step']}{first}: "
        what = {
            "failed": f"replica {event['replica']} could not sum: {event.get('why')}",
            "awaited": f"all others have their sums and wait for replica {event['replica']}, heard {event.get('quiet_s')} s ago",
            "silent": f"replica {event['replica']} was silent for too long and is given up",
        }
        out.append(where + what[event["event"]])
    return tuple(out)


def _simulated(run: _Log, like: _Log) -> float:
    """Return the useful share of time that ``simulate --days`` gives for the losses of ``run``.

    The same replicas are lost at the same times. The mean outage, mean stall and reduced pace come from ``like``.
    """
    if not run.losses:
        return 1.0
    if not like.losses or like.shares.keys() != run.shares.keys():
        raise InputError("the earlier run has other replicas, or lost none: it does not say what a loss costs here")
    shares, recover_s = run.shares, fmean(last_s - begin_s for _, begin_s, last_s in like.losses)
    units = {name: number for number, name in enumerate(shares)}
    model = FaultModel(
        num_units=len(shares),
        strikes=(Strike(cause="host", rate_per_s=len(run.losses) / run.seconds, units_hit=1),),
        recover_s=recover_s,
        restart_s=recover_s,
        stall_s=like.lost_s / len(like.losses),
        unit_loss=1 / len(shares),
        unit_shares=tuple(shares.values()),
        short_pace=like.short_pace,
    )
    begin_s = run.commits[0]["time_s"]
    trace = [TracedFailure(time_s=at_s - begin_s, unit=units.get(name)) for name, at_s, _ in run.losses]
    return long_run(model, days=run.seconds / SECONDS_PER_DAY, draws=1, trace=trace).goodput_fraction["mean"]


def _events(path: Path) -> list[dict[str, Any]]:
    """Return the log's events.

    A last line that is cut off is ignored, because the coordinator may have been killed while writing it.
    """
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise InputError(f"{path}: larger than {MAX_LOG_BYTES >> 20} MiB")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {unreadable(error)}") from None
    out: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            float(event["time_s"]), str(event["event"])
            if event["event"] == "commit":
                event = {
                    **event,
                    "step": int(event["step"]),
                    "samples": {k: int(v) for k, v in event["samples"].items()},
                }
        except (ValueError, KeyError, TypeError, AttributeError):
            if number == len(lines):
                break
            raise InputError(
                f"{path}, line {number}: no event of a coordinator's log: {line[:80]!r}; the log is what 'scaleacross "
                "coordinate --log FILE' writes. 'scaleacross simulate PLAN --days N' says what a plan loses to failures"
            ) from None
        out.append(event)
    return out


def _changes(events: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Map each committed step to the membership changes logged since the commit before it."""
    out: dict[int, list[str]] = {}
    waiting: list[str] = []
    for event in events:
        if event["event"] == "commit":
            out[event["step"]], waiting = waiting, []
        elif event["event"] in CHANGES and event["event"] != "epoch":
            who = f" replica {event['replica']}" if "replica" in event else ""
            waiting.append(f"{event['event']}{who}")
        elif event["event"] == "epoch":
            waiting.append(f"epoch {event['epoch']} of {len(event['members'])}")
    return out
