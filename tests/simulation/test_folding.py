"""Classes of equivalent nodes keep blocks, groups and links apart, also if refinement stops early."""

from __future__ import annotations

import numpy as np

from scaleacross.simulation.folding import Relation, refine


def test_a_stop_leaves_blocks_groups_and_links_apart() -> None:
    """If refinement stops early, blocks, groups and links still have different classes.

    Eight blocks in a row differ by their distance from the ends, and three classes are allowed. The second link is
    unused.
    """
    blocks, groups, links = np.arange(8), 8 + np.arange(8) // 2, 12
    initial = np.array([0] * 8 + [1] * 4 + [2] * 2)
    relations = [
        Relation(blocks[:-1], blocks[1:], np.zeros(7)),
        Relation(blocks, groups, np.zeros(8)),
        Relation(np.arange(8, 12), np.full(4, links), np.ones(4)),
    ]
    classes = refine(initial, relations, num_blocks=8, max_blocks=4, first_link=links)
    assert not classes.exact
    kinds = [set(part.tolist()) for part in np.split(classes.of, [8, links])]
    assert [len(kind) for kind in kinds] == [3, 1, 2]
    assert not kinds[0] & kinds[1] and not kinds[0] & kinds[2] and not kinds[1] & kinds[2]
