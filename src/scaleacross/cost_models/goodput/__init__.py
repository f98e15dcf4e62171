"""Goodput of a placed decision: failures that hit it (``strikes``), times to recover (``recovery``) and ``share``."""

from __future__ import annotations

import math
from typing import Final

from scaleacross.cost_models.goodput.recovery import RecoveryTimes, recovery_times
from scaleacross.cost_models.goodput.share import spares_needed, stop_rate, useful_share
from scaleacross.cost_models.goodput.strikes import Laid, strikes_of
from scaleacross.errors import InputError
from scaleacross.spec.goodput import FaultModel, Goodput, RateShare, Strike
from scaleacross.spec.job import Job, counts_failures
from scaleacross.spec.plan import Decision
from scaleacross.spec.reliability import DEFAULTS, PUBLISHED_RATES, Failures, Recovery, default
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.problem import Problem

WAITING_HOSTS: Final = (
    "true (units that wait for a host lend theirs to one another; those left over are on and fail as often as the others, as "
    "published rates count days of nodes; hosts in repair do not; assumed)"
)
SHOWN: Final = 5e-4
"""A cause of a smaller share of the time is not named in an error: it would read 0.0 %."""
LEAST_SHARE: Final = 1e-6
"""A smaller share of useful time counts as none."""


def is_asked(problem: Problem) -> bool:
    """Whether the job or its topology states anything about failures, or useful tokens are the objective."""
    stated = problem.job.reliability is not None or problem.topology.reliability is not None
    return stated or counts_failures(problem.job.objective)


def fault_model(
    job: Job, profile: ModelProfile, laid: Laid, micro_batches: int, failures: Failures | None = None
) -> FaultModel:
    """The failures that hit a placed decision and the times to recover from them.

    Args:
        micro_batches: of one replica in a step; for ``batch_policy: keep``.
        failures: instead of the topology's.

    Raises:
        KeyError: a building of the allocation is not in the topology.
    """
    recovery = job.reliability or Recovery()
    failures = failures or laid.topology.reliability or Failures()
    alone = laid.degrees.dp_replicate if recovery.policy == "shrink" else 1
    hosts = min(laid.topology.building(share.building).accelerators_per_host for share in laid.allocation)
    times = recovery_times(job, profile, laid.degrees.world_size, alone, hosts)
    strikes = strikes_of(failures, laid)
    if alone == 1:
        strikes = tuple(one.model_copy(update={"units_hit": 1}) for one in strikes)
    model = recovering(
        alone, strikes, times, recovery, failures, unit_loss(recovery, alone, micro_batches), hosts_of(laid)
    )
    return model.model_copy(update={"checkpoint_interval_s": times.interval_s(recovery, stop_rate(model))})


def recovering(
    num_units: int,
    strikes: tuple[Strike, ...],
    times: RecoveryTimes,
    recovery: Recovery,
    failures: Failures,
    unit_loss: float,
    num_hosts: int,
) -> FaultModel:
    """The fault model for ``num_units`` fault units, without checkpoints."""
    repair_hours = default("repair_hours") if failures.repair_hours is None else failures.repair_hours
    return FaultModel(
        num_units=num_units,
        strikes=strikes,
        recover_s=times.recover_s,
        restart_s=times.restart_s,
        stall_s=times.stall_s,
        unit_loss=unit_loss,
        checkpoint_blocking_s=times.blocking_s,
        spares=None if recovery.spares == "auto" else recovery.spares,
        num_hosts=num_hosts,
        repair_s=repair_hours * 3600,
    )


