"""Collectives in one and two dimensions agree with ASTRA-sim's published times.

Our simulator runs them message by message.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest
from golden_tables import compare, rows

from oracles.messages import Route, add_collective
from scaleacross.schedules import collective as c
from scaleacross.simulation.engine import Simulation

GIB: Final = 2.0**30
OPERATION: Final = c.Operation


def phases(op: str, dimensions: int) -> list[tuple[int, c.Operation]]:
    """Phases of a chunk, dimension by dimension.

    It scatters inwards, all-reduces on the outermost dimension, and gathers on the way back.
    """
    if op == "all_gather":
        return [(at, OPERATION.ALL_GATHER) for at in reversed(range(dimensions))]
    inner = range(dimensions - 1)
    scatter, gather = ([(at, kind) for at in inner] for kind in (OPERATION.REDUCE_SCATTER, OPERATION.ALL_GATHER))
    return [*scatter, (dimensions - 1, OPERATION.ALL_REDUCE), *gather[::-1]]


def simulated_ns(row: dict[str, Any], size: float) -> float:
    """Nanoseconds of chunks that use the dimensions one after another.

    Each dimension works on one chunk at a time, and every rank has a link of its own in each.
    """
    shape, count = row["shape"], math.prod(row["shape"])
    strides = np.cumprod([1, *shape[:-1]]).tolist()
    links = Simulation(np.full(2 * count * len(shape), row["bandwidth_gib_per_s"] * GIB))
    latency = (row["hops"] * row["link_latency_ns"] + row["endpoint_ns"]) * 1e-9
    reduction = row["local_memory_gbyte_per_s"] * 1e9 / row["passes_over_memory"]
    done: list[list[list[int]]] = [[[] for _ in range(count)] for _ in range(row["chunks"])]
    busy: list[list[list[int]]] = [[[] for _ in range(count)] for _ in shape]
    held = [size / row["chunks"]] * row["chunks"]
    for at, kind in phases(row["op"], len(shape)):
        ring = c.flat(kind, "ring", shape[at])
        for chunk in range(row["chunks"]):
            if kind is OPERATION.ALL_GATHER:
                held[chunk] *= shape[at]
            after = [[*done[chunk][rank], *busy[at][rank]] for rank in range(count)]
            for first in (rank for rank in range(count) if rank // strides[at] % shape[at] == 0):
                members = [first + place * strides[at] for place in range(shape[at])]

                def route(a: int, b: int, at: int = at, members: list[int] = members) -> Route:
                    ends = (2 * at * count + members[a], (2 * at + 1) * count + members[b])
                    return Route([(link, 1.0) for link in ends], latency)

                block = held[chunk] / ring.num_blocks
                ended = add_collective(
                    links,
                    ring,
                    route,
                    lambda _, block=block: block,  # type: ignore[misc]
                    lambda a, members=members, after=after: after[members[a]],  # type: ignore[misc]
                    reduction,
                )
                for rank, ends in zip(members, ended, strict=True):
                    done[chunk][rank] = busy[at][rank] = ends
            if kind is OPERATION.REDUCE_SCATTER:
                held[chunk] /= shape[at]
    return links.run().total_s * 1e9


@pytest.mark.heavy
@pytest.mark.parametrize("row", rows("astra_sim"))
def test_collectives_take_what_astra_sim_says(row: dict[str, Any]) -> None:
    for size_kib, published in zip(row["sizes_kib"], row["published_ns"], strict=True):
        compare(simulated_ns(row, size_kib * 1024.0), published, row["tolerance"], "ns")
