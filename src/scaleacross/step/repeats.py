"""Groups the actions of a row into sorts, so that one record serves all actions of a sort; called by ``program``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.schedules.pipeline import Action
from scaleacross.step.graph import Ints


class Repeats(NamedTuple):
    """A row as *occurrences*: one before its first action, its actions, and one after its last action.

    Attributes:
        example: index in the row of one action per sort, without the first and the last sort, which are no actions.
        sort: (occurrences,) sort of each.
        pairs: the distinct pairs (sort of the occurrence before, or -1; own sort).
        pair: (occurrences,) index in ``pairs`` of each.
        micro_batch: (occurrences,) micro-batch of each; 0 for the two that are no actions.
    """

    example: Sequence[int]
    sort: Ints
    pairs: Sequence[tuple[int, int]]
    pair: Ints
    micro_batch: Ints


def repeats(row: Sequence[Action], special: Collection[int], pace: Sequence[float]) -> Repeats:
    """Group a row's actions by kind, chunk and pace.

    Args:
        special: indices of actions that form a sort of their own.
        pace: pace of every action.
    """
    alike: dict[tuple[object, ...], int] = {}
    example: list[int] = []
    sort = [0]
    for index, action in enumerate(row):
        # the identity of a kind is faster than its hash, which runs Python code
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
