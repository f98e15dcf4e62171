"""Inference plans as tables: layout, load of cards, results of every combination, proof."""

from __future__ import annotations

from rich.console import Group, RenderableType

from scaleacross.report.format import add, cell, columns, count, gib, percent, section
from scaleacross.report.summary import FirstLines
from scaleacross.spec.inference import InferencePlan
from scaleacross.units import human_seconds


def inference_summary(plan: InferencePlan) -> FirstLines:
    """The first lines."""
    own, job = plan.decision, plan.job
    bound = "" if job.latency_bound_s is None else f" of {human_seconds(job.latency_bound_s)} allowed"
    glow = max((one.glow_queries_per_s or 0.0 for one in plan.variants), default=0.0)
    proof = "optimal" if plan.gap <= 1e-6 else f"no plan answers more than {count(round(plan.bound_queries_per_s))}/s"
    facts = [
        ("plan", f"{job.name}: {len(own.cards)} tables on {job.cards.num_cards} cards"),
        (
            "tables",
            f"{own.table_precision}; vectors travel {'through the host' if own.transfers == 'host' else 'peer to peer'}",
        ),
        ("dense", f"{own.dense_layout}; {own.lookup_cores} of {job.cards.cores} cores look rows up"),
        ("rate", f"{count(round(plan.queries_per_s))} queries/s · {count(round(plan.samples_per_s))} samples/s"),
        ("latency", f"{human_seconds(plan.latency_s)}{bound}, without waiting for other requests"),
        ("baseline", f"Glow's rule: {count(round(glow))} queries/s" if glow else "Glow's rule finds no plan"),
        ("proof", f"{proof} (gap {percent(plan.gap)})"),
    ]
    return FirstLines(facts)


def inference_line(plan: InferencePlan) -> str:
    """One line."""
    return f"{plan.job.name}: {plan.queries_per_s:,.0f} queries/s, {human_seconds(plan.latency_s)}, gap {plan.gap:.2%}"


def inference_report(plan: InferencePlan) -> RenderableType:
    """First lines, cards, combinations and notes."""
    heads = ["card", "tables", "memory, GiB", "look-ups", "sent, bytes"]
    cards = columns(heads, right=heads)
    for load in plan.loads:
        row = (str(load.card), count(load.num_tables), gib(load.memory_bytes), human_seconds(load.lookup_s))
        add(cards, *row, count(round(load.sent_bytes)))
    rated = ["queries/s", "Glow's rule"]
    kinds = columns(["tables in", "transfers", "dense", *rated, "why not"], right=rated)
    for one in plan.variants:
        rates = ("—" if rate is None else count(round(rate)) for rate in (one.queries_per_s, one.glow_queries_per_s))
        add(kinds, one.table_precision, one.transfers, one.dense_layout, *rates, one.reason)
    parts = [inference_summary(plan), section("Cards, per request", cards), section("Combinations", kinds)]
    if plan.notes:  # a plan of an older version has none
        parts.append(section("Notes", *(cell(f"• {note}") for note in plan.notes)))
    return Group(*parts)
