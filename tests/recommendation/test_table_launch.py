"""launch.json of a recommendation plan: where its ranks run."""

from __future__ import annotations

from placed_tables import mixed_plan
from scaleacross.emitters.embedding_launch import launch_config


def test_hosts_have_the_names_that_the_topology_states() -> None:
    plan = mixed_plan()
    assert isinstance(plan.job.topology, dict)
    buildings = [building for region in plan.job.topology["regions"] for building in region["buildings"]]
    for building, name in zip(buildings, ("n17", "n04"), strict=True):
        building["host_names"] = [name]
    found = launch_config(plan)
    assert [host.name for host in found.hosts] == ["n17", "n04"]
    assert [row[:2] for row in found.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_ranks_of_a_rack_that_is_one_scale_up_domain_do_not_leave_it() -> None:
    plan = mixed_plan(replica_groups=[2])
    levels = {groups.axis: groups.level for groups in launch_config(plan).process_groups}
    assert isinstance(plan.job.topology, dict)
    for region in plan.job.topology["regions"]:
        for building in region["buildings"]:
            building |= {"accelerators_per_host": 1, "num_hosts": 2, "hosts_per_rack": 2, "scale_up_domain": "rack"}
    assert {groups.axis: groups.level for groups in launch_config(plan).process_groups} == levels
    assert levels["dp_shard"] == "scale_up"
