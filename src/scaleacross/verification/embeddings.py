"""Verifies a recommendation plan from its job and decision alone: rules, memory, seconds, elements stored once."""

from __future__ import annotations

from math import isclose

from scaleacross.cost_models.embedding.coded_exchange import figures_by_table
from scaleacross.cost_models.embedding.decisions import assignment_of, priced
from scaleacross.cost_models.embedding.problem import embedding_problem
from scaleacross.errors import InputError, VerificationError
from scaleacross.spec.exchange_codec import ANY_TABLE, CodecFigures
from scaleacross.spec.recommendation import BYTES_OF, RecommendationPlan, shard_extents
from scaleacross.spec.topology import Topology
from scaleacross.units import human_bytes
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.recommendation import Dlrm


def verify_recommendation(plan: RecommendationPlan) -> None:
    """Recompute a plan and compare.

    Raises:
        VerificationError: a rule is broken, a memory overflows, rows or columns are missing, or a figure does not recompute.
    """
    job = plan.job
    model, topology = Dlrm.model_validate(job.workload), Topology.model_validate(job.topology)
    try:
        own = plan.decision
        problem = embedding_problem(job, model, topology, own.num_groups, own.replicas, own.codecs, own.driver)
        assignment = assignment_of(problem, plan.decision)
    except InputError as error:
        raise VerificationError(f"the plan breaks a rule: {error}") from None
    if own.driver not in job.drivers:
        raise VerificationError(f"vectors are moved by {own.driver}; the job allows {', '.join(job.drivers)} (drivers)")
    if plan.samples != problem.samples or (plan.samples and plan.decision.sample_rule != plan.samples[0].rule):
        raise VerificationError("samples: the rules that the plan states do not recompute")
    _require_elements(plan, model)
    _require_codecs(plan, model)
    cost, ranks = priced(problem, assignment)
    for load in ranks:
        for tier, held in load.memory_bytes.items():
            if held > load.capacity_bytes[tier]:
                over = human_bytes(held - load.capacity_bytes[tier])
                raise VerificationError(f"rank {load.rank} holds {over} more in {tier} than fits")
    stated = {
        "step_s": (plan.cost.step_s, cost.step_s),
        "busiest_rank_s": (plan.cost.busiest_rank_s, cost.busiest_rank_s),
    }
    stated |= {f"rank {own.rank}": (own.seconds, new.seconds) for own, new in zip(plan.ranks, ranks, strict=False)}
    if len(plan.ranks) != len(ranks):
        raise VerificationError(f"the plan lists {len(plan.ranks)} ranks of a group of {len(ranks)}")
    for name, (said, found) in stated.items():
        if not isclose(said, found, rel_tol=TOLERANCE, abs_tol=1e-15):
            raise VerificationError(f"{name}: the plan says {said:.9g} s, recomputed {found:.9g} s")
    if plan.report.bound_s > plan.report.objective_s * (1 + TOLERANCE):
        raise VerificationError(f"bound {plan.report.bound_s:.9g} s above the plan's {plan.report.objective_s:.9g} s")


def _require_codecs(plan: RecommendationPlan, model: Dlrm) -> None:
    """Require measured codecs that the job allows for their tables and that keep the accuracy budget in total."""
    request, codecs = plan.job.compression, plan.decision.codecs
    if not codecs:
        return
    if request is None:
        raise VerificationError("the plan codes vectors, but its job states no compression")
    figures, sizes = figures_by_table(request), {t.name: t.outputs_per_sample * t.dimension for t in model.expanded()}
    for codec in codecs:
        rows = figures.get(codec.table, figures.get(ANY_TABLE, ()))
        rates = codec.ratio, codec.encode_bytes_per_s, codec.decode_bytes_per_s
        known = [one for one in rows if one.encoder == codec.encoder and rates == (one.ratio, *_rates(one))]
        limit = request.limit_of(codec.table)
        if codec.table not in sizes or not known or not set(codec.levels) <= set(request.levels):
            raise VerificationError(
                f"table '{codec.table}': codec {codec.encoder} is not among those that the job allows"
            )
        if codec.bound_fraction > limit or codec.bound_fraction not in {one.bound_fraction or limit for one in known}:
            raise VerificationError(
                f"table '{codec.table}': bound {codec.bound_fraction:g}, its class allows {limit:g}"
            )
    mean = sum(sizes[codec.table] * codec.bound_fraction for codec in codecs) / sum(sizes.values())
    if len({codec.table for codec in codecs}) < len(codecs) or mean > request.max_mean_bound_fraction * (1 + TOLERANCE):
        raise VerificationError(
            f"mean bound {mean:.4g} of the range; the budget is {request.max_mean_bound_fraction:g}"
        )


def _rates(one: CodecFigures) -> tuple[float, float]:
    return one.encode_bytes_per_s, one.decode_bytes_per_s


def _require_elements(plan: RecommendationPlan, model: Dlrm) -> None:
    """Require shards that cover every table once (data-parallel: once per rank) and fit the ranks' stated memory."""
    placed = {placement.table: placement for placement in plan.decision.tables}
    weights = dict.fromkeys(range(len(plan.ranks)), 0.0)
    for table in model.expanded():
        extents = shard_extents(placed[table.name], table.rows, table.dimension)
        copies = len(extents) if placed[table.name].sharding == "data_parallel" else 1
        elements = sum(rows * columns for _, _, rows, _, columns in extents)
        if elements != copies * table.num_elements:
            raise VerificationError(
                f"table '{table.name}': shards hold {elements:,} of {table.num_elements:,} elements"
            )
        for rank, _, rows, _, columns in extents:
            weights[rank] = weights.get(rank, 0.0) + rows * columns * BYTES_OF[plan.job.table_precision]
    for load in plan.ranks:
        if weights[load.rank] > sum(load.memory_bytes.values()):
            raise VerificationError(f"rank {load.rank}: weights alone take more than the memory that the plan states")
