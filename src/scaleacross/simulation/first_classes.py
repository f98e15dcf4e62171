"""Initial facts and relations of blocks, groups and links, for the refinement in ``folding``; called by ``machine``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from scaleacross.simulation.fabric import CAMPUS, Fabric, Floats, Ints
from scaleacross.simulation.folding import Relation
from scaleacross.simulation.patterns import Groups, Pattern, PatternKey


def routes(fabric: Fabric, waited: Iterable[Groups], pipeline_rank: Ints, following: Ints) -> Ints:
    """Return (blocks,) a number of each block's kind of pipeline.

    The kind says which of the pipeline's messages and ``waited`` groups cross buildings, and with which latency. If one
    rank waits for another building, all ranks of its pipeline wait in the end. A group that straddles two buildings may
    be one of thousands and still determine the step time.

    Args:
        waited: groups whose collectives computation waits for in every micro-batch.
    """
    level, _, latency = fabric.hop(np.arange(len(following)), following)
    facts = [np.where(level >= CAMPUS, latency.round(12), 0.0)]
    facts += [_crossing_s(fabric, groups) for groups in waited]
    # walk every pipeline from its first rank, so that all its blocks get the facts of all of them
    blocks = [np.flatnonzero(pipeline_rank == 0)]
    for _ in range(int(pipeline_rank.max(initial=0))):
        blocks.append(following[blocks[-1]])
    route = np.empty(len(following), dtype=np.int64)
    route[np.stack(blocks)] = _numbered(np.stack([fact[each] for each in blocks for fact in facts], axis=1))
    return route


def _crossing_s(fabric: Fabric, groups: Groups) -> Floats:
    """Return (blocks,) the summed latency between buildings once around the ring of each block's group, s."""
    out = np.zeros(fabric.num_blocks)
    members = groups.members
    level, _, latency = fabric.hop(members.reshape(-1), np.roll(members, -1, axis=1).reshape(-1))
    crossing = np.where(level >= CAMPUS, latency, 0.0).reshape(members.shape).sum(axis=1).round(12)
    out[members] = crossing[:, None]
    return out


def initial(
    fabric: Fabric,
    shapes: Mapping[str, Groups],
    streams: Mapping[PatternKey, Pattern],
    pipeline_rank: Ints,
    route: Ints,
    block_facts: Floats | None,
) -> Ints:
    """Return (things,) a number of each block's, group's and link's own facts; equal facts have equal numbers."""
    kinds = [
        (tuple(fabric.rates[:, index]), tuple(fabric.latency[:, index]), one.accelerator.name)
        for index, one in enumerate(fabric.buildings)
    ]
    kind = np.array([kinds.index(one) for one in kinds])[fabric.building]
    facts = [pipeline_rank[:, None], route[:, None], kind[:, None]] + ([] if block_facts is None else [block_facts])
    parts = [_numbered(np.concatenate([np.asarray(fact, dtype=np.float64) for fact in facts], axis=1))]
    for number, (shape, groups) in enumerate(shapes.items()):
        caps = [pattern.cap for key, pattern in streams.items() if key[0] == shape]
        latency = np.zeros(len(groups.members))
        if groups.members.shape[1] > 1:
            ends = groups.members.reshape(-1), np.roll(groups.members, -1, axis=1).reshape(-1)
            latency = fabric.hop(*ends)[2].reshape(groups.members.shape).sum(axis=1)
        rows = np.stack([np.full(len(latency), float(number)), latency.round(12), *caps], axis=1)
        parts.append(_numbered(np.where(np.isfinite(rows), rows, -1.0)))
    parts.append(_numbered(fabric.capacity[:, None]))
    shifted, base = [], 0
    for part in parts:
        shifted.append(part + base)
        base += int(part.max(initial=0)) + 1
    return np.concatenate(shifted)


def relations(
    shapes: Mapping[str, Groups],
    streams: Mapping[PatternKey, Pattern],
    offsets: Mapping[str, int],
    following: Ints | None,
) -> list[Relation]:
    """Return the relations of blocks to ports, next pipeline ranks and groups, and of streams to the links that they
    load.

    Args:
        offsets: ``Machine.offsets``.
        following: block of the next pipeline rank; None where there is only one rank.
    """
    blocks = np.arange(offsets["blocks"])
    out = [Relation(blocks, offsets["links"] + blocks, np.ones(len(blocks)))]  # every block has its port
    if following is not None:
        out.append(Relation(np.arange(len(following)), following, np.zeros(len(following))))
    for shape, groups in shapes.items():
        rows = np.broadcast_to(np.arange(len(groups.members))[:, None], groups.members.shape)
        out.append(Relation(groups.members.reshape(-1), offsets[shape] + rows.reshape(-1), np.zeros(rows.size)))
    for (shape, _), pattern in streams.items():
        base = 0 if shape == "pp" else offsets[shape]
        out.append(Relation(base + pattern.row, offsets["links"] + pattern.link, pattern.load))
    return out


def _numbered(rows: Floats) -> Ints:
    """Return (rows,) the number of each row among the distinct rows, in lexicographic order."""
    number = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            number = np.unique(number * len(values) + place, return_inverse=True)[1]
    return number
