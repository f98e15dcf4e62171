"""Reads InfraGraph (YAML or JSON): instances of devices with accelerators (components of choice ``xpu``) are hosts.

An instance group ``{name, device, count}`` is a building with the hosts ``name-0``, ``name-1``, ... Link figures are
not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError
from scaleacross.importers.found import Found, FoundHost, records, required, text_at
from scaleacross.spec.hostlist import MAX_HOSTS


def read(sources: Sequence[Source]) -> Found:
    """Return the hosts by instance group. Raises InputError: no devices or instances, or none with accelerators."""
    hosts: list[FoundHost] = []
    for source in sources:
        if not isinstance(source.data, dict):
            raise InputError(f"{source.label}: no InfraGraph: a mapping with devices and instances is expected")
        data = source.data.get("infrastructure", source.data)
        inner = Source(source.label, data)
        xpus = {text_at(one, "name"): _num_xpus(one) for one in records(inner, "devices")}
        for group in records(inner, "instances"):
            count, xpu = text_at(group, "count"), xpus.get(text_at(group, "device"), 0)
            if not count.isdecimal() or len(count) > 6 or int(count) > MAX_HOSTS:
                raise InputError(
                    f"{source.label}: instance '{text_at(group, 'name')}': count {count!r} is no number of hosts"
                )
            name, device = text_at(group, "name"), text_at(group, "device")
            if device not in xpus and int(count):
                raise InputError(
                    f"{source.label}: instance '{name}' is of device '{device}', which is not among the devices"
                )
            hosts += [
                FoundHost(f"{name}-{index}", name, num_accelerators=xpu) for index in range(int(count) if xpu else 0)
            ]
    return Found(
        required(hosts, sources[0], "instance of a device with xpu components"), f"InfraGraph {sources[0].label}"
    )


def _num_xpus(device: dict[str, Any]) -> int:
    name = text_at(device, "name")
    listed = Source(f"device '{name}'", device.get("components") or [])
    counts = [text_at(one, "count") for one in records(listed) if text_at(one, "choice") == "xpu" or "xpu" in one]
    wrong = next((count for count in counts if not count.isdecimal() or len(count) > 4), None)
    if wrong is not None:
        raise InputError(f"device '{name}': count {wrong!r} is no number of xpu components")
    return sum(map(int, counts))
