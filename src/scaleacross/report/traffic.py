"""Bytes per network level against capacity, and the collectives that move them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.compression import why_encoded
from scaleacross.report.format import add, bar, columns, count, percent, rate, section
from scaleacross.report.plan import axes_in_order
from scaleacross.spec.network_choice import DRIVER_NAMES
from scaleacross.spec.plan import Plan
from scaleacross.units import human_bytes, human_seconds

BAR_WIDTH = 20


def traffic(plan: Plan) -> RenderableType:
    """Return, per level, the bytes by axis out of the busiest unit per step and direction, against link capacity."""
    axes = axes_in_order({axis for level in plan.traffic for axis, sent in level.bytes_per_step.items() if sent})
    heads = ("level", *axes, "capacity", "used", "")
    table = columns(heads, right=(*axes, "capacity", "used"))
    for level in plan.traffic:
        bytes_of: Mapping[str, float] = {axis: sent for axis, sent in level.bytes_per_step.items() if sent}
        sent = (human_bytes(bytes_of[axis]) if axis in bytes_of else "–" for axis in axes)
        colour = "red" if level.utilisation > 0.8 else "green"
        filled = Text(bar(level.utilisation, BAR_WIDTH), style=colour)
        add(table, level.level, *sent, rate(level.capacity_bytes_per_s), percent(level.utilisation), filled)
    return section("Traffic that leaves the busiest unit below a level, per step and direction", table)


def network(plan: Plan) -> RenderableType:
    """Return how communicators run collectives outside the scale-up domain, why, and the times under defaults."""
    heads = ("of", "payload", "algorithm", "chunk", "in flight", "each", "defaults", "limited by")
    table = columns(heads, right=("chunk", "in flight", "each", "defaults"), flexible=("payload",))
    terms = {(t.communicator, t.op, t.payload): t for t in (plan.network.terms if plan.network else ())}
    for choice in plan.decision.network or ():
        if not choice.connections:
            continue
        term = terms.get((choice.communicator, choice.op, choice.payload))
        outermost = choice.connections[-1]
        cut = human_bytes(choice.chunk_bytes) if choice.num_chunks > 1 else "whole"
        window = f"{human_bytes(outermost.window_bytes)}, {outermost.queue_pairs} QP"
        times = ("–", "–", "–")
        if term is not None:
            times = (human_seconds(term.time_s), human_seconds(term.library_s), term.decided_by)
        how = "send" if choice.op == "send" else choice.algorithm
        add(table, choice.communicator, choice.payload, how, cut, window, *times)
    if plan.network is None:
        return section("Network beyond the scale-up domain", table)
    ours, library = human_seconds(plan.network.step_s), human_seconds(plan.network.library_step_s)
    saved = plan.network.library_step_s - plan.network.step_s
    text = (
        f"by estimate the step takes {library} under the library's defaults, {human_seconds(abs(saved))} "
        f"{'less' if saved < 0 else 'more'} than the {ours} with this network; held on an accelerator: "
        f"{count(plan.network.held_channels)} channels, {count(plan.network.held_queue_pairs)} queue pairs, "
        f"{human_bytes(plan.network.held_buffer_bytes)} in flight; choice {plan.network.status}"
        + (
            "; the library's defaults are kept, since the step takes longer with what was chosen"
            * plan.network.library_kept
        )
    )
    return section("Network beyond the scale-up domain", table, Text(text), *_drivers(plan), *_compression(plan))


def _drivers(plan: Plan) -> Iterator[RenderableType]:
    """Yield what moves the bytes where the job allows more than kernels, and how it slows computation."""
    for term in plan.network.terms if plan.network else ():
        own = term.driver
        if own is None:
            continue
        kernels = (
            f"kernels {human_seconds(own.kernels_s)} a call, {percent(own.kernels_held_fraction)} of products' speed"
        )
        if own.driver == "multiprocessors":
            text = f"kernels, by which the step is shortest ({kernels})"
        else:
            here = f"{human_seconds(term.time_s)} a call, {percent(own.held_fraction)} of products' speed"
            text = f"{DRIVER_NAMES[own.driver]} {here}; {kernels}"
        yield Text(f"{term.communicator} {term.payload} moved by {text}")


def _compression(plan: Plan) -> Iterator[RenderableType]:
    """Yield which collectives outside the scale-up domain are encoded, and why others are not."""
    for term in plan.network.terms if plan.network else ():
        if term.compression is not None and term.compression.verdict not in ("not_gradients", "stays_near"):
            yield Text(f"{term.communicator} {term.payload}: {why_encoded(term.compression)}")
    if plan.job.network.compression is not None and plan.network is not None:
        levels = ", ".join(plan.job.network.compression.levels)
        yield Text(f"encoded are gradients across {levels}; all else travels as it is")


def collectives(plan: Plan) -> RenderableType:
    """Return every kind of collective with size, level, algorithm and time alone on the network, longest first."""
    heads = ("collective", "ranks", "bytes", "level", "algorithm", "each", "per step", "total")
    table = columns(heads, right=("ranks", "bytes", "each", "per step", "total"), flexible=("collective",))
    for one in sorted(plan.collectives, key=lambda c: -c.time_s * c.per_step):
        times = (human_seconds(one.time_s), count(one.per_step), human_seconds(one.time_s * one.per_step))
        add(table, one.name, count(one.group_size), human_bytes(one.bytes_per_rank), one.level, one.algorithm, *times)
    return section("Collectives, predicted alone on the network", table)
