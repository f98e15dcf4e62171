"""Goodput of a run, measured: the log of ``scaleacross coordinate`` beside the plan's prediction."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from scaleacross.catalogue import load_plan
from scaleacross.errors import InputError
from scaleacross.simulation.long_run import SECONDS_PER_DAY, long_run
from scaleacross.spec.goodput import FaultModel, Strike, TracedFailure
from scaleacross.spec.plan import Plan
from scaleacross.spec.replica_run import ReplicaRun, Stall

LOST: Final = ("dead", "silent", "left", "replaced")
CHANGES: Final = (*LOST, "failed", "epoch", "paused", "donor")
MAX_LOG_BYTES: Final = 1 << 30
DRAWS: Final = 200
"""Of which replica each loss hits."""


def measured_goodput(log: str | Path, plan: Plan | str | Path | None = None) -> ReplicaRun:
    """What the run of a coordinator's log has committed.

    Args:
        plan: adds tokens, and the predicted share and stall.

    Raises:
        InputError: no such log, one with fewer than three commits, or a step that is missing or there twice.
    """
    events = _events(Path(log))
    commits = [event for event in events if event["event"] == "commit"]
    if len(commits) < 3:
        raise InputError(f"{log}: {len(commits)} committed steps; three are needed to know how long one takes")
    for before, after in pairwise(commits):
        if after["step"] != before["step"] + 1:
            raise InputError(f"{log}: step {after['step']} is committed after step {before['step']}: no log of one run")
    changes = _changes(events)
    most = max(len(commit["samples"]) for commit in commits)
    full = max(sum(commit["samples"].values()) for commit in commits if len(commit["samples"]) == most)
    steps = list(pairwise(commits))
    quiet = [
        b["time_s"] - a["time_s"] for a, b in steps if len(b["samples"]) == most and not changes.get(b["step"])
    ] or [b["time_s"] - a["time_s"] for a, b in steps]
    usual_s, mean_s, seconds = median(quiet), fmean(quiet), commits[-1]["time_s"] - commits[0]["time_s"]
    stalls, missing_s = [], 0.0
    for a, b in steps:
        took, why = b["time_s"] - a["time_s"], changes.get(b["step"], [])
        missing_s += min(took, usual_s) * (1 - sum(b["samples"].values()) / full)
        if why and took > usual_s:
            stalls.append(Stall(step=b["step"], seconds=took - usual_s, why="; ".join(dict.fromkeys(why))))
    lost_s = sum(stall.seconds for stall in stalls)
    found = None if plan is None else plan if isinstance(plan, Plan) else load_plan(plan)
    goodput = None if found is None else found.goodput
    samples = sum(sum(commit["samples"].values()) for commit in commits)
    after_first = samples - sum(commits[0]["samples"].values())
    return ReplicaRun(
        log=str(log),
        seconds=seconds,
        steps=len(commits),
        samples=samples,
        tokens=None if found is None else samples * found.job.sequence_length,
        epochs=sum(event["event"] == "epoch" for event in events),
        most_members=most,
        lost={word: count for word in LOST if (count := sum(event["event"] == word for event in events))},
        joined=sum(later > earlier for earlier, later in zip(*_sizes(commits), strict=True)),
        median_step_s=usual_s,
        mean_step_s=mean_s,
        useful_fraction=after_first / (full * seconds / mean_s) if seconds else 1.0,
        simulated_fraction=_simulated(events, commits, lost_s) if seconds else 1.0,
        stall_fraction=lost_s / seconds if seconds else 0.0,
        missing_fraction=missing_s / seconds if seconds else 0.0,
        stalls=tuple(stalls),
        failures=tuple(dict.fromkeys(str(e["why"]) for e in events if e["event"] == "failed")),
        predicted_fraction=None if goodput is None else goodput.goodput_fraction,
        predicted_stall_s=None if goodput is None else goodput.model.stall_s,
    )


def hung_epochs(log: str | Path) -> tuple[str, ...]:
    """What held epochs of a coordinator's log up, and which replica: a line each, in the order in which it was seen.

    Raises:
        InputError: no such log.
    """
    events, out = _events(Path(log)), list[str]()
    begins = {event["epoch"]: event for event in events if event["event"] == "epoch"}
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


def _simulated(events: list[dict[str, Any]], commits: list[dict[str, Any]], lost_s: float) -> float:
    """The share that ``simulate --days`` gives for the same losses at the same times, each out for as long as these were in the
    mean and stalling the others for as long as these did."""
    begin_s, end_s = commits[0]["time_s"], commits[-1]["time_s"]
    losses = [one for one in events if one["event"] in LOST and begin_s < one["time_s"] < end_s]
    if not losses:
        return 1.0
    out_s = []
    for loss in losses:
        without = [c["time_s"] for c in commits if c["time_s"] > loss["time_s"] and loss["replica"] not in c["samples"]]
        back = next(
            (c["time_s"] for c in commits if without and c["time_s"] > without[0] and loss["replica"] in c["samples"]),
            end_s,
        )
        out_s.append(max([time_s for time_s in without if time_s < back], default=loss["time_s"]) - loss["time_s"])
    num_units = max(len(commit["samples"]) for commit in commits)
    recover_s = fmean(out_s)
    model = FaultModel(
        num_units=num_units,
        strikes=(Strike(cause="host", rate_per_s=len(losses) / (end_s - begin_s), units_hit=1),),
        recover_s=recover_s,
        restart_s=recover_s,
        stall_s=lost_s / len(losses),
        unit_loss=1 / num_units,
    )
    trace = [TracedFailure(time_s=one["time_s"] - begin_s, cause="host", host_swap=False) for one in losses]
    run = long_run(model, days=(end_s - begin_s) / SECONDS_PER_DAY, draws=DRAWS, trace=trace)
    return run.goodput_fraction["mean"]


def _events(path: Path) -> list[dict[str, Any]]:
    """The log's objects. A last line that was cut is left out: the coordinator may have been killed."""
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise InputError(f"{path}: larger than {MAX_LOG_BYTES >> 20} MiB")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
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
            raise InputError(f"{path}, line {number}: no event of a coordinator's log: {line[:80]!r}") from None
        out.append(event)
    return out


def _changes(events: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Step -> what happened between the commit before and its own."""
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


def _sizes(commits: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    sizes = [len(commit["samples"]) for commit in commits]
    return sizes[:-1], sizes[1:]
