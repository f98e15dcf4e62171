"""Messages between two buildings queue on one link: totals by hand, and two ways to time them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import generate


@pytest.mark.parametrize("link_s", [None, np.zeros((4, 6))])
def test_messages_back_to_the_first_rank_queue_between_two_buildings_alone(link_s: Floats | None) -> None:
    """Messages back to the first rank queue only between two buildings.

    Twelve forward messages go from rank 1 to rank 2 and six backward ones from rank 0 to rank 2. All use one link for
    10 s each.
    """
    schedule, crossing = generate("Interleaved1F1B", 3, 6, 2), np.array([False, True, True, False, True])

    def total_s(crossing: Bools | None, occupancy_s: float = 10.0) -> float:
        far = occupancy_s * np.array([False, True, True, False, True])
        return time_schedule(schedule, 1.0, 1.0, 0.0, far, link_s=link_s, crossing=crossing).total_s

    assert total_s(crossing) >= 18 * 10
    assert total_s(np.ones(5, dtype=bool)) == total_s(None) < 18 * 10  # every pair of ranks has its own link
    assert total_s(crossing, 0.01) == pytest.approx(total_s(None, 0.01))


@pytest.mark.parametrize("seed", range(20))
def test_queues_of_messages_are_those_of_passes_that_share_links(seed: int) -> None:
    """Message queues agree with the timing of passes that share links.

    Both serve messages in the order in which they are ready.
    """
    rng = random.Random(seed)
    name, p, v = rng.choice(["Interleaved1F1B", "InterleavedZeroBubble"]), rng.randint(2, 5), rng.randint(2, 3)
    schedule = generate(name, p, p * rng.randint(2, 4), v)
    border = rng.randrange(p - 1)
    crossing = np.array([at % p in (border, p - 1) for at in range(p * v - 1)])
    far = np.where(crossing, rng.uniform(0.1, 9.0), 0.0)
    seconds = [rng.uniform(0.5, 3.0) for _ in range(p * v)], [rng.uniform(0.5, 3.0) for _ in range(p * v)]
    apart, shared = (
        time_schedule(schedule, *seconds, 0.1 * far, far, weight_s=0.3, link_s=link_s, crossing=crossing)
        for link_s in (None, np.zeros((4, p * v)))
    )
    assert apart.total_s == pytest.approx(shared.total_s, rel=1e-9)
    assert apart.total_s >= time_schedule(schedule, *seconds, 0.1 * far, far, weight_s=0.3).total_s * (1 - 1e-12)
