"""Recommendation plans as tables: placement of tables, load of ranks, proof, comparison, explanation and simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.cost import STATUS_MEANING
from scaleacross.report.exchange_compression import compression_fact, compression_section
from scaleacross.report.format import add, cell, columns, count, gib, grid, percent, plural, section
from scaleacross.report.summary import FirstLines
from scaleacross.spec.network_choice import DRIVER_NAMES
from scaleacross.spec.recommendation import (
    FAILURES_NOT_COUNTED,
    OF_IDLE,
    TIERS,
    BusyTable,
    EmbeddingComparison,
    EmbeddingExplanation,
    RankLoad,
    RecommendationPlan,
    TablePlacement,
)
from scaleacross.spec.simulation import SimulatedTables
from scaleacross.units import human_bytes, human_seconds

MEMORY_OF = {
    "dense": "HBM, a copy per rank",
    "fused": "HBM",
    "fused_uvm_caching": "host memory",
    "fused_uvm": "host memory",
    "key_value": "SSD",
}
MAX_RANKS = 8
MAX_TABLES = 12
_NONE: Final = 5e-4
"""Relative change of a time below which it counts as none."""


def _memory_of(one: TablePlacement | BusyTable) -> str:
    cached = "" if one.cache_fraction is None else f", {one.cache_fraction:.3g} of the rows cached in HBM"
    return MEMORY_OF[one.kernel] + cached


def recommendation_report(plan: RecommendationPlan) -> RenderableType:
    """Return all sections of the plan that have content."""
    return recommendation_sections(
        plan, [name for name in SECTIONS if name not in ("samples", "compression") or getattr(plan, name)]
    )


def recommendation_sections(plan: RecommendationPlan, names: Sequence[str]) -> RenderableType:
    """The named sections in the order asked for."""
    return Group(*(SECTIONS[name](plan) for name in names))


def recommendation_summary(plan: RecommendationPlan) -> FirstLines:
    """Return the first lines: how tables are sharded, step time, memory, and what is proved."""
    report, ranks = plan.report, plan.ranks
    busiest = max(ranks, key=lambda load: load.seconds)
    shardings = Counter(one.sharding for one in plan.decision.tables).most_common()
    size = plural(len(ranks) * plan.decision.num_groups, "accelerator")
    facts = [
        ("plan", f"{plan.job.name}: {plural(len(plan.decision.tables), 'table')} on {size}"),
        ("tables", ", ".join(f"{count(number)} {sharding}" for sharding, number in shardings)),
        *([("caches", caches)] if (caches := _caches(plan)) else []),
        ("step time", f"{human_seconds(plan.cost.step_s)} · {count(round(plan.cost.samples_per_s))} samples/s"),
        ("bottleneck", f"rank {busiest.rank} in {busiest.building}: {human_seconds(busiest.seconds)}"),
        *([("compression", compression_fact(plan))] if plan.compression else []),
        ("memory", "; ".join(_fullest(ranks))),
        (
            "proof",
            f"{STATUS_MEANING[report.status][0]}; no busiest rank takes less than "
            f"{human_seconds(report.bound_s)} (gap {percent(report.gap)})",
        ),
        *([("buildings", report.fewer_buildings)] if report.fewer_buildings else []),
        *(("idle", note.removeprefix(OF_IDLE)) for note in report.notes if note.startswith(OF_IDLE)),
        *(("failures", note) for note in report.notes if note == FAILURES_NOT_COUNTED),
        ("more", f"--full, or --section {', '.join(SECTIONS)}"),
    ]
    return FirstLines(facts)


def _caches(plan: RecommendationPlan) -> str:
    """Return the cached fractions of rows with the number of tables of each; empty where no table has a cache."""
    shares = Counter(one.cache_fraction for one in plan.decision.tables if one.cache_fraction is not None)
    held = ", ".join(f"{share:.3g} of the rows of {plural(shares[share], 'table')}" for share in sorted(shares))
    if not held:
        return ""
    others = [share for share in plan.job.cache_fraction if share not in shares]
    return f"{held} in HBM" + (f" (also allowed: {', '.join(f'{one:.3g}' for one in others)})" if others else "")


def _fullest(ranks: Sequence[RankLoad]) -> list[str]:
    """Return a phrase for the fullest rank of every memory tier that exists."""
    out = []
    for tier in TIERS:
        shares = [load.memory_bytes[tier] / load.capacity_bytes[tier] for load in ranks if load.capacity_bytes[tier]]
        if shares:
            out.append(f"{tier.replace('_', ' ')} {percent(max(shares))} full at most")
    return out


def recommendation_line(plan: RecommendationPlan) -> str:
    """The plan in one line, for ``--quiet``."""
    rate = f"{count(round(plan.cost.samples_per_s))} samples/s"
    return cell(f"{plan.job.name}: {human_seconds(plan.cost.step_s)}, {rate}, gap {percent(plan.report.gap)}").plain


def _head(plan: RecommendationPlan) -> RenderableType:
    decision, job = plan.decision, plan.job
    ranks = len(plan.ranks) * decision.num_groups
    topology = job.topology if isinstance(job.topology, str) else job.topology.get("name", "")
    facts: list[tuple[str, str | Text]] = [
        (
            "job",
            cell(
                f"{job.name}: {plural(len(decision.tables), 'table')} on {plural(ranks, 'accelerator')} of {topology}"
            ),
        ),
        (
            "batch",
            f"{count(job.global_batch_samples)} samples, {count(job.global_batch_samples // ranks)} per accelerator",
        ),
        ("tables in", f"{job.table_precision}, {job.optimizer}; vectors travel in {job.exchange_precision}"),
        ("cost model", job.cost_model),
    ]
    if len(job.drivers) > 1:
        facts.append(("vectors moved by", DRIVER_NAMES[decision.driver]))
    if decision.num_groups > 1:
        lie = "neighbours" if decision.replicas == "inner" else "apart"
        facts.append(
            ("groups", f"{decision.num_groups} of {len(plan.ranks)} ranks, each with all tables; replicas lie {lie}")
        )
    return section("Recommendation plan", grid(facts))


def _step(plan: RecommendationPlan) -> RenderableType:
    cost = plan.cost
    busiest = max(plan.ranks, key=lambda load: load.seconds)
    table = columns(("part", "time", "share"), right=("time", "share"))
    rows = [
        (f"look-ups of the busiest rank ({busiest.rank})", busiest.lookup_s),
        ("its exchange of vectors", busiest.exchange_s),
        ("its average over replica groups", busiest.sync_s),
        ("dense networks, exposed", cost.dense_s),
        ("all-reduce of dense gradients", cost.all_reduce_s),
        ("latency and launches of collectives", cost.start_s),
    ]
    for name, seconds in rows:
        if seconds:
            add(table, name, human_seconds(seconds), percent(seconds / cost.step_s))
    table.add_section()
    add(table, "step", human_seconds(cost.step_s), percent(1.0), style="bold")
    return section(
        "Step time", table, Text(), Text(f"{count(round(cost.samples_per_s))} samples/s"), Text(_early(plan))
    )


def _samples(plan: RecommendationPlan) -> RenderableType:
    if not plan.samples:
        return section("Samples", Text("alike: no layer takes longer for longer samples"))
    heads = ("samples", "idle in layers over histories", "each rank sends", "exchange", "layers and exchange")
    table = columns(heads, right=heads[1:])
    for one in plan.samples:
        style = "bold" if one.rule == plan.decision.sample_rule else ""
        times = human_seconds(one.exchange_s), human_seconds(one.seconds)
        add(table, one.rule, percent(one.idle_fraction), human_bytes(one.moved_bytes), *times, style=style)
    return section("Samples, by the rule that shares them out", table)


def _early(plan: RecommendationPlan) -> str:
    early = plan.early_rows
    if early is None:
        return ""
    hidden = (
        f"{human_seconds(early.fetch_s)} of look-ups and exchange forward would leave {human_seconds(early.exposed_s)}"
    )
    moved = "" if len(plan.job.drivers) == 1 else f", moved by {DRIVER_NAMES[early.driver]}"
    return f"rows a batch ahead (not planned): {percent(early.collision_fraction)} wait for updates; {hidden}{moved}"


def _placements(plan: RecommendationPlan) -> RenderableType:
    table = columns(("sharding", "rows live in", "tables", "for example"), right=("tables",), flexible=("for example",))
    kinds = Counter((one.sharding, _memory_of(one)) for one in plan.decision.tables)
    for (sharding, memory), number in kinds.most_common():
        own = [one for one in plan.decision.tables if (one.sharding, _memory_of(one)) == (sharding, memory)]
        add(table, sharding, memory, count(number), _example(own))
    return section("Tables", table)


def _example(placed: Sequence[TablePlacement]) -> str:
    first = placed[0]
    if first.sharding in ("data_parallel", "row_wise"):
        return f"{first.table} on all ranks"
    ranks = ", ".join(map(str, first.ranks[:4])) + (" ..." if len(first.ranks) > 4 else "")
    return f"{first.table} on rank {ranks}"


def _ranks(plan: RecommendationPlan) -> RenderableType:
    tiers = [tier for tier in TIERS if any(load.capacity_bytes[tier] for load in plan.ranks)]
    heads = ["rank", "building", "host", "time", *(tier.replace("_", " ") for tier in tiers)]
    table = columns(heads, right=[head for head in heads if head != "building"])
    order = sorted(plan.ranks, key=lambda load: -load.seconds)
    shown = order if len(order) <= MAX_RANKS else [*order[: MAX_RANKS - 2], *order[-2:]]
    for load in shown:
        add(table, str(load.rank), load.building, str(load.host), human_seconds(load.seconds), *_held(load, tiers))
    mean = sum(load.seconds for load in order) / len(order)
    balance = f"busiest rank {percent(max(0.0, order[0].seconds / mean - 1)) if mean else '0 %'} above the mean"
    left = f"; {len(order) - len(shown)} more ranks between" if len(shown) < len(order) else ""
    return section(
        "Ranks, busiest first" + (" (of the first group)" if plan.decision.num_groups > 1 else ""),
        table,
        Text(balance + left),
    )


def _held(load: RankLoad, tiers: Sequence[str]) -> list[str]:
    memory, room = dict(load.memory_bytes), dict(load.capacity_bytes)
    return [f"{gib(memory[tier])} of {gib(room[tier])}" for tier in tiers]  # type: ignore[index]


def _proof(plan: RecommendationPlan) -> RenderableType:
    report = plan.report
    meaning, style = STATUS_MEANING[report.status]
    facts: list[tuple[str, str | Text]] = [
        ("status", cell(meaning, style)),
        ("busiest rank", f"{human_seconds(report.objective_s)}; none can be below {human_seconds(report.bound_s)}"),
        ("gap", percent(report.gap)),
        ("found by", ", ".join(report.methods) or "nothing"),
        ("search", human_seconds(report.seconds)),
        *([("buildings", cell(report.fewer_buildings))] if report.fewer_buildings else []),
        *(("note", cell(note)) for note in report.notes),
    ]
    return section("Proof", grid(facts))


SECTIONS: Final[Mapping[str, Callable[[RecommendationPlan], RenderableType]]] = {
    "decision": _head,
    "step": _step,
    "tables": _placements,
    "samples": _samples,
    "compression": compression_section,
    "ranks": _ranks,
    "proof": _proof,
}


def recommendation_comparison(found: EmbeddingComparison) -> RenderableType:
    """Return a table of our plan and the baselines under one cost model, with TorchRec's own score."""
    heads = ("plan", "step", "busiest rank", "TorchRec's score", "ours is", "took", "rule or reason")
    table = columns(heads, right=heads[1:6], flexible=("rule or reason",))
    cost = found.plan.cost
    ours = (human_seconds(cost.step_s), human_seconds(cost.busiest_rank_s), _ms(found.torchrec_ms))
    add(table, "scaleacross", *ours, "", human_seconds(found.plan.report.seconds), "", style="bold")
    for result in found.rivals:
        took = human_seconds(result.seconds)
        if result.step_s is None or result.busiest_rank_s is None or result.speed_up is None:
            add(table, result.name, "–", "–", "–", "no plan", took, result.reason, style="dim")
            continue
        faster = f"{result.speed_up:.2f}x faster" if result.speed_up > 1.0005 else "a tie"
        said = result.rule + ("" if result.complete else " (cut short by the limit)")
        figures = (human_seconds(result.step_s), human_seconds(result.busiest_rank_s), _ms(result.torchrec_ms))
        add(table, result.name, *figures, faster, took, said)
    facts = grid([("gap", percent(found.plan.report.gap)), ("status", STATUS_MEANING[found.plan.report.status][0])])
    return Group(section(f"{found.plan.job.name}: one cost model for all plans", table), Text(), facts)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} ms"


