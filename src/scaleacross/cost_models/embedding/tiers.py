"""Our cost model of a table on a rank: rows read from each memory, vectors exchanged over all levels, bytes per memory.

Per step and shard, with r row numbers looked up, v vectors of D columns sent on, e bytes per element stored, c sent:

* HBM forward 8r + r·row + v·D·c; backward 8r + 2·r·row + v·D·c (gradient in; rows read and written). A row takes whole
  sectors of 32 bytes: row = ⌈D·e/32⌉·32.
* Host memory with a cache in front: the reads that miss come over the host link and go back, 2·miss·r·row
  (``Locality.read_share`` of the cached share is the hit rate; every miss is fetched by itself). Without a cache rows
  are read and written there: 3·r·row. The link is an accelerator's own, or its share of the host's memory. SSD: as host
  memory with a cache, at the accelerator's share of its rate.
* Exchange forward and backward: ``exchange.Exchange``. Coded vectors (``coded_exchange``) travel so forward, in the
  all-to-alls of whole vectors; a reduction of partial sums (row_wise) is never coded. Rows that are not pooled have no
  partial sums: each comes from the one rank that holds it, whatever the sharding. Row numbers travel ahead of the step
  and are not counted.
* A dense table is read on every rank, its gradient all-reduced, and its optimizer passes over every element.
* The average over replica groups moves the bytes that the shard stores, every ``sync_interval_steps``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.embedding.coded_exchange import ForwardSlopes
from scaleacross.cost_models.embedding.exchange import Exchange
from scaleacross.cost_models.embedding.options import Option, cache_fractions, whole_bytes
from scaleacross.cost_models.embedding.torchrec import cache_state_bytes
from scaleacross.spec.recommendation import (
    BYTES_OF,
    POOLED_ONLY,
    Kernel,
    RecommendationJob,
    Sharding,
    TableOptimizer,
    adds_partial_sums,
)
from scaleacross.workloads.recommendation import ID_BYTES, EmbeddingTable, Locality

SECTOR_BYTES: Final = 32
"""Least read of a GPU's memory (CUDA C++ Best Practices Guide, coalesced access)."""
STATE_BYTES: Final = 4
GRADIENT_BYTES: Final = 4


@dataclass(frozen=True)
class RankRates:
    """Bytes/s of one class of ranks from HBM, host memory and SSD; 0: there is none."""

    hbm: float
    host: float
    ssd: float


