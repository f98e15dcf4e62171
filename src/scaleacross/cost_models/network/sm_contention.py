"""Computation concurrent with a collective: the multiprocessors (SMs) and the HBM bandwidth that it loses.

A collective kernel of NCCL's kind keeps one SM per channel busy with copying and adding. Published settings: 20 of 132
SMs (DeepSeek-V3 report, arXiv 2412.19437, section 3.2.2), 24 (DeepEP's usual setting on the same chips), 2
(fault-tolerant all-reduce of arXiv 2602.00277). Its bytes pass through HBM, whatever copies them.

Kernels of a training step are of two kinds. Products and attention need arithmetic. With h of N SMs held they run at
(N−h)/N of their speed, so in a second of the collective they fall behind by h/N seconds. Traffic within the spare
bandwidth of HBM does not slow them. Element-wise kernels need HBM, which fewer SMs saturate as well. They fall behind
by the seconds of HBM that the bytes of the collective use, however fast or slow these travel. With e the share of
computation that is element-wise, a collective of T seconds and S received bytes delays computation concurrent with it
by

    (1 − e) · h/N · T  +  e · touches · S / B          seconds, B the bytes per second of element-wise kernels

The law assumes kernels of many waves (SMs divide the work evenly; a kernel of few waves slows down in steps) and both
kinds spread evenly over the time of the collective. It assumes that the collective keeps its rate (hardware gives HBM
to both; its own loss is not modelled).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats

RING_TOUCHES: Final = 5.0
"""HBM reads and writes per byte that a rank receives and passes on, through a buffer of the library at each end of a
network link (NCCL's Simple protocol with GPUDirect RDMA). The adapter writes it to the buffer. The kernel reads it,
writes the result (of a gather) or reads what it is added to (in a reduction), and writes it to the sending buffer.
The adapter reads it. Between accelerators of one domain the kernel writes straight into the peer's buffer, which
saves two of these accesses, so the figure is an upper bound there."""


def held_fraction(held_multiprocessors: ArrayLike, num_multiprocessors: ArrayLike) -> Floats:
    """h/N: share of its speed that an arithmetic-bound kernel loses while a collective holds h of N multiprocessors."""
    held = np.asarray(held_multiprocessors, dtype=np.float64) / np.asarray(num_multiprocessors)
    return np.minimum(1.0, held)
