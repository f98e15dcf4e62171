"""Target ``recovery``: settings with which a framework loses as much to a failure as the plan states.

Time-outs follow one order, each with its reason in recovery.json:

    quorum < connect < train < init < watchdog

A quorum forms while the others are inside a step, so it outlasts some of them. A connecting rank may have to wait for a
quorum. A collective waits for a rank that connects. The first step also sets up every connection. NCCL's watchdog ends
a process whose errors nobody handled, so it comes last. torchft's issue 329 and torchtitan's issue 2899 describe the
consequences of other orders.

Names: torchft/manager.py and src/lighthouse.rs (meta-pytorch/torchft), torchtitan 0.3.0 (config/configs.py,
experiments/torchft), torch 2.13 (ProcessGroupNCCL), sbatch(1).
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

from scaleacross.emitters.libraries import reads_nccl
from scaleacross.errors import EmitError
from scaleacross.spec.goodput import Goodput
from scaleacross.spec.launch import EnvVariable
from scaleacross.spec.plan import Plan

LEAST_QUORUM_S: Final = 60
"""Least time-out of a quorum: torchft's own default."""
STEPS_PER_QUORUM: Final = 3
COLLECTIVES_PER_TRAIN: Final = 10
"""A collective that takes this many times its prediction is considered stuck."""
WATCHDOG_S: Final = 60
HEARTBEAT_MS: Final = 5000
"""Time-out of heartbeats: torchft's own default. They are sent every 100 ms."""


class Timeouts(NamedTuple):
    """Time-outs in whole seconds, in ascending order."""

    quorum_s: int
    connect_s: int
    train_s: int
    init_s: int
    watchdog_s: int


def render(plan: Plan) -> dict[str, str]:
    """Return the files in folder recovery/: recovery.json, nccl.env, slurm.env, torchtitan.args.

    With several fault units torchft.env and lighthouse.sh are added.

    Raises:
        EmitError: the plan states no failure rates.
    """
    found = plan.goodput
    if found is None:
        raise EmitError(
            "target recovery: the plan does not know what fails how often. Plan with `reliability: {}` in the job, or "
            "--set topology.reliability.published=llama3-405b"
        )
    times, units = timeouts(plan, found), found.model.num_units
    steps = _checkpoint_steps(plan, found)
    files = {
        "recovery.json": json.dumps(_facts(plan, found, times, steps), indent=2) + "\n",
        "slurm.env": _SLURM.format(spares=found.spares_advised),
        "torchtitan.args": _titan(times, steps, units),
    }
    if reads_nccl(plan):
        files["nccl.env"] = _NCCL + "".join(f"{one.name}={one.value}\n" for one in environment(plan))
    if units > 1:
        files["torchft.env"] = _TORCHFT.format(quorum=times.quorum_s, connect=times.connect_s, train=times.train_s)
        join_ms = 1000 * min(times.quorum_s - 1, max(1, math.ceil(plan.cost.step_s)))
        files["lighthouse.sh"] = _LIGHTHOUSE.format(least=least_units(units), join=join_ms, heartbeat=HEARTBEAT_MS)
    return {f"recovery/{name}": text for name, text in files.items()}


def environment(plan: Plan) -> tuple[EnvVariable, ...]:
    """Return torch's variables for the planned course of failures.

    There are none where the plan states no failure rates, or where its accelerators do not run NCCL.
    """
    if plan.goodput is None or not reads_nccl(plan):
        return ()
    last_s = timeouts(plan, plan.goodput).watchdog_s
    return (
        EnvVariable(name="TORCH_NCCL_ASYNC_ERROR_HANDLING", value="1", why="a rank whose peer is lost gets an error"),
        EnvVariable(name="TORCH_NCCL_ENABLE_MONITORING", value="1", why="a process that does not handle it ends"),
        EnvVariable(name="TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", value=str(last_s), why="after the last of all time-outs"),
        EnvVariable(name="TORCH_NCCL_DUMP_ON_TIMEOUT", value="1", why="and says what it waited for"),
        EnvVariable(name="TORCH_NCCL_TRACE_BUFFER_SIZE", value="2000", why="calls that the dump holds"),
    )


