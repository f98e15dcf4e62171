"""From the ``gpu`` column to a homogeneous topology made of catalogue entries.

A machine is an accelerator, its host, its scale-up network and one network port per accelerator. Everything beyond a rack
is one non-blocking zone: the sources state no oversubscription (where one does, ``Machine.accelerators_per_zone`` says so).
"""

from __future__ import annotations

import math
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
    "H100-80GB": Machine("h100-sxm", "nvlink4", "infiniband-ndr400"),  # DGX H100: 8 NDR ports
    "H100-96GB": Machine("h100-96gb", "nvlink4", "roce-400g"),
    "H200": Machine("h200", "nvlink4", "roce-400g"),
    "B200": Machine("b200", "nvlink5", "infiniband-ndr400"),
    "B300": Machine("b300", "nvlink5", "roce-800g"),
    "GB200": Machine("gb200-nvl72", "nvlink5", "infiniband-ndr400", 4, HOSTS_OF_72, rack_domain=True),
    "GB300": Machine("gb300-nvl72", "nvlink5", "roce-800g", 4, HOSTS_OF_72, rack_domain=True),
}

# One-way latencies of a message, s: as configs/topologies/one_building.yaml states and sources them.
SCALE_UP_LATENCY_S: Final = 1e-6
RACK_LATENCY_S: Final = 3e-6
ZONE_LATENCY_S: Final = 7e-6
BUILDING_LATENCY_S: Final = 12e-6


def machine_of(run: Run) -> Machine:
    """The machine that a row ran on: ``gpu`` decides, its ``notes`` and source may refine the network.

    Raises:
        InputError: no machine is known for the accelerator.
    """
    name = run.gpu.split(" ", 1)[0]
    if name not in MACHINES:
        raise InputError(f"no machine is known for gpu '{run.gpu}'; known: {', '.join(MACHINES)}")
    machine = MACHINES[name]
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
    """The machine of a stated accelerator, a label of MACHINES, a catalogue entry or a driver's name that holds a label's first
    word, on a stated fabric.

    Raises:
        InputError: no machine is known for it.
    """
    known = [
        label
        for label, machine in MACHINES.items()
        if gpu in (label, machine.accelerator) or set(label.split("-")) <= set(gpu.replace("-", " ").split())
    ]
    if not known:
        raise InputError(f"no machine is known for gpu '{gpu}'; known: {', '.join(MACHINES)}")
    machine, words = MACHINES[known[0]], fabric.lower()
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
