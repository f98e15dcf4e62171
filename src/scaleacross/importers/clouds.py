"""Reads topology listings of the clouds, as their command lines print them in JSON.

* aws: ``aws ec2 describe-instance-topology``: Instances[] with InstanceId, ZoneId and NetworkNodes, outermost first.
* oci: ``oci compute compute-host list``: data.items[] with the ids of HPC island, network block and local block.
* gcp: ``gcloud compute instances list --format=json``: name, zone, resourceStatus.physicalHostTopology or physicalHost.

A rack is the set of hosts that NVLink joins, where the listing states it (aws: CapacityBlockId of an UltraServer; oci:
GPU memory fabric), else the innermost network node. Key names follow the vendors' API references; no live account was
read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from scaleacross.catalogue.yaml_source import Source
from scaleacross.importers.found import Found, FoundHost, records, required, text_at

AWS_TYPES: Final = {
    "p3.16xlarge": ("v100 16GB", 8),
    "p3dn.24xlarge": ("v100", 8),
    "p4d.24xlarge": ("a100 40GB", 8),
    "p4de.24xlarge": ("a100", 8),
    "p5.48xlarge": ("h100", 8),
    "p5e.48xlarge": ("h200", 8),
    "p5en.48xlarge": ("h200", 8),
    "p6-b200.48xlarge": ("b200", 8),
    "p6-b300.48xlarge": ("b300", 8),
    "p6e-gb200.36xlarge": ("gb200", 4),
    "p6e-gb300.36xlarge": ("gb300", 4),
    "trn1.32xlarge": ("trainium", 16),
    "trn1n.32xlarge": ("trainium", 16),
    "trn2.48xlarge": ("trainium2", 16),
}
"""Instance type -> accelerator and number per host (vendor's product pages). Hosts of other types (``p5.4xlarge`` with
one GPU, or types without) take no jobs."""


GCP_TYPES: Final = {"nvidia-tesla-v100": "v100 16GB", "nvidia-tesla-a100": "a100 40GB"}
"""Accelerator types of GCP whose names do not say that they have less memory than others of their generation."""


def read_aws(sources: Sequence[Source]) -> Found:
    """Return the instances; the building is the availability zone. Raises InputError: none, or another format."""
    hosts = [_aws(one) for source in sources for one in records(source, "Instances")]
    return Found(required(hosts, sources[0], "instance"), f"EC2 instance topology of {sources[0].label}")


OCI_SHAPE: Final = re.compile(r"BM\.GPU\.([A-Za-z]+[0-9]+[A-Za-z]*)(?:-v\d+)?\.(\d{1,2})")
OCI_OUT: Final = frozenset(
    ("PROVISIONING", "REPAIR", "UNAVAILABLE", "UNHEALTHY", "DELETING", "DELETED", "FAILED", "INACTIVE")
)
"""Lifecycle states and health values of an OCI host that takes no jobs."""


def _aws(one: dict[str, Any]) -> FoundHost:
    nodes = [str(node) for node in one.get("NetworkNodes") or () if isinstance(node, str)]
    kind = text_at(one, "InstanceType")
    name, count = AWS_TYPES.get(kind, ("", None))
    zone_name = text_at(one, "ZoneId") or text_at(one, "AvailabilityZone")
    return FoundHost(
        text_at(one, "InstanceId"),
        zone_name,
        nodes[-2] if len(nodes) > 1 else "",
        text_at(one, "CapacityBlockId") or (nodes[-1] if nodes else ""),
        re.sub(r"[a-z]$", "", text_at(one, "AvailabilityZone")),
        count,
        name,
        f"{kind}: no type of 8 or 4 known accelerators" if kind and not name else "",
    )


def read_oci(sources: Sequence[Source]) -> Found:
    """Return the bare-metal hosts; the building is the HPC island. Raises InputError: none, or another format."""
    hosts = []
    for source in sources:
        inner = source.data.get("data") if isinstance(source.data, dict) else None
        listed = Source(source.label, inner if isinstance(inner, dict | list) else source.data)
        hosts += [_oci(one) for one in records(listed, "items")]
    return Found(required(hosts, sources[0], "host"), f"OCI hosts of {sources[0].label}")


def _oci(one: dict[str, Any]) -> FoundHost:
    def last(*keys: str) -> str:
        """Return the end of a resource's identifier, where OCIDs differ."""
        text = next((value for key in keys if (value := text_at(one, key))), "")
        return text.rpartition(".")[2][-24:]

    name = text_at(one, "display-name") or last("instance-id", "instanceId", "id")
    shape = OCI_SHAPE.fullmatch(text_at(one, "shape"))
    states = [text_at(one, key).upper() for key in ("lifecycle-state", "lifecycleState", "health")]
    return FoundHost(
        name,
        last("compute-hpc-island-id", "hpc-island-id", "computeHpcIslandId"),
        last("compute-network-block-id", "network-block-id", "computeNetworkBlockId"),
        last("gpu-memory-fabric-id", "gpuMemoryFabricId")
        or last("compute-local-block-id", "local-block-id", "computeLocalBlockId"),
        "",
        int(shape[2]) if shape else None,
        shape[1] if shape else "",
        next((state for state in states if state in OCI_OUT), ""),
    )


def read_gcp(sources: Sequence[Source]) -> Found:
    """Return the instances; the building is zone and cluster. Raises InputError: none, or another format."""
    hosts = [_gcp(one) for source in sources for one in records(source, "items")]
    kept = [host for host in hosts if host.accelerator] or hosts
    without = [host.name for host in hosts if host not in kept]
    notes = [f"{len(without)} instances without accelerators are left out: {', '.join(without[:5])}"] if without else []
    return Found(required(kept, sources[0], "instance"), f"GCP instances of {sources[0].label}", tuple(notes))


def _gcp(one: dict[str, Any]) -> FoundHost:
    zone = text_at(one, "zone").rpartition("/")[2]
    at = [text_at(one, "resourceStatus", "physicalHostTopology", key) for key in ("cluster", "block", "subblock")]
    if not any(at):
        at = [*text_at(one, "resourceStatus", "physicalHost").strip("/").split("/"), "", ""][:3]
    gpus = one.get("guestAccelerators") or [{}]
    first = gpus[0] if isinstance(gpus, list) and isinstance(gpus[0], dict) else {}
    count = text_at(first, "acceleratorCount")
    kind = text_at(first, "acceleratorType").rpartition("/")[2]
    return FoundHost(
        text_at(one, "name"),
        "-".join(part for part in (zone, at[0]) if part),
        at[1],
        at[2],
        re.sub(r"-[a-z]$", "", zone),
        int(count) if count.isdecimal() and len(count) < 5 else None,
        GCP_TYPES.get(kind, kind),
        state if (state := text_at(one, "status")) != "RUNNING" else "",
    )
