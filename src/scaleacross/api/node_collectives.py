"""Score and fit multi-node collectives on the machines that validation knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from scaleacross.api.level_calibration import fitted_entries
from scaleacross.calibration import across_nodes
from scaleacross.calibration.collective_data import Measurement
from scaleacross.calibration.file_scores import GroupErrors, Skipped, stated_link
from scaleacross.calibration.result import FittedEntry
from scaleacross.validation.machines import label_of, machine_named, topology_of


def node_errors(rows: Sequence[Measurement], skipped: list[Skipped]) -> Iterable[GroupErrors]:
    """Return groups and errors of rows over several nodes (``across_nodes.node_errors``)."""
    return across_nodes.node_errors(rows, skipped, _fleet)


def node_entries(rows: Sequence[Measurement], source: str, date: str, skipped: list[Skipped]) -> Iterator[FittedEntry]:
    """Yield a topology per machine, its levels outside the host fitted to its rows, and their technologies."""
    for fit in across_nodes.node_fits(rows, source, date, skipped, _fleet):
        comment = f"written by scaleacross calibrate from collectives of {fit.label}"
        yield from fitted_entries(fit.base, fit.topology, fit.fits, comment)


def link_of(row: Measurement) -> str:
    """Return the link technology of a single-node row; empty where it is unknown.

    It is the link of the system that the file names, or else the scale-up link of the row's accelerator.
    """
    if row.system:
        return stated_link(row)
    return "" if label_of(row.gpu) is None else machine_named(row.gpu, row.fabric).scale_up


def _fleet(gpu: str, fabric: str) -> across_nodes.Fleet:
    machine = machine_named(gpu, fabric)
    return across_nodes.Fleet(machine.port, machine.accelerators_per_host, partial(topology_of, machine))
