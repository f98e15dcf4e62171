"""What the replay says of a design space: by its clock, who is faster, and how far prices are off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from scaleacross.report.design_space import (
    AGREES,
    BEST,
    OURS,
    START,
    Reproduced,
    Row,
    num_agreeing,
    num_ties,
    place,
    planned,
    replayed_off,
    speed_ups,
)
from scaleacross.report.format import plural

NUM_WORST: Final = 10
REFEREE: Final = """\
The simulator replays a plan event by event on the topology and never sees the cost model. A difference is price / replay − 1.
It plays the network settings that a plan states and, where it states none (rivals and ablations), the library's defaults with
their windows and with flows hashed onto the links of a trunk. Replayed are our plan, production's and that of the rival with
the best price."""


def verdict(found: Reproduced) -> Iterator[str]:
    """The few figures that matter, by price and by the referee's clock."""
    if not planned(found):
        return
    yield "## In short\n"
    yield "| our plan over | by | points | median | maximum | ties | slower |\n|---|---|---|---|---|---|---|"
    for name, rivals in ((START, (START,)), (BEST, found.rivals)):
        for clock, values in (
            ("price", speed_ups(found, name)),
            ("replay", [up for up, _, _ in _replayed_speed_ups(found, rivals)]),
        ):
            if values:
                shown = f"{median(values):.3f} | {max(values):.2f} | {num_ties(found, values)} | {_num_slower(found, values)}"
                yield f"| {name} | {clock} | {len(values)} | {shown} |"
    if pairs := replayed_off(found):
        near = num_agreeing(pairs)
        yield f"\nPrice and replay of {len(pairs)} plans are within {AGREES:.0%} on {near} ({near / len(pairs):.0%})."
    yield ""


def referee(found: Reproduced) -> Iterator[str]:
    """How the replay agrees with the prices, and whether our plan still wins there."""
    pairs, refused = replayed_off(found), [row for row in found.rows if row.get("referee")]
    yield "\n## Referee\n"
    if not pairs and not refused:
        yield "No plan of these points was replayed yet (`--replay`)."
        return
    yield f"{REFEREE}\n"
    if pairs:
        yield f"| plans | replayed | within {AGREES:.0%} | median difference | least | largest |\n|---|---|---|---|---|---|"
        for name in (OURS, *found.rivals):
            yield from _agreement(name, [off for off, of in pairs if of.startswith(f"{name}, ")])
        yield from _agreement("all", [off for off, _ in pairs])
        worst = sorted((pair for pair in pairs if abs(pair[0]) > AGREES), key=lambda pair: -abs(pair[0]))
        yield f"\nFarthest off, of {len(worst)} beyond {AGREES:.0%}:\n" if worst else ""
        yield from (f"- {off:+.1%}: {of}" for off, of in worst[:NUM_WORST])
    for name, rivals in ((START, (START,)), (BEST, found.rivals)):
        slower = [one for one in _replayed_speed_ups(found, rivals) if one[0] < 1 - found.space.tie_tolerance]
        yield (
            f"\nBy the referee's clock our plan is slower than {name} on {plural(len(slower), 'point')}{':' * bool(slower)}"
            + "".join(
                f"\n- {rival} takes {up:.3f} of our step: {place(row)}"
                for up, rival, row in sorted(slower, key=lambda one: one[0])
            )
        )
    yield f"\nPoints with a plan that could not be replayed: {len(refused)}" + "".join(
        f"\n- {place(row)}: {str(row['referee']).strip()[:240]}" for row in refused
    )


def _agreement(name: str, off: Sequence[float]) -> Iterator[str]:
    if off:
        near = f"{num_agreeing([(one, name) for one in off])}"
        yield f"| {name} | {len(off)} | {near} | {median(off):+.1%} | {min(off):+.1%} | {max(off):+.1%} |"


def _replayed_speed_ups(found: Reproduced, rivals: Sequence[str]) -> list[tuple[float, str, Row]]:
    """Replayed step of the fastest of some rivals over ours, which one, and where."""
    out = []
    for row in planned(found):
        times = [(row[f"{name}_simulated_s"], name) for name in rivals if f"{name}_simulated_s" in row]
        if times and f"{OURS}_simulated_s" in row:
            seconds, name = min(times)
            out.append((seconds / row[f"{OURS}_simulated_s"], name, row))
    return out


def _num_slower(found: Reproduced, values: Sequence[float]) -> int:
    """Speed-ups below 1 by more than a tie."""
    return sum(value < 1 - found.space.tie_tolerance for value in values)
