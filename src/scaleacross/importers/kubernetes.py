"""Reads ``kubectl get nodes -o json`` of Kubernetes, with the labels of the large clouds and of topograph.

A node takes no jobs if it is cordoned (``spec.unschedulable``) or if its condition Ready is not True. The same holds if
it does not offer all of its accelerators (``allocatable`` below ``capacity``: some are broken). A building is a
``topology.kubernetes.io/zone``. The labels below are the clouds' names of the levels between a zone and a host. A rack
is the set of hosts that NVLink joins, where a label states it (NVIDIA's cluster and clique).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scaleacross.catalogue.yaml_source import Source
from scaleacross.importers.found import Found, FoundHost, records, required, text_at
from scaleacross.spec.accelerator import DEVICE_RESOURCES

REGION: Final = "topology.kubernetes.io/region"
BUILDING: Final = "topology.kubernetes.io/zone"
ZONES: Final = (
    "cloud.google.com/gce-topology-block",
    "topology.k8s.aws/network-node-layer-2",
    "oci.oraclecloud.com/rdma.network_block_id",
    "fabric.topograph.run/tier-1",
)
RACKS: Final = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
    "oci.oraclecloud.com/rdma.local_block_id",
    "fabric.topograph.run/tier-0",
)
GPUS: Final = tuple(DEVICE_RESOURCES.values())
PRODUCTS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")


def read(sources: Sequence[Source]) -> Found:
    """Return the nodes with accelerators. Raises InputError: no list of nodes, or none with accelerators."""
    hosts = [host for source in sources for one in records(source, "items") if (host := _host(one)) is not None]
    return Found(required(hosts, sources[0], f"node with {' or '.join(GPUS)}"), f"nodes of {sources[0].label}")


def _host(node: dict[str, Any]) -> FoundHost | None:
    offered, count = next((pair for gpu in GPUS if max(pair := _counts(node, gpu))), (0, 0))
    if not count:
        return None

    def label(*names: str) -> str:
        return next((value for name in names if (value := text_at(node, "metadata", "labels", name))), "")

    name = label("kubernetes.io/hostname") or text_at(node, "metadata", "name")
    where = (label(BUILDING), label(*ZONES), label(*RACKS), label(REGION))
    broken = f"{offered} of {count} accelerators allocatable" if offered < count else ""
    return FoundHost(name, *where, count, label(*PRODUCTS), _unusable(node) or broken)


def _counts(node: dict[str, Any], gpu: str) -> tuple[int, int]:
    """Return the accelerators that a node offers, and those that it has."""
    texts = [text_at(node, "status", kind, gpu) for kind in ("allocatable", "capacity")]
    offered, has = (int(one) if one.isdecimal() and len(one) < 5 else None for one in texts)
    return (has if offered is None else offered) or 0, max(offered or 0, has or 0)


def _unusable(node: dict[str, Any]) -> str:
    spec, status = node.get("spec"), node.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    listed = conditions if isinstance(conditions, list) else []
    ready = [text_at(one, "status") for one in listed if isinstance(one, dict) and one.get("type") == "Ready"]
    if any(one != "True" for one in ready):
        return f"Ready={ready[0]}"
    return "unschedulable" if isinstance(spec, dict) and spec.get("unschedulable") is True else ""
