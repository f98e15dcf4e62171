"""Reproduce storage, exchange and rates of Neo on ZionEX (arXiv 2104.05158), next to our figures."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scaleacross.api.recommendation import plan_recommendation
from scaleacross.catalogue.load import load_topology
from scaleacross.catalogue.recommendation import load_recommendation_job
from scaleacross.cost_models.embedding.problem import group_ranks
from scaleacross.cost_models.embedding.tiers import state_bytes
from scaleacross.errors import InfeasibleError
from scaleacross.spec.published import PublishedFigure, PublishedStudy, PublishedTable
from scaleacross.spec.recommendation import BYTES_OF, RecommendationPlan, StorePrecision, TableOptimizer
from scaleacross.units import human_bytes, human_seconds

PAPER: Final = "arXiv 2104.05158, abstract"
READ: Final = "arXiv 2104.05158 as read by a third party"
RECALLED: Final = "arXiv 2104.05158 from memory, not verified"
_MESSAGE_BYTES: Final = 256e6


class _Model(NamedTuple):
    """A model of Neo's table 3.

    Attributes:
        parameters: number of parameters.
        tables: number of tables, our reading of an order of magnitude.
        columns: elements per row.
        pooling: row numbers per table and sample.
        mflop: MFLOP per sample.
        batch: samples per accelerator.
        rate: published samples/s.
        source: where the figures come from.
    """

    name: str
    parameters: float
    tables: int
    columns: int
    pooling: int
    mflop: float
    batch: int
    rate: float
    source: str


MODELS: Final = (
    _Model("A", 793e9, 1000, 93, 15, 638, 512, 1.2e6, RECALLED),
    _Model("F", 12e12, 48, 256, 20, 5, 512, 1.7e6, READ),
    _Model("I", 332e9, 300, 92, 70, 60, 2048, 3.4e6, RECALLED),
)


def neo() -> PublishedStudy:
    """Return published figures next to ours; nothing is fitted on them."""
    plans = {one.name: plan_recommendation(_job(one), time_limit_s=3, gap_tolerance=0.02) for one in MODELS}
    zionex = load_topology("zionex_128")
    (building,) = zionex.buildings
    host = building.host.memory_bytes if building.host else 0
    room = (
        building.num_accelerators
        // building.accelerators_per_host
        * (host + building.accelerators_per_host * building.accelerator.memory_bytes)
    )
    groups = group_ranks(plans["F"].job, zionex, 1, "outer").groups
    sent, reduced = (
        _MESSAGE_BYTES / float(time(_MESSAGE_BYTES).time_s) / 1e9  # type: ignore[arg-type]
        for time in (groups.members.all_to_all, groups.members.all_reduce)
    )
    figures = [
        _storage("12 T parameters in fp32, state per element", 96.0, "fp32", "adagrad"),
        _storage("12 T parameters in fp16, state per row", 24.0, "fp16", "rowwise_adagrad"),
        PublishedFigure(
            what="HBM and host memory of 16 hosts", published=29.1, computed=room / 1e12, unit="TB", source=READ
        ),
        PublishedFigure(
            what="all-to-all of 256 MB on 128 accelerators, each",
            published=7.0,
            computed=sent,
            unit="GB/s",
            source=RECALLED,
        ),
        PublishedFigure(
            what="all-reduce of 256 MB, bytes over time", published=60.0, computed=reduced, unit="GB/s", source=RECALLED
        ),
        *(
            PublishedFigure(
                what=f"model {one.name}, samples/s",
                published=one.rate / 1e6,
                computed=plans[one.name].cost.samples_per_s / 1e6,
                unit="M/s",
                source=one.source,
                note="theirs measured in production; ours the estimate of our plan",
            )
            for one in MODELS
        ),
    ]
    rows = tuple(_row(one, plans[one.name]) for one in MODELS)
    return PublishedStudy(
        name="neo",
        figures=tuple(figures),
        tables=(
            PublishedTable(
                title="Our plans on 128 A100 of zionex_128",
                heads=("model", "tables", "step", "exchange of the busiest rank", "host memory", "shardings"),
                rows=rows,
            ),
        ),
        notes=(
            f"12 T parameters in fp32 with state per element: {_refused()}",
            "theirs: parameters, columns, row numbers, MFLOP, batch. Ours: equal tables, one dense layer of the published MFLOP, "
            "reads by a power law, fp16, no fitted factor",
            "fp32 outputs of model A are 190 MB per accelerator: 27 ms forward at the recalled 7 GB/s; at our rate "
            f"{human_seconds(512 * 1000 * 93 * 4 / sent / 1e9)}. Rates differ by that and by skew of real tables",
        ),
    )


def _storage(what: str, published: float, precision: StorePrecision, optimizer: TableOptimizer) -> PublishedFigure:
    stored = 12e12 * (BYTES_OF[precision] + state_bytes(optimizer, 256))
    return PublishedFigure(
        what=what,
        published=published,
        computed=stored / 1e12,
        unit="TB",
        source=PAPER,
        note="12 T is theirs; bytes counted",
    )


def _job(one: _Model, **fields: Any) -> Any:
    width = one.tables * one.columns
    workload = {
        "name": f"neo-{one.name.lower()}",
        "top_mlp": [max(1, round(one.mflop * 1e6 / 2 / width))],
        "locality": {"kind": "power_law", "exponent": 1.05},
        "tables": [
            {
                "name": "t",
                "num_tables": one.tables,
                "rows": round(one.parameters / width),
                "dimension": one.columns,
                "pooling": one.pooling,
            }
        ],
    }
    job = {
        "name": f"neo_{one.name.lower()}",
        "workload": workload,
        "topology": "zionex_128",
        "global_batch_samples": one.batch * 128,
        "table_precision": "fp16",
        "exchange_precision": "fp16",
    }
    return load_recommendation_job(job | fields)[0]


def _refused() -> str:
    try:
        plan_recommendation(_job(MODELS[1], table_precision="fp32", optimizer="adagrad"), time_limit_s=1)
    except InfeasibleError as error:
        missing = next(part for part in str(error).split("; ") if "missing" in part)
        return f"refused: {missing.split('. Ways')[0]}"
    return "planned"


def _row(one: _Model, plan: RecommendationPlan) -> tuple[str, ...]:
    busiest = max(plan.ranks, key=lambda load: load.seconds)
    kinds = dict.fromkeys(table.sharding for table in plan.decision.tables)
    return (
        one.name,
        f"{one.tables:,}",
        human_seconds(plan.cost.step_s),
        human_seconds(busiest.exchange_s),
        human_bytes(sum(load.memory_bytes["host_memory"] for load in plan.ranks)),
        ", ".join(kinds),
    )
