"""From the ``gpu`` column to a homogeneous topology made of catalogue entries.

A machine is an accelerator, its host, its scale-up network and one network port per accelerator. Everything beyond a rack
is one non-blocking zone.
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
        port_gbit_per_s: rate of the port where no catalogue entry of its family has it.
    """

    accelerator: str
    scale_up: str
    port: str
    accelerators_per_host: int = 8
    hosts_per_rack: int = 4
    rack_domain: bool = False
    port_gbit_per_s: int | None = None


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


FORM_FACTORS: Final = frozenset((
    "NVIDIA", "AMD", "INSTINCT", "DGX", "HGX", "SXM", "SXM4", "SXM5", "SXM6",
    "OAM", "HBM2E", "HBM3", "HBM3E", "GPU", "NVL72",
))  # fmt: skip
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


PORTS: Final = {
    ("infiniband", 100): "infiniband-hdr100", ("infiniband", 200): "infiniband-hdr200",
    ("infiniband", 400): "infiniband-ndr400", ("roce", 200): "roce-200g", ("roce", 400): "roce-400g",
    ("roce", 800): "roce-800g",
}  # fmt: skip
"""Catalogue entry by family and Gb/s of an accelerator."""
FAMILIES: Final = (("roce", r"\broce"), ("infiniband", r"\binfiniband|\bomni-?path|\b[ehnx]dr\d*\b"))
"""And the words that mean it; Omni-Path has credits as InfiniBand does."""
GENERATIONS: Final = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Gb/s of a port of four lanes."""

_COUNTED: Final = r"(?:\b(?P<count>\d+) ?x ?)?"
_RATE: Final = re.compile(rf"{_COUNTED}\b(?:(?P<generation>edr|hdr|ndr|xdr)(?P<lanes>\d*)|(?P<gigabit>\d+)g)\b")


def machine_of(run: Run) -> Machine:
    """The machine that a row ran on: ``gpu`` decides, what its ``notes`` say of the network is read as a fabric's text is.

    Raises:
        InputError: no machine is known for the accelerator.
    """
    return machine_named(run.gpu, run.notes)


def machine_named(gpu: str, fabric: str) -> Machine:
    """The machine of a stated accelerator (``label_of``) on a stated fabric; what the text does not say is the machine's own.

    Read are the family of the ports (RoCE, InfiniBand) and the rate of one (``400G``, ``NDR``) or of N in a host (``8 x 200G``,
    ``4x HDR``). A stated oversubscription above pods is not: no row states their size, and it was worth nothing.

    Raises:
        InputError: no machine is known for it.
    """
    machine, words = _known(gpu), fabric.lower()
    port, rate = _port(machine, words)
    return replace(machine, port=port, port_gbit_per_s=rate)


def _port(machine: Machine, words: str) -> tuple[str, int | None]:
    """Catalogue entry of the ports, and their rate where the entry has another: of its family the fastest that is no faster, or
    the slowest. Such a rate needs the word of a family or a count: ``512G`` may be memory."""
    own_family, own_rate = next((key for key, port in PORTS.items() if port == machine.port))
    named = [name for name, word in FAMILIES if re.search(word, words)]
    families = named or [own_family, "infiniband", "roce"]
    found = sorted(_RATE.finditer(words), key=lambda each: each["count"] is None)  # a counted port says most
    rate = own_rate
    if found:
        first = found[0]
        rate = int(first["lanes"] or first["gigabit"] or GENERATIONS[first["generation"]])
        rate = rate * int(first["count"]) // machine.accelerators_per_host if first["count"] else rate
    exact = next((PORTS[each, rate] for each in families if (each, rate) in PORTS), None)
    if exact is not None:
        return exact, None
    if not rate or not (named or found[0]["count"]):
        return machine.port, None
    rates = sorted(known for family, known in PORTS if family == families[0])
    nearest = max((known for known in rates if known <= rate), default=rates[0])
    return PORTS[families[0], nearest], rate


@lru_cache(maxsize=256)
def topology_of(machine: Machine, num_accelerators: int) -> Topology:
    """``num_accelerators`` of a machine, whole hosts, in one building."""
    port = catalogue.load_network(machine.port)
    if machine.port_gbit_per_s is not None:
        port = port.model_copy(update={"bandwidth_gbit_per_s": float(machine.port_gbit_per_s)})
    per_host = machine.accelerators_per_host
    hosts = math.ceil(num_accelerators / per_host)
    building = Building(
        name="building",
        accelerator=catalogue.load_accelerator(machine.accelerator),
        accelerators_per_host=per_host,
        hosts_per_rack=machine.hosts_per_rack,
        racks_per_zone=math.ceil(hosts / machine.hosts_per_rack),
        num_hosts=hosts,
        scale_up_domain="rack" if machine.rack_domain else "host",
        links=BuildingLinks(
            scale_up=LevelLink(
                technology=catalogue.load_network(machine.scale_up), one_way_latency_s=SCALE_UP_LATENCY_S
            ),
            rack=LevelLink(technology=port, one_way_latency_s=RACK_LATENCY_S),
            zone=LevelLink(technology=port, one_way_latency_s=ZONE_LATENCY_S),
            building=LevelLink(technology=port, one_way_latency_s=BUILDING_LATENCY_S),
        ),
    )
    return Topology(name="validation", regions=(Region(name="region", buildings=(building,)),))
