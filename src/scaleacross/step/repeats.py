"""Which actions of a row are of one sort, so that one record stands for all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.schedules.pipeline import Action
from scaleacross.step.graph import Ints


class Repeats(NamedTuple):
    """A row in *occurrences*: before its first action, its actions, after its last one.

    Attributes:
        example: sort -> one of its actions (index in the row); not for the first and the last sort, which are no actions.
        sort: (occurrences,) of each.
        pairs: (sort of the occurrence before, or -1, and own sort), each once.
        pair: (occurrences,) which of ``pairs``.
        micro_batch: (occurrences,) of each, 0 for what is no action.
    """

    example: Sequence[int]
    sort: Ints
    pairs: Sequence[tuple[int, int]]
    pair: Ints
    micro_batch: Ints


def repeats(row: Sequence[Action], special: Collection[int], pace: Sequence[float]) -> Repeats:
    """The sorts of a row: same kind, chunk and pace.

    Args:
        special: indices of actions that are like no other.
        pace: of every action.
    """
    alike: dict[tuple[object, ...], int] = {}
    example: list[int] = []
    sort = [0]
    for index, action in enumerate(row):
        # a kind by its identity: hashing a member of an enum runs Python
        key = (index,) if index in special else (id(action.kind), action.chunk, pace[index])
        number = alike.setdefault(key, len(alike) + 1)
        if number > len(example):
            example.append(index)
        sort.append(number)
    sort.append(len(example) + 1)
    pairs: dict[tuple[int, int], int] = {}
    pair = [pairs.setdefault(both, len(pairs)) for both in zip([-1, *sort[:-1]], sort, strict=True)]
    micro_batch = np.array([0, *(action.microbatch for action in row), 0], dtype=np.int64)
    return Repeats(example, np.array(sort), tuple(pairs), np.array(pair), micro_batch)
