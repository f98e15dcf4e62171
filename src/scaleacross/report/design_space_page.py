"""docs/results/NAME.md of a design space, and its plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from scaleacross.report.design_space import (
    BEST,
    PRICE,
    REPLAY,
    SHOWN_AXES,
    Row,
    lost,
    middle_and_most,
    num_ties,
    place,
    planned,
    shown_name,
    single_gains,
    speed_up_cells,
    speed_ups,
    uncut,
)
from scaleacross.report.design_space_referee import referee, verdict
from scaleacross.report.format import plural
from scaleacross.spec.design_space import START

if TYPE_CHECKING:
    from scaleacross.api.reproducing import Reproduction

NUM_LARGEST: Final = 10
Gains = Sequence[tuple[Row, dict[str, float]]]
PLANS_COMPARED: Final = """\
All plans of a point are timed by the same exact cost model. Baselines are the programs that `scaleacross compare` runs; what
their rules leave open is tuned with that model too (but for Sailor and Atlas, which have time models of their own), so they are
strong; their networks run on the communication library's defaults. *Placement only*, *schedule only* and *network only* keep
everything else as in `production`; *placement and degrees* plans everything with default schedules and networks. Our search
starts from the decisions of all others: its best estimate is never above theirs. Where the space names finalists, the
simulation chooses our plan among so many of the best (`plan --referee`) and every decision of others whose estimate is below
the fastest simulation, and that plan may have a longer estimate than the best one."""


def design_page(found: Reproduction, command: str, today: date) -> str:
    """Return the page as Markdown; ``NAME.svg`` and ``NAME.csv`` are in the same folder."""
    parts = (verdict, _speed_ups, _dimensions, referee, _ends)
    return "\n".join([*_head(found, command, today), *(line for part in parts for line in part(found)), ""])


def _head(found: Reproduction, command: str, today: date) -> Iterator[str]:
    space, rows = found.space, planned(found)
    yield f"# {space.name}: {len(rows)} of {len(space.combinations):,} combinations\n"
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    yield f"Written on {today.isoformat()} by the command below ({versions}); do not edit."
    yield f"{space.description[:1].upper()}{space.description[1:]}.\n"
    yield f"```bash\n{command}\n```\n"
    yield f"{PLANS_COMPARED}\n"
    yield f"- Points drawn: {found.num_drawn:,}; done: {len(found.rows):,} (the same command goes on with the others)"
    without = [row for row in found.rows if row not in rows]
    yield f"- Points without any plan: {len(without)}" + "".join(
        f"\n  - {place(row)}: {row['status']}, {str(row['reason']).splitlines()[0][:160]}" for row in without[:5]
    )
    if not rows:
        return
    cpu = [row["cpu_s"] for row in rows if row.get("cpu_s")]
    late = sum(row["status"] == "time_limit" for row in rows)
    cut = sum(not row.get(f"{name}_complete", True) for row in rows for name in found.rivals)
    for fleet in sorted({row["fleet"] for row in rows}):
        gaps = [row["gap"] for row in rows if row["fleet"] == fleet]
        yield f"- Gap of our plan on {fleet} ({len(gaps)} points): median {median(gaps):.2%}, largest {max(gaps):.2%}"
    yield f"- Points on which our search reached its limit of {_limit(found, space.time_limit_s)}: {late}"
    theirs = _limit(found, space.rival_time_limit_s)
    yield f"- Baselines cut short by theirs of {theirs}: {cut} of {len(rows) * len(found.rivals)}"
    if cpu:
        yield f"- Processor time per point: median {median(cpu):.0f} s, mean {sum(cpu) / len(cpu):.0f} s, most {max(cpu):.0f} s"
    yield f"- A tie is a step time within {space.tie_tolerance:.1%}\n"


def _limit(found: Reproduction, seconds: float) -> str:
    """Describe the limit of a search: CPU seconds, or work in their place."""
    work = found.space.work_limit
    return f"{seconds:g} processor seconds" if work is None else f"{work:,} step times"


def _speed_ups(found: Reproduction) -> Iterator[str]:
    yield "## Speed-up of our plan\n"
    yield "| over | points | median | maximum | ties | no plan |\n|---|---|---|---|---|---|"
    for cells in speed_up_cells(found):
        yield "| " + " | ".join(cells) + " |"
    yield from _cut_or_not(found)
    yield f"\n![Speed-ups, sorted]({found.space.name}.svg)\n"
    if rows := planned(found):
        yield f"## Where\n\n| | points | over {START}: median, maximum, ties | over {BEST}: median, maximum, ties |"
        yield "|---|---|---|---|"
        for axis in SHOWN_AXES:
            for value in sorted({row[axis] for row in rows}):
                part = [row for row in rows if row[axis] == value]
                over = f"{_figures(found, part, START)} | {_figures(found, part, BEST)}"
                yield f"| {_value(axis, value)} | {len(part)} | {over} |"


def _cut_or_not(found: Reproduction) -> Iterator[str]:
    """Yield speed-ups apart for finished and cut-short baselines; more time may find the latter faster plans."""
    limit = _limit(found, found.space.rival_time_limit_s)
    yield f"\nWhere baselines came to their end within {limit}, and where they were cut short:\n"
    yield "| over | points to the end | median | maximum | points cut short | median | maximum |\n|---|---|---|---|---|---|---|"
    for name in (BEST, *found.rivals):
        ended = uncut(found, name)
        parts = ended, [row for row in planned(found) if row not in ended]
        cells = (cell for rows in parts for cell in middle_and_most(speed_ups(found, name, rows)))
        yield f"| {shown_name(name)} | " + " | ".join(cells) + " |"


def _value(axis: str, value: Any) -> str:
    """Describe a value of an axis."""
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value
    return {
        "latency_ms": f"{shown} ms one way",
        "oversubscription": f"inter-building links 1:{shown}",
        "model": shown,
        "fleet": f"pool {shown}",
    }.get(axis, f"{shown} {axis[:-1] if value == 1 else axis}")


def _figures(found: Reproduction, rows: Sequence[Row], name: str) -> str:
    values = speed_ups(found, name, rows)
    return f"{median(values):.3f}, {max(values):.2f}, {num_ties(found, values)}" if values else "–"


def _dimensions(found: Reproduction) -> Iterator[str]:
    """Yield the gain of each dimension alone over production, and of all dimensions together."""
    gains = _gains(found, PRICE)
    if not gains:
        return
    names = list(gains[0][1])
    yield f"\n## One dimension at a time\n\nSpeed-up over `{START}` of what improves one dimension alone, and of all together.\n"
    yield from _alone_and_together(found, "estimate", gains, names)
    if replayed := _gains(found, REPLAY):
        yield from _alone_and_together(found, "simulation", replayed, names)
    yield from _where_they_matter(gains, names)
    yield f"Largest gains over `{START}`, by estimate:\n"
    for row, own in sorted(gains, key=lambda pair: -pair[1]["joint"])[:NUM_LARGEST]:
        alone = ", ".join(f"{name.replace('_', ' ')} {own[name]:.2f}" for name in found.ablations)
        yield f"- {own['joint']:.2f}x: {place(row)} ({alone}; {row['schedule']}, crosses with {row['across'] or 'nothing'})"


def _gains(found: Reproduction, clock: str) -> Gains:
    return [(row, own) for row in planned(found) if (own := single_gains(found, row, clock))]


def _alone_and_together(found: Reproduction, clock: str, gains: Gains, names: Sequence[str]) -> Iterator[str]:
    yield f"| by {clock}, {len(gains)} points | " + " | ".join(name.replace("_", " ") for name in names) + " |"
    yield "|---" * (1 + len(names)) + "|"
    for label, pick in (("median", median), ("maximum", max)):
        yield f"| {label} | " + " | ".join(f"{pick([own[name] for _, own in gains]):.3f}" for name in names) + " |"
    tolerance = 1 + found.space.tie_tolerance
    helps = [sum(own[name] > tolerance for _, own in gains) for name in names]
    yield "| points where it gains more than a tie | " + " | ".join(map(str, helps)) + " |"
    more = sum(own["joint"] > tolerance * max(own[name] for name in found.ablations) for _, own in gains)
    yield f"\nOn {more} of {len(gains)} points all together gain more than any of them alone.\n"


def _where_they_matter(gains: Gains, names: Sequence[str]) -> Iterator[str]:
    """Yield median gains by value of every axis."""
    yield "Median by where, by estimate:\n"
    yield (
        "| | points | "
        + " | ".join(name.replace("_", " ") for name in names)
        + " |\n|---|---"
        + "|---" * len(names)
        + "|"
    )
    for axis in SHOWN_AXES:
        for value in sorted({row[axis] for row, _ in gains}):
            part = [own for row, own in gains if row[axis] == value]
            cells = " | ".join(f"{median(own[name] for own in part):.3f}" for name in names)
            yield f"| {_value(axis, value)} | {len(part)} | {cells} |"
    yield ""


def _ends(found: Reproduction) -> Iterator[str]:
    slower = lost(found)
    yield (
        f"\n## Losses and ties\n\nPlans of others with a lower estimate than the best that our search found: {len(slower)}"
        + "".join(f"\n- {one}" for one in slower)
    )
    matched = [row["matched"] for row in planned(found) if row.get("matched")]
    names = {name: matched.count(name) for name in dict.fromkeys(matched)}
    shown = ", ".join(f"{name} {number}" for name, number in names.items())
    yield f"\nPoints where our plan is that of another but for the network: {len(matched)}" + (
        f" ({shown})" if shown else ""
    )
    without = [(name, row[f"{name}_reason"]) for name in found.rivals for row in planned(found) if _has_none(row, name)]
    yield f"\nBaselines without a plan: {len(without)}" + "".join(
        f"\n- {name}, {plural(number, 'point')}: {reason}" for (name, reason), number in Counter(without).most_common()
    )


def _has_none(row: Row, name: str) -> bool:
    return row.get(f"{name}_s") is None and bool(row.get(f"{name}_reason"))


WIDTH, HEIGHT, MARGIN = 860, 420, 60
COLOURS: Final = {START: "#4269d0", BEST: "#ff725c"}


def design_svg(found: Reproduction) -> str:
    """Return a plot of speed-ups over production and over the best baseline, sorted, on a logarithmic axis."""
    import math

    series = {name: sorted(speed_ups(found, name)) for name in COLOURS}
    top = max((values[-1] for values in series.values() if values), default=1.0) * 1.1

    def y(value: float) -> float:
        return HEIGHT - MARGIN - math.log(max(value, 1e-9)) / math.log(max(top, 1.01)) * (HEIGHT - MARGIN - 40)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in (tick for tick in (1, 1.1, 1.2, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32) if tick <= top):
        parts.append(f'<line x1="{MARGIN}" y1="{y(tick):.1f}" x2="{WIDTH - 20}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}x</text>')
    for index, (name, values) in enumerate(series.items()):
        step = (WIDTH - MARGIN - 20) / max(len(values) - 1, 1)
        line = " ".join(f"{MARGIN + step * at:.1f},{y(value):.1f}" for at, value in enumerate(values))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        label = f"over {name} ({len(values)} points)"
        parts.append(f'<text x="{MARGIN + 12}" y="{24 + 18 * index}" fill="{COLOURS[name]}">{label}</text>')
    middle = (WIDTH + MARGIN) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 20}" text-anchor="middle">points, sorted by speed-up of our plan</text>'
    )
    return "\n".join([*parts, "</svg>", ""])
