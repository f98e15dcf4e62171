"""Sets rates on interfaces: a token bucket in the kernel, followed by netem if the kernel has it."""

from __future__ import annotations

from typing import Final

from scaleacross.testbed.machine import do

BURST_S: Final = 0.5e-3
"""An idle link saves up this many seconds of its rate; with more, short tensors would take no time."""
MIN_BURST_BYTES: Final = 70_000
"""Smallest bucket: a packet of 64 KiB passes in one piece only if the bucket holds it."""
QUEUE_BYTES: Final = 64 << 20
"""Bytes that may wait before a link: more than all senders keep in flight. The networks of a plan stop the sender
when they are full; they do not drop packets."""


def bucket(namespace: str, device: str, rate_bytes_per_s: float, is_new: bool = True, is_cut: bool = False) -> None:
    """Let ``device`` send at most so many bytes/s, or with ``is_cut`` silently nothing at all, as with a cut fibre."""
    burst = max(MIN_BURST_BYTES, int(rate_bytes_per_s * BURST_S))
    queue = 1 if is_cut else QUEUE_BYTES
    do(
        *("tc", "-n", namespace, "qdisc", "add" if is_new else "change", "dev", device, "root", "handle", "1:", "tbf"),
        *("rate", f"{round(rate_bytes_per_s * 8)}bit", "burst", str(burst), "limit", str(queue)),
    )


def distance(namespace: str, device: str, delay_s: float, loss_fraction: float) -> None:
    """Add delay and loss after the bucket of ``device``, by netem."""
    loss = ("loss", f"{loss_fraction * 100:g}%") if loss_fraction else ()
    do(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "parent", "1:1", "handle", "10:", "netem"),
        *("delay", f"{round(delay_s * 1e6)}us", *loss, "limit", "100000"),
    )
