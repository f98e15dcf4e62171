"""Verifies an inference plan: memory of every card, rate, latency."""

from __future__ import annotations

from math import inf, isclose

from scaleacross.cost_models.embedding.card_problem import card_problem
from scaleacross.cost_models.embedding.cards import latency_s, seconds_per_request
from scaleacross.errors import VerificationError
from scaleacross.spec.inference import InferencePlan
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.recommendation import Dlrm


def verify_inference(plan: InferencePlan) -> None:
    """Check that the plan stores every table once, fits, keeps the latency bound, and that its figures recompute.

    Raises:
        VerificationError: the first of these that fails.
    """
    own, job = plan.decision, plan.job
    kinds = (own.table_precision, own.transfers, own.dense_layout)
    allowed = (job.table_precisions, job.transfers, job.dense_layouts)
    if any(kind not in several for kind, several in zip(kinds, allowed, strict=True)):
        raise VerificationError(f"the job does not allow {', '.join(kinds)} together")
    tables, host = card_problem(job, Dlrm.model_validate(job.workload), *kinds)
    if sorted(own.cards) != sorted(table.name for table in tables):
        raise VerificationError("tables of the plan are not those of the model")
    cards = [own.cards[table.name] for table in tables]
    if max(cards) >= host.num_cards or own.lookup_cores >= host.cores:
        raise VerificationError(f"card {max(cards)} of {host.num_cards}, {own.lookup_cores} of {host.cores} cores")
    for card in range(host.num_cards):
        held = sum(table.memory_bytes for table, at in zip(tables, cards, strict=True) if at == card)
        if held > host.room_bytes:
            raise VerificationError(f"card {card} holds {held:,} bytes of tables where {host.room_bytes:,} fit")
    seconds = seconds_per_request(tables, host, cards, own.lookup_cores)
    late = latency_s(tables, host, cards, own.lookup_cores)
    for name, said, found in (("queries_per_s", plan.queries_per_s, 1 / seconds), ("latency_s", plan.latency_s, late)):
        if not isclose(said, found, rel_tol=TOLERANCE):
            raise VerificationError(f"{name}: the plan says {said:.9g}, recomputed {found:.9g}")
    if late > (job.latency_bound_s or inf) * (1 + TOLERANCE):
        raise VerificationError(f"a request takes {late:.6g} s, {job.latency_bound_s:.6g} s are allowed")
    if plan.bound_queries_per_s < plan.queries_per_s * (1 - TOLERANCE):
        raise VerificationError("the bound is below the plan's own rate")
