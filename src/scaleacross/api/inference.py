"""Plan inference cards: try every allowed combination of precision, transfers and layout, and verify the best plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Final

from scaleacross.api.arguments import search_arguments
from scaleacross.catalogue.recommendation import load_inference_job
from scaleacross.cost_models.embedding.card_problem import VECTOR_BYTES, card_problem
from scaleacross.cost_models.embedding.cards import CardHost, InferenceTable, latency_s
from scaleacross.errors import InfeasibleError, TimeLimitError
from scaleacross.solvers.partition_inference import CardPlan, glow_partitions, least_seconds, partition_inference
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.until import Until
from scaleacross.spec.inference import (
    CardLoad,
    CopyPrecision,
    DenseLayout,
    InferenceDecision,
    InferenceJob,
    InferencePlan,
    InferenceVariant,
    Transfers,
)
from scaleacross.spec.progress import STOPPED_BY_HAND, Progress
from scaleacross.verification.inference import verify_inference

_SAME: Final = 1e-6
"""Relative difference up to which seconds count as equal, and a plan as optimal."""
Kind = tuple[CopyPrecision, Transfers, DenseLayout]


def plan_inference(
    job: InferenceJob | str | Path,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    overrides: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
    work_limit: int | None = None,
) -> InferencePlan:
    """Return the plan with the most queries per second within the latency bound, and a bound for every other plan.

    Args:
        job: an InferenceJob or the path of one.
        time_limit_s: seconds for all combinations together, measured by ``clock``.
        seed: seed of the search.
        gap_tolerance: relative gap at which the search of a combination stops.
        overrides: ``a.b=value`` on any field of the job.
        progress: called before every combination.
        clock: clock that measures ``time_limit_s``.
        stopped: polled as often as the clock; once true, the search ends with the best plan so far and its gap.
        work_limit: work instead of seconds, so equal on every machine: rounds of the search, and hundredths of a second
            of the constraint programs by their own count of operations.

    Raises:
        InputError: the job is wrong.
        InfeasibleError: no combination fits and keeps the latency bound; the message gives the reason of each.
        TimeLimitError: the limit ended without a plan and without a proof that there is none.
        VerificationError: the plan does not recompute (a bug: please report it).
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed, work_limit=work_limit)
    own, model = load_inference_job(job, overrides)
    kinds: list[Kind] = list(product(own.table_precisions, own.transfers, own.dense_layouts))
    until, bound = Until.within(time_limit_s, clock, stopped, work_limit), float("inf")
    begin = until.clock()
    best: tuple[Kind, CardPlan, list[InferenceTable], CardHost] | None = None
    variants, refused = [], []
    ended: type[InfeasibleError | TimeLimitError] = InfeasibleError
    for number, kind in enumerate(kinds):
        tables, host = card_problem(own, model, *kind)
        if progress is not None:
            progress(
                Progress(
                    "combinations", number, len(kinds), best[1].seconds if best else None, None, until.clock() - begin
                )
            )
        limit_s = max(0.0, until.left()) / (len(kinds) - number)
        glow = _glow(tables, host)
        try:
            plan = partition_inference(
                tables, host, time_limit_s=limit_s, seed=seed, gap_tolerance=gap_tolerance, **until.limits
            )
        except (InfeasibleError, TimeLimitError) as error:
            if isinstance(error, TimeLimitError):
                # a plan of this combination may exist, so the bound must cover it
                bound = min(bound, min(least_seconds(tables, host, cores) for cores in range(1, host.cores)))
                ended = TimeLimitError
            variants.append(_variant(kind, None, glow, str(error)))
            refused.append(f"{' / '.join(kind)}: {error}")
            continue
        variants.append(_variant(kind, plan, glow, ""))
        bound = min(bound, plan.bound_s)
        # among equals the first combination stays
        if best is None or plan.seconds < best[1].seconds * (1 - _SAME):
            best = kind, plan, tables, host
    if best is None:
        raise ended("no allowed combination has a plan\n  " + "\n  ".join(refused))
    out = _assembled(own, *best, bound, tuple(variants))
    unproved = out.gap > max(gap_tolerance, _SAME)
    limit = f"the work limit of {work_limit:,}" if work_limit is not None else f"the limit of {time_limit_s:g} s"
    end = STOPPED_BY_HAND if stopped() else f"{limit} ended the search: a longer one may find more" if unproved else ""
    out = out.model_copy(update={"notes": (*notes_on_cards(out), *([end] if end else []))})
    verify_inference(out)
    return out


def notes_on_cards(plan: InferencePlan) -> list[str]:
    """Return notes on cards without tables, and on figures that the plan assumes."""
    job, out = plan.job, []
    if idle := [str(load.card) for load in plan.loads if not load.num_tables]:
        work = "they compute dense work only" if len(idle) > 1 else "it computes dense work only"
        out.append(f"no table is on card {', '.join(idle)}: {work}")
    if not job.cards.hop_s and job.cards.num_cards > 1:
        out.append("assumed: a transfer takes no time beyond its bytes (cards.hop_us is 0)")
    out.append(
        f"counted: a weight of the dense network as {job.dense_precision_bytes:g} B (dense_precision_bytes), an element of "
        f"a vector that travels as {VECTOR_BYTES} B"
    )
    if job.latency_bound_s is None:
        out.append(
            "no latency bound is stated (latency_bound_ms): the plan has the most queries/s, however long one takes"
        )
    return out


def _glow(tables: Sequence[InferenceTable], host: CardHost) -> float | None:
    """Return queries/s of Glow's rule with its best split of the cores; None where it has no plan within the bound."""
    kept = [
        1 / plan.seconds
        for plan in glow_partitions(tables, host)
        if latency_s(tables, host, plan.cards, plan.lookup_cores) <= host.latency_bound_s
    ]
    return max(kept, default=None)


def _variant(kind: Kind, plan: CardPlan | None, glow: float | None, reason: str) -> InferenceVariant:
    precision, transfers, layout = kind
    return InferenceVariant(
        table_precision=precision,
        transfers=transfers,
        dense_layout=layout,
        queries_per_s=1 / plan.seconds if plan else None,
        glow_queries_per_s=glow,
        reason=reason,
    )


def _assembled(
    job: InferenceJob,
    kind: Kind,
    plan: CardPlan,
    tables: Sequence[InferenceTable],
    host: CardHost,
    bound_s: float,
    variants: tuple[InferenceVariant, ...],
) -> InferencePlan:
    precision, transfers, layout = kind
    rate, most = 1 / plan.seconds, max(1 / bound_s, 1 / plan.seconds)
    loads = []
    for card in range(host.num_cards):
        own = [table for table, at in zip(tables, plan.cards, strict=True) if at == card]
        loads.append(
            CardLoad(
                card=card,
                num_tables=len(own),
                memory_bytes=sum(table.memory_bytes for table in own) + host.memory_bytes - host.room_bytes,
                lookup_s=sum(table.lookup_core_s for table in own) / plan.lookup_cores,
                sent_bytes=sum(table.output_bytes for table in own) * float(host.leaving[card]),
            )
        )
    return InferencePlan(
        job=job,
        decision=InferenceDecision(
            table_precision=precision,
            transfers=transfers,
            dense_layout=layout,
            lookup_cores=plan.lookup_cores,
            cards={table.name: card for table, card in zip(tables, plan.cards, strict=True)},
        ),
        queries_per_s=rate,
        samples_per_s=rate * job.batch_samples,
        latency_s=latency_s(tables, host, plan.cards, plan.lookup_cores),
        bound_queries_per_s=most,
        gap=(most - rate) / most,
        loads=tuple(loads),
        variants=variants,
    )
