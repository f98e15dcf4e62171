"""Section on simulations of a design space: the speed-ups that they show, and how far estimates deviate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from scaleacross.report.design_space import (
    AGREES,
    BEST,
    PRICE,
    REPLAY,
    Off,
    Row,
    distinct,
    num_agreeing,
    num_ties,
    place,
    planned,
    replayed_off,
    shown_name,
    speed_up,
    speed_ups,
    uncut,
)
from scaleacross.report.format import plural
from scaleacross.spec.design_space import OURS, START

if TYPE_CHECKING:
    from scaleacross.api.reproducing import Reproduction

NUM_WORST: Final = 10
HEADS: Final = "points | median | maximum | ties | slower |"
REFEREE: Final = """\
The simulator plays a plan event by event on the topology and never sees the cost model. A difference is
estimate / simulation − 1. The network settings are those that a plan states and, where it states none (baselines and ablations),
the library's defaults with their windows and with flows hashed onto the parts of an inter-building link. Every plan is
simulated, ours and all others; the best baseline is the one that is the fastest by the clock of the line."""


def verdict(found: Reproduction) -> Iterator[str]:
    """Yield the main figures, by estimate and by simulation."""
    if not planned(found):
        return
    yield f"## In short\n\n| our plan over | by | {HEADS}\n|---|---|---|---|---|---|---|"
    for name in (START, BEST):
        for which, rows in ((", run to its end", uncut(found, name)), (", all points", planned(found))):
            for label, clock in (("estimate", PRICE), ("simulation", REPLAY)):
                if values := speed_ups(found, name, rows, clock):
                    yield f"| {name}{which} | {label} | {_figures(found, values)} |"
    if pairs := distinct(replayed_off(found)):
        near = num_agreeing(pairs)
        yield f"\nEstimate and simulation of {len(pairs)} plans are within {AGREES:.0%} on {near} ({near / len(pairs):.0%})."
    yield ""


def referee(found: Reproduction) -> Iterator[str]:
    """Yield how simulations agree with estimates, and whether our plan is still the fastest."""
    pairs, refused = replayed_off(found), [row for row in found.rows if row.get("referee")]
    yield "\n## Referee\n"
    if not pairs and not refused:
        yield "No plan of these points was simulated yet (`--replay`)."
        return
    yield f"{REFEREE}\n"
    if pairs:
        yield from _by_its_clock(found)
        yield from _off(found, pairs)
    for name, others in (
        (START, (START,)),
        (BEST, found.rivals),
        (f"the best plan for one dimension of {START}", found.ablations),
    ):
        slower = [one for one in _ups(found, others) if one[0] < 1 - found.space.tie_tolerance]
        yield (
            f"\nBy the referee's clock our plan is slower than {name} on {plural(len(slower), 'point')}{':' * bool(slower)}"
            + "".join(
                f"\n- {shown_name(whose)} takes {up:.3f} of our step: {place(row)}"
                for up, whose, row in sorted(slower, key=lambda one: one[0])
            )
        )
    yield f"\nPoints with a plan that could not be simulated: {len(refused)}" + "".join(
        f"\n- {place(row)}: {str(row['referee']).strip()[:240]}" for row in refused
    )


def _by_its_clock(found: Reproduction) -> Iterator[str]:
    yield f"| our plan over, by simulation | {HEADS}\n|---|---|---|---|---|---|"
    for name in (BEST, *found.rivals, *found.ablations):
        if values := speed_ups(found, name, clock=REPLAY):
            yield f"| {shown_name(name)} | {_figures(found, values)} |"


def _off(found: Reproduction, pairs: Sequence[Off]) -> Iterator[str]:
    yield f"\n| plans | simulated | within {AGREES:.0%} | median difference | least | largest |\n|---|---|---|---|---|---|"
    for name in (OURS, *found.rivals, *found.ablations):
        yield from _agreement(shown_name(name), [one for one in pairs if one.name == name])
    different = distinct(pairs)
    yield from _agreement("all, equal ones once", different)
    worst = sorted((one for one in different if abs(one.off) > AGREES), key=lambda one: -abs(one.off))
    yield f"\nFarthest off, of {len(worst)} beyond {AGREES:.0%}:\n" if worst else ""
    yield from (f"- {one.off:+.1%}: {one.name}, {one.where}" for one in worst[:NUM_WORST])


def _agreement(label: str, pairs: Sequence[Off]) -> Iterator[str]:
    if off := [one.off for one in pairs]:
        near = num_agreeing(pairs)
        yield f"| {label} | {len(off)} | {near} | {median(off):+.1%} | {min(off):+.1%} | {max(off):+.1%} |"


def _ups(found: Reproduction, names: Sequence[str]) -> list[tuple[float, str, Row]]:
    """Return (simulated step of the fastest contender over ours, its name, point)."""
    ups = ((speed_up(row, names, REPLAY), row) for row in planned(found))
    return [(*up, row) for up, row in ups if up]


def _figures(found: Reproduction, values: Sequence[float]) -> str:
    """Return points, median, maximum, ties, and points where our plan is slower by more than a tie."""
    slower = sum(value < 1 - found.space.tie_tolerance for value in values)
    return f"{len(values)} | {median(values):.3f} | {max(values):.2f} | {num_ties(found, values)} | {slower}"
