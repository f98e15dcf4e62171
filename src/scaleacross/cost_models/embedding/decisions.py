"""Conversion between a search's assignment and a plan's decision, and the cost of either, rank by rank."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.embedding.options import (
    EXCHANGE,
    LOOKUP,
    SYNC,
    Assignment,
    Option,
    ShardingProblem,
    loads_of,
)
from scaleacross.cost_models.embedding.problem import EmbeddingProblem
from scaleacross.errors import InputError
from scaleacross.spec.exchange_codec import TableCodec
from scaleacross.spec.recommendation import (
    TIERS,
    EmbeddingCost,
    RankLoad,
    RecommendationDecision,
    TablePlacement,
    adds_partial_sums,
)


def decision_of(
    problem: EmbeddingProblem, assignment: Assignment, codecs: tuple[TableCodec, ...] = ()
) -> RecommendationDecision:
    """Decision of a plan for an assignment, with codecs of tables whose vectors travel coded."""
    own, placements = problem.sharding, []
    for table, options, index, ranks in zip(own.tables, own.options, assignment.option, assignment.ranks, strict=True):
        option = options[index]
        placements.append(
            TablePlacement(
                table=table.name,
                sharding=option.sharding,
                kernel=option.kernel,
                ranks=tuple(map(int, ranks)),
                column_width=option.column_width,
                cache_fraction=option.cache_fraction,
            )
        )
    return RecommendationDecision(
        num_groups=problem.num_groups,
        replicas=problem.replicas,
        tables=tuple(placements),
        codecs=codecs,
        sample_rule=problem.samples[0].rule if problem.samples else None,
    )


def assignment_of(problem: EmbeddingProblem, decision: RecommendationDecision) -> Assignment:
    """The assignment that a plan's decision states.

    Raises:
        InputError: a table is missing, twice there or unknown, or its placement is not allowed by job, topology or
            rules.
    """
    own = problem.sharding
    stated = {placement.table: placement for placement in decision.tables}
    names = [table.name for table in own.tables]
    wrong = sorted(set(stated) ^ set(names))
    if wrong or len(decision.tables) != len(names):
        what = f"'{wrong[0]}' is in only one of plan and model" if wrong else "a table is placed twice"
        raise InputError(f"tables of the plan are not those of the model: {what}")
    chosen = [_option_of(own, number, stated[name]) for number, name in enumerate(names)]
    for table, (index, options) in zip(names, zip(chosen, own.options, strict=True), strict=True):
        _require_ranks(own, stated[table], options[index])
    return Assignment(tuple(chosen), tuple(np.array(stated[name].ranks) for name in names))


def _option_of(problem: ShardingProblem, number: int, placement: TablePlacement) -> int:
    wanted = (placement.sharding, placement.kernel, placement.column_width)
    alike = [index for index, option in enumerate(problem.options[number]) if option.kind[:3] == wanted]
    share = placement.cache_fraction
    found = [index for index in alike if share in (None, problem.options[number][index].cache_fraction)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"table '{placement.table}': {placement.kernel} states no cache_fraction, and the job allows {len(found)}"
        )
    cache = "" if share is None else f", a cache of {share:g}"
    raise InputError(
        f"table '{placement.table}': {placement.sharding} with {placement.kernel}{cache} and {placement.column_width} columns "
        "is not among its options; the job's shardings, kernels and cache_fraction and the topology's memories say which are"
    )


def _require_ranks(problem: ShardingProblem, placement: TablePlacement, option: Option) -> None:
    ranks, fleet = placement.ranks, problem.fleet
    everyone = tuple(range(fleet.num_ranks))
    if any(rank >= fleet.num_ranks for rank in ranks):
        raise InputError(f"table '{placement.table}': rank {max(ranks)} of {fleet.num_ranks} in a group")
    if option.spread == "all" and ranks != everyone:
        raise InputError(f"table '{placement.table}': {placement.sharding} is on all {fleet.num_ranks} ranks")
    if option.spread == "unit" and not any(ranks == tuple(map(int, unit)) for unit in fleet.units):
        raise InputError(f"table '{placement.table}': {placement.sharding} is on all ranks of one host")
    if option.spread == "one" and len(ranks) != option.num_shards:
        raise InputError(f"table '{placement.table}': {option.num_shards} shards on {len(ranks)} ranks")
    if option.in_one_host and len(np.unique(fleet.host_of[list(ranks)])) > 1:
        raise InputError(f"table '{placement.table}': table_column_wise stays inside one host")


def priced(problem: EmbeddingProblem, assignment: Assignment) -> tuple[EmbeddingCost, tuple[RankLoad, ...]]:
    """Cost of the step, and seconds and bytes of every rank of a group."""
    fleet = problem.sharding.fleet
    parts, memory = loads_of(problem.sharding, assignment)
    taken = _taken_s(problem, assignment, parts[:, EXCHANGE])
    ranks = tuple(
        RankLoad(
            rank=rank,
            building=fleet.building[rank],
            host=fleet.host[rank],
            seconds=float(parts[rank].sum()),
            lookup_s=float(parts[rank, LOOKUP]),
            exchange_s=float(parts[rank, EXCHANGE]),
            sync_s=float(parts[rank, SYNC]),
            taken_s=float(taken[rank]),
            memory_bytes=dict(zip(TIERS, map(float, memory[rank]), strict=True)),
            capacity_bytes=dict(zip(TIERS, map(float, fleet.capacity[rank]), strict=True)),
        )
        for rank in range(fleet.num_ranks)
    )
    return problem.cost(float(parts.sum(axis=1).max()), float(taken.max())), ranks


def _taken_s(problem: EmbeddingProblem, assignment: Assignment, exchange_s: Floats) -> Floats:
    """Seconds that exchanges take from concurrent products, (ranks,).

    Gradients of copies and partial sums of rows are reduced by kernels, whatever drives the all-to-alls.
    """
    own, added = problem.sharding, np.zeros(len(exchange_s))
    for table, options, choice, ranks in zip(own.tables, own.options, assignment.option, assignment.ranks, strict=True):
        sharding = options[choice].sharding
        if sharding == "data_parallel" or adds_partial_sums(sharding, table.pooled):
            np.add.at(added, ranks, options[choice].parts[own.fleet.rank_class[ranks], EXCHANGE])
    kernels, driver = problem.taken
    taken: Floats = kernels * added + driver * (exchange_s - added)
    return taken
