"""Column shards inside one host: in plans, compared with all plans, and with their bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embedding_tables import best_by_trying, random_tables, torchrec_problem
from scaleacross.cost_models.embedding.options import Assignment, Fleet, ShardingProblem, fits
from scaleacross.solvers.embeddings.choices import alike_tables
from scaleacross.solvers.embeddings.exact import solve_part, whole_part
from scaleacross.solvers.embeddings.hosts import inside_hosts
from scaleacross.solvers.embeddings.search import shard_embeddings

WAYS = ("table_column_wise", "table_wise", "row_wise")


def problem_of(seed: int, fleet: Fleet | None = None, ways: tuple[str, ...] = WAYS) -> ShardingProblem:
    """A problem of two tables on four ranks in two hosts, whose columns stay inside one host."""
    problem = torchrec_problem(random_tables(2, seed), 4, 2)
    options = tuple(tuple(o for o in own if o.sharding in ways and o.kernel == "fused") for own in problem.options)
    return replace(problem, options=options, fleet=fleet or problem.fleet)


def unequal_hosts() -> Fleet:
    """Hosts of one and of three ranks. No table is split by rows over them."""
    return replace(problem_of(0).fleet, units=(), host=(0, 1, 1, 1))


def confined(problem: ShardingProblem, assignment: Assignment) -> bool:
    chosen = [own[index] for own, index in zip(problem.options, assignment.option, strict=True)]
    return all(
        option.sharding != "table_column_wise" or len({problem.fleet.host[rank] for rank in ranks}) == 1
        for option, ranks in zip(chosen, assignment.ranks, strict=True)
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fleet", [None, unequal_hosts()], ids=["equal hosts", "unequal hosts"])
@pytest.mark.parametrize("ways", [WAYS, WAYS[:1]], ids=["three ways", "columns alone"])
def test_the_best_of_all_plans_with_columns_inside_a_host(
    seed: int, fleet: Fleet | None, ways: tuple[str, ...]
) -> None:
    problem = problem_of(seed, fleet, ways)
    best = best_by_trying(problem)
    found = shard_embeddings(problem, time_limit_s=5, gap_tolerance=1e-4)
    assert found.assignment is not None and fits(problem, found.assignment)
    assert confined(problem, found.assignment)
    assert found.objective_s == pytest.approx(best, rel=2e-4)
    assert found.bound_s <= best * (1 + 1e-9)
    assert found.gap <= 2e-4  # the constraint program knows of hosts, so that it proves the plan


def test_the_constraint_program_keeps_columns_inside_hosts() -> None:
    problem = problem_of(1, ways=WAYS[:1])
    solved = solve_part(problem, whole_part(problem), 1.0, 5.0, 0)
    assert solved.found is not None
    own = [solved.found[table] for table in range(2)]
    assert confined(problem, Assignment(tuple(index for index, _ in own), tuple(ranks for _, ranks in own)))


def test_a_plan_is_put_inside_hosts_and_one_that_is_stays() -> None:
    problem = problem_of(1, ways=WAYS[:1])
    widest = [max(range(len(own)), key=lambda index: own[index].num_shards) for own in problem.options]
    astray = Assignment(tuple(widest), (np.array([0, 2]),) * 2)
    problem = replace(
        problem,
        options=tuple((replace(own[at], num_shards=2),) for own, at in zip(problem.options, widest, strict=True)),
    )
    astray = replace(astray, option=(0, 0))
    inside = inside_hosts(problem, astray)
    assert not confined(problem, astray) and confined(problem, inside)
    assert {tuple(map(int, ranks)) for ranks in inside.ranks} == {(0, 1), (2, 3)}, "the hosts share the work"
    assert inside_hosts(problem, inside) is inside


def test_columns_on_any_ranks_are_not_given_up_for_columns_inside_a_host() -> None:
    problem = problem_of(1)
    whole = next(option for option in problem.options[0] if option.sharding == "table_wise")
    wide, narrow = (
        replace(whole, sharding=sharding, num_shards=2, parts=whole.parts / 2)
        for sharding in ("column_wise", "table_column_wise")
    )
    for options in ((wide, narrow), (narrow, wide)):
        only = replace(problem, tables=problem.tables[:1], options=(options,))
        assert [option for group in alike_tables(only) for _, option in group.options] == [wide]
