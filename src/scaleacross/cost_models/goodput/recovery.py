"""Duration of a recovery, computed from the plan where the job does not state it.

    D = detect + schedule + load + initialise + first step
    load       = state bytes of a fault unit / (hosts of the unit · bytes/s of a host)
    initialise = ranks that start · seconds per rank
    s          = detect + regroup
    w          = state bytes of an accelerator / staging rate, or of a host / storage rate for a blocking checkpoint

State bytes are all parameters times the bytes of a working copy and of the optimizer's states. A unit that recovers
alone loads its own bytes and starts its own ranks. Where all restart, every rank starts and the units share the
storage. A standby host needs no scheduling and no first step, because its processes run already.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.cost_models.goodput.share import best_interval_s
from scaleacross.spec.job import Job
from scaleacross.spec.reliability import Recovery, default
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class RecoveryTimes:
    """Seconds of a recovery and of checkpoints.

    Attributes:
        recover_s: recovery of one unit.
        restart_s: restart of all units.
        stall_s: stall of the other units.
        blocking_s: time that a checkpoint blocks training.
        least_interval_s: least time between checkpoints that storage can follow.
    """

    recover_s: float
    restart_s: float
    stall_s: float
    blocking_s: float
    least_interval_s: float

    def interval_s(self, recovery: Recovery, stops_per_s: float) -> float | None:
        """Training between checkpoints, s: the stated interval, or the best one, but no less than storage can follow.

        It is None where nothing stops. Where the loss of all units at once is rarer than the life of the job, the best
        interval exceeds any job. It is limited to ``longest_checkpoint_interval_hours``, as losses that no rate states
        remain.
        """
        if recovery.checkpoint_interval_s != "auto":
            return max(recovery.checkpoint_interval_s, self.least_interval_s)
        best = best_interval_s(stops_per_s, self.blocking_s)
        longest_s = default("longest_checkpoint_interval_hours") * 3600.0
        return None if best is None else max(min(best, longest_s), self.least_interval_s)


def state_bytes(job: Job, profile: ModelProfile) -> float:
    """Bytes of a complete state: parameters and the optimizer's states for them."""
    return profile.total_parameters * (job.optimizer.parameter_bytes + job.optimizer.state_bytes)


def recovery_times(
    job: Job, profile: ModelProfile, num_accelerators: int, num_units: int, accelerators_per_host: int
) -> RecoveryTimes:
    """Times of a job on so many accelerators in so many fault units; ``job.reliability`` None means all defaults."""
    recovery = job.reliability or Recovery()
    hot = recovery.policy == "hot_spare"
    per_unit = num_accelerators / num_units
    states, rate = state_bytes(job, profile), recovery.figure("load_bytes_per_s")
    load_s = states / (per_unit / accelerators_per_host * rate)
    fixed_s = recovery.figure("detect_s")
    if not hot:
        fixed_s += recovery.figure("schedule_s") + recovery.figure("first_step_s")
    per_rank_s = recovery.figure("initialise_per_rank_s")
    recover_s = fixed_s + load_s + per_unit * per_rank_s
    restart_s = fixed_s + load_s + num_accelerators * per_rank_s
    stall_s = recovery.figure("detect_s") + recovery.figure("regroup_s")
    if recovery.recover_s is not None:
        recover_s = restart_s = recovery.recover_s
    if recovery.checkpoint_blocking_s is not None:
        blocking_s = recovery.checkpoint_blocking_s
    elif recovery.checkpoint == "blocking":
        blocking_s = states / (num_accelerators / accelerators_per_host * rate)
    else:
        blocking_s = states / num_accelerators / default("stage_bytes_per_s")
    write_s = states / (num_accelerators / accelerators_per_host * rate)
    return RecoveryTimes(
        recover_s,
        restart_s,
        min(recover_s, stall_s if recovery.stall_s is None else recovery.stall_s),
        blocking_s,
        max(write_s, blocking_s),
    )