@dataclass(frozen=True)
class Setting:
    """Figures that all tables share.

    Attributes:
        num_ranks, unit: ranks of a group, and of a host.
        batch: samples per rank.
        rates: of each class of ranks.
        forward: slopes of the tables whose vectors travel coded.
    """

    job: RecommendationJob
    num_ranks: int
    unit: int
    batch: float
    rates: tuple[RankRates, ...]
    exchange: Exchange
    locality: Locality
    num_groups: int
    forward: Mapping[str, ForwardSlopes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Shard:
    """Counts of one shard per step: row numbers, vectors sent on, rows and columns stored, seconds of exchange."""

    reads: float
    vectors: float
    rows: float
    width: int
    exchange_s: float
    num_shards: int = 1


def table_options(table: EmbeddingTable, setting: Setting) -> tuple[Option, ...]:
    """Every option of a table that the job and the memories of the ranks allow."""
    out = []
    for sharding in setting.job.shardings:
        for shard in _shards(table, sharding, setting):
            for kernel in setting.job.kernels:
                if (kernel == "dense") == (sharding == "data_parallel") and _exists(kernel, setting):
                    for cached in cache_fractions(kernel, setting.job.cache_fraction):
                        out.append(_option(table, sharding, kernel, shard, setting, cached))
    return tuple(out)


def _exists(kernel: Kernel, setting: Setting) -> bool:
    if kernel in ("dense", "fused"):
        return True
    return all((rates.ssd if kernel == "key_value" else rates.host) > 0 for rates in setting.rates)


def _shards(table: EmbeddingTable, sharding: Sharding, setting: Setting) -> list[_Shard]:
    """Ways to cut a table by one sharding: one, or for columns one per number of shards; empty where impossible."""
    ranks, links = setting.num_ranks, setting.exchange
    sent = BYTES_OF[setting.job.exchange_precision]
    reads = setting.batch * table.reads_per_sample * ranks
    vectors = setting.batch * table.outputs_per_sample * ranks
    width, rows = table.dimension, float(table.rows)
    whole = vectors * width * sent
    forward = setting.forward.get(table.name) or ForwardSlopes(links.all_to_all, links.across_hosts)
    both_ways = forward.all_to_all + links.all_to_all
    if sharding == "data_parallel":
        size = rows * width * GRADIENT_BYTES
        return [_Shard(reads / ranks, vectors / ranks, rows, width, links.all_reduce * size)]
    if sharding == "table_wise":
        return [_Shard(reads, vectors, rows, width, both_ways * whole)]
    if sharding in POOLED_ONLY and not table.pooled:
        return []
    if sharding == "row_wise":
        held = math.ceil(rows / ranks)
        if not adds_partial_sums(sharding, table.pooled):
            return [_Shard(reads / ranks, vectors / ranks, held, width, both_ways * whole / ranks)]
        return [_Shard(reads / ranks, vectors, held, width, links.scatter * whole)]
    if sharding == "table_row_wise":
        if setting.unit < 2:
            return []
        unit, inside = setting.unit, links.host_scatter * whole
        across = (forward.across_hosts + links.across_hosts) * whole / unit if unit < ranks else 0.0
        return [_Shard(reads / unit, vectors, math.ceil(rows / unit), width, inside + across)]
    least = setting.job.least_column_width
    cuts = [shards for shards in (2, 4, 8, 16) if width % shards == 0 and width // shards >= least and shards <= ranks]
    return [_Shard(reads, vectors, rows, width // shards, both_ways * whole / shards, shards) for shards in cuts]


def _option(
    table: EmbeddingTable, sharding: Sharding, kernel: Kernel, shard: _Shard, setting: Setting, cached: float | None
) -> Option:
    memory = _memory(kernel, shard, setting, cached or 0.0)
    lookup = np.array([_lookup_s(table, kernel, shard, setting, rates, cached or 0.0) for rates in setting.rates])
    stored = shard.rows * shard.width * BYTES_OF[setting.job.table_precision]
    sync = setting.exchange.sync * stored / setting.job.sync_interval_steps if setting.num_groups > 1 else 0.0
    parts: Floats = np.stack([lookup, np.full_like(lookup, shard.exchange_s), np.full_like(lookup, sync)], axis=1)
    return Option(sharding, kernel, parts, memory, shard.num_shards, shard.width, cached)


def row_bytes(width: int, element_bytes: int) -> int:
    """Bytes that reading one row moves: whole sectors."""
    return math.ceil(width * element_bytes / SECTOR_BYTES) * SECTOR_BYTES


def _lookup_s(
    table: EmbeddingTable, kernel: Kernel, shard: _Shard, setting: Setting, rates: RankRates, cached: float
) -> float:
    row = row_bytes(shard.width, BYTES_OF[setting.job.table_precision])
    sent = shard.vectors * shard.width * BYTES_OF[setting.job.exchange_precision]
    weighted = 4 * shard.reads if table.weighted else 0.0
    around = 2 * (ID_BYTES * shard.reads + sent + weighted)
    moved = shard.reads * row
    if kernel == "dense":
        elements = shard.rows * shard.width
        state = state_bytes(setting.job.optimizer, shard.width) * elements
        passes = 2 * (BYTES_OF[setting.job.table_precision] * elements + state) + GRADIENT_BYTES * elements
        return (around + 3 * moved + passes) / rates.hbm
    if kernel == "fused_uvm":
        return around / rates.hbm + 3 * moved / rates.host
    seconds = (around + 3 * moved) / rates.hbm
    if kernel == "fused":
        return seconds
    miss = 1 - setting.locality.read_share(cached, table.rows)
    return seconds + 2 * miss * moved / (rates.host if kernel == "fused_uvm_caching" else rates.ssd)


def state_bytes(optimizer: TableOptimizer, width: int) -> float:
    """Bytes of optimizer state per element of a shard of ``width`` columns: fp32 per row, or one or two per element."""
    return {"sgd": 0.0, "rowwise_adagrad": STATE_BYTES / width, "adagrad": STATE_BYTES, "adam": 2 * STATE_BYTES}[
        optimizer
    ]


def _memory(kernel: Kernel, shard: _Shard, setting: Setting, cached: float) -> Floats:
    job, elements = setting.job, shard.rows * shard.width
    rows = elements * (BYTES_OF[job.table_precision] + state_bytes(job.optimizer, shard.width))
    buffers = ID_BYTES * shard.reads + shard.vectors * shard.width * BYTES_OF[job.exchange_precision]
    if kernel == "dense":
        return whole_bytes([buffers + rows + GRADIENT_BYTES * elements, 0, 0])
    if kernel == "fused":
        return whole_bytes([buffers + rows, 0, 0])
    if kernel == "fused_uvm":
        return whole_bytes([buffers, rows, 0])
    cache = cached * rows + cache_state_bytes(shard.rows, cached)
    return whole_bytes([buffers + cache, *((rows, 0) if kernel == "fused_uvm_caching" else (0, rows))])
