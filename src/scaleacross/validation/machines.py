"""From the ``gpu`` column to a homogeneous topology made of catalogue entries.

A machine is an accelerator, its host, its scale-up network and one network port per accelerator. Everything beyond a rack
is one non-blocking zone: the sources state no oversubscription (where one does, ``Machine.accelerators_per_zone`` says so).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from scaleacross import catalogue
from scaleacross.errors import InputError
from scaleacross.spec.network import LevelLink
from scaleacross.spec.topology import Building, BuildingLinks, Region, Topology
from scaleacross.validation.runs import Run


@dataclass(frozen=True)
class Machine:
    """Catalogue names and counts.

    Attributes:
        accelerator, scale_up, port: catalogue entries; ``port`` is what one accelerator has to the outside.
        accelerators_per_host, hosts_per_rack: counts; a rack is a scale-up domain of its own where ``rack_domain``.
        zone_accelerators, building_oversubscription: accelerators of a zone of full bisection, and o of 1:o beyond.
    """

    accelerator: str
    scale_up: str
    port: str
    accelerators_per_host: int = 8
    hosts_per_rack: int = 4
    rack_domain: bool = False
    zone_accelerators: int | None = None
    building_oversubscription: float = 1.0


# An NVL72 rack has 18 hosts of 4; jobs of powers of two take 16 of them, so that groups never straddle racks.
HOSTS_OF_72: Final = 16

MACHINES: Final[dict[str, Machine]] = {
    "A100-80GB": Machine("a100-80gb", "nvlink3", "infiniband-hdr200"),  # DGX A100 (Selene): 8 HDR ports
    "A100-40GB": Machine("a100-40gb", "nvlink3", "infiniband-hdr200"),
    "A800": Machine("a100-80gb", "nvlink-export", "infiniband-hdr200"),
    "H100-80GB": Machine("h100-sxm", "nvlink4", "infiniband-ndr400"),  # DGX H100: 8 NDR ports
    "H100-96GB": Machine("h100-96gb", "nvlink4", "roce-400g"),
    "H800": Machine("h100-sxm", "nvlink-export", "infiniband-ndr400"),  # arXiv 2412.19437, section 3.1
    "H200": Machine("h200", "nvlink4", "roce-400g"),
    "GH200": Machine("gh200", "nvlink4", "infiniband-hdr200", 4),  # Alps, JUPITER: 4 in a host, 200 Gb/s each
    "B200": Machine("b200", "nvlink5", "infiniband-ndr400"),
    "B300": Machine("b300", "nvlink5", "roce-800g"),
    "GB200": Machine("gb200-nvl72", "nvlink5", "infiniband-ndr400", 4, HOSTS_OF_72, rack_domain=True),
    "GB300": Machine("gb300-nvl72", "nvlink5", "roce-800g", 4, HOSTS_OF_72, rack_domain=True),
    "MI300X": Machine("mi300x", "infinity-fabric", "roce-400g"),
    "MI325X": Machine("mi325x", "infinity-fabric", "roce-400g"),
}

# One-way latencies of a message, s: as configs/topologies/one_building.yaml states and sources them.
SCALE_UP_LATENCY_S: Final = 1e-6
RACK_LATENCY_S: Final = 3e-6
ZONE_LATENCY_S: Final = 7e-6
BUILDING_LATENCY_S: Final = 12e-6


FORM_FACTORS: Final = frozenset(
    (
        "NVIDIA",
        "AMD",
        "INSTINCT",
        "DGX",
        "HGX",
        "SXM",
        "SXM4",
        "SXM5",
        "SXM6",
        "OAM",
        "HBM2E",
        "HBM3",
        "HBM3E",
        "GPU",
        "NVL72",
    )
)
"""Words of an accelerator's name that do not tell it from others of MACHINES; PCIE and NVL do, and such boards are slower."""


