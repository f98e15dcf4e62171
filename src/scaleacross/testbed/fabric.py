"""Makes a layout and removes it again.

Everything lives in namespaces whose names begin with the testbed's prefix, so the names alone say what is there.
``tear_down`` ends the processes inside and deletes the namespaces (the kernel removes their interfaces) and the control
groups. It works whether or not the process that made them still exists. Nothing is made in the namespace of the machine
itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from scaleacross.errors import EmulationError
from scaleacross.testbed import cpus
from scaleacross.testbed.layout import BuildingNet, Host, Layout, TrunkWire
from scaleacross.testbed.machine import Machine, do
from scaleacross.testbed.relay import READY
from scaleacross.testbed.shaping import bucket, distance

MTU: Final = 9000
GRACE_S: Final = 5.0
RELAY_START_S: Final = 20.0
HOST_SETTINGS: Final = {
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_rmem": "4096 1048576 33554432",
}
"""A connection keeps its window between two collectives. Reno, which every namespace may use, only slows down when
packets are lost. So on links that lose none a sender is limited by its buffer."""
ANSWER_S: Final = 3e-3
BUFFER_RATIO: Final = 1.5
"""A sender may keep in flight what the link carries until an answer is back, on a machine that answers within
``ANSWER_S``, times this ratio. So it fills its link and no more, as if full switches stopped their senders, and it
notices when the link is slow."""
ROUTER_SETTINGS: Final = {"net/ipv4/ip_forward": "1"}


def build(layout: Layout, here: Machine, log: Path) -> None:
    """Make everything. On any failure, and on Ctrl-C, whatever was made is removed again.

    Args:
        log: file for the output of the relay.

    Raises:
        EmulationError: a command failed.
        InputError: an inter-building link is to delay packets, and this machine cannot.
    """
    delayed = [trunk for trunk in layout.trunks if trunk.delay_s > 0 or trunk.loss_fraction > 0]
    if delayed:
        here.require_delay(f"trunk {delayed[0].name}")
    relayed = [] if here.has_netem else delayed
    try:
        for building in layout.buildings:
            _make_building(building, send_buffer_bytes(layout))
        for trunk in layout.trunks:
            if trunk not in relayed:
                _join_directly(trunk)
        if relayed:
            _start_relay(relayed, log)
        for trunk in layout.trunks:
            _bring_up_trunk(trunk, netem=here.has_netem and trunk in delayed)
        for building in layout.buildings:
            for subnet, hop in building.routes:
                do("ip", "-n", building.namespace, "route", "add", subnet, "via", hop)
        root = cpus.controller()
        if root is not None:
            share = cpus.share_of(len(layout.hosts))
            for host in layout.hosts:
                cpus.make_group(root, host.namespace, share)
    except BaseException:
        tear_down(layout.prefix)
        raise


def tear_down(prefix: str) -> list[str]:
    """Remove everything whose name begins with ``prefix``. Return the namespaces that were there.

    Raises:
        EmulationError: something remains; the message names it.
    """
    _end(_commands_on(prefix))
    names = existing(prefix)
    processes = [pid for name in names for pid in processes_in(name)]
    _end(processes)
    for name in names:
        do("ip", "netns", "delete", name, tolerate=True)
    for group in cpus.groups_of(prefix):
        _end([int(pid) for pid in (group / "cgroup.procs").read_text(encoding="ascii").split()])
        with suppress(OSError):
            group.rmdir()
    left = [*existing(prefix), *map(str, cpus.groups_of(prefix))]
    if left:
        raise EmulationError(f"still there after the clean-up: {', '.join(left)}")
    return names


def existing(prefix: str) -> list[str]:
    """Return the namespaces of a testbed."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{prefix}*")) if folder.is_dir() else []


def processes_in(namespace: str) -> list[int]:
    """Return the processes in a namespace."""
    return [int(pid) for pid in do("ip", "netns", "pids", namespace, tolerate=True).split()]


def set_trunk(trunk: TrunkWire, rate_bytes_per_s: float, is_cut: bool = False) -> None:
    """Change the rate of an inter-building link in use, in both directions, or cut it."""
    for namespace in trunk.ends:
        bucket(namespace, trunk.device, rate_bytes_per_s, is_new=False, is_cut=is_cut)