def recommendation_explanation(found: EmbeddingExplanation) -> RenderableType:
    """Return the busiest rank's tables, and what other memory sizes would change."""
    heads = ("table", "sharding", "rows live in", "time here", "HBM", "fastest other place")
    table = columns(heads, right=("time here", "HBM"), flexible=("fastest other place",))
    for one in found.binding[:MAX_TABLES]:
        other = f"{one.other}: {human_seconds(one.other_s)} per rank" if one.other_s is not None else "none"
        own = (human_seconds(one.seconds), gib(one.memory_bytes["hbm"]))
        add(table, one.table, one.sharding, _memory_of(one), *own, other)
    more = len(found.binding) - MAX_TABLES
    rest = [Text(f"{more} more tables take less")] if more > 0 else []
    memories = columns(
        ("memory", "used", "fullest rank", "with", "busiest rank", "change"), right=("used", "fullest rank")
    )
    now, best = found.plan.cost.busiest_rank_s, found.as_it_is_s
    for tier in found.tiers:
        shares = (percent(tier.used_fraction), percent(tier.fullest_fraction))
        then = tier.busiest_rank_s
        change = "no plan" if then is None else "none" if abs(then / best - 1) < _NONE else f"{then / best - 1:+.1%}"
        add(memories, tier.tier.replace("_", " "), *shares, tier.change, human_seconds(then) if then else "–", change)
    title = f"Rank {found.busiest_rank} is the busiest: {human_seconds(now)}"
    more_parts = [compression_section(found.plan)] if found.plan.compression else []
    if found.buildings:
        more_parts.append(_buildings(found))
    return Group(section(title, table, *rest), section("Memories", memories, *_faster(now, best)), *more_parts)