def label_of(gpu: str) -> str | None:
    """The label of MACHINES that an accelerator's name means, None where it means none: a label, a catalogue entry, or a driver's
    name such as ``NVIDIA H100 80GB HBM3``. What stands in parentheses is a remark. A name without a memory size means the first
    label with its other words, and a size where no label has one does not matter."""
    for label, machine in MACHINES.items():
        if gpu in (label, machine.accelerator):
            return label
    words = set(re.findall(r"\w+", gpu.partition("(")[0].upper())) - FORM_FACTORS
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    names = words - sizes
    same = [label for label in MACHINES if names == set(label.split("-")[:1])]
    sized = [label for label in same if "-" in label]
    if sizes and sized:
        return next((label for label in sized if label.split("-")[1] in sizes), None)
    return same[0] if same else None


def _known(gpu: str) -> Machine:
    label = label_of(gpu)
    if label is None:
        raise InputError(f"no machine is known for gpu '{gpu}'; known: {', '.join(MACHINES)}")
    return MACHINES[label]


def machine_of(run: Run) -> Machine:
    """The machine that a row ran on: ``gpu`` decides, its ``notes`` and source may refine the network.

    Raises:
        InputError: no machine is known for the accelerator.
    """
    machine = _known(run.gpu)
    if "4x HDR" in run.notes:  # four ports of 200 Gb/s for eight accelerators
        return Machine(machine.accelerator, machine.scale_up, "infiniband-hdr100")
    if "RoCE 400G, 1:7" in run.notes:
        return Machine(
            *(machine.accelerator, machine.scale_up, "roce-400g", 8, 2),
            zone_accelerators=3072,
            building_oversubscription=7.0,
        )
    return machine


FABRICS: Final = (
    (("hdr100",), "infiniband-hdr100"), (("roce", "200g"), "roce-200g"), (("roce", "800g"), "roce-800g"),
    (("roce",), "roce-400g"), (("hdr",), "infiniband-hdr200"), (("200g",), "infiniband-hdr200"), (("800g",), "roce-800g"),
)  # fmt: skip
"""Words of a stated fabric that all stand in it, and the port that they mean; the first match, else the machine's own."""


def machine_named(gpu: str, fabric: str) -> Machine:
    """The machine of a stated accelerator (``label_of``) on a stated fabric.

    Raises:
        InputError: no machine is known for it.
    """
    machine, words = _known(gpu), fabric.lower()
    port = next((port for parts, port in FABRICS if all(part in words for part in parts)), machine.port)
    return replace(machine, port=port)


@lru_cache(maxsize=256)
def topology_of(machine: Machine, num_accelerators: int) -> Topology:
    """``num_accelerators`` of a machine, whole hosts, in one building."""
    port = catalogue.load_network(machine.port)
    per_host = machine.accelerators_per_host
    hosts = math.ceil(num_accelerators / per_host)
    per_rack = machine.hosts_per_rack * per_host
    zone = machine.zone_accelerators or hosts * per_host
    building = Building(
        name="building",
        accelerator=catalogue.load_accelerator(machine.accelerator),
        accelerators_per_host=per_host,
        hosts_per_rack=machine.hosts_per_rack,
        racks_per_zone=math.ceil(zone / per_rack),
        num_hosts=hosts,
        scale_up_domain="rack" if machine.rack_domain else "host",
        links=BuildingLinks(
            scale_up=LevelLink(
                technology=catalogue.load_network(machine.scale_up), one_way_latency_s=SCALE_UP_LATENCY_S
            ),
            rack=LevelLink(technology=port, one_way_latency_s=RACK_LATENCY_S),
            zone=LevelLink(technology=port, one_way_latency_s=ZONE_LATENCY_S),
            building=LevelLink(
                technology=port,
                one_way_latency_s=BUILDING_LATENCY_S,
                oversubscription_ratio=machine.building_oversubscription,
            ),
        ),
    )
    return Topology(name="validation", regions=(Region(name="region", buildings=(building,)),))
