"""Our plans beside those of TorchRec's own planner, both scored by TorchRec's own estimator (make recsys-peers).

    python benchmarks/recsys_peers.py [--sets NAME ...] [--ranks 8 128] [--write docs/results]

Runs in an environment with torchrec (``make recsys-peers`` makes it). Every public set goes to 8 to 128 accelerators of
``zionex_128``; TorchRec is told the same rates and capacities. Its planner runs twice: as it comes, and in the best setting that
its options offer here: column shards of 32 columns allowed, and its dynamic program as a fifth proposer (the sixth, for offload,
needs cache statistics that the public sets lack).
A score is ``NoopPerfModel``: the largest sum of a rank. Our plan is scored by the package, not by our copy of its formulas:
its enumerator is held to our choices by the constraints that we emit, and the shards get our ranks.
"""

from __future__ import annotations

import argparse
import json
import time
import types
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology, planners
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.proposers import (
    DynamicProgrammingProposer,
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from scaleacross.api import plan_recommendation
from scaleacross.catalogue.recommendation import load_recommendation_job
from scaleacross.cost_models.embedding.problem import machine_of
from scaleacross.spec.recommendation import RecommendationJob, RecommendationPlan
from scaleacross.spec.topology import Topology as OurTopology
from scaleacross.workloads.recommendation import Dlrm

SETS = (
    "mlperf-dlrm-dcnv2",
    "criteo-1tb-dlrm",
    *(f"synthetic-{size}" for size in ("tiny", "small", "medium", "large", "jumbo", "colossal")),
)
RANKS = (8, 16, 32, 64, 128)
BATCH = 65536
SHARDERS = [EmbeddingBagCollectionSharder()]
LEAST_COLUMNS = 32

# its time-out reads this clock: in seconds of CPU, a busy machine cuts no search short
planners.time = types.SimpleNamespace(time=time.process_time)


class Theirs(NamedTuple):
    """Score in ms, None without a plan; seconds of CPU; why there is none."""

    ms: float | None
    cpu_s: float
    reason: str


class Row(NamedTuple):
    """One set on so many ranks."""

    name: str
    ranks: int
    ours_ms: float | None
    estimate_ms: float | None
    gap: float
    ours_cpu_s: float
    default: Theirs
    best: Theirs
    reason: str


def collection(model: Dlrm) -> torch.nn.Module:
    """The tables as its module, without memory."""
    tables = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.dimension,
            feature_names=[f"{table.name}_f{i}" for i in range(len(table.pooling))],
        )
        for table in model.expanded()
    ]
    return torch.nn.ModuleDict({"ebc": EmbeddingBagCollection(tables=tables, device=torch.device("meta"))})


def machine(job: RecommendationJob, topology: OurTopology, ranks: int) -> Topology:
    """Its topology with the figures of ours."""
    building = topology.buildings[0]
    own = machine_of(job, building, ranks)
    host = building.host
    return Topology(
        world_size=ranks,
        local_world_size=own.local_world_size,
        compute_device="cuda",
        hbm_cap=int(building.accelerator.memory_bytes),
        ddr_cap=int(host.memory_bytes / building.accelerators_per_host) if host else 0,
        hbm_mem_bw=own.hbm,
        ddr_mem_bw=own.host,
        hbm_to_ddr_mem_bw=own.hbm_to_host,
        intra_host_bw=own.intra_host,
        inter_host_bw=own.inter_host,
    )


def constraints(model: Dlrm, plan: RecommendationPlan | None = None, columns: int | None = None) -> dict[str, Any]:
    """Pooling of every table; with a plan its choices too, as torchrec/sharding_plan.py states them."""
    out = {}
    placed = {one.table: one for one in plan.decision.tables} if plan else {}
    for table in model.expanded():
        told: dict[str, Any] = {"pooling_factors": list(table.pooling)}
        if columns:
            told["min_partition"] = columns
        if own := placed.get(table.name):
            told |= {
                "sharding_types": [own.sharding],
                "compute_kernels": [own.kernel],
                "min_partition": own.column_width,
            }
        out[table.name] = ParameterConstraints(**told)
    return out


