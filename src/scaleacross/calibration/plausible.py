"""Refuse implausible measurements: times in another unit, or a base that is another machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scaleacross.calibration.collective_data import Measurement
from scaleacross.calibration.collectives import MIB
from scaleacross.calibration.kernel_data import AttentionTimes, Floats, GemmTimes
from scaleacross.cost_models.kernels import Machine
from scaleacross.errors import InputError
from scaleacross.spec.network import NetworkTechnology

LEAST_SHARE: Final = 0.01
"""If the best share of the peak is below this, times are not in microseconds; published sweeps reach 0.44 to 0.93."""
LINE_RATES: Final = (1e-3, 4.0)
"""Plausible range of size / time over line rate for the largest collective.

It is at most n / (n − 1) for a gather at full rate and at most 1 for an all-reduce inside a switch. A thousandth would
be a link that nobody builds.
"""


def check_gemm(label: str, kind: str, times: GemmTimes, machine: Machine, base: str) -> None:
    """Raise InputError if products exceed the base's peak, or if even the fastest is below LEAST_SHARE of it."""
    _check_rate(f"products of {label} in {kind}", times.flop / times.time_s, machine.peak_flop_per_s, base)


def check_attention(label: str, times: AttentionTimes, machine: Machine, base: str) -> None:
    """Check causal attention as ``check_gemm`` does; its products count half of the square."""
    flop = 2.0 * times.sequences * times.heads * times.length**2 * times.head_dim
    _check_rate(f"attention of {label}", flop / times.time_s, machine.peak_flop_per_s, base)


def check_collectives(label: str, rows: Sequence[Measurement], base: NetworkTechnology) -> None:
    """Raise InputError if the rate of the largest collective is outside LINE_RATES of the base's line rate.

    The lower limit applies from 1 MiB on, because smaller collectives are dominated by latency.
    """
    largest = max(rows, key=lambda row: row.size_bytes)
    share = largest.size_bytes / largest.time_s / base.bandwidth_bytes_per_s
    if not (LINE_RATES[0] if largest.size_bytes >= MIB else 0.0) <= share <= LINE_RATES[1]:
        raise InputError(
            f"collectives of {label or 'the file'}: {largest.size_bytes:,} B of {largest.op} among {largest.num_ranks} in "
            f"{largest.time_s * 1e6:g} µs is {share:.3g} times the line rate of {base.name}: is time_us in microseconds and "
            "size_bytes in bytes? Otherwise name another --base"
        )


def _check_rate(what: str, rates: Floats, peak: float, base: str) -> None:
    best = float(rates.max() / peak)
    if LEAST_SHARE <= best <= 1.0:
        return
    raise InputError(
        f"{what}: the fastest reaches {rates.max() / 1e12:,.4g} TFLOP/s, {best:.3g} times the {peak / 1e12:,.4g} TFLOP/s that "
        f"{base} states: is time_us in microseconds? Otherwise copy the file of {base}, state this accelerator's own peak "
        "and memory in it, and name the copy with --base"
    )
