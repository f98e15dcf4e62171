"""Compression of embedding vectors in a recommendation plan: encoders, links, error, and effect on the step."""

from __future__ import annotations

from math import isinf

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, percent, plural, rate, section
from scaleacross.spec.recommendation import RecommendationPlan
from scaleacross.units import human_seconds


def compression_fact(plan: RecommendationPlan) -> str:
    """Return one line: number of tables, levels, ratio of bytes, mean error bound."""
    found, codecs = plan.compression, plan.decision.codecs
    if found is None or not codecs:
        return "none pays"
    levels = ", ".join(one.level for one in found.levels if one.num_tables)
    faster = found.plain_step_s / plan.cost.step_s
    return (
        f"{plural(len(codecs), 'table')} coded across {levels}: {found.ratio:.1f}x fewer bytes, step {faster:.2f}x as fast; "
        f"mean bound {percent(found.mean_bound_fraction)} of the range"
    )


def compression_section(plan: RecommendationPlan) -> RenderableType:
    """Return encoders with their break-even rates, levels with their rates, and the accuracy budget."""
    found, request = plan.compression, plan.job.compression
    if found is None or request is None:
        return section("Compression", Text("the job states no compression: vectors travel as they are"))
    heads = ("encoder", "bound", "levels", "tables", "ratio", "pays below")
    encoders = columns(heads, right=("bound", "tables", "ratio", "pays below"))
    for one in found.encoders:
        figures = f"{one.ratio:.1f}x", rate(one.break_even_bytes_per_s)
        add(encoders, one.encoder, f"{one.bound_fraction:.3g}", ", ".join(one.levels), count(one.num_tables), *figures)
    levels = columns(("level", "a rank gets", "tables coded", "why not"), right=("a rank gets", "tables coded"))
    for level in found.levels:
        gets = "–" if isinf(level.rank_bytes_per_s) else rate(level.rank_bytes_per_s)
        add(levels, level.level, gets, count(level.num_tables), level.reason)
    facts = [
        (
            "mean bound",
            f"{percent(found.mean_bound_fraction)} of the range; budget {percent(request.max_mean_bound_fraction)}",
        ),
        ("step", f"{human_seconds(plan.cost.step_s)}; {human_seconds(found.plain_step_s)} with vectors as they are"),
        ("choice", "proved best for all tables together" if found.status == "optimal" else "best found, not proved"),
    ]
    if request.decay and found.early_mean_bound_fraction is not None:
        early = f"{request.decay.start:g} times the bounds at step 0 ({percent(found.early_mean_bound_fraction)} in the mean)"
        facts.append(("decay", f"{early}, the bounds themselves from step {count(request.decay.stage_steps)} on"))
    shown = [encoders] if found.encoders else [Text("no codec makes the exchange faster within the budget")]
    return section("Compression of vectors, forward", *shown, Text(), levels, Text(), grid(facts))