def theirs(topology: Topology, module: torch.nn.Module, told: dict[str, Any], best: bool, limit_s: int) -> Theirs:
    """Its planner's score."""
    proposers: list[Any] = [GridSearchProposer(), GreedyProposer(), GreedyProposer(use_depth=False), UniformProposer()]
    proposers.append(DynamicProgrammingProposer())
    batch = BATCH // topology.world_size
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch,
        storage_reservation=FixedPercentageStorageReservation(0.15),
        proposer=proposers if best else None,
        constraints=told,
        stats=[],
        debug=False,
        timeout_seconds=limit_s,
    )
    begin = time.process_time()
    try:
        planner.plan(module, SHARDERS)
        rated = NoopPerfModel(topology).rate(planner.get_selected_options())
        return Theirs(rated, time.process_time() - begin, "")
    except PlannerError as error:
        return Theirs(None, time.process_time() - begin, str(error).strip().splitlines()[0][:60])


def rated(topology: Topology, module: torch.nn.Module, model: Dlrm, plan: RecommendationPlan) -> float:
    """Our plan by the package's enumerator and performance model.

    Raises:
        RuntimeError: the package lacks one of our choices, or finds that a rank holds more than it has.
    """
    enumerator = EmbeddingEnumerator(topology, BATCH // topology.world_size, constraints(model, plan))
    options = enumerator.enumerate(module, SHARDERS)
    placed = {one.table: one for one in plan.decision.tables}
    if sorted(one.name for one in options) != sorted(placed):
        raise RuntimeError("its enumerator makes another number of options than one per table of our plan")
    held = [0.0] * topology.world_size
    for option in options:
        ranks = placed[option.name].ranks
        if len(ranks) != len(option.shards):
            raise RuntimeError(f"table {option.name}: {len(option.shards)} shards there, {len(ranks)} here")
        for shard, rank in zip(option.shards, ranks, strict=True):
            shard.rank = rank
            held[rank] += shard.storage.hbm
    room = 0.85 * topology.devices[0].storage.hbm
    if max(held) > room * (1 + 1e-9):
        raise RuntimeError(f"a rank holds {max(held):,.0f} of {room:,.0f} bytes by its count")
    return float(NoopPerfModel(topology).rate(options))


def compared(name: str, ranks: int, limit_s: float, their_limit_s: int) -> Row:
    """One set on so many ranks, everybody's plan."""
    fields = {"name": "peers", "workload": name, "topology": "zionex_128", "num_accelerators": ranks}
    # its storage estimator counts no optimizer state for a module without optimizer, and stores fp32
    fields |= {"global_batch_samples": BATCH, "optimizer": "sgd", "cost_model": "torchrec"}
    job, model, topology = load_recommendation_job(fields)
    their, module = machine(job, topology, ranks), collection(model)
    default = theirs(their, module, constraints(model), False, their_limit_s)
    best = theirs(their, module, constraints(model, columns=LEAST_COLUMNS), True, their_limit_s)
    begin = time.process_time()
    try:
        plan = plan_recommendation(job, time_limit_s=limit_s, gap_tolerance=0.001, clock=time.process_time)
    except Exception as error:  # no plan at all is a row of the table
        return Row(name, ranks, None, None, 0.0, time.process_time() - begin, default, best, str(error).splitlines()[0])
    spent = time.process_time() - begin
    score = rated(their, module, model, plan)
    return Row(name, ranks, score, plan.report.objective_s * 1e3, plan.report.gap, spent, default, best, "")


def kept(path: Path) -> dict[tuple[str, int], Row]:
    """Rows that a run before this one has finished."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    own = [Row(**{**row, "default": Theirs(*row["default"]), "best": Theirs(*row["best"])}) for row in rows]
    return {(row.name, row.ranks): row for row in own}


def lines(rows: list[Row]) -> Iterator[str]:
    """The table."""
    yield "| set | ranks | ours, ms | gap | CPU s | default, ms | CPU s | best setting, ms | CPU s | better of theirs / ours |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for row in rows:
        known = [one.ms for one in (row.default, row.best) if one.ms is not None]
        ratio = f"{min(known) / row.ours_ms:.3f}" if known and row.ours_ms else "—"
        ours = f"{row.ours_ms:.3f} | {row.gap:.1%}" if row.ours_ms else "no plan | "
        cells = " | ".join(
            f"{f'{one.ms:.3f}' if one.ms is not None else 'no plan'} | {one.cpu_s:.1f}"
            for one in (row.default, row.best)
        )
        yield f"| {row.name} | {row.ranks} | {ours} | {row.ours_cpu_s:.1f} | {cells} | {ratio} |"


def page(rows: list[Row], asked: argparse.Namespace) -> str:
    """docs/results/recommendation_peers.md."""
    worse = [row for row in rows if is_worse(row)]
    off = max(abs(row.ours_ms / row.estimate_ms - 1) for row in rows if row.ours_ms and row.estimate_ms)
    sets = "" if tuple(asked.sets) == SETS else f" --sets {' '.join(asked.sets)}"
    text = f"""# Our plans against those of TorchRec's planner, by TorchRec's estimator

`make recsys-peers`, then `.venv-recsys/bin/python benchmarks/recsys_peers.py --time-limit {asked.time_limit:g}
--their-limit {asked.their_limit} --write docs/results{sets}`
({date.today()}; torchrec {version("torchrec")}, torch {version("torch")}).

Public sets on 8 to 128 A100 of `zionex_128`, {BATCH:,} samples per step, fp32 rows without optimizer state. A score is
TorchRec's `NoopPerfModel`: the largest sum of a rank, ms. It is a proxy: two networks, no latency, no overlap. *Default* is its
planner as it comes; *best setting* allows column shards of {LEAST_COLUMNS} columns and adds its dynamic program. Each of its
proposers stops after {asked.their_limit} s of CPU, our search after {asked.time_limit:g} s or at a gap of 0.1 %. CPU s hold
the listing of options and all else.

Ours is worse than one of its plans on **{len(worse)} of {len(rows)}** rows. The package's score of our plan and our estimate of
it differ by {off:.1e} at most.

"""
    return text + "\n".join(lines(rows)) + "\n"


def is_worse(row: Row) -> bool:
    """Whether one of its plans has a better score than ours."""
    known = [one.ms for one in (row.default, row.best) if one.ms is not None]
    return bool(known) and (row.ours_ms is None or row.ours_ms > min(known) * (1 + 1e-6))


def main() -> None:
    """Run what is open, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of CPU of our search")
    parser.add_argument("--their-limit", type=int, default=15, help="timeout_seconds of each of its proposers, of CPU")
    parser.add_argument("--rows", type=Path, default=Path("build/recsys_peers.jsonl"), help="finished rows; resumed")
    parser.add_argument("--write", type=Path, help="write recommendation_peers.md there")
    asked = parser.parse_args()
    done, rows = kept(asked.rows), []
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    for name, ranks in ((name, ranks) for name in asked.sets for ranks in asked.ranks):
        row = done.get((name, ranks)) or compared(name, ranks, asked.time_limit, asked.their_limit)
        if (name, ranks) not in done:
            with asked.rows.open("a") as file:
                file.write(json.dumps(row._asdict()) + "\n")
        rows.append(row)
        print(*list(lines([row]))[2:], row.reason, row.default.reason, row.best.reason, flush=True)
    print(f"{len(rows)} rows; ours worse than one of theirs on {sum(map(is_worse, rows))}")
    if asked.write:
        (asked.write / "recommendation_peers.md").write_text(page(rows, asked))


if __name__ == "__main__":
    main()
