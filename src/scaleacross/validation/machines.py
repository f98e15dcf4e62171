"""Turn the ``gpu`` column into a homogeneous topology of catalogue entries.

A machine is an accelerator, its host, its scale-up network and one network port per accelerator. Everything beyond a
rack is one non-blocking zone.
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
    """Catalogue names and counts of a machine.

    Attributes:
        accelerator, scale_up, port: catalogue entries; ``port`` is one accelerator's link out of its host.
        accelerators_per_host, hosts_per_rack: counts; a rack is a scale-up domain of its own if ``rack_domain``.
        port_gbit_per_s: rate of the port, if no catalogue entry of its family has this rate.
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
    "H100 PCIE": Machine("h100-pcie", "pcie-gen5", "roce-200g"),
    "H100 NVL": Machine("h100-nvl", "pcie-gen5", "roce-200g"),
    "H800": Machine("h100-sxm", "nvlink-export", "infiniband-ndr400"),  # arXiv 2412.19437, section 3.1
    "H200": Machine("h200", "nvlink4", "roce-400g"),
    "GH200": Machine("gh200", "nvlink4", "infiniband-hdr200", 4),  # Alps, JUPITER: 4 in a host, 200 Gb/s each
    "B200": Machine("b200", "nvlink5", "infiniband-ndr400"),
    "B300": Machine("b300", "nvlink5", "roce-800g"),
    "GB200": Machine("gb200-nvl72", "nvlink5", "infiniband-ndr400", 4, HOSTS_OF_72, rack_domain=True),
    "GB300": Machine("gb300-nvl72", "nvlink5", "roce-800g", 4, HOSTS_OF_72, rack_domain=True),
    "MI250X": Machine("mi250x-gcd", "infinity-fabric-2", "slingshot-100g"),  # a GCD; Frontier, LUMI: 4 ports for 8
    "MI300X": Machine("mi300x", "infinity-fabric", "roce-400g"),
    "MI325X": Machine("mi325x", "infinity-fabric", "roce-400g"),
    "V100-32GB": Machine("v100-32gb", "nvlink2", "infiniband-edr50", 16),  # DGX-2: 16 in a host, 8 EDR ports
    "GAUDI2": Machine("gaudi2", "gaudi2-ethernet", "roce-300g"),
    "GAUDI3": Machine("gaudi3", "gaudi3-ethernet", "roce-600g"),
}

# One-way latencies of a message, s: as configs/topologies/one_building.yaml states and sources them.
SCALE_UP_LATENCY_S: Final = 1e-6
RACK_LATENCY_S: Final = 3e-6
ZONE_LATENCY_S: Final = 7e-6
BUILDING_LATENCY_S: Final = 12e-6


FORM_FACTORS: Final = frozenset((
    "NVIDIA", "TESLA", "AMD", "INSTINCT", "INTEL", "HABANA", "DGX", "HGX", "SXM", "SXM2", "SXM3", "SXM4", "SXM5", "SXM6",
    "OAM", "HBM2E", "HBM3", "HBM3E", "GPU", "NVL72",
))  # fmt: skip
"""Words of an accelerator's name that do not distinguish it from others of MACHINES.

PCIE and NVL do, because such boards are slower.
"""


def label_of(gpu: str) -> str | None:
    """Return the label of MACHINES that an accelerator's name means; None if it means none.

    The name is a label, a catalogue entry, or a driver's name such as ``NVIDIA H100 80GB HBM3``. Text in parentheses is
    ignored. A name without a memory size means the first label with its other words. A size is ignored if no label with
    these words has one.
    """
    for label, machine in MACHINES.items():
        if gpu in (label, machine.accelerator):
            return label
    words = set(re.findall(r"\w+", gpu.partition("(")[0].upper())) - FORM_FACTORS
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    names = words - sizes
    same = [label for label in MACHINES if names == set(label.split("-")[0].split())]
    sized = [label for label in same if "-" in label]
    # a stated size must match one of the labels that differ by size
    if sizes and sized:
        return next((label for label in sized if label.split("-")[1] in sizes), None)
    return same[0] if same else None


def _known(gpu: str) -> Machine:
    label = label_of(gpu)
    if label is None:
        raise InputError(f"no machine is known for gpu '{gpu}'; known: {', '.join(MACHINES)}")
    return MACHINES[label]


PORTS: Final = {
    ("infiniband", 50): "infiniband-edr50", ("infiniband", 100): "infiniband-hdr100",
    ("infiniband", 200): "infiniband-hdr200", ("infiniband", 400): "infiniband-ndr400",
    ("roce", 200): "roce-200g", ("roce", 300): "roce-300g", ("roce", 400): "roce-400g", ("roce", 600): "roce-600g",
    ("roce", 800): "roce-800g", ("slingshot", 100): "slingshot-100g",
}  # fmt: skip
"""(family, Gb/s of an accelerator) -> catalogue entry of the port."""
FAMILIES: Final = (
    ("roce", r"\broce"),
    ("slingshot", r"\bslingshot"),
    ("infiniband", r"\binfiniband|\bomni-?path|\b[ehnx]dr\d*\b"),
)
"""Families of ports and the words that mean them; Omni-Path has credit-based flow control as InfiniBand does."""
GENERATIONS: Final = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Generation of InfiniBand -> Gb/s of a port of four lanes."""

_COUNTED: Final = r"(?:\b(?P<count>\d+) ?x ?)?"
_RATE: Final = re.compile(rf"{_COUNTED}\b(?:(?P<generation>edr|hdr|ndr|xdr)(?P<lanes>\d*)|(?P<gigabit>\d+)g)\b")


def machine_of(run: Run) -> Machine:
    """Return the machine of a row: ``gpu`` decides, and ``notes`` are read for the network as in ``machine_named``.

    Raises:
        InputError: no machine is known for the accelerator.
    """
    return machine_named(run.gpu, run.notes)


def machine_named(gpu: str, fabric: str) -> Machine:
    """Return the machine of a stated accelerator (``label_of``) with the network that ``fabric`` describes.

    The text may name the family of the ports (RoCE, InfiniBand). It may also name the rate of one port (``400G``,
    ``NDR``) or of N in a host (``8 x 200G``, ``4x HDR``). What it does not state is the machine's own. Oversubscription
    above pods is ignored: no row states the size of pods, and it did not improve predictions.

    Raises:
        InputError: no machine is known for it.
    """
    machine, words = _known(gpu), fabric.lower()
    port, rate = _port(machine, words)
    return replace(machine, port=port, port_gbit_per_s=rate)


def _port(machine: Machine, words: str) -> tuple[str, int | None]:
    """Return the catalogue entry of the ports, and their rate if it differs from that of the entry.

    Without an exact match, the fastest port of the family that is no faster is used, or else the slowest. Such a rate
    counts only with the word of a family or a count: ``512G`` may be memory.
    """
    own_family, own_rate = next((key for key, port in PORTS.items() if port == machine.port))
    named = [name for name, word in FAMILIES if re.search(word, words)]
    families = named or [own_family, "infiniband", "roce"]
    # a rate with a count is certainly that of ports
    found = sorted(_RATE.finditer(words), key=lambda each: each["count"] is None)
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
    """Topology of ``num_accelerators`` of a machine, on whole hosts, in one building."""
    port = catalogue.load_network(machine.port)
    if machine.port_gbit_per_s is not None:
        port = port.model_copy(update={"bandwidth_bytes_per_s": machine.port_gbit_per_s * 1e9 / 8})
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
