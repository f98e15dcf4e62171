"""TorchRec's estimator of look-ups, communication and storage, by which its own planner compares plans.

Formulas and constants of ``meta-pytorch/torchrec`` 376cac6 (planner/constants.py, estimator/, 1.9.2 has the same). Two
networks, no latency, no overlap, no dense part; a plan's score is the largest sum of a rank. Its rates are in bytes per
ms, its times in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.embedding.options import NUM_TIERS, Option, cache_fractions, whole_bytes
from scaleacross.spec.recommendation import POOLED_ONLY, Kernel, Sharding, TableOptimizer
from scaleacross.workloads.recommendation import ID_BYTES, EmbeddingTable

_GIB_PER_S: Final = 2**30 / 1e3
"""1 GiB/s in bytes per ms."""
BATCHED_COPY_FACTOR: Final = 2.455
WEIGHTED_FACTOR: Final = 1.1
DENSE_ELEMENTWISE_FACTOR: Final = 9.22
LEAST_COLUMN_WIDTH: Final = 128
BACKWARD_FACTOR: Final = 2
_UVM_SLOWDOWN: Final = 10
CACHE_RATIO: Final = 0.2
"""Share of a table that a cache holds if no constraint states one."""


@dataclass(frozen=True)
class TorchRecMachine:
    """Figures of TorchRec's ``Topology``, rates in bytes per ms; defaults are those of planner/constants.py."""

    world_size: int
    local_world_size: int
    hbm: float = 897 * _GIB_PER_S
    host: float = 51 * _GIB_PER_S
    hbm_to_host: float = 32 * _GIB_PER_S
    ssd: float = 0.1 * _GIB_PER_S
    intra_host: float = 600 * _GIB_PER_S
    inter_host: float = 12.5 * _GIB_PER_S
    cache_ratio: float = CACHE_RATIO

    @property
    def network(self) -> float:
        """Bytes per ms of a collective over all ranks other than an all-reduce."""
        return self.intra_host if self.world_size <= self.local_world_size else self.inter_host

    def kernel_rate(self, kernel: Kernel) -> float:
        """Rate at which a kernel moves rows, bytes per ms."""
        blend = self.cache_ratio * self.hbm + (1 - self.cache_ratio) * self.hbm_to_host
        return {
            "dense": 0.5 * self.hbm,
            "fused": self.hbm,
            "fused_uvm": self.hbm_to_host / _UVM_SLOWDOWN,
            "fused_uvm_caching": blend / _UVM_SLOWDOWN,
            "key_value": self.ssd,
        }[kernel]


@dataclass(frozen=True)
class ShardPerf:
    """One shard's times in ms, like TorchRec's ``Perf``."""

    fwd_compute: float
    fwd_comms: float
    bwd_compute: float
    bwd_comms: float
    input_dist: float


def shard_perf(
    table: EmbeddingTable,
    sharding: Sharding,
    kernel: Kernel,
    machine: TorchRecMachine,
    batch: int,
    width: int,
    row_bytes: int = 4,
    sent_bytes: int = 4,
) -> ShardPerf:
    """Times of one shard of ``width`` columns; ``batch`` samples per rank, bytes per element stored and sent."""
    w, local, rate = machine.world_size, machine.local_world_size, machine.kernel_rate(kernel)
    reads, outputs = batch * table.reads_per_sample, batch * table.outputs_per_sample
    dim, factor = table.dimension, WEIGHTED_FACTOR if table.weighted else 1.0
    group = min(local, w)
    if sharding == "data_parallel":
        size, hosts = float(table.rows) * dim * row_bytes, min(w / local, 2)
        moved = ID_BYTES * reads + (reads + outputs) * dim * row_bytes
        reduce = size * (2 * hosts - 1) / hosts / (machine.inter_host * local) * (2 if w > 2 * local else 1)
        compute = moved / rate * factor
        return ShardPerf(compute, 0.0, compute * BACKWARD_FACTOR, reduce + DENSE_ELEMENTWISE_FACTOR * size / rate, 0.0)
    pooled_all = outputs * w * dim * sent_bytes
    if sharding in ("table_wise", "column_wise", "table_column_wise"):
        sent = outputs * w * width * sent_bytes
        penalty = 1.0 if width >= 128 else 1.15 if width >= 64 else 1.75
        moved = ID_BYTES * reads * w + reads * w * max(width, 32) * row_bytes + sent
        compute, comms = moved / rate * penalty * factor, sent / machine.network
        return ShardPerf(compute, comms, compute * BACKWARD_FACTOR, comms, ID_BYTES * reads * w / machine.network)
    if sharding == "row_wise":
        sent = pooled_all if table.pooled else outputs * dim * sent_bytes
        moved = ID_BYTES * reads + reads * dim * row_bytes + sent
        comms, copy = sent / machine.network, BATCHED_COPY_FACTOR * sent / rate
        read_share = reads
    else:
        read_share = reads * w / group
        moved = ID_BYTES * read_share + read_share * dim * row_bytes + pooled_all
        groups = w / group
        comms = pooled_all / machine.intra_host
        comms += outputs * groups * dim * sent_bytes / machine.inter_host if groups > 1 else 0.0
        copy = BATCHED_COPY_FACTOR * pooled_all / rate
    compute = moved / rate * factor
    asked = ID_BYTES * reads * w / machine.network
    return ShardPerf(compute, comms, compute * BACKWARD_FACTOR, comms + copy, asked)