def hosts_of(laid: Laid) -> int:
    """Hosts that a placement uses."""
    sizes = laid.sizes("host")
    return sum(-(-share.num_accelerators // size) for share, size in zip(laid.allocation, sizes, strict=True))


def unit_loss(recovery: Recovery, num_units: int, micro_batches: int) -> float:
    """Share of tokens per second lost with one missing unit: 1/R, or more if others take over whole micro-batches."""
    if num_units == 1 or recovery.batch_policy == "shrink":
        return 1 / num_units
    taken_over = -(-micro_batches * num_units // (num_units - 1))
    return 1 - micro_batches / taken_over


def goodput_of(problem: Problem, decision: Decision, step_s: float) -> Goodput:
    """The useful share of the time, the losses by cause, and the share at the three published rates.

    Raises:
        ValueError: the decision has no placement.
        InputError: failures come so fast that nothing is ever trained.
    """
    job, recovery = problem.job, problem.job.reliability or Recovery()
    model = _placed(problem, decision, None)
    share, lost = useful_share(model)
    if share < LEAST_SHARE:
        losses = ", ".join(f"{cause} {100 * part:.1f} %" for cause, part in lost.items() if part >= SHOWN)
        raise InputError(
            f"nothing is ever trained: something fails every {1 / model.rate_per_s:.3g} s and takes {model.restart_s:.3g} s to "
            f"restart; of the time are lost: {losses}. State "
            "longer times between failures (topology.reliability), faster recovery, more spares or a shorter "
            "checkpoint_interval_s (reliability)"
        )
    tokens_per_s = job.tokens_per_step / step_s
    in_repair = model.swaps_per_s * model.repair_s
    rates = []
    for name, figure in PUBLISHED_RATES.items():
        other = _placed(problem, decision, Failures(published=name))
        there = useful_share(other)[0]
        rates.append(
            RateShare(
                name=name,
                failures_per_1000_node_days=figure.value,
                goodput_fraction=there,
                useful_tokens_per_s=there * tokens_per_s,
            )
        )
    found = Goodput(
        goodput_fraction=share,
        useful_tokens_per_s=share * tokens_per_s,
        mtbf_s=1 / model.rate_per_s if model.rate_per_s else None,
        lost=lost,
        model=model,
        policy=recovery.policy,
        batch_policy=recovery.batch_policy,
        hosts_in_repair=in_repair,
        spares_advised=spares_needed(in_repair),
        hosts_free=_hosts_free(problem, model),
        at_published_rates=tuple(rates),
        assumed=_assumed(problem.topology.reliability, recovery)
        | _shorter_stall(recovery, model)
        | _longer_interval(recovery, model),
    )
    return found.model_copy(update={"assumed": found.assumed | _spares_beyond(found)})


def _shorter_stall(recovery: Recovery, model: FaultModel) -> dict[str, str]:
    """Assumption made where the stated stall is longer than the recovery that follows from the plan."""
    if recovery.stall_s is None or recovery.stall_s <= model.stall_s:
        return {}
    return {
        "stall_s": f"{model.stall_s:.4g} of the {recovery.stall_s:g} stated (a unit that was hit is back by then, as detect_s, "
        "schedule_s, first_step_s and the plan have it; state recover_s where it takes longer; assumed)"
    }


def _longer_interval(recovery: Recovery, model: FaultModel) -> dict[str, str]:
    """Assumption made where the stated checkpoint interval is shorter than storage needs for one checkpoint."""
    stated, taken = recovery.checkpoint_interval_s, model.checkpoint_interval_s
    if stated == "auto" or taken is None or taken <= stated:
        return {}
    return {
        "checkpoint_interval_s": f"{taken:.4g} of the {stated:g} stated (storage has no checkpoint sooner, by the bytes of the "
        "plan's states and load_bytes_per_s, and each blocks for checkpoint_blocking_s; state these where yours are faster; "
        "assumed)"
    }


def _hosts_free(problem: Problem, model: FaultModel) -> int:
    """Hosts of the topology, those held back included, that a placement does not use."""
    left = sum(building.hosts for building in problem.topology.buildings)  # without those held back
    return left + sum(problem.job.spare_hosts.values()) - (model.num_hosts or 0)


def _spares_beyond(found: Goodput) -> dict[str, str]:
    """Assumption about spare hosts that the topology does not have."""
    if not found.spares_lacking:
        return {}
    by, free = found.spares_taken, found.hosts_free
    return {
        "spares": f"{by:,} hosts stand by (reliability.spares), and the plan leaves {free:,} free: hold some back "
        f"(spare_hosts), or state reliability.spares: {free} for the goodput without others"
    }


def useful_parts(problem: Problem, decision: Decision, step_s: float) -> dict[str, float]:
    """Wall seconds per step of useful tokens: the step, and the time that failures add to it.

    Raises:
        ValueError: the decision has no placement.
    """
    share = useful_share(_placed(problem, decision, None))[0]
    return {"step": step_s, "failures": step_s / share - step_s if share else math.inf}


def _placed(problem: Problem, decision: Decision, failures: Failures | None) -> FaultModel:
    micro_batches = decision.mean_micro_batches(problem.job.global_batch_sequences)
    laid = Laid(problem.topology, decision.placed.fill, decision.degrees, decision.placed.axis_order)
    return fault_model(problem.job, problem.profile, laid, micro_batches, failures)


def _assumed(failures: Failures | None, recovery: Recovery) -> dict[str, str]:
    """Figures that neither the topology nor the job states, with value and origin."""
    out = {}
    if failures is None or (not failures.model_fields_set & _RATE_FIELDS):
        figure = PUBLISHED_RATES["llama3-405b"]
        out["failures_per_1000_node_days"] = f"{figure.value:g} ({figure.source}; {figure.status})"
    for name, figure in DEFAULTS.items():
        holder = failures if name in Failures.model_fields else recovery
        covered = recovery.recover_s is not None and name in _PARTS_OF_RECOVERY
        covered |= recovery.checkpoint_interval_s != "auto" and name == "longest_checkpoint_interval_hours"
        if getattr(holder, name, None) is None and not covered:
            out[name] = f"{figure.value:.4g} ({figure.source}; {figure.status})"
    if recovery.spares != "auto":
        out["idle_hosts_fail"] = WAITING_HOSTS
    return out


_RATE_FIELDS = frozenset(
    name
    for name in Failures.model_fields
    if name.endswith("_mtbf_hours") or name in ("published", "failures_per_1000_node_days")
)
_PARTS_OF_RECOVERY = ("schedule_s", "initialise_per_rank_s", "first_step_s")
