"""One small cluster in the format of every source: two hosts of 8 H100 in a, one in b."""

from __future__ import annotations

import json
from typing import Any, Final

WHERE: Final = {"n1": ("a", "z", "r1"), "n2": ("a", "z", "r2"), "n3": ("b", "z", "r3")}


def _node(name: str) -> dict[str, Any]:
    building, zone, rack = WHERE[name]
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/region": "eu",
        "topology.kubernetes.io/zone": building,
        "cloud.google.com/gce-topology-block": zone,
        "cloud.google.com/gce-topology-subblock": rack,
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}


LOGIN: Final = {"metadata": {"name": "login"}, "status": {"allocatable": {"cpu": "8"}}}
TREE: Final = """
SwitchName=core Switches=a,b
SwitchName=a Switches=r[1-2]
SwitchName=b \\
  Switches=r3
SwitchName=r1 Nodes=n1   # a leaf
SwitchName=r2 Nodes=n2
SwitchName=r3 Nodes=n3
"""
TREE_YAML: Final = """
- topology: t
  cluster_default: true
  tree:
    switches:
      - {switch: core, children: "a,b"}
      - {switch: a, children: "r[1-2]"}
      - {switch: b, children: r3}
      - {switch: r1, nodes: n1}
      - {switch: r2, nodes: n2}
      - {switch: r3, nodes: n3}
"""
SCONTROL: Final = "".join(
    f"NodeName={name} Arch=x86_64 CoresPerSocket=56\n   Gres=gpu:h100:8(S:0-1)\n   State=IDLE\n\n" for name in WHERE
)
SOURCES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "slurm tree": ("slurm", (TREE, SCONTROL)),
    "slurm yaml": ("slurm", (TREE_YAML, SCONTROL)),
    "kubernetes": ("kubernetes", (json.dumps({"items": [*map(_node, WHERE), LOGIN]}),)),
    "aws": (
        "aws",
        (
            json.dumps(
                {
                    "Instances": [
                        {
                            "InstanceId": name,
                            "InstanceType": "p5.48xlarge",
                            "ZoneId": at[0],
                            "NetworkNodes": ["top", *at[1:]],
                        }
                        for name, at in WHERE.items()
                    ]
                }
            ),
        ),
    ),
    "oci": (
        "oci",
        (
            json.dumps(
                {
                    "data": {
                        "items": [
                            {
                                "display-name": name,
                                "compute-hpc-island-id": f"ocid1.island.oc1.eu.{at[0]}",
                                "compute-network-block-id": f"ocid1.block.oc1.eu.{at[1]}",
                                "compute-local-block-id": f"ocid1.local.oc1.eu.{at[2]}",
                            }
                            for name, at in WHERE.items()
                        ]
                    }
                }
            ),
        ),
    ),
    "gcp": (
        "gcp",
        (
            json.dumps(
                [
                    {
                        "name": name,
                        "zone": f"projects/p/zones/{at[0]}",
                        "guestAccelerators": [{"acceleratorType": "x/nvidia-h100-80gb", "acceleratorCount": 8}],
                        "resourceStatus": {"physicalHostTopology": {"block": at[1], "subblock": at[2]}},
                    }
                    for name, at in WHERE.items()
                ]
            ),
        ),
    ),
    "hosts": ("hosts", ("n1 a r1 slots=8\nn2 a r2 slots=8\n# none\nn3 b r3 slots=8\n",)),
}
INFRAGRAPH: Final = """
devices:
  - name: dgx
    components: [{name: gpu, choice: xpu, count: 8}, {name: nic, choice: nic, count: 8}]
  - {name: switch, components: [{name: port, choice: port, count: 64}]}
instances:
  - {name: east, device: dgx, count: 2}
  - {name: west, device: dgx, count: 1}
  - {name: spine, device: switch, count: 4}
"""
