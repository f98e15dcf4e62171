"""Heterogeneous layers and batches in launch files, and ring orders compared with every other order."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from plans import TITAN_ORDER, make_plan, two_buildings

import scaleacross as sa
from scaleacross.emitters.launch import launch_config
from scaleacross.emitters.megatron import megatron_arguments
from scaleacross.emitters.megatron import render as megatron
from scaleacross.emitters.torchtitan import render as torchtitan
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import Placement, devices
from scaleacross.spec.plan import BatchShare, Plan

DEGREES = Degrees(tp=4, pp=1, dp_shard=1, dp_replicate=3)
SHARES = (
    BatchShare(buildings=("east",), num_replicas=1, num_micro_batches=10),
    BatchShare(buildings=("west",), num_replicas=2, num_micro_batches=7),
)


def unequal() -> Plan:
    """Three replicas of one host: one in east with 10 micro-batches, two in west with 7."""
    plan = make_plan(DEGREES, topology=two_buildings((1, 2)), shard="none")
    return plan.model_copy(
        update={
            "decision": plan.decision.model_copy(update={"batch_shares": SHARES}),
            "num_micro_batches": 10,
        }
    )


def test_launch_names_the_replicas_and_weighs_their_gradients() -> None:
    batches = launch_config(unequal()).replica_batches
    assert [(batch.replicas, batch.num_micro_batches) for batch in batches] == [((0,), 10), ((1, 2), 7)]
    assert [batch.gradient_weight for batch in batches] == pytest.approx([30 / 24, 21 / 24])
    assert sum(batch.gradient_weight * len(batch.replicas) for batch in batches) == pytest.approx(3.0)
    assert launch_config(make_plan(DEGREES)).replica_batches == ()


@pytest.mark.parametrize(("render", "name"), [(megatron, "Megatron-LM"), (torchtitan, "torchtitan 0.3.0")])
def test_unequal_batches_are_refused_by_name(render: object, name: str) -> None:
    with pytest.raises(sa.EmitError, match=rf"10 in east, 7 in west.*{name} runs equally many"):
        render(unequal())  # type: ignore[operator]


def test_unequal_layers_are_written_out() -> None:
    plan = make_plan(Degrees(tp=4, pp=2), num_micro_batches=8)
    unequal = plan.model_copy(update={"layers_per_stage": ((10,), (22,))})
    arguments = megatron_arguments(unequal, [])
    assert arguments[arguments.index("--pipeline-model-parallel-layout") + 1] == "Et*10|t*22L"
    assert "'layers.9'],\n" in torchtitan(unequal)["torchtitan/scaleacross_plan.py"]


@pytest.mark.parametrize("allocation", [[("east", 8), ("west", 8)], [("west", 12), ("east", 4)]])
def test_no_ring_crosses_a_level_less_often_than_ascending_ranks(allocation: list[tuple[str, int]]) -> None:
    """No ring crosses a level less often than ascending ranks.

    The test tries every cyclic order of groups of 4 ranks 4 apart, on host, zone and building.
    """
    topology = two_buildings((2, 3))
    shares = [{"building": name, "num_accelerators": count} for name, count in allocation]
    where = list(devices(topology, Placement.model_validate({"axis_order": TITAN_ORDER, "fill": shares})))
    for first in range(4):
        group = [where[first + 4 * rank] for rank in range(4)]
        for unit in (lambda d: (d.building, d.host), lambda d: (d.building, d.zone), lambda d: d.building):
            crossings = [
                sum(unit(here) != unit(there) for here, there in pairwise((*ring, ring[0])))
                for ring in permutations(group)
            ]
            assert crossings[0] == min(crossings)  # permutations start with the order given
