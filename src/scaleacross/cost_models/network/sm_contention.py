"""Computation that runs beside a collective: the multiprocessors (SMs) and the HBM bandwidth that it loses.

A collective kernel of NCCL's kind keeps one SM per channel busy with copying and adding. Published settings: 20 of 132 SMs
(DeepSeek-V3 report, arXiv 2412.19437, section 3.2.2), 24 (DeepEP's usual setting on the same chips), 2 (fault-tolerant all-reduce
of arXiv 2602.00277). Transfers by copy engines or by the NIC straight from the tensor (SM-free, zero-copy) hold none, but their
bytes pass through HBM all the same.

Symbols: F seconds that the arithmetic of a kernel needs on all SMs, M seconds that its HBM traffic needs alone, N SMs of which
the collective holds h, b share of HBM bandwidth that the collective takes:

    slowed = max( F · N/(N−h), M / (1−b) )          alone = max(F, M)

Regime: kernels of many waves (SMs divide the work evenly; a kernel of few waves slows down in steps), arithmetic and traffic of a
kernel overlap perfectly, and the collective keeps its rate (hardware gives HBM to both; what the collective loses is not priced).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Overlapped(NamedTuple):
    """Computation and a collective that start together.

    Attributes:
        compute_end_s: when the computation ends.
        total_s: when both have ended.
    """

    compute_end_s: Floats
    total_s: Floats


def hbm_taken_fraction(wire_bytes_per_s: ArrayLike, touches_per_byte: ArrayLike, hbm_bytes_per_s: ArrayLike) -> Floats:
    """Share b of HBM bandwidth that a collective takes, at most 1: wire rate · touches / HBM rate.

    Args:
        wire_bytes_per_s: bytes that the accelerator sends (and receives as many of) per second.
        touches_per_byte: HBM reads and writes per byte sent. Counted: 2 for a zero-copy send and receive (one read, one write);
            3 with a sum on arrival (the operand is read too); 6 and 7 where both ends copy through a staging buffer in HBM
            (two more reads or writes per end).
        hbm_bytes_per_s: what memory-bound kernels reach alone.
    """
    taken = np.asarray(wire_bytes_per_s, dtype=np.float64) * np.asarray(touches_per_byte) / np.asarray(hbm_bytes_per_s)
    return np.minimum(1.0, taken)


def compute_slowdown_ratio(
    arithmetic_s: ArrayLike,
    memory_s: ArrayLike,
    held_multiprocessors: ArrayLike,
    num_multiprocessors: ArrayLike,
    hbm_fraction: ArrayLike,
) -> Floats:
    """slowed / alone of the module docstring, ≥ 1; 1 for no work, inf where nothing is left for a kernel that needs it.

    Args:
        arithmetic_s, memory_s: F and M.
        held_multiprocessors, num_multiprocessors: h and N.
        hbm_fraction: b.
    """
    arithmetic, memory = np.asarray(arithmetic_s, dtype=np.float64), np.asarray(memory_s, dtype=np.float64)
    alone = np.maximum(arithmetic, memory)
    with np.errstate(divide="ignore", invalid="ignore"):
        free = np.maximum(0.0, 1 - np.asarray(held_multiprocessors, dtype=np.float64) / np.asarray(num_multiprocessors))
        by_sms = np.where(arithmetic > 0, arithmetic / free, 0.0)
        by_hbm = np.where(memory > 0, memory / (1 - np.asarray(hbm_fraction, dtype=np.float64)), 0.0)
        return np.where(alone > 0, np.maximum(by_sms, by_hbm) / alone, 1.0)


def overlapped(compute_s: ArrayLike, communication_s: ArrayLike, slowdown_ratio: ArrayLike) -> Overlapped:
    """Computation C beside a collective T that slows it down by σ while it runs.

    Computation done while the collective runs is T/σ, if there is as much; the rest runs at full speed afterwards:

        compute end = min(σ·C, C + T·(1−1/σ))
        total       = max(compute end, T)

    Never less than max(C, T); running one after the other is better as soon as it exceeds C + T, which never happens for σ < ∞.
    """
    compute, running = np.asarray(compute_s, dtype=np.float64), np.asarray(communication_s, dtype=np.float64)
    slowdown = np.asarray(slowdown_ratio, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # no work beside a collective that leaves nothing: 0 · inf
        slowed = np.minimum(slowdown * compute, compute + running * (1 - 1 / slowdown))
    end = np.where(compute > 0, slowed, 0.0)
    return Overlapped(end, np.maximum(end, running))


def channel_rate_bytes_per_s(
    line_bytes_per_s: ArrayLike, held_multiprocessors: ArrayLike, bytes_per_s_per_multiprocessor: ArrayLike
) -> Floats:
    """Rate of a collective that copies with h SMs: min(line rate, h · rate of one SM). SM-free paths have the line rate."""
    copied = np.asarray(held_multiprocessors, dtype=np.float64) * np.asarray(bytes_per_s_per_multiprocessor)
    return np.minimum(np.asarray(line_bytes_per_s, dtype=np.float64), copied)
