"""Drivers of collectives: held multiprocessors, links, and the published bound on contention."""

from __future__ import annotations

import numpy as np
import pytest
from machines import accelerator
from pydantic import ValidationError

from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.drivers import (
    Drives,
    contention_fraction,
    driven,
    least_contention_fraction,
    slowdown,
)
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import HostShare
from scaleacross.spec.network_choice import ENGINE_SHARE
from scaleacross.spec.network_request import NetworkRequest

H100 = {"num_multiprocessors": 132, "collective_multiprocessors": 16}
HOST = HostShare(memory_bytes=1e12, memory_bandwidth_bytes_per_s=90e9, link_bandwidth_bytes_per_s=55e9)


def test_published_bound_on_contention() -> None:
    """Contention falls from 22 % to at most 0.8 % with 1 instead of 24 of 132 multiprocessors (GEM, 2026-08-03)."""
    assert slowdown("multiprocessors", 24, 132) == pytest.approx(0.222, abs=5e-4)
    assert slowdown("copy_engines", 24, 132) == pytest.approx(0.0076, abs=5e-5)
    assert slowdown("host", 24, 132) == 0


def test_copy_engines_never_hold_more_than_kernels() -> None:
    for kernels in (0, 1, 16):
        one = [accelerator(num_multiprocessors=132, collective_multiprocessors=kernels)]
        assert contention_fraction(one, "copy_engines") == min(kernels, 1) / 132 <= contention_fraction(one)
    assert least_contention_fraction([accelerator(**H100)], ("multiprocessors", "copy_engines")) == pytest.approx(
        1 / 132
    )
    assert Drives.of([accelerator(**H100)]).held_share("copy_engines") == pytest.approx(1 / 16)


def test_the_host_relays_what_its_memory_lets_it() -> None:
    """Host relays are limited by host memory.

    90 GB/s of memory carry every byte three times, so the rate is 30 GB/s. The link would carry 55.
    """
    hosted = accelerator(**H100).model_copy(update={"host": HOST})
    drives = Drives.of([hosted, hosted])
    assert drives.port_bytes_per_s("host") == pytest.approx(30e9)
    assert drives.start_s("host") == pytest.approx(2 * 512 * 1024 / 30e9)
    with pytest.raises(InputError, match="state host"):
        Drives.of([hosted, accelerator(**H100)]).port_bytes_per_s("host")


def test_links_of_a_driver() -> None:
    figures = np.array([450e9, 50e9, 50e9, 50e9, 50e9, 50e9])
    hosted = accelerator(**H100).model_copy(update={"host": HOST})
    links = Links(figures, figures, figures, curves=np.ones((1, 1, 1, 1)), drives=Drives.of([hosted]))
    engines, host = driven(links, "copy_engines"), driven(links, "host")
    assert engines.curves is None
    assert engines.bandwidth.tolist() == pytest.approx([450e9 * ENGINE_SHARE, *figures[1:]])
    assert host.bandwidth.tolist() == pytest.approx([30e9] * 6)


def test_a_job_keeps_kernels_for_reductions() -> None:
    with pytest.raises(ValidationError, match="reductions need multiprocessors"):
        NetworkRequest(drivers=("copy_engines",))
    with pytest.raises(ValidationError, match="nothing is chosen"):
        NetworkRequest(settings="library", drivers=("multiprocessors", "host"))
