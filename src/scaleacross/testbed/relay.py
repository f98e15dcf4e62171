"""Delays packets of inter-building links in user space: from a TUN device, after a wait, into one at the far end.

``python -m scaleacross.testbed.relay '[{"ends": ["one", "other"], "device": "trunk0", "delay_s": 0.01, "loss_fraction": 0}]'``,
where ``ends`` are namespaces.

Rates are enforced by the queueing discipline of the devices, in the kernel. So a packet meets first the bottleneck and
then the delay. Packets of up to 64 KiB pass in one piece (segmentation offload). If some are to be lost, every packet
is one on the wire. Needs CAP_NET_ADMIN and /dev/net/tun. Prints one line when all devices are there.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import select
import signal
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scaleacross.testbed.machine import INSIDE_VARIABLE, die_with_parent

_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOADS: Final = 0x01 | 0x02 | 0x04
"""TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6."""
_CLONE_NEWNET: Final = 0x40000000
_LARGEST: Final = 1 << 17
READY: Final = "relay ready"
RUN_NETNS: Final = Path("/run/netns")


@dataclass
class Direction:
    """Packets on their way from one device to the other."""

    source: int
    target: int
    delay_s: float
    loss_fraction: float
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)


def open_tun(namespace: str, device: str, offload: bool) -> int:
    """Return the file descriptor of a new TUN device in a namespace; the device lives as long as it."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(RUN_NETNS / namespace, os.O_RDONLY)
    try:
        _enter(there)
        handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | (_IFF_VNET_HDR if offload else 0)
        fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
        if offload:
            fcntl.ioctl(handle, _TUNSETOFFLOAD, _OFFLOADS)
        return handle
    finally:
        _enter(own)
        os.close(there)
        os.close(own)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def open_trunk(trunk: dict[str, Any]) -> list[Direction]:
    """Return both directions of an inter-building link."""
    lossy = trunk["loss_fraction"] > 0
    one, other = (open_tun(namespace, trunk["device"], not lossy) for namespace in trunk["ends"])
    return [Direction(a, b, trunk["delay_s"], trunk["loss_fraction"]) for a, b in ((one, other), (other, one))]


def take(direction: Direction, random_source: random.Random) -> None:
    """Read every packet that has left the source."""
    while True:
        try:
            packet = os.read(direction.source, _LARGEST)
        except BlockingIOError:
            return
        if direction.loss_fraction and random_source.random() < direction.loss_fraction:
            continue
        direction.waiting.append((time.monotonic() + direction.delay_s, packet))


def release(direction: Direction) -> float | None:
    """Hand on the packets that have waited long enough; return the time of the next one, or None."""
    now = time.monotonic()
    while direction.waiting and direction.waiting[0][0] <= now:
        try:
            os.write(direction.target, direction.waiting[0][1])
        except BlockingIOError:
            return now + 1e-4
        except OSError:
            pass  # the device is down: the packet is lost, as on a link that is down
        direction.waiting.popleft()
    return direction.waiting[0][0] if direction.waiting else None


def serve(directions: list[Direction]) -> None:
    """Relay until the process is ended."""
    by_source, random_source = {direction.source: direction for direction in directions}, random.Random(0)
    due: float | None = None
    while True:
        timeout = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select(by_source, (), (), timeout)  # unlike epoll, exact to the microsecond
        for source in ready:
            take(by_source[source], random_source)
        times = [at for at in map(release, directions) if at is not None]
        due = min(times) if times else None


def main() -> None:
    """Open every inter-building link, report that, and relay."""
    if INSIDE_VARIABLE in os.environ:  # in private namespaces nobody could find this process later
        die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to whoever started the testbed, who ends this process
    directions = [direction for trunk in json.loads(sys.argv[1]) for direction in open_trunk(trunk)]
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    serve(directions)


if __name__ == "__main__":
    main()
