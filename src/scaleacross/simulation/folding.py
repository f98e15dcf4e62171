"""Equivalence classes of blocks, groups and links, so that the simulation runs one of each class for all.

``machine`` calls ``refine`` with the facts and relations of ``first_classes``. *Things* are blocks, groups and links
together.

Classes come from colour refinement (Weisfeiler and Leman). Things start with a colour for their own facts. Every round
splits colours by the colours of related things, until a round splits nothing. Then all blocks of a class are in equally
many groups of each class, and all links of a class carry equally many groups of each. A run of one thing per class
therefore equals the run of all, and the loads of a link class are those of each of its links. Tests compare with runs
without folding.

Where zones and groups are not aligned, refinement would go on to separate things by their distance from an
irregularity, far beyond what matters. It stops at a number of block classes. Groups are then separated by the
classes of their members alone. All groups of a block class share one class, so that the simulated one represents all.
Links are separated by the classes that load them, and loads of a link class are the mean over its links.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.simulation.fabric import Floats, Ints

Hashes = NDArray[np.uint64]


class Relation(NamedTuple):
    """Edges with labels: ``source[i]`` is related to ``target[i]`` by ``label[i]``. Both ends are split by it."""

    source: Ints
    target: Ints
    label: Floats


class Classes(NamedTuple):
    """Classes of all things.

    Attributes:
        of: (things,) class of each thing.
        first: (classes,) lowest thing of each class: the one that is simulated.
        exact: whether refinement ended by itself.
    """

    of: Ints
    first: Ints
    exact: bool


def unfolded(count: int) -> Classes:
    """Return classes of one thing each."""
    return Classes(np.arange(count), np.arange(count), True)


def refine(initial: Ints, relations: Sequence[Relation], num_blocks: int, max_blocks: int, first_link: int) -> Classes:
    """Return the coarsest classes whose things ``relations`` do not distinguish.

    Args:
        initial: (things,) number of each thing's own facts.
        num_blocks: number of blocks, which are the first things.
        max_blocks: largest number of classes of blocks; refinement stops before it is exceeded.
        first_link: the first link; things between the blocks and this one are groups.
    """
    colour = _mixed(initial.astype(np.uint64))
    count = len(np.unique(colour))
    labels = [_mixed(np.round(relation.label * 2.0**20).astype(np.int64).view(np.uint64)) for relation in relations]
    exact = True
    while True:
        heard = np.zeros(len(colour), dtype=np.uint64)
        # a sum of mixed numbers stands for the multiset of neighbours: it does not depend on their order
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
            colour = _by_blocks(initial, relations, colour[:num_blocks], first_link)
            break
        colour, count = finer, more
    _, first, of = np.unique(colour, return_index=True, return_inverse=True)
    return Classes(of, first, exact)


def _by_blocks(initial: Ints, relations: Sequence[Relation], blocks: Hashes, first_link: int) -> Hashes:
    """Return the colours of all things from those of the blocks, where refinement stopped early (see the module)."""
    _, of = np.unique(blocks, return_inverse=True)
    count = len(initial)
    colour = np.concatenate(
        [of, initial[len(of) :] + (len(relations) + 1) * count]
    )  # groups and links in ranges of their own
    for number, relation in enumerate(relations, start=1):
        if len(relation.target) and len(of) <= relation.target[0] < first_link:
            colour[relation.target] = number * count + _connected(of[relation.source], relation.target)
    mixed = _mixed(colour.astype(np.uint64))
    for number, relation in enumerate(relations):
        if len(relation.target) and relation.target[0] >= first_link:
            numbers, number_of = np.unique(colour[relation.source], return_inverse=True)
            target, heard = np.divmod(np.unique(relation.target * len(numbers) + number_of), len(numbers))
            np.add.at(mixed, target, _mixed(_mixed(numbers[heard].astype(np.uint64)) + np.uint64(number)))
    return mixed


def _connected(of_member: Ints, group: Ints) -> Ints:
    """Return (memberships,) a number of each membership's group, equal for groups that share a class of members."""
    first = int(group.min())
    label = np.arange(int(of_member.max()) + 1)
    # the lowest label spreads over connected groups and classes until nothing changes
    while True:
        lowest = np.full(int(group.max()) - first + 1, len(label))
        np.minimum.at(lowest, group - first, label[of_member])
        fewer = label.copy()
        np.minimum.at(fewer, of_member, lowest[group - first])
        if (fewer == label).all():
            return lowest[group - first]
        label = fewer


def mean_loads(
    rows: Ints, links: Ints, loads: Floats, row_class: Ints, link_class: Ints, num_links: Ints
) -> dict[int, list[tuple[int, float]]]:
    """Return row class -> (link class, load of all rows of the class per link of the link class).

    Args:
        rows, links, loads: entries of a pattern.
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
    """Return a hash of each 64-bit number (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
