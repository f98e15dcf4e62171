"""One link technology: its figures and where they come from."""

from __future__ import annotations

from rich.console import Group, RenderableType

from scaleacross.report.format import grid, percent, rate
from scaleacross.report.provenance import provenance_counts, sources
from scaleacross.spec.network import NetworkTechnology


def network_report(technology: NetworkTechnology) -> RenderableType:
    """Line rate, the share of it that collectives reach, and the settings."""
    facts = grid(
        [
            ("network", technology.name),
            ("line rate", f"{rate(technology.bandwidth_bytes_per_s)} per accelerator and direction"),
            ("of line rate reached", percent(technology.efficiency_fraction)),
            ("congestion control", technology.congestion_control),
            ("load balancing", technology.load_balancing),
            ("figures", provenance_counts(technology)),
        ]
    )
    return Group(facts, sources(technology.provenance)) if technology.provenance else facts
