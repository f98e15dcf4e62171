"""Choose codecs for the embedding vectors of a recommendation plan before tables are placed, and report their effect
afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaleacross.cost_models.embedding.coded_exchange import (
    aggregate_ratio,
    break_even_bytes_per_s,
    codec_offers,
    crossed_levels,
    figures_by_table,
    rank_bytes_per_s,
)
from scaleacross.cost_models.embedding.exchange import Replicas, slope
from scaleacross.cost_models.embedding.problem import EmbeddingProblem, group_ranks
from scaleacross.solvers.choose_codecs import Way, choose_codecs
from scaleacross.spec.exchange_codec import (
    ANY_TABLE,
    CodecFigures,
    EncoderUse,
    ExchangeCompression,
    ExchangeCompressionRequest,
    LevelCompression,
    TableCodec,
)
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.recommendation import RecommendationDecision, RecommendationJob, sends_vectors
from scaleacross.spec.topology import Topology
from scaleacross.workloads.recommendation import Dlrm, EmbeddingTable


@dataclass(frozen=True)
class ChosenCodecs:
    """Codecs of the tables to compress, whether the choice is proved best, and the tables without a measured row."""

    codecs: tuple[TableCodec, ...] = ()
    proved: bool = True
    unmeasured: tuple[str, ...] = ()


def codecs_for(
    job: RecommendationJob, model: Dlrm, topology: Topology, num_groups: int, replicas: Replicas
) -> ChosenCodecs:
    """Return the fastest codecs within the job's accuracy budget, for replica groups laid out as stated."""
    request = job.compression
    if request is None or job.cost_model == "torchrec":
        return ChosenCodecs()
    members = group_ranks(job, topology, num_groups, replicas).groups.members
    tables, figures, plain = tuple(model.expanded()), figures_by_table(request), slope(members.all_to_all)
    offers = [
        codec_offers(request, figures.get(table.name, figures.get(ANY_TABLE, ())), table.name, members)
        for table in tables
    ]
    weights = [elements(table) for table in tables]
    # way 0 of a table leaves it uncoded, way k is its offer k − 1
    ways = [
        [Way(plain * weight, 0.0), *(Way(one.s_per_byte * weight, one.codec.bound_fraction) for one in own)]
        for own, weight in zip(offers, weights, strict=True)
    ]
    chosen = choose_codecs(ways, weights, request.max_mean_bound_fraction)
    codecs = tuple(own[way - 1].codec for own, way in zip(offers, chosen.ways, strict=True) if way)
    missing = tuple(t.name for t in tables if t.name not in figures and ANY_TABLE not in figures)
    return ChosenCodecs(codecs, chosen.proved, missing)


def in_use(decision: RecommendationDecision, model: Dlrm) -> tuple[TableCodec, ...]:
    """Return the codecs of tables that send whole vectors as they are placed; other tables send none to code."""
    sends = _senders(decision, model)
    return tuple(codec for codec in decision.codecs if codec.table in sends)


def _senders(decision: RecommendationDecision, model: Dlrm) -> set[str]:
    pooled = {table.name: table.pooled for table in model.expanded()}
    return {one.table for one in decision.tables if sends_vectors(one.sharding, pooled[one.table])}


def elements(table: EmbeddingTable) -> float:
    """Return the number of elements per sample that the look-ups of a table produce."""
    return table.outputs_per_sample * table.dimension


def mean_bound(codecs: Sequence[TableCodec], model: Dlrm) -> float:
    """Return the mean over all elements of error bound / value range; elements that are not coded count 0."""
    bounds = {codec.table: codec.bound_fraction for codec in codecs}
    return sum(elements(t) * bounds.get(t.name, 0.0) for t in model.expanded()) / model.output_elements


def compression_of(
    problem: EmbeddingProblem,
    model: Dlrm,
    topology: Topology,
    decision: RecommendationDecision,
    proved: bool,
    plain_step_s: float,
) -> ExchangeCompression | None:
    """Return what the plan reports about compression; None where the job does not ask for it."""
    request = problem.job.compression
    if request is None:
        return None
    members = group_ranks(problem.job, topology, problem.num_groups, problem.replicas).groups.members
    crossed = crossed_levels(members, LINK_LEVELS)
    # the last entry belongs to the ranks that cross most levels
    every = crossed[-1] if crossed else ()
    by_table = {codec.table: codec for codec in decision.codecs}
    sends = _senders(decision, model)
    sizes = {table.name: elements(table) for table in model.expanded() if table.name in sends}
    outer = every[-1] if every else None
    ratios = [c.ratio if (c := by_table.get(name)) and outer in c.levels else 1.0 for name in sizes]
    mean = mean_bound(decision.codecs, model)
    return ExchangeCompression(
        status="optimal" if proved else "feasible",
        mean_bound_fraction=mean,
        ratio=aggregate_ratio([*sizes.values()], ratios) if sizes else 1.0,
        plain_step_s=plain_step_s,
        encoders=_encoders(decision.codecs, sizes),
        levels=tuple(_level(level, rank_bytes_per_s(members, level), decision.codecs, request) for level in every),
        early_mean_bound_fraction=mean * request.decay.start if request.decay else None,
    )


def _encoders(codecs: Sequence[TableCodec], sizes: Mapping[str, float]) -> tuple[EncoderUse, ...]:
    alike: dict[tuple[str, float, tuple[LinkLevel, ...]], list[TableCodec]] = {}
    for codec in codecs:
        alike.setdefault((codec.encoder, codec.bound_fraction, codec.levels), []).append(codec)
    return tuple(
        EncoderUse(
            encoder=encoder,
            bound_fraction=bound,
            levels=levels,
            num_tables=len(own),
            ratio=aggregate_ratio([sizes[one.table] for one in own], [one.ratio for one in own]),
            break_even_bytes_per_s=min(_break_even(one) for one in own),
        )
        for (encoder, bound, levels), own in sorted(alike.items(), key=lambda item: -len(item[1]))
    )


def _level(
    level: LinkLevel, rate: float, codecs: Sequence[TableCodec], request: ExchangeCompressionRequest
) -> LevelCompression:
    number = sum(level in codec.levels for codec in codecs)
    best = max((_break_even(one) for rows in figures_by_table(request).values() for one in rows), default=0.0)
    reason = (
        ""
        if number
        else "the job does not allow it"
        if level not in request.levels
        else f"every encoder pays only below {best / 1e9:.3g} GB/s"
        if rate >= best
        else "an outer level takes longer, or the budget is used up"
    )
    return LevelCompression(level=level, rank_bytes_per_s=rate, num_tables=number, reason=reason)


def _break_even(one: TableCodec | CodecFigures) -> float:
    return float(break_even_bytes_per_s(one.ratio, one.encode_bytes_per_s, one.decode_bytes_per_s))


def notes_on(request: ExchangeCompressionRequest | None, chosen: ChosenCodecs) -> tuple[str, ...]:
    """Return notes for the user on tables without a measured row."""
    if request is None or not chosen.unmeasured:
        return ()
    named = ", ".join(chosen.unmeasured[:3]) + (", …" if len(chosen.unmeasured) > 3 else "")
    return (f"compression: no measured row for {len(chosen.unmeasured)} tables ({named}); they travel as they are",)
