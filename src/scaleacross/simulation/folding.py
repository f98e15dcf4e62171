"""Which parts of a machine do the same: blocks, groups and links in classes, so that one of each class is played for all.

Classes come from colour refinement (Weisfeiler and Leman): things start with what is known of each by itself and are told
apart by what they are related to, round by round, until nothing new is told apart. Then every block of a class is in as many
groups of each class, every link of a class carries as many of each, and a run of one per class is the run of all: loads of a
link class are those of each of its links. Proved against runs that fold nothing (tests).

Where zones and groups are not aligned, refinement goes on to tell things apart by their distance from an irregularity, far beyond
what matters. It stops at a number of block classes; loads of a link class are then the mean over its links.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.simulation.fabric import Floats, Ints

Hashes = NDArray[np.uint64]


class Relation(NamedTuple):
    """``source[i]`` is related to ``target[i]`` in the way ``label[i]``; both ends take notice."""

    source: Ints
    target: Ints
    label: Floats


class Classes(NamedTuple):
    """Classes of all things together.

    Attributes:
        of: (things,) class of each.
        first: (classes,) lowest thing of each class: the one that is played.
        exact: refinement came to its end.
    """

    of: Ints
    first: Ints
    exact: bool


def unfolded(count: int) -> Classes:
    """Everything in a class of its own."""
    return Classes(np.arange(count), np.arange(count), True)


def refine(initial: Ints, relations: Sequence[Relation], num_blocks: int, max_blocks: int) -> Classes:
    """The coarsest classes that ``relations`` do not tell apart.

    Args:
        initial: (things,) number of what is known of each thing by itself.
        num_blocks: the first things, whose classes are counted.
        max_blocks: stop before more classes of blocks than this.
    """
    colour = _mixed(initial.astype(np.uint64))
    count = len(np.unique(colour))
    labels = [_mixed(np.round(relation.label * 2.0**20).astype(np.int64).view(np.uint64)) for relation in relations]
    exact = True
    while True:
        heard = np.zeros(len(colour), dtype=np.uint64)
        for number, (relation, label) in enumerate(zip(relations, labels, strict=True)):
            way = np.uint64(2 * number + 1)
            np.add.at(heard, relation.source, _mixed(_mixed(colour[relation.target] + label) + way))
            np.add.at(heard, relation.target, _mixed(_mixed(colour[relation.source] + label) + way + np.uint64(1)))
        finer = _mixed(colour + _mixed(heard))
        more = len(np.unique(finer))
        if more == count:
            break
        if len(np.unique(finer[:num_blocks])) > max_blocks:
            exact = False
            break
        colour, count = finer, more
    _, first, of = np.unique(colour, return_index=True, return_inverse=True)
    return Classes(of, first, exact)


def mean_loads(
    rows: Ints, links: Ints, loads: Floats, row_class: Ints, link_class: Ints, num_links: Ints
) -> dict[int, list[tuple[int, float]]]:
    """Row class -> (link class, load of all rows of the class on each link of it).

    Args:
        rows, links, loads: of a pattern.
        row_class: (rows,) class of each row; ``link_class``: (links,) of each link; ``num_links``: links of each class.
    """
    width = int(link_class.max(initial=0)) + 1
    key, inverse = np.unique(row_class[rows] * width + link_class[links], return_inverse=True)
    total = np.bincount(inverse, loads, len(key))
    out: dict[int, list[tuple[int, float]]] = {}
    for pair, load in zip(key.tolist(), total.tolist(), strict=True):
        row, link = divmod(pair, width)
        out.setdefault(row, []).append((link, load / int(num_links[link])))
    return out


def _mixed(values: Hashes) -> Hashes:
    """A well-mixed 64-bit number for each (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