def in_namespace(namespace: str, command: Sequence[str]) -> list[str]:
    """Return ``command`` as it is run in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def in_host(host: Host, index: int, num_hosts: int, command: Sequence[str], *, waits: bool = False) -> list[str]:
    """Return ``command`` as it is run on an emulated host: on its core, with its share of it, in its network.

    ``waits`` is for a command that joins the control group by itself (``cpus.pinned``).
    """
    root = cpus.controller()
    group = None if root is None else root / host.namespace
    return cpus.pinned(in_namespace(host.namespace, command), cpus.core_of(index, num_hosts), group, waits=waits)


def send_buffer_bytes(layout: Layout) -> int:
    """Return the bytes that a connection may keep in flight."""
    inside = max(host.rate_bytes_per_s for host in layout.hosts) * ANSWER_S
    farthest_s = sum(trunk.delay_s for trunk in layout.trunks)
    thickest = max((trunk.rate_bytes_per_s for trunk in layout.trunks), default=0.0)
    return int(BUFFER_RATIO * max(inside, thickest * (2 * farthest_s + ANSWER_S)))


# --- making ---------------------------------------------------------------------------------------------------------


def _make_namespace(name: str, settings: dict[str, str]) -> None:
    do("ip", "netns", "add", name)
    do("ip", "-n", name, "link", "set", "lo", "up")
    script = "; ".join(f"echo '{value}' > /proc/sys/{key}" for key, value in settings.items())
    do(*in_namespace(name, ["sh", "-c", f"set -e; {script}"]))


def _make_building(building: BuildingNet, send_buffer: int) -> None:
    inside = building.namespace
    _make_namespace(inside, ROUTER_SETTINGS)
    for bridge in building.bridges:
        do("ip", "-n", inside, "link", "add", bridge.name, "mtu", str(MTU), "type", "bridge")
        do("ip", "-n", inside, "link", "set", bridge.name, "up")
        if bridge.parent is None:
            do("ip", "-n", inside, "address", "add", f"{building.gateway}/24", "dev", bridge.name)
        else:
            up, down = f"{bridge.name}-up", f"{bridge.name}-down"
            do("ip", "-n", inside, "link", "add", up, "mtu", str(MTU), "type", "veth", "peer", down, "mtu", str(MTU))
            for device, master in ((up, bridge.name), (down, bridge.parent)):
                do("ip", "-n", inside, "link", "set", device, "master", master, "up")
                bucket(inside, device, bridge.uplink_bytes_per_s)
    for host in building.hosts:
        _make_host(host, inside, building.gateway, send_buffer)


def _make_host(host: Host, building: str, gateway: str, send_buffer: int) -> None:
    limits = f"4096 {min(send_buffer, 1 << 16)} {send_buffer}"
    _make_namespace(host.namespace, {**HOST_SETTINGS, "net/ipv4/tcp_wmem": limits})
    ends = ("peer", "eth0", "netns", host.namespace, "mtu", str(MTU))
    do("ip", "-n", building, "link", "add", host.port, "mtu", str(MTU), "type", "veth", *ends)
    do("ip", "-n", building, "link", "set", host.port, "master", host.bridge, "up")
    do("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
    do("ip", "-n", host.namespace, "link", "set", "eth0", "up")
    do("ip", "-n", host.namespace, "route", "add", "default", "via", gateway)
    for namespace, device in ((building, host.port), (host.namespace, "eth0")):
        bucket(namespace, device, host.rate_bytes_per_s)


def _join_directly(trunk: TrunkWire) -> None:
    """Make an inter-building link without delay, or one whose delay netem adds."""
    one, other = trunk.ends
    ends = ("peer", trunk.device, "netns", other, "mtu", str(MTU))
    do("ip", "-n", one, "link", "add", trunk.device, "mtu", str(MTU), "type", "veth", *ends)


def _bring_up_trunk(trunk: TrunkWire, netem: bool) -> None:
    for namespace, own, peer in zip(trunk.ends, trunk.addresses, trunk.addresses[::-1], strict=True):
        do("ip", "-n", namespace, "link", "set", trunk.device, "mtu", str(MTU), "txqueuelen", "10000", "up")
        do("ip", "-n", namespace, "address", "add", own, "peer", peer, "dev", trunk.device)
        bucket(namespace, trunk.device, trunk.rate_bytes_per_s)
        if netem:
            distance(namespace, trunk.device, trunk.delay_s, trunk.loss_fraction)


def _start_relay(trunks: Sequence[TrunkWire], log: Path) -> None:
    """Start the relay in the namespace of a building, where ``tear_down`` finds it."""
    stated = [
        {"ends": t.ends, "device": t.device, "delay_s": t.delay_s, "loss_fraction": t.loss_fraction} for t in trunks
    ]
    command = in_namespace(trunks[0].ends[0], [sys.executable, "-m", "scaleacross.testbed.relay", json.dumps(stated)])
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    if process.stdout is None:
        raise EmulationError("the relay has no output")
    with process.stdout:
        ready, _, _ = select.select([process.stdout], [], [], RELAY_START_S)
        if not ready or process.stdout.readline().decode().strip() != READY:
            process.kill()
            process.wait()
            reason = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise EmulationError(
                f"the relay of the inter-building links did not start: {reason[-1] if reason else 'no answer'}"
            )


def _commands_on(prefix: str) -> list[int]:
    """Return ``ip`` commands whose maker was killed meanwhile: what they are about to make would remain."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            tool, *words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if tool == "ip" and any(word.startswith(prefix) for word in words):
                found.append(int(process.name))
    return found


def _end(processes: Sequence[int]) -> None:
    """End processes, by SIGTERM first, and wait until they are gone."""
    for how, grace_s in ((signal.SIGTERM, GRACE_S / 2), (signal.SIGKILL, GRACE_S)):
        left = [pid for pid in processes if _is_alive(pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        until = time.monotonic() + grace_s
        while any(map(_is_alive, left)) and time.monotonic() < until:
            _reap(left)
            time.sleep(0.01)


def _reap(processes: Sequence[int]) -> None:
    """Collect the exit codes of own children, which otherwise remain as zombies."""
    for pid in processes:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
