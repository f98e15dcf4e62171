"""Small problems for the tests of embedding tables."""

from __future__ import annotations

import random

import numpy as np

from scaleacross.cost_models.embedding.options import Assignment, Fleet, Option, ShardingProblem, busiest, fits
from scaleacross.cost_models.embedding.torchrec import TorchRecMachine, torchrec_options
from scaleacross.spec.recommendation import SHARDINGS
from scaleacross.workloads.recommendation import EmbeddingTable

GIB_PER_S = 2**30 / 1e3  # bytes per ms
KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")


def fleet_of(num_ranks: int, per_host: int, hbm_bytes: float = 2e9, host_bytes: float = 8e9) -> Fleet:
    """A topology of equal ranks in equal hosts."""
    capacity = np.tile(np.floor([hbm_bytes, host_bytes, 0.0]), (num_ranks, 1))
    hosts = tuple(rank // per_host for rank in range(num_ranks))
    units = tuple(np.arange(first, first + per_host) for first in range(0, num_ranks, per_host)) if per_host > 1 else ()
    return Fleet(np.zeros(num_ranks, dtype=int), capacity, units, ("b",) * num_ranks, hosts)


def torchrec_problem(
    tables: tuple[EmbeddingTable, ...], num_ranks: int, per_host: int, batch: int = 512, hbm_bytes: float = 2e9
) -> ShardingProblem:
    """Tables by TorchRec's estimator at 1,555 GiB/s of HBM, 300 GiB/s in a host, 25 GiB/s between hosts."""
    machine = TorchRecMachine(
        num_ranks, per_host, hbm=1555 * GIB_PER_S, intra_host=300 * GIB_PER_S, inter_host=25 * GIB_PER_S
    )
    options = tuple(torchrec_options(table, machine, batch, SHARDINGS, KERNELS) for table in tables)
    return ShardingProblem(tables, options, fleet_of(num_ranks, per_host, hbm_bytes))


def random_tables(count: int, seed: int) -> tuple[EmbeddingTable, ...]:
    """Tables of many sizes."""
    dice = random.Random(seed)
    return tuple(
        EmbeddingTable(
            name=f"t{index}",
            rows=int(10 ** dice.uniform(1, 6.5)),
            dimension=dice.choice((16, 64, 128, 256)),
            pooling=(round(dice.uniform(1, 40), 1),),
        )
        for index in range(count)
    )


def every_place(problem: ShardingProblem, option: Option) -> list[np.ndarray]:
    """All sets of ranks that an option may use."""
    ranks = problem.fleet.num_ranks
    if option.spread == "all":
        return [np.arange(ranks)]
    if option.spread == "unit":
        return list(problem.fleet.units)
    places = [()]
    for _ in range(option.num_shards):
        places = [(*place, rank) for place in places for rank in range(place[-1] if place else 0, ranks)]
    host = problem.fleet.host
    return [
        np.array(p) for p in places if option.sharding != "table_column_wise" or len({host[rank] for rank in p}) == 1
    ]


def best_by_trying(problem: ShardingProblem) -> float:
    """Seconds of the best plan, by trying all plans."""
    found = float("inf")

    def grow(option: tuple[int, ...], ranks: tuple[np.ndarray, ...]) -> None:
        nonlocal found
        table = len(option)
        if table == len(problem.tables):
            assignment = Assignment(option, ranks)
            if fits(problem, assignment):
                found = min(found, busiest(problem, assignment))
            return
        for index, own in enumerate(problem.options[table]):
            for place in every_place(problem, own):
                grow((*option, index), (*ranks, place))

    grow((), ())
    return found