def _faster(now_s: float, best_s: float) -> list[Text]:
    """Return a note where the searches of an explanation found a faster plan, which its changes then refer to."""
    if best_s >= now_s * (1 - _NONE):
        return []
    faster = f"a plan with a busiest rank of {human_seconds(best_s)} ({best_s / now_s - 1:+.1%}) fits the memories as they are"
    return [Text(f"{faster}; changes are against it. Plan again with a higher limit to have it.")]


def _buildings(found: EmbeddingExplanation) -> RenderableType:
    table = columns(("without", "step", "samples/s", "what it changes"), flexible=("what it changes",))
    for one in found.buildings:
        speed = "–" if one.samples_per_s is None else count(round(one.samples_per_s))
        step = "–" if one.step_s is None else human_seconds(one.step_s)
        add(table, one.building, step, speed, "; ".join(one.changes) or one.reason)
    now = found.plan.cost
    with_all = f"with all: {human_seconds(now.step_s)}, {count(round(now.samples_per_s))} samples/s"
    return section("Buildings", table, Text(with_all))


def recommendation_simulation(step: SimulatedTables) -> RenderableType:
    """Return the simulated step with its estimate, its phases, and the shared links between and inside buildings."""
    estimate = human_seconds(step.predicted_step_s)
    facts: list[tuple[str, str | Text]] = [
        ("step", f"{human_seconds(step.step_s)}; its estimate is {estimate} ({step.difference:+.1%})"),
        ("ranks", f"{count(step.num_ranks)}, each played; {count(step.num_tasks)} tasks"),
        *(("what if", cell(change)) for change in step.what_if),
    ]
    phases = columns(("until all ranks are through with", "time", "share"), right=("time", "share"))
    for one in step.phases:
        if one.seconds:
            add(phases, one.name, human_seconds(one.seconds), percent(one.seconds / step.step_s))
    parts = [section(f"Simulated step of {step.plan_name}", grid(facts)), section("Phases", phases)]
    if step.links:
        links = columns(("link", "carried", "mean use"), right=("carried", "mean use"))
        for link in step.links[:MAX_RANKS]:
            add(links, link.name, human_bytes(link.carried_bytes), percent(link.mean_utilisation))
        parts.append(section("Shared links, most used first", links))
    return Group(*parts)
