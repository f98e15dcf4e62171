"""Laws that several targets share, and refusals that depend on the whole decision."""

from __future__ import annotations

from collections.abc import Callable

from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import ScheduleName
from scaleacross.spec.plan import Decision
from scaleacross.targets.law import Bools, Columns, JobLaw, Law, Subject, in_codes, schedule_codes
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.problem import workload_of


def decoder_of(job: Job) -> Decoder:
    """Return the model of a job as layer kinds.

    Raises InputError as ``workload_of``, and where the family states only costs.
    """
    return workload_of(job).decoder()


def encodes_nothing(title: str) -> JobLaw:
    """Return the law that refuses compression, because the framework's library reduces uncoded gradients."""
    why = (
        f"network.compression: {title} sends gradients through NCCL, which encodes nothing; leave compression out, or "
        "set target: scaleacross"
    )
    return JobLaw(lambda subject: subject.job.network.compression is None, lambda _: why)


def trains_everything(title: str) -> JobLaw:
    """Return the law that refuses adapters and frozen parts, because the framework trains every parameter."""

    def says(subject: Subject) -> str:
        tuning = subject.job.fine_tuning
        lora = tuning.lora if tuning else None
        what = f"LoRA of rank {lora.rank}" if lora else f"frozen {', '.join(tuning.frozen) if tuning else ''}"
        return (
            f"fine_tuning with {what}: {title} trains every parameter; the targets launch and torchrun carry the plan to "
            "a script of your own"
        )

    return JobLaw(lambda subject: subject.job.fine_tuning is None or not subject.job.fine_tuning.partial, says)


def runs_schedules(names: tuple[ScheduleName, ...], says: Callable[[str], str]) -> Law:
    """Return the law that allows these schedules; ``says`` words the refusal of another one."""

    def allows(_: Subject, rows: Columns) -> Bools:
        out: Bools = (rows.pp == 1) | in_codes(rows.schedule, schedule_codes(names))
        return out

    return Law("schedule", "partial", allows, lambda case: says(case.decision.pipeline.schedule))


def order_and_shares(title: str, says: Callable[[str], str]) -> Callable[[Subject, Decision], list[str]]:
    """Return ``Target.details``: refusals of unequal micro-batches per replica, and of orders of their own (``says``)."""

    def details(_: Subject, decision: Decision) -> list[str]:
        out, shares = [], decision.batch_shares
        if shares is not None:
            each = ", ".join(f"{share.num_micro_batches} in {'+'.join(share.buildings)}" for share in shares)
            out.append(
                f"micro-batches per replica differ ({each}): {title} runs equally many on every replica; use the targets "
                "launch or torchrun, or pin degrees so that pp and not dp crosses the buildings"
            )
        if decision.pipeline.order is not None:
            out.append(says(f"{decision.pipeline.schedule} in an order of its own"))
        return out

    return details
