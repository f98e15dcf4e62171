"""Thin wrappers of run_node.sh: submit_ray.py for a Ray cluster, skypilot.yaml for a plan in one building.

Both keep the rank order, because run_node.sh takes a host's rank from its line of hosts.txt. Ray: nodes by name or address,
``NodeAffinitySchedulingStrategy`` (ray 2.x). SkyPilot: a task has equal nodes in one region, numbered SKYPILOT_NODE_RANK.
"""

from __future__ import annotations

import json
from typing import Final

from scaleacross.emitters.rank_order import RankOrder
from scaleacross.emitters.shell import Launch, one_line

RAY_FILE: Final = "submit_ray.py"
SKYPILOT_FILE: Final = "skypilot.yaml"
# SkyPilot's names (sky show-gpus) by the beginning of ours, longest first.
SKYPILOT_ACCELERATORS: Final = (
    ("gb200", "GB200"), ("h100", "H100"), ("h200", "H200"), ("b200", "B200"), ("b300", "B300"), ("a100", "A100-80GB"),
)  # fmt: skip


def ray_script(order: RankOrder, launch: Launch) -> str:
    """submit_ray.py; '' where the ranks of a host are not one block."""
    if order.split_host() is not None:
        return ""
    return _RAY.replace("@PLAN@", one_line(launch.plan_name).replace("\\", " ").replace('"', "'"))


def skypilot_task(order: RankOrder, launch: Launch) -> tuple[str, str]:
    """(skypilot.yaml, '') or ('', why a task of SkyPilot cannot run the plan)."""
    buildings = list(dict.fromkeys(host.building for host in order.hosts))
    sizes = sorted({host.num_ranks for host in order.hosts})
    types = sorted({_accelerator(name) for name in order.accelerators})
    if len(buildings) > 1:
        return "", f"a task of SkyPilot stands in one region; this plan uses {', '.join(buildings)}"
    if len(sizes) > 1 or len(types) > 1 or order.split_host() is not None:
        return "", f"a task of SkyPilot has equal nodes; hosts here run {', '.join(map(str, sizes))} consecutive ranks"
    if not types[0]:
        return "", f"no name of SkyPilot is known for {', '.join(order.accelerators)}"
    return (
        _SKYPILOT.format(
            title=one_line(launch.plan_name),
            num_nodes=len(order.hosts),
            accelerators=json.dumps(f"{types[0]}:{sizes[0]}"),
            folder=launch.folder,
            program='"$PROGRAM"' if launch.torchrun_command == '"$@"' else "",
        ),
        "",
    )


def _accelerator(name: str) -> str:
    return next((sky for prefix, sky in SKYPILOT_ACCELERATORS if name.lower().startswith(prefix)), "")


_RAY: Final = '''\
#!/usr/bin/env python
"""Plan @PLAN@ on a Ray cluster: runs run_node.sh on every host of hosts.txt, each on its own node.

python submit_ray.py /path/on/every/host/train.py --its-arguments

Column 1 of hosts.txt holds names or addresses of Ray's nodes. RAY_ADDRESS: the cluster (default: the one of this host).
"""

import os
import pathlib
import subprocess
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

HERE = pathlib.Path(__file__).resolve().parent
PASSED_ON = (
    "DATASET", "HF_ASSETS_PATH", "LEARNING_RATE", "MASTER_ADDR", "MASTER_PORT", "MEGATRON_LM", "PYTHON", "STEPS", "TORCHRUN",
    "TORCHTITAN_VERSION",
)  # fmt: skip


@ray.remote(max_retries=0)
def run_node(script: str, name: str, words: list[str]) -> int:
    """Exit status of run_node.sh on this node, in the copy of the launch folder that Ray made."""
    return subprocess.run(["bash", script, *words], env={**os.environ, "NODE_NAME": name}, check=False).returncode


def main() -> None:
    lines = (line.split() for line in (HERE / "hosts.txt").read_text().splitlines())
    hosts = [(words[0], int(words[1])) for words in lines if words and not words[0].startswith("#")]
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    # The folder above holds nccl.env, which run_node.sh reads.
    ray.init(runtime_env={"working_dir": str(HERE.parent), "env_vars": env})
    nodes = {}
    for node in ray.nodes():
        if node["Alive"]:
            long = node["NodeManagerHostname"]
            nodes |= dict.fromkeys((long, long.partition(".")[0], node["NodeManagerAddress"]), node)
    if missing := [name for name, _ in hosts if name not in nodes]:
        sys.exit(f"hosts.txt: {missing[0]} and {len(missing) - 1} more are no nodes of this Ray cluster: {', '.join(nodes)}")
    if short := [name for name, count in hosts if nodes[name]["Resources"].get("GPU", 0) < count]:
        sys.exit(f"hosts.txt: {short[0]} has fewer GPUs in this Ray cluster than the plan has processes there")
    calls = {}
    for name, count in hosts:
        there = NodeAffinitySchedulingStrategy(nodes[name]["NodeID"], soft=False)
        options = {"num_cpus": 0, "num_gpus": count, "scheduling_strategy": there}
        calls[run_node.options(**options).remote(f"{HERE.name}/run_node.sh", name, sys.argv[1:])] = name
    waiting = list(calls)
    while waiting:
        (done,), waiting = ray.wait(waiting)
        if code := ray.get(done):
            for one in waiting:
                ray.cancel(one, force=True)
            sys.exit(f"{calls[done]}: run_node.sh ended with {code}; the other hosts are stopped")


if __name__ == "__main__":
    main()
'''
_SKYPILOT: Final = """\
# Plan {title} with SkyPilot: sky launch skypilot.yaml, in this folder. Fill in setup and PROGRAM.
# Node ranks are those of SkyPilot's nodes, which stand in one region: which host is which node is its choice.
num_nodes: {num_nodes}
resources:
  accelerators: {accelerators}
workdir: ..
envs:
  PROGRAM: train.py
run: |
  set -euo pipefail
  hosts="$(mktemp)"
  paste -d ' ' <(echo "$SKYPILOT_NODE_IPS") <(grep -v '^#' {folder}/hosts.txt | cut -d ' ' -f 2-) > "$hosts"
  export HOSTS_FILE="$hosts" NODE_NAME="$(sed -n "$((SKYPILOT_NODE_RANK + 1))p" <<< "$SKYPILOT_NODE_IPS")"
  bash {folder}/run_node.sh {program}
"""
