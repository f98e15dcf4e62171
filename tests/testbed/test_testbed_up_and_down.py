"""Creation and removal of the testbed: its parts while it runs, and nothing left afterwards, however it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from emulated import EXAMPLES, MAIN, needs_testbed, scaleacross

from scaleacross.catalogue import load_topology
from scaleacross.errors import InputError
from scaleacross.testbed import cpus, fabric, session
from scaleacross.testbed.machine import INSIDE_VARIABLE, machine

pytestmark = needs_testbed

NAME = f"t{os.getpid()}"
PREFIX = session.prefix_of(NAME)


def left_over() -> list[str]:
    """Namespaces, control groups and processes with the testbed's name."""
    found = [*fabric.existing(PREFIX), *map(str, cpus.groups_of(PREFIX))]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if PREFIX.encode() in words:
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


@contextmanager
def up(name: str) -> Iterator[session.Testbed]:
    with session.standing(load_topology(EXAMPLES / f"{name}.yaml"), NAME) as testbed:
        yield testbed
    assert left_over() == []


def probe(testbed: session.Testbed, here: str, there: str, seconds: float) -> dict[str, float]:
    """Latency and rate between two hosts."""
    hosts = {host.name: (host, index) for index, host in enumerate(testbed.layout.hosts)}
    module = [sys.executable, "-m", "scaleacross.testbed.probe"]
    (target, at), (source, own) = hosts[there], hosts[here]
    server = subprocess.Popen(
        fabric.in_host(target, at, 4, [*module, "serve", target.address]), stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stdout.readline().strip() == "listening"
    caller = fabric.in_host(source, own, 4, [*module, "call", target.address, str(seconds)])
    out = subprocess.run(caller, capture_output=True, text=True, check=True, timeout=60).stdout
    assert server.wait(timeout=20) == 0
    server.stdout.close()
    return dict(json.loads(out))


@pytest.mark.slow
def test_trunk_has_the_stated_distance_and_rate_and_can_be_changed_and_cut() -> None:
    with up("two_buildings") as testbed:
        far, near = probe(testbed, "east-h00000", "west-h00000", 1.0), probe(testbed, "east-h00000", "east-h00001", 0.3)
        assert 10e-3 < far["least_round_trip_s"] < 15e-3 and near["least_round_trip_s"] < 5e-3
        assert 0.25 * 50e6 < far["bytes_per_s"] < 51e6 < near["bytes_per_s"]
        (trunk,) = testbed.layout.trunks
        fabric.set_trunk(trunk, trunk.rate_bytes_per_s / 4)
        assert probe(testbed, "east-h00000", "west-h00000", 1.0)["bytes_per_s"] < 13.5e6
        fabric.set_trunk(trunk, trunk.rate_bytes_per_s, is_cut=True)
        with pytest.raises(subprocess.SubprocessError):
            probe(testbed, "east-h00000", "west-h00000", 0.1)
        with pytest.raises(InputError, match="is up already"):
            session.up(testbed.topology, NAME)


@pytest.mark.heavy
def test_buildings_without_a_trunk_of_their_own_meet_over_a_third() -> None:
    with up("three_buildings") as testbed:
        assert 8e-3 < probe(testbed, "east-h00000", "north-h00000", 0.1)["least_round_trip_s"] < 9.9e-3


@pytest.mark.heavy
def test_command_line_from_up_to_down() -> None:
    made = scaleacross("testbed", "up", str(EXAMPLES / "two_buildings.yaml"), "--name", NAME)
    try:
        assert made.returncode == 0, made.stderr
        assert "trunk  east–west" in made.stdout and "0.4 Gbit/s" in made.stdout
        shown = scaleacross("testbed", "exec", "west-h00001", "--name", NAME, "--", "ip", "-br", "address")
        assert "10.77.2.2/24" in shown.stdout
        thinner = scaleacross("testbed", "trunk", "west", "east", "--gbit", "0.1", "--name", NAME)
        assert thinner.stdout == "trunk east–west: 0.1 Gbit/s\n"
        assert f"{NAME}: 6 namespaces" in scaleacross("testbed", "status").stdout
        wrong = scaleacross("testbed", "exec", "south-h00000", "--name", NAME, "--", "true")
        assert wrong.returncode == 2 and "no host 'south-h00000'; there are east-h00000" in wrong.stderr
    finally:
        taken = scaleacross("testbed", "down", "--name", NAME)
    assert taken.stdout == "took away 6 namespaces\n"
    assert left_over() == []


def standing_elsewhere(**environment: str) -> subprocess.Popen[str]:
    """A process that has created a testbed and waits."""
    code = (  # a background process of a shell ignores SIGINT, and so would this one
        "import signal, time\nfrom scaleacross.catalogue import load_topology\nfrom scaleacross.testbed import session\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"with session.standing(load_topology({str(EXAMPLES / 'two_buildings.yaml')!r}), {NAME!r}):\n"
        "    print('up', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def test_interrupt_leaves_nothing() -> None:
    process = standing_elsewhere()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert left_over() == []


@pytest.mark.skipif(machine().has_netem, reason="the kernel holds packets here: there is no relay")
def test_a_relay_in_private_namespaces_goes_with_whoever_made_them() -> None:
    """A relay in private namespaces ends with the process that created them.

    If that process is killed, it cleans nothing up. Namespaces without a name hide their processes.
    """

    def relays() -> int:
        return sum("scaleacross.testbed.relay" in line for line in left_over())

    process = standing_elsewhere(**{INSIDE_VARIABLE: "1"})
    try:
        assert relays() == 1
        process.kill()
        process.communicate(timeout=30)
        until = time.monotonic() + 5
        while relays() and time.monotonic() < until:
            time.sleep(0.05)
        assert relays() == 0
    finally:
        session.down(NAME)
    assert left_over() == []


SEND = """
import socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    one.sendto(b"x", (sys.argv[1], 5998))
    time.sleep(1e-3)
"""
COUNT = """
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind((sys.argv[1], 5998))
print("listening", flush=True)
one.settimeout(20)
seen = 0
try:
    while True:
        one.recv(16)
        seen += 1
        one.settimeout(1)
except TimeoutError:
    print(seen)
"""


@pytest.mark.heavy
def test_a_trunk_loses_the_stated_share_of_its_packets() -> None:
    """An inter-building link loses the stated share of packets, and a building loses none.

    With a fifth lost 320 of 400 packets arrive, within five standard deviations of 8.
    """
    topology = load_topology(EXAMPLES / "two_buildings.yaml")
    (trunk,) = topology.trunks
    lossy = topology.model_copy(update={"trunks": (trunk.model_copy(update={"loss_fraction": 0.2}),)})

    def arrived(testbed: session.Testbed, there: str, number: int) -> int:
        hosts = {host.name: (host, index) for index, host in enumerate(testbed.layout.hosts)}
        (target, at), (source, own) = hosts[there], hosts["east-h00000"]
        count, send = ([sys.executable, "-c", program] for program in (COUNT, SEND))
        counting = subprocess.Popen(
            fabric.in_host(target, at, 4, [*count, target.address]), stdout=subprocess.PIPE, text=True
        )
        assert counting.stdout is not None and counting.stdout.readline() == "listening\n"
        subprocess.run(fabric.in_host(source, own, 4, [*send, target.address, str(number)]), check=True, timeout=60)
        return int(counting.communicate(timeout=60)[0])

    with session.standing(lossy, NAME) as testbed:
        assert arrived(testbed, "east-h00001", 100) == 100
        assert 280 <= arrived(testbed, "west-h00000", 400) <= 360
    assert left_over() == []


@pytest.mark.parametrize("num_namespaces", [1, *(pytest.param(number, marks=pytest.mark.heavy) for number in (5, 9))])
def test_down_after_kill_leaves_nothing(num_namespaces: int) -> None:
    """``down`` after a kill leaves nothing.

    The kill is at the first namespace, in the middle, or when all nine exist and inter-building links do not.
    """
    words = ["testbed", "up", str(EXAMPLES / "three_buildings.yaml"), "--name", NAME]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *words], stdout=subprocess.DEVNULL)
    while len(fabric.existing(PREFIX)) < num_namespaces and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert session.down(NAME)
    assert left_over() == []


def test_down_ends_what_a_killed_maker_left_running() -> None:
    """``down`` ends what a killed process left running.

    Its last ``ip`` would continue after the clean-up. A command that names another testbed stays.
    """
    late, other = (
        subprocess.Popen(["ip", "-c", "read line", name], executable="/bin/sh", stdin=subprocess.PIPE)
        for name in (f"{PREFIX}late", f"x{PREFIX}other")
    )
    try:
        session.down(NAME)
        assert late.poll() is not None
        assert other.poll() is None
    finally:
        for process in (late, other):
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_fifty_times_up_and_down() -> None:
    for _ in range(50):
        with up("two_buildings"):
            assert len(fabric.existing(PREFIX)) == 6
