"""Rates on interfaces: a token bucket in the kernel, and netem behind it where the kernel has that."""

from __future__ import annotations

from typing import Final

from scaleacross.testbed.machine import do

BURST_S: Final = 0.5e-3
"""An idle link saves up this much of its rate: little, or short tensors would pass for nothing."""
MIN_BURST_BYTES: Final = 70_000
"""A packet of 64 KiB passes in one piece only if the bucket holds it."""
QUEUE_BYTES: Final = 64 << 20
"""What waits before a link: more than all senders keep in flight, since the networks of a plan do not drop packets when they are
full but stop the sender."""


def bucket(namespace: str, device: str, rate_bytes_per_s: float, is_new: bool = True, is_cut: bool = False) -> None:
    """Let ``device`` send at most so many bytes/s; ``is_cut``: nothing at all, and nobody is told, as with a cut fibre."""
    burst = max(MIN_BURST_BYTES, int(rate_bytes_per_s * BURST_S))
    queue = 1 if is_cut else QUEUE_BYTES
    do(
        *("tc", "-n", namespace, "qdisc", "add" if is_new else "change", "dev", device, "root", "handle", "1:", "tbf"),
        *("rate", f"{round(rate_bytes_per_s * 8)}bit", "burst", str(burst), "limit", str(queue)),
    )


def distance(namespace: str, device: str, delay_s: float, loss_fraction: float) -> None:
    """Delay and loss behind the bucket of ``device``, by netem."""
    loss = ("loss", f"{loss_fraction * 100:g}%") if loss_fraction else ()
    do(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "parent", "1:1", "handle", "10:", "netem"),
        *("delay", f"{round(delay_s * 1e6)}us", *loss, "limit", "100000"),
    )
