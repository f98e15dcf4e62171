"""Small machines and models with round figures, so that expected values can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaleacross.cost_models.candidates import Candidates
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network import LevelLink, NetworkTechnology, Trunk
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, SCHEDULE_NAMES, SHARD_LEVELS
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.spec.topology import Building, BuildingLinks, Region, Topology
from scaleacross.workloads.dense_transformer import DenseTransformer

GB = 1e9
RATES = (100 * GB, 50 * GB, 20 * GB, 10 * GB)
"""Bytes/s per accelerator at scale_up, rack, zone and building."""
LATENCIES = (1e-6, 2e-6, 4e-6, 8e-6)


def accelerator(name: str = "chip", **changes: Any) -> Accelerator:
    """An accelerator of 100 TFLOP/s at efficiency ½ and 1 TB/s at 0.8.

    It has ten multiprocessors with tiles of 64 × 128, and 10 µs per launch.
    """
    figures: dict[str, Any] = {
        "peak_flop_per_s": {"bf16": 100e12},
        "memory_bytes": 80e9,
        "memory_bandwidth_bytes_per_s": 1e12,
        "reserved_memory_bytes": 1e9,
        "num_multiprocessors": 10,
        "gemm_tile_rows": 64,
        "gemm_tile_cols": 128,
        "gemm_efficiency_fraction": 0.5,
        "attention_efficiency_fraction": 0.25,
        "memory_efficiency_fraction": 0.8,
        "kernel_launch_s": 1e-5,
    }
    return Accelerator.model_validate({"name": name, **figures, **changes})


def link(rate: float, latency_s: float = 0.0, oversubscription: float = 1.0, efficiency: float = 1.0) -> LevelLink:
    """A network level of ``rate`` bytes/s per accelerator."""
    technology = NetworkTechnology(name="wire", bandwidth_bytes_per_s=rate, efficiency_fraction=efficiency)
    return LevelLink(technology=technology, one_way_latency_s=latency_s, oversubscription_ratio=oversubscription)


def building(
    name: str,
    hosts: int,
    *,
    per_host: int = 4,
    hosts_per_rack: int = 2,
    racks_per_zone: int = 3,
    rates: Sequence[float] = RATES,
    latencies: Sequence[float] = LATENCIES,
    oversubscription: Sequence[float] = (1, 1, 1, 1),
    efficiency: float = 1.0,
    chip: Accelerator | None = None,
    domain: str = "host",
) -> Building:
    """Hosts of 4, racks of 8, zones of 24 accelerators, unless said otherwise."""
    levels = [link(*figures, efficiency) for figures in zip(rates, latencies, oversubscription, strict=True)]
    return Building.model_validate(
        {
            "name": name,
            "accelerator": chip or accelerator(),
            "accelerators_per_host": per_host,
            "hosts_per_rack": hosts_per_rack,
            "racks_per_zone": racks_per_zone,
            "num_hosts": hosts,
            "scale_up_domain": domain,
            "links": BuildingLinks(scale_up=levels[0], rack=levels[1], zone=levels[2], building=levels[3]),
        }
    )


def trunk(here: str, there: str, latency_s: float = 1e-3, **changes: Any) -> Trunk:
    """An inter-building link of 5 GB/s, unless ``bandwidth_bytes_per_s`` says otherwise."""
    figures = {"bandwidth_bytes_per_s": 5 * GB, **changes}
    return Trunk(between=(here, there), one_way_latency_s=latency_s, **figures)


def topology(*regions: Sequence[Building], trunks: Sequence[Trunk] = ()) -> Topology:
    """Regions r0, r1, … with their buildings."""
    named = tuple(Region(name=f"r{index}", buildings=tuple(region)) for index, region in enumerate(regions))
    return Topology(name="fleet", regions=named, trunks=tuple(trunks))


def allocation(*shares: tuple[str, int]) -> tuple[BuildingShare, ...]:
    """An allocation: accelerators per building, in order."""
    return tuple(BuildingShare(building=name, num_accelerators=count) for name, count in shares)


def flat(num_buildings: int, per_building: int, **changes: Any) -> Topology:
    """Buildings b0, b1, … of one rack, whose accelerators are hosts of their own. Links join all pairs of buildings."""
    shape: dict[str, Any] = {"per_host": 1, "hosts_per_rack": per_building, "racks_per_zone": 1}
    names = [f"b{index}" for index in range(num_buildings)]
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1 :]]
    return topology(
        [building(name, per_building, **shape) for name in names], trunks=[trunk(*pair, **changes) for pair in pairs]
    )


def candidates(**columns: Any) -> Candidates:
    """Candidates from columns; scalars broadcast.

    Defaults are degree 1, 1F1B, no recomputation and nothing sharded.
    """
    codes = {"schedule": SCHEDULE_NAMES, "recompute": RECOMPUTES, "shard": SHARD_LEVELS, "context": CONTEXT_EXCHANGES}
    row: dict[str, Any] = dict.fromkeys(("tp", "cp", "dp_shard", "dp_replicate", "pp", "ep", "micro_batch"), 1)
    row |= {
        "num_micro_batches": 1,
        "num_chunks": 1,
        "schedule": "1F1B",
        "recompute": "none",
        "shard": "none",
        "context": 0,
        "activation_offload": 0,
        "optimizer_offload": 0,
        "expert_lanes": 1,
        "cp_inner": 1,
    }
    for name, value in (row | columns).items():
        values = np.atleast_1d(np.asarray(value))
        if name in codes and values.dtype.kind == "U":
            values = np.array([codes[name].index(text) for text in values.tolist()])
        row[name] = values.astype(np.int64)
    size = max(len(values) for values in row.values())
    return Candidates(**{name: np.broadcast_to(values, (size,)).copy() for name, values in row.items()})


def gpt(**changes: Any) -> DenseTransformer:
    """A plain GPT: 8 layers of 1,024 features, 16 heads, MLP of 4,096, 10,000 tokens; 113,008,640 parameters."""
    figures: dict[str, Any] = {
        "name": "gpt",
        "num_layers": 8,
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 64,
        "intermediate_size": 4096,
        "vocabulary_size": 10_000,
        "gated_mlp": False,
        "tied_embedding": False,
    }
    return DenseTransformer.model_validate({**figures, **changes})


def job(sequence_length: int = 512, global_batch_sequences: int = 8, **changes: Any) -> Job:
    """A job for the cost models, which read neither its workload nor its topology."""
    figures = {"sequence_length": sequence_length, "global_batch_sequences": global_batch_sequences}
    return Job.model_validate({"name": "job", "workload": "any", "topology": "any", **figures, **changes})
