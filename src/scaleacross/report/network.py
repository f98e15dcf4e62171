"""One link technology: its figures and their sources."""

from __future__ import annotations

from rich.console import Group, RenderableType

from scaleacross.report.format import grid, percent, rate
from scaleacross.report.provenance import provenance_counts, sources
from scaleacross.spec.network import CURVE_OPS, NetworkTechnology
from scaleacross.units import human_seconds


def network_report(technology: NetworkTechnology) -> RenderableType:
    """Return line rate, the fraction of it that collectives reach, curves used in its place, and the settings."""
    facts = grid(
        [
            ("network", technology.name),
            ("line rate", f"{rate(technology.bandwidth_bytes_per_s)} per accelerator and direction"),
            ("of line rate reached", percent(technology.efficiency_fraction)),
            ("message of a further chunk", human_seconds(technology.message_overhead_s)),
            ("inside a domain", _curves(technology)),
            ("congestion control", technology.congestion_control),
            ("load balancing", technology.load_balancing),
            ("figures", provenance_counts(technology)),
        ]
    )
    return Group(facts, sources(technology.provenance)) if technology.provenance else facts


def _curves(technology: NetworkTechnology) -> str:
    """Describe what determines the times of collectives inside a scale-up domain of this technology."""
    groups = {op: [str(curve.num_ranks) for curve in technology.curves if curve.op == op] for op in CURVE_OPS}
    stated = ", ".join(f"{op} among {'/'.join(sizes)}" for op, sizes in groups.items() if sizes)
    origin = technology.provenance.get("curves.time_us")
    how = "computed" if origin is not None and origin.status == "assumed" else "measured"
    return f"{how} curves: {stated}" if stated else "no measured curves: latency + bytes / (share of line rate)"