def timeouts(plan: Plan, found: Goodput) -> Timeouts:
    """Return the time-outs; the module docstring gives the reasons of their order."""
    slowest_s = max((one.time_s for one in plan.collectives), default=0.0)
    quorum_s = max(LEAST_QUORUM_S, math.ceil(STEPS_PER_QUORUM * plan.cost.step_s))
    connect_s = math.ceil(1.5 * quorum_s)
    train_s = max(2 * quorum_s, math.ceil(COLLECTIVES_PER_TRAIN * slowest_s + plan.cost.step_s), connect_s + 1)
    init_s = train_s + max(quorum_s, math.ceil(found.model.restart_s))
    return Timeouts(quorum_s, connect_s, train_s, init_s, init_s + WATCHDOG_S)


def least_units(units: int) -> int:
    """Return a majority of the fault units: a smaller part never continues while others may still be running."""
    return units // 2 + 1


def restarts(found: Goodput | None) -> int:
    """Return the failures expected in 30 days plus three; three where the plan states no failure rates."""
    return 3 + (0 if found is None or found.mtbf_s is None else math.ceil(30 * 86_400 / found.mtbf_s))


def _checkpoint_steps(plan: Plan, found: Goodput) -> int | None:
    interval_s = found.model.checkpoint_interval_s
    return None if interval_s is None else max(1, round(interval_s / plan.cost.step_s))


def _facts(plan: Plan, found: Goodput, times: Timeouts, steps: int | None) -> dict[str, Any]:
    return {
        "plan": plan.job.name,
        "fault_units": found.model.num_units,
        "least_fault_units": least_units(found.model.num_units),
        "policy": found.policy,
        "timeouts_s": times._asdict(),
        "step_s": plan.cost.step_s,
        "slowest_collective_s": max((one.time_s for one in plan.collectives), default=0.0),
        "restart_s": found.model.restart_s,
        "checkpoint_interval_s": found.model.checkpoint_interval_s,
        "checkpoint_interval_steps": steps,
        "spare_hosts": found.spares_advised,
        "mean_time_between_failures_s": found.mtbf_s,
        "restarts_in_30_days": restarts(found),
        "assumed": found.assumed,
    }


def _titan(times: Timeouts, steps: int | None, units: int) -> str:
    words = [f"--comm.init_timeout_seconds={times.init_s}", f"--comm.train_timeout_seconds={times.train_s}"]
    if steps is not None:
        words += ["--checkpoint.enable", f"--checkpoint.interval={steps}"]
    if units > 1:
        words += ["--fault_tolerance.enable", f"--fault_tolerance.group_size={units}"]
        words += [f"--fault_tolerance.min_replica_size={least_units(units)}"]
        words += [f"--fault_tolerance.process_group_timeout_ms={1000 * times.train_s}"]
    return "".join(f"{word}\n" for word in words)


_NCCL: Final = """\
# A rank whose peer is lost gets an error; a process that does not handle it ends after the last of all time-outs.
# settings.env of every launcher's folder holds these lines too.
"""

_SLURM: Final = """\
# For submit.sh: the job is queued again when a host is lost, and its log goes on.
SBATCH_OPTIONS="--requeue --open-mode=append"
# Hosts to keep free in addition to the job's; then 99.9 % of the time a lost host is replaced at once.
SPARE_HOSTS={spares}
"""

_TORCHFT: Final = """\
TORCHFT_QUORUM_TIMEOUT_SEC={quorum}
TORCHFT_CONNECT_TIMEOUT_SEC={connect}
TORCHFT_TIMEOUT_SEC={train}
"""

_LIGHTHOUSE: Final = """\
#!/usr/bin/env bash
# torchft's lighthouse, on one host; every replica gets TORCHFT_LIGHTHOUSE=http://HOST:29510 and torchft.env.
exec torchft_lighthouse --bind "[::]:29510" --min_replicas {least} --join_timeout_ms {join} \\
  --heartbeat_timeout_ms {heartbeat} "$@"
"""
