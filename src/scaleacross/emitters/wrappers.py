"""Thin wrappers of run_node.sh: submit_ray.py for a Ray cluster, skypilot.yaml for a plan in one building.

Both keep the rank order, because run_node.sh takes a host's rank from its line of hosts.txt. Ray: nodes by name or address,
``NodeAffinitySchedulingStrategy`` (ray 2.x). SkyPilot: a task has equal nodes in one region, numbered SKYPILOT_NODE_RANK.
"""

from __future__ import annotations

import json
from typing import Final

from scaleacross.emitters.filling import filled
from scaleacross.emitters.rank_order import RankOrder
from scaleacross.emitters.shell import Launch, one_line

RAY_FILE: Final = "submit_ray.py"
SKYPILOT_FILE: Final = "skypilot.yaml"
# SkyPilot's names (sky show-gpus) by the beginning of ours, longest first.
SKYPILOT_ACCELERATORS: Final = (
    ("a100-40gb", "A100"), ("gb200", "GB200"), ("h100", "H100"), ("h200", "H200"), ("b200", "B200"), ("b300", "B300"),
    ("a100", "A100-80GB"),
)  # fmt: skip


def ray_script(order: RankOrder, launch: Launch) -> str:
    """Return submit_ray.py; '' where the ranks of a host are not one block."""
    if order.split_host() is not None:
        return ""
    return filled("submit_ray.py.txt", plan=one_line(launch.plan_name).replace("\\", " ").replace('"', "'"))


def skypilot_task(order: RankOrder, launch: Launch) -> tuple[str, str]:
    """Return (skypilot.yaml, '') or ('', why a task of SkyPilot cannot run the plan)."""
    buildings = list(dict.fromkeys(host.building for host in order.hosts))
    sizes = sorted({host.num_ranks for host in order.hosts})
    types = sorted({_accelerator(name) for name in order.accelerators})
    if len(buildings) > 1:
        return "", f"a task of SkyPilot stands in one region; this plan uses {', '.join(buildings)}"
    if len(sizes) > 1 or len(types) > 1 or order.split_host() is not None:
        return "", f"a task of SkyPilot has equal nodes; hosts here run {', '.join(map(str, sizes))} consecutive ranks"
    if not types[0]:
        return "", f"no name of SkyPilot is known for {', '.join(order.accelerators)}"
    any_program = launch.torchrun_command == '"$@"'
    stated = (
        [("PROGRAM", "train.py", "")]
        if any_program
        else [(name, '""', f"  # {what}") for name, what in launch.required]
    )
    stated += [("ARGUMENTS", '""', "  # of the program, as in SUBMIT.md")]
    return (
        filled(
            "skypilot.yaml",
            title=one_line(launch.plan_name),
            num_nodes=len(order.hosts),
            accelerators=json.dumps(f"{types[0]}:{sizes[0]}"),
            folder=launch.folder,
            envs="".join(f"  {name}: {value}{remark}\n" for name, value, remark in stated),
            program='"$PROGRAM" $ARGUMENTS' if any_program else "$ARGUMENTS",
        ),
        "",
    )


def _accelerator(name: str) -> str:
    return next((sky for prefix, sky in SKYPILOT_ACCELERATORS if name.lower().startswith(prefix)), "")
