"""The buildings that ranks touch, for ``layout``, as a compiled loop over blocks of global ranks."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Bools, Ints
from scaleacross.machine_code import compiled


@compiled
def touched_by_class(cells: Ints, blocks: Ints, replicas: int, stages: int) -> tuple[Ints, Bools, Bools]:
    """Return the replicas of every class, (classes,), and which buildings it touches.

    These are (classes, buildings) for all of its stages and (classes, stages, buildings) for each. Classes are in the
    order of their first replica.

    Args:
        cells: replica · stages + stage of every block of global ranks.
        blocks: first block of every building, and the one after its last, (buildings, 2).
    """
    buildings = len(blocks)
    touched = np.zeros((replicas, stages, buildings), dtype=np.bool_)
    flat = touched.reshape(replicas * stages, buildings)
    for building in range(buildings):
        for block in range(blocks[building, 0], min(blocks[building, 1], len(cells))):
            flat[cells[block], building] = True
    here = np.zeros((replicas, buildings), dtype=np.bool_)
    first, number, kind = np.zeros(replicas, dtype=np.int64), 0, np.zeros(replicas, dtype=np.int64)
    for replica in range(replicas):
        for stage in range(stages):
            for building in range(buildings):
                here[replica, building] |= touched[replica, stage, building]
        found = kind[replica - 1] if replica else 0
        if found == number or not _same(here, first[found], replica):  # most replicas are of the class before
            found = 0
            while found < number and not _same(here, first[found], replica):
                found += 1
        kind[replica] = found
        if found == number:
            first[number] = replica
            number += 1
    counts, out = np.zeros(number, dtype=np.int64), np.zeros((number, stages, buildings), dtype=np.bool_)
    for replica in range(replicas):
        counts[kind[replica]] += 1
        for stage in range(stages):
            for building in range(buildings):
                out[kind[replica], stage, building] |= touched[replica, stage, building]
    return counts, here[first[:number]], out


@compiled
def _same(here: Bools, one: int, other: int) -> bool:
    """Whether two replicas touch the same buildings."""
    for building in range(here.shape[1]):  # noqa: SIM110 - numba compiles no generators into all()
        if here[one, building] != here[other, building]:
            return False
    return True
