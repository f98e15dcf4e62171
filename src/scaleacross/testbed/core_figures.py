"""Describes a host's share of a core as an accelerator, fitted to the time that a host took to train alone.

Every host trains a whole model at once, in three runs: micro-batches of one and of two sequences, and half of the
layers. Their forward and backward passes give the rate of products and the fixed time of an operation. Their updates
give the rate of memory and the fixed time of a step. The rates of codecs are measured after them, also on all hosts at
once. Pipelines, shares of a batch and everything between hosts are left to the planner.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleacross import api
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.base import Provenance
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology
from scaleacross.testbed.ranks import asked
from scaleacross.testbed.session import Testbed

PROGRAM: Final = ("-m", "scaleacross.testbed.training_ranks")
NUM_MICRO_BATCHES: Final = 2
STEPS: Final = 5
NEWTON_STEPS: Final = 4
SMALLEST_LAUNCH_S: Final = 1e-7
FITTED: Final = ("peak_flop_per_s", "memory_bandwidth_bytes_per_s", "kernel_launch_s", "step_overhead_s")


@dataclass(frozen=True)
class Alone:
    """A host that trained by itself: median seconds of passes and update, averaged over hosts."""

    num_layers: int
    micro_batch: int
    passes_s: float
    update_s: float


class Core(NamedTuple):
    """Measurements of hosts that run by themselves.

    ``runs`` are the three runs; ``codec_bytes_per_s`` is fp32 bytes/s by codec (``codec_rates``) of the slowest host.
    """

    runs: Sequence[Alone]
    codec_bytes_per_s: Mapping[str, float]


def train_alone(testbed: Testbed, shape: dict[str, int], length: int, folder: Path) -> Core:
    """Run all hosts at once, each by itself. Raises EmulationError if one fails."""
    layers = shape["num_layers"]
    runs = [(layers, 1), (layers, 2), (max(1, layers // 2), 1)]
    stated = [
        {"layers": n, "micro_batch": b, "num_micro_batches": NUM_MICRO_BATCHES, "length": length, "steps": STEPS}
        for n, b in runs
    ]
    rows = asked(testbed, PROGRAM, folder, {"shape": shape, "runs": stated})
    alone = [
        Alone(
            *run,
            statistics.mean(row["runs"][index]["passes_s"] for row in rows),
            statistics.mean(row["runs"][index]["update_s"] for row in rows),
        )
        for index, run in enumerate(runs)
    ]
    return Core(alone, {name: min(row["codecs"][name] for row in rows) for name in rows[0]["codecs"]})


def fitted_accelerator(job: Job, topology: Topology, core: Core, source: str) -> Accelerator:
    """Return the accelerator of ``topology`` with figures by which the planner predicts the measured times of a core.

    Args:
        job: self-contained.
        core: result of ``train_alone``.
        source: source in the provenance of the figures.
    """
    one, two, half = core.runs
    base = topology.buildings[0].accelerator
    accelerator = base.model_copy(update={"kernel_launch_s": 0.0, "step_overhead_s": 0.0})

    def priced(run: Alone, **figures: Any) -> tuple[float, float]:
        return _price(job, topology, accelerator.model_copy(update=figures), run)

    memory = accelerator.memory_bandwidth_bytes_per_s
    whole, part = priced(one)[1], priced(half)[1]
    # two depths separate the rate of memory from the fixed time; noise may hide the difference
    if one.update_s > half.update_s:
        memory *= (whole - part) / (one.update_s - half.update_s)
    else:
        memory *= whole / one.update_s
    overhead = max(0.0, one.update_s - priced(one, memory_bandwidth_bytes_per_s=memory)[1])
    peak, launch = base.peak_flop_per_s[job.precision], 20e-6

    def passes(run: Alone, slowness: float, fixed: float) -> float:
        figures = {"peak_flop_per_s": {job.precision: peak / slowness}, "kernel_launch_s": fixed}
        return priced(run, memory_bandwidth_bytes_per_s=memory, **figures)[0]

    slowness = 1.0
    for _ in range(NEWTON_STEPS):
        slowness, launch = _closer(passes, one, two, slowness, launch)
    found: dict[str, Any] = {
        "peak_flop_per_s": {job.precision: peak / slowness},
        "memory_bandwidth_bytes_per_s": memory,
        "kernel_launch_s": launch,
        "step_overhead_s": overhead,
        "codec_bytes_per_s": dict(core.codec_bytes_per_s),
    }
    fitted, measured = Provenance(source=source, status="fitted"), Provenance(source=source, status="measured")
    stems = [name.rpartition("_per_s")[0] or name.removesuffix("_s") for name in FITTED]
    kept = {
        key: value
        for key, value in base.provenance.items()
        if not any(key.startswith(stem.rpartition("_")[0] or stem) for stem in stems)
    }
    return base.model_copy(
        update={**found, "provenance": kept | dict.fromkeys(FITTED, fitted) | {"codec_bytes_per_s": measured}}
    )


def _closer(
    passes: Callable[[Alone, float, float], float], one: Alone, two: Alone, slowness: float, launch: float
) -> tuple[float, float]:
    """Return (slowness, launch) after a Newton step towards the times of both runs.

    If that gives no valid figures, the launch time gets its least value and only the rate is fitted.
    """
    # finite differences; the floor keeps the step above zero when launch is
    step_a, step_b = slowness * 1e-3, max(launch, 1e-5) * 1e-2
    at = [(passes(run, slowness, launch), run.passes_s) for run in (one, two)]
    by_a = [
        (passes(run, slowness + step_a, launch) - now) / step_a for run, (now, _) in zip((one, two), at, strict=True)
    ]
    by_b = [
        (passes(run, slowness, launch + step_b) - now) / step_b for run, (now, _) in zip((one, two), at, strict=True)
    ]
    miss = [wanted - now for now, wanted in at]
    determinant = by_a[0] * by_b[1] - by_a[1] * by_b[0]
    if abs(determinant) > 1e-15:
        more_a = (miss[0] * by_b[1] - miss[1] * by_b[0]) / determinant
        more_b = (by_a[0] * miss[1] - by_a[1] * miss[0]) / determinant
        if launch + more_b >= SMALLEST_LAUNCH_S and slowness + more_a > slowness / 10:
            return slowness + more_a, launch + more_b
    # no valid step in both unknowns: fit only the rate, to the mean of both runs
    more_a = (miss[0] / by_a[0] + miss[1] / by_a[1]) / 2
    return max(slowness + more_a, slowness / 10), SMALLEST_LAUNCH_S


def _price(job: Job, topology: Topology, accelerator: Accelerator, run: Alone) -> tuple[float, float]:
    """Return the planner's (passes, update) in seconds for one host alone."""
    building = topology.buildings[0].model_copy(update={"num_hosts": 1, "num_zones": None, "accelerator": accelerator})
    region = topology.regions[0].model_copy(update={"buildings": (building,)})
    alone = topology.model_copy(update={"regions": (region,), "trunks": ()})
    workload = {**job.workload, "num_layers": run.num_layers} if isinstance(job.workload, dict) else job.workload
    sequences = run.micro_batch * NUM_MICRO_BATCHES
    update = {"workload": workload, "topology": alone.model_dump(mode="json")}
    small = job.model_copy(update={**update, "global_batch_sequences": sequences, "num_accelerators": 1})
    pipeline = PipelineChoice(schedule="1F1B", micro_batch_sequences=run.micro_batch)
    decision = Decision(degrees=Degrees(), pipeline=pipeline, recompute="none", shard="none")
    cost = api.evaluate((small, decision)).cost
    return cost.compute_s, cost.optimizer_s


def with_accelerator(topology: Topology, accelerator: Accelerator) -> Topology:
    """Return ``topology`` with this accelerator in every building."""
    regions = tuple(
        region.model_copy(
            update={"buildings": tuple(b.model_copy(update={"accelerator": accelerator}) for b in region.buildings)}
        )
        for region in topology.regions
    )
    return topology.model_copy(update={"regions": regions})
