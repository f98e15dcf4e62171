"""Drivers of a collective: kernels on multiprocessors, copy engines with RDMA, or the host; and what each holds.

=============== ============================ ============================ =============================================
driver          multiprocessors held         inside a scale-up domain     beyond it, per accelerator
=============== ============================ ============================ =============================================
multiprocessors as the accelerator says, h   measured curves              port
copy_engines    min(h, 1)                    ENGINE_SHARE of what kernels port: adapters read and write the tensors
                                             attain, ENGINE_START_S more
host            0                            over the host                min(port, host link, host memory / 3 touches)
=============== ============================ ============================ =============================================

Copy engines and hosts move bytes and cannot reduce, so they run gathers and all-to-alls. Neither is ever faster than
kernels on the same links (NCCL 2.31 on its zero-CTA policy: "even when that choice may sacrifice some performance"; of
the host path arXiv 2604.24073: slower than NCCL alone). So a call takes the longer of the law above and the kernels'
time. Their gain is computation: while a collective holds h of N multiprocessors, products run at (N − h)/N of their
speed (``sm_contention``). Contention for HBM counts alike for all three, which is too much for copy engines. So do
chunk windows of parameters that cross buildings (``split_backward``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scaleacross.cost_models.network.sm_contention import held_fraction
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network_choice import (
    ENGINE_SHARE,
    ENGINE_START_S,
    LIBRARY_SEGMENT_BYTES,
    Driver,
    held_by,
)

if TYPE_CHECKING:  # it carries what is made here
    from scaleacross.cost_models.links import Links


def slowdown(driver: Driver, num_held: int, num_multiprocessors: int) -> float:
    """Slowdown of computation that overlaps with a driver's collectives from beginning to end, ≥ 0."""
    return float(1 / (1 - held_fraction(held_by(driver, num_held), num_multiprocessors)) - 1)


def contention_fraction(accelerators: Sequence[Accelerator], driver: Driver = "multiprocessors") -> float:
    """Share of their speed that products lose while a driver's collective runs, on the type that loses most."""
    return max(
        float(held_fraction(held_by(driver, one.collective_multiprocessors), one.num_multiprocessors))
        for one in accelerators
    )


def least_contention_fraction(accelerators: Sequence[Accelerator], drivers: Iterable[Driver]) -> float:
    """Least ``contention_fraction`` among the allowed drivers."""
    return min(contention_fraction(accelerators, driver) for driver in drivers)


class Drives(NamedTuple):
    """Figures of accelerators for drivers other than kernels.

    Attributes:
        host_bytes_per_s: rate per accelerator of a collective that the host drives; None: no host is stated.
        engine_share: products' loss of speed to copy engines over their loss to kernels, at most 1.
    """

    host_bytes_per_s: float | None
    engine_share: float

    @classmethod
    def of(cls, accelerators: Sequence[Accelerator]) -> Drives:
        """Figures of the slowest of several types."""
        rates = [one.host.relay_bytes_per_s for one in accelerators if one.host is not None]
        kernels = contention_fraction(accelerators)
        share = contention_fraction(accelerators, "copy_engines") / kernels if kernels else 1.0
        return cls(min(rates) if rates and len(rates) == len(accelerators) else None, share)

    def held_share(self, driver: Driver) -> float:
        """Products' loss of speed to a driver over their loss to kernels."""
        return {"multiprocessors": 1.0, "copy_engines": self.engine_share, "host": 0.0}[driver]

    def port_bytes_per_s(self, driver: Driver) -> float:
        """Largest rate of an accelerator on any level; inf unless the host drives. InputError if no host is stated."""
        if driver != "host":
            return np.inf
        if self.host_bytes_per_s is None:
            raise InputError(
                "a collective is driven by the host, and nothing says how accelerators reach theirs: state host: {memory_gib, "
                "memory_bandwidth_gbyte_per_s, link_bandwidth_gbyte_per_s} of the building, or another driver"
            )
        return self.host_bytes_per_s

    def start_s(self, driver: Driver) -> float:
        """Start-up of a call beyond that of kernels, s; the host adds the first segment's way in and the last's out."""
        if driver == "host":
            return 2 * LIBRARY_SEGMENT_BYTES / self.port_bytes_per_s(driver)
        return ENGINE_START_S if driver == "copy_engines" else 0.0


def inside_share(driver: Driver) -> float:
    """Share of the kernels' rate inside a scale-up domain."""
    return ENGINE_SHARE if driver == "copy_engines" else 1.0


def driven(links: Links, driver: Driver) -> Links:
    """``links`` for a driver other than kernels, without measured curves.

    Raises:
        InputError: the host drives, and none is stated.
        ValueError: the links carry no figures of the accelerators.
    """
    if links.drives is None:
        raise ValueError("links without figures of drivers")
    port = links.drives.port_bytes_per_s(driver)
    inside = np.where(np.arange(links.bandwidth.shape[-1]) == 0, inside_share(driver), 1.0)
    adapter = None if links.adapter is None else np.minimum(links.adapter, port)
    return links._replace(bandwidth=np.minimum(links.bandwidth * inside, port), adapter=adapter, curves=None)
