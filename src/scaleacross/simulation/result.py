"""A ``StepRun`` as a ``SimulatedStep`` for reports: components, causes of differences to the estimate, links, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from scaleacross.simulation import accounting
from scaleacross.simulation.fabric import Floats
from scaleacross.simulation.step_run import StepRun
from scaleacross.simulation.what_if import notes_on
from scaleacross.spec.plan import COMPONENTS, Plan
from scaleacross.spec.simulation import ComponentDifference, Delivery, LinkUse, SimulatedRow, SimulatedStep, Span

THRESHOLD: Final = 0.05
"""Share of the step above which a difference is flagged."""


def simulated_step(
    plan: Plan, step_run: StepRun, fold: bool, what_if: tuple[str, ...] = (), timeline: bool = False
) -> SimulatedStep:
    """Summarize a simulation; ``timeline`` keeps every span and every change of a link's rate."""
    machine, graph = step_run.machine, step_run.graph
    row_of = {who: number for number, who in enumerate(graph.ranks)}
    critical = set(step_run.critical_path) if timeline else set()
    sent = {node: number for number, node in enumerate(graph.messages.values())} if timeline else {}

    def story_of(who: int) -> tuple[Span, ...]:
        story, concurrent = graph.story(who), graph.concurrent(who)
        return tuple(accounting.spans(story, concurrent, step_run.nodes, critical, sent))

    rows = tuple(
        SimulatedRow(
            name=_row_name(step_run, who),
            stage=graph.ranks[who].pipeline_rank,
            num_ranks=machine.num_ranks(who),
            components_s=step_run.by_class[who],
            spans=story_of(who) if timeline else (),
        )
        for who in graph.ranks
    )
    return SimulatedStep(
        plan_name=plan.job.name,
        step_s=step_run.step_s,
        predicted_step_s=plan.estimated.step_s,
        components_s={name: step_run.components_s.get(name, 0.0) for name in COMPONENTS},
        differences=_differences(plan, step_run, what_if),
        num_ranks=plan.degrees.world_size,
        num_classes=len(graph.ranks),
        folding="none" if not fold else "exact" if machine.classes.exact else "rounded",
        num_tasks=len(step_run.timeline.of),
        what_if=what_if,
        undisturbed_s=plan.simulated_s if what_if else None,
        notes=notes_on(what_if, plan),
        links=_links(step_run, timeline),
        rows=rows,
        messages=tuple(_deliveries(step_run, row_of)) if timeline else (),
    )


def _deliveries(step_run: StepRun, row_of: Mapping[int, int]) -> Iterator[Delivery]:
    """Yield the receiver and the arrival of every pipeline message, in the order of the graph."""
    for (sender, down, *_), node in step_run.graph.messages.items():
        receiver = step_run.machine.neighbour(int(str(sender)), forward=bool(down))
        yield Delivery(row=row_of[receiver], arrival_s=float(step_run.nodes.arrival_s[node]))


def _row_name(step_run: StepRun, who: int) -> str:
    fabric = step_run.machine.fabric
    building = fabric.buildings[int(fabric.building[step_run.machine.first(who)])].name
    return f"stage {step_run.graph.ranks[who].pipeline_rank} in {building}"


def _differences(plan: Plan, step_run: StepRun, what_if: tuple[str, ...]) -> tuple[ComponentDifference, ...]:
    out, unknown = [], f"the estimate is without {', '.join(what_if)}; " if what_if else ""
    for name in COMPONENTS:
        predicted, simulated = plan.estimated.component(name), step_run.components_s.get(name, 0.0)
        share = (predicted - simulated) / step_run.step_s
        flagged = abs(share) > THRESHOLD
        cause = unknown + _cause(name, step_run, predicted < simulated) if flagged else ""
        out.append(
            ComponentDifference(
                component=name, predicted_s=predicted, simulated_s=simulated, share=share, flagged=flagged, cause=cause
            )
        )
    return tuple(out)


