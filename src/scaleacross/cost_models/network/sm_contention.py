"""Computation that runs beside a collective: the multiprocessors (SMs) and the HBM bandwidth that it loses.

A collective kernel of NCCL's kind keeps one SM per channel busy with copying and adding. Published settings: 20 of 132 SMs
(DeepSeek-V3 report, arXiv 2412.19437, section 3.2.2), 24 (DeepEP's usual setting on the same chips), 2 (fault-tolerant all-reduce
of arXiv 2602.00277). Its bytes pass through HBM, whoever copies them.

Kernels of a training step are of two kinds. Products and attention need arithmetic: with h of N SMs held they run at (N−h)/N of
their speed, so in a second of the collective they fall behind by h/N seconds; traffic that HBM has room for costs them nothing.
Element-wise kernels need HBM, which fewer SMs fill as well: they fall behind by the seconds of HBM that the bytes of the
collective use, however fast or slow these travel. With e the share of computation that is element-wise, a collective of T seconds
and S received bytes costs what it hides behind

    (1 − e) · h/N · T  +  e · touches · S / B          seconds, B the bytes per second that element-wise kernels reach

Regime: kernels of many waves (SMs divide the work evenly; a kernel of few waves slows down in steps), both kinds spread evenly
over the time of the collective, and the collective keeps its rate (hardware gives HBM to both; what it loses is not priced).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RING_TOUCHES: Final = 5.0
"""HBM reads and writes per byte that a rank receives and passes on through a buffer of the library at each end of a network link
(NCCL's Simple protocol with GPUDirect RDMA): the adapter writes it to the buffer; the kernel reads it, writes the result (of a
gather) or reads what it is added to (in a reduction), and writes it to the sending buffer; the adapter reads it. Between
accelerators of one domain the kernel writes straight into the peer's buffer, which saves two of them: an upper figure there."""


def held_fraction(held_multiprocessors: ArrayLike, num_multiprocessors: ArrayLike) -> Floats:
    """h/N: of its speed that a kernel limited by arithmetic loses beside a collective that holds h of N multiprocessors."""
    held = np.asarray(held_multiprocessors, dtype=np.float64) / np.asarray(num_multiprocessors)
    return np.minimum(1.0, held)