def shard_storage(
    table: EmbeddingTable,
    sharding: Sharding,
    kernel: Kernel,
    machine: TorchRecMachine,
    batch: int,
    width: int,
    row_bytes: int = 4,
    sent_bytes: int = 4,
    optimizer: TableOptimizer | None = None,
) -> tuple[float, float, float]:
    """Bytes of one shard in HBM, host memory and on SSD: rows, optimizer state, cache state, input and output."""
    w, local = machine.world_size, min(machine.local_world_size, machine.world_size)
    reads, outputs = batch * table.reads_per_sample, batch * table.outputs_per_sample
    rows = {"row_wise": table.rows / w, "table_row_wise": table.rows / local}.get(sharding, float(table.rows))
    tensor = rows * width * row_bytes
    state = {"sgd": 0.0, "rowwise_adagrad": 1 / width, "adagrad": 1.0, "adam": 2.0, None: 0.0}[optimizer]
    total = tensor * (1 + state)
    ids = {"row_wise": reads, "table_row_wise": reads * w / local, "data_parallel": reads}.get(sharding, reads * w)
    once = sharding == "data_parallel" or (sharding == "row_wise" and not table.pooled)
    sent = outputs * (1 if once else w) * width * sent_bytes
    hbm = ID_BYTES * ids + sent
    if kernel in ("dense", "fused"):
        return hbm + total, 0.0, 0.0
    if kernel == "fused_uvm_caching":
        cache = cache_state_bytes(rows, machine.cache_ratio)
        return hbm + machine.cache_ratio * total + cache, total, 0.0
    return (hbm, total, 0.0) if kernel == "fused_uvm" else (hbm, 0.0, total)


def cache_state_bytes(rows: float, cache_ratio: float) -> float:
    """Bytes in HBM of the index of cached rows: 4 per row of the table, 16 per row of the cache."""
    return rows * (4 + 16 * cache_ratio)


def column_width(table: EmbeddingTable, least: int = LEAST_COLUMN_WIDTH) -> int:
    """Columns of TorchRec's column shards: ``least`` where it divides a larger dimension, else whole rows."""
    return least if table.dimension > least and table.dimension % least == 0 else table.dimension


def column_widths(table: EmbeddingTable, least: int = LEAST_COLUMN_WIDTH) -> tuple[int, ...]:
    """Widths that ``min_partition`` can give: TorchRec's own choice first, then halves of 128 down to ``least``."""
    halves = [width for width in (128, 64, 32, 16, 8, 4) if width >= least]
    return tuple(dict.fromkeys(column_width(table, width) for width in (LEAST_COLUMN_WIDTH, *halves)))


def torchrec_options(
    table: EmbeddingTable,
    machine: TorchRecMachine,
    batch: int,
    shardings: tuple[Sharding, ...],
    kernels: tuple[Kernel, ...],
    row_bytes: int = 4,
    sent_bytes: int = 4,
    optimizer: TableOptimizer | None = None,
    least_column_width: int = LEAST_COLUMN_WIDTH,
    cached: Sequence[float] = (CACHE_RATIO,),
) -> tuple[Option, ...]:
    """Every option of a table that TorchRec's enumerator lists, by its own figures (here in s, look-up and exchange).

    Below ``LEAST_COLUMN_WIDTH`` it lists column shards, and besides ``CACHE_RATIO`` other shares ``cached``, only where
    a constraint (``min_partition``, ``cache_params``) asks for them.
    """
    out = []
    narrow = column_widths(table, least_column_width)
    known = [kind for kind in shardings if table.pooled or kind not in POOLED_ONLY]
    listed = [(kind, width) for kind in known for width in (narrow if "column" in kind else (table.dimension,))]
    stores = [(kernel, share) for kernel in kernels for share in cache_fractions(kernel, cached)]
    for sharding, width in listed:
        for kernel, share in stores:
            if (kernel == "dense") != (sharding == "data_parallel"):
                continue
            with_cache = machine if share is None else replace(machine, cache_ratio=share)
            perf = shard_perf(table, sharding, kernel, with_cache, batch, width, row_bytes, sent_bytes)
            stored = shard_storage(table, sharding, kernel, with_cache, batch, width, row_bytes, sent_bytes, optimizer)
            parts = np.array([[perf.fwd_compute + perf.bwd_compute, perf.fwd_comms + perf.bwd_comms, 0.0]]) / 1e3
            shards = table.dimension // width if "column" in sharding else 1
            out.append(Option(sharding, kernel, parts, whole_bytes(stored[:NUM_TIERS]), shards, width, share))
    return tuple(out)
