"""Layers whose calls wait for messages: seconds worked out by hand, and a plan whose building ends inside groups of cp."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scaleacross.api import evaluation
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.pipeline.message_waits import MessageWaits
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import generate
from scaleacross.spec.plan import Decision


def waits(ahead_s: float, hidden_s: float, more_s: float, layers: int = 1) -> MessageWaits:
    """Of two ranks with a chunk each; the calls of rank 0 wait."""
    here = np.array([[1.0, 0.0]] * 3 + [[0.0, 0.0]])
    return MessageWaits((layers * here).astype(int), ahead_s * here, hidden_s * here, more_s * here)


@pytest.mark.parametrize(
    ("own", "seconds"),
    [
        (waits(0.0, 0.0, 99.0), 4.0),  # the second pass begins at 1, when the first message is through at 4: 3 s later
        (waits(0.0, 0.5, 99.0), 3.5),  # attention hides 0.5 s
        (waits(0.25, 0.5, 99.0), 3.25),  # and 0.25 s pass before the call
        (waits(0.0, 0.0, 2.0), 3.0),  # the call shares the trunk, and is through 2 s later
        (waits(0.25, 0.5, 2.0), 2.5),
        (waits(0.0, 3.5, 99.0), 1.0),  # all hidden
        (waits(0.0, 0.0, 99.0, layers=2), 4.0),  # the second layer finds the trunk free
        (waits(0.0, 0.0, 1.0, layers=2), 3.0),  # both layers share it
    ],
)
def test_a_layer_waits_for_messages_as_far_as_nothing_hides_it(own: MessageWaits, seconds: float) -> None:
    schedule, idle = generate("1F1B", 2, 2, 1), np.zeros((4, 2))
    times = time_schedule(schedule, 1.0, 1.0, 0.0, 3.0, link_s=idle, waits=own, crossing=np.array([True]))
    assert times.finish_s[0][1] - times.start_s[0][1] == pytest.approx(seconds)
    assert times.finish_s[1][0] - times.start_s[1][0] == pytest.approx(1.0)  # nobody else waits


def test_messages_that_stay_in_buildings_keep_nobody_waiting() -> None:
    schedule, idle = generate("1F1B", 2, 2, 1), np.zeros((4, 2))
    near = np.array([False])
    times = time_schedule(schedule, 1.0, 1.0, 0.0, 3.0, link_s=idle, waits=waits(0.0, 0.0, 99.0), crossing=near)
    assert times.finish_s[0][1] - times.start_s[0][1] == pytest.approx(1.0)


@pytest.mark.parametrize("link_s", [None, np.zeros((4, 6))])
def test_messages_back_to_the_first_rank_queue_between_two_buildings_alone(link_s: Floats | None) -> None:
    """Twelve forward messages from rank 1 to rank 2 and six backward ones from rank 0 to rank 2 pass one trunk, 10 s each."""
    schedule, crossing = generate("Interleaved1F1B", 3, 6, 2), np.array([False, True, True, False, True])

    def total_s(crossing: Bools | None, occupancy_s: float = 10.0) -> float:
        far = occupancy_s * np.array([False, True, True, False, True])
        return time_schedule(schedule, 1.0, 1.0, 0.0, far, link_s=link_s, crossing=crossing).total_s

    assert total_s(crossing) >= 18 * 10
    assert total_s(np.ones(5, dtype=bool)) == total_s(None) < 18 * 10  # every pair of ranks has its own
    assert total_s(crossing, 0.01) == pytest.approx(total_s(None, 0.01))


@pytest.mark.parametrize("seed", range(20))
def test_queues_of_messages_are_those_of_passes_that_share_links(seed: int) -> None:
    """Both plays serve messages in the order in which they are ready."""
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


@pytest.mark.parametrize(("ratio", "exposed_s"), [(1, 0.012), (16, 4.89)])
def test_a_building_that_ends_inside_a_group_of_cp_makes_it_wait(ratio: int, exposed_s: float) -> None:
    """One group of 4,096 crosses the trunk, and 2,048 pipelines; simulated, cp and dp take 5.5 s, by estimate 5.2 s."""
    decision = {
        "degrees": {"tp": 8, "cp": 4, "pp": 8, "dp_shard": 64},
        "pipeline": {"schedule": "Interleaved1F1B", "num_chunks": 4},
        "recompute": "none",
        "shard": "optimizer",
        "placement": {
            "axis_order": ["dp_replicate", "tp", "cp", "dp_shard", "pp"],
            "fill": [
                {"building": "building-b", "num_accelerators": 6384},
                {"building": "building-a", "num_accelerators": 10000},
            ],
        },
    }
    problem = problem_of("llama3_405b_two_buildings", (f"topology.trunks.0.oversubscription_ratio={ratio}",))
    cost = evaluation.evaluated(problem, Decision.model_validate(decision), degraded=False).cost
    assert cost.component("cp") == pytest.approx(exposed_s, abs=0.01)