def _cause(name: str, step_run: StepRun, longer: bool) -> str:
    """Return the cause of a component's difference, as far as the simulation shows it."""
    if name == "compute":
        return "computation is slower than stated (stragglers, jitter, or transfers that hold the accelerator)"
    if name == "bubble":
        unequal = _unequal_chunks(step_run)
        if unequal > 1.02 and longer:
            return f"chunks are not alike: the longest takes {unequal:.2f} times the mean, and ranks wait for it every round"
        if not longer:
            return "ranks of other classes are faster than the busiest one, which the cost model takes for all"
        return "ranks wait for one another"
    slowed = _slowed(step_run, name)
    if slowed > 1.02 and longer:
        return f"links are shared with other traffic at the same moment: its flows take {slowed:.2f} times their time alone"
    if name == "dp":
        return (
            "buckets wait for computation to end before they leave, or a gather that is prefetched too late stalls a layer"
            if longer
            else "overlapped with more than the cost model counts (other chunks, the drain, other communicators)"
        )
    if name == "pp":
        return "messages on the longest chain of waiting" if longer else "messages overlap with other computation"
    return "members of a group come late to their collectives" if longer else "overlapped with computation"


def _unequal_chunks(step_run: StepRun) -> float:
    """Return the longest chunk's seconds over the mean chunk's, forward and backward passes together."""
    passes = [
        chunk.forward_s + chunk.input_gradient_s + chunk.weight_gradient_s
        for rank in step_run.graph.ranks.values()
        for chunk in rank.chunks
    ]
    return max(passes) / (sum(passes) / len(passes)) if passes and sum(passes) else 1.0


def _slowed(step_run: StepRun, component: str) -> float:
    """Return the total seconds of a component's flows over their seconds alone on their links."""
    timeline, last = step_run.timeline, step_run.lowered.last
    numbers = {
        int(last[entry.node])
        for who in step_run.graph.ranks
        for row in (step_run.graph.story(who), step_run.graph.concurrent(who))
        for entry in row
        if entry.component == component and timeline.task(last[entry.node]).path is not None
    }
    taken = alone = 0.0
    for number in numbers:
        task = timeline.task(number)
        rooms = [float(step_run.machine.capacities[link]) / weight for link, weight in task.path or () if weight > 0]
        taken += float(timeline.end_s[number] - timeline.start_s[number])
        alone += task.amount / min([task.cap_bytes_per_s, *rooms])
    return taken / alone if alone else 1.0


def _links(step_run: StepRun, timeline: bool) -> tuple[LinkUse, ...]:
    """Return every class of inter-building links and uplinks that carried bytes, most used first."""
    machine = step_run.machine
    names: dict[int, str] = {}
    for number, name in machine.fabric.link_names.items():
        names.setdefault(int(machine.link_class[number]), name)
    changes = _rate_changes(step_run, names)
    out = []
    for link, (moments, rates) in changes.items():
        capacity = float(machine.capacities[link])
        carried = float((rates[:-1] * np.diff(moments)).sum())
        if carried > 0:
            count = int((machine.link_class == link).sum())
            out.append(
                LinkUse(
                    name=names[link] + (f" and {count - 1} alike" if count > 1 else ""),
                    capacity_bytes_per_s=capacity,
                    carried_bytes=carried,
                    mean_utilisation=carried / (capacity * step_run.step_s),
                    time_s=tuple(moments.tolist()) if timeline else (),
                    rate_bytes_per_s=tuple(rates.tolist()) if timeline else (),
                )
            )
    return tuple(sorted(out, key=lambda one: -one.mean_utilisation))


def _rate_changes(step_run: StepRun, names: Mapping[int, str]) -> dict[int, tuple[Floats, Floats]]:
    """Return link class -> (moments, s; rate from each moment on, bytes/s). A flow counts with its mean rate."""
    timeline = step_run.timeline
    lasting = timeline.end_s > timeline.start_s
    on: dict[int, list[tuple[float, int]]] = {}  # by kind
    carriers: dict[int, tuple[list[int], list[float]]] = {link: ([], []) for link in names}
    for number in np.flatnonzero(lasting).tolist():
        kind = int(timeline.of[number])
        task = timeline.kinds[kind]
        if kind not in on:
            on[kind] = [(w * task.amount, link) for link, w in task.path or () if link in carriers and task.amount > 0]
        for size_bytes, link in on[kind]:
            carriers[link][0].append(number)
            carriers[link][1].append(size_bytes)
    out = {}
    for link, (numbers, carried) in carriers.items():
        if numbers:
            start, end = timeline.start_s[numbers], timeline.end_s[numbers]
            rate = np.array(carried) / (end - start)
            # the rate rises at every start and falls at every end; the cumulative sum is the rate
            at, inverse = np.unique(np.concatenate([start, end]), return_inverse=True)
            change = np.bincount(inverse, np.concatenate([rate, -rate]), len(at))
            out[link] = (at, np.maximum(0.0, np.cumsum(change)))
    return out
