"""Times all-reduces over inter-building links of several rates and delays, in every way, and compares predictions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from scaleacross import api
from scaleacross.spec.collective import CollectiveOption
from scaleacross.spec.testbed import Bar, CollectiveResults, CollectiveSetting, TimedCollective
from scaleacross.spec.topology import Topology
from scaleacross.testbed import fabric
from scaleacross.testbed.cases import LAYERED, Case, Timing, time_cases
from scaleacross.testbed.conditions import conditions, load_average
from scaleacross.testbed.link_figures import link_cases, link_figures, measured_topology
from scaleacross.testbed.session import Testbed, standing

RATES_BYTES_PER_S: Final = (100e6 / 8, 400e6 / 8, 1e9 / 8)
DELAYS_S: Final = (0.0, 5e-3)
SIZES_BYTES: Final = (1 << 20, 8 << 20)
MIDDLE_BYTES_PER_S: Final = 400e6 / 8
CHUNKS: Final = (1, 2, 4, 8, 16)
INTERLEAVED: Final = "ring, buildings taking turns"
CODEC: Final = "int8_block"
COMPRESSED: Final = f"{LAYERED} in 4, {CODEC}"
Say = Callable[[str], None]


def measure_collectives(
    topology: Topology,
    name: str,
    folder: Path,
    say: Say,
    rates: Sequence[float] = RATES_BYTES_PER_S,
    delays: Sequence[float] = DELAYS_S,
    sizes: Sequence[int] = SIZES_BYTES,
) -> CollectiveResults:
    """Time every way in every setting: two buildings with the same number of hosts, one rank each.

    Args:
        name: name of the testbed that is made for it.
        folder: folder for tasks and logs.
        say: called with a line for every setting.
        rates, delays: rates (bytes/s) and one-way delays (s) of the inter-building link.
        sizes: sizes of the tensor, bytes.

    Raises:
        InputError: this machine cannot emulate the topology.
        EmulationError: a rank failed.
    """
    before, fixed = load_average(), False
    settings: list[CollectiveSetting] = []
    for delay in delays:
        trunks = tuple(trunk.model_copy(update={"one_way_latency_s": delay}) for trunk in topology.trunks)
        with standing(topology.model_copy(update={"trunks": trunks}), name) as testbed:
            fixed = testbed.fixed_shares
            for rate in rates:
                say(f"all-reduces over {rate * 8e-6:g} Mbit/s, {delay * 1e3:g} ms")
                settings += _settings(testbed, rate, sizes, folder / f"{rate * 8e-6:g}-{delay * 1e3:g}")
    return CollectiveResults(conditions=conditions(before, fixed), settings=tuple(settings), bars=tuple(bars(settings)))


def _settings(testbed: Testbed, rate: float, sizes: Sequence[int], folder: Path) -> Iterator[CollectiveSetting]:
    """Yield the settings of all sizes at one rate of the inter-building link."""
    for wire in testbed.layout.trunks:
        fabric.set_trunk(wire, rate)
    stated = testbed.topology.model_copy(
        update={"trunks": tuple(t.model_copy(update={"bandwidth_bytes_per_s": rate}) for t in testbed.topology.trunks)}
    )
    links = link_cases(testbed)
    timings = time_cases(testbed, [*links, *(case for size in sizes for case in ways(testbed, size, rate))], folder)
    known = measured_topology(stated, link_figures(timings[: len(links)]), "this testbed")
    for size in sizes:
        options = {_name(one): one for one in api.collective("all_reduce", size, known).options}
        rows = [_row(timing, options) for timing in timings[len(links) :] if timing.case.size_bytes == size]
        offered = [row for row in rows if row.predicted_s is not None]
        yield CollectiveSetting(
            trunk_bytes_per_s=rate,
            one_way_latency_s=testbed.topology.trunks[0].one_way_latency_s,
            size_bytes=size,
            rows=tuple(rows),
            chosen=min(offered, key=lambda row: row.predicted_s or 0.0).name,
        )


def ways(testbed: Testbed, size_bytes: int, rate: float) -> list[Case]:
    """Return the cases to time: all that a plan offers, a ring that alternates between buildings, and compression."""
    children = tuple(testbed.layout.ranks.values())
    ranks = range(sum(map(len, children)))
    turns = tuple(child[index] for index in range(len(children[0])) for child in children)
    runs = 5 if size_bytes / rate < 0.2 else 3

    def case(name: str, algorithm: str, **how: object) -> Case:
        return Case(name, (tuple(ranks),), algorithm, size_bytes, runs, **how)  # type: ignore[arg-type]

    layers = {"children": children}
    chunked = [case(_layered(k), LAYERED, num_chunks=k, **layers) for k in CHUNKS if k == 1 or size_bytes / k >= 65536]
    return [
        case("ring", "ring"),
        case("double_tree", "double_tree", num_chunks=4),
        *chunked,
        case(INTERLEAVED, "ring", order=turns),
        case(COMPRESSED, LAYERED, num_chunks=4, codec=CODEC, **layers),
    ]


def _layered(num_chunks: int) -> str:
    return LAYERED + (f" in {num_chunks}" if num_chunks > 1 else "")


def _name(option: CollectiveOption) -> str:
    return option.algorithm + (f" in {option.num_chunks}" if option.num_chunks > 1 else "")


def _row(timing: Timing, options: dict[str, CollectiveOption]) -> TimedCollective:
    option = options.get(timing.case.name)
    return TimedCollective(
        name=timing.case.name,
        measured_s=timing.median_s,
        fastest_s=min(timing.seconds),
        slowest_s=max(timing.seconds),
        predicted_s=None if option is None else option.time_s,
        error_fraction=timing.error_fraction,
    )


def bars(settings: Sequence[CollectiveSetting]) -> Iterator[Bar]:
    """Yield what must hold. Ratios are over large tensors, for which latency matters little."""
    largest = max(setting.size_bytes for setting in settings)
    large = [setting for setting in settings if setting.size_bytes == largest]
    thin = [setting for setting in large if setting.trunk_bytes_per_s <= MIDDLE_BYTES_PER_S]
    middle = [setting for setting in large if setting.trunk_bytes_per_s == MIDDLE_BYTES_PER_S]
    if thin:
        turns = [(s.row(INTERLEAVED).measured_s, s.row("ring").measured_s) for s in thin]
        yield _ratio("ring with buildings taking turns over ring in their order, trunks ≤ 400 Mbit/s", 1.7, turns)
        coded = [(s.row("ring").measured_s, s.row(COMPRESSED).measured_s) for s in thin]
        yield _ratio(f"flat ring over {COMPRESSED}, trunks ≤ 400 Mbit/s", 2.3, coded)
    if middle:
        layered = [(s.row("ring").measured_s, _best_layered_s(s)) for s in middle]
        yield _ratio("flat ring over hierarchical, 400 Mbit/s", 1.25, layered)
        over = [_best_layered_s(s) / (s.cut_s + 2 * s.one_way_latency_s) - 1 for s in middle]
        shown = ", ".join(f"{value:.1%}" for value in over)
        what = "pipelined hierarchical over S/B and two latencies, 400 Mbit/s"
        yield Bar(what=what, wanted="≤ 15 %", measured=shown, is_met=max(over) <= 0.15)
    regrets = sorted(setting.regret_ratio for setting in settings)
    good, wanted = sum(value <= 1.1 for value in regrets), -(-len(settings) * 10 // 12)
    yield Bar(
        what="planner's choice within 10 % of the best measured way that a plan offers",
        wanted=f"in ≥ {wanted} of {len(settings)} settings",
        measured=f"in {good}, worst {regrets[-1]:.2f}x",
        is_met=good >= wanted,
    )
    yield off_bar("predicted time of the planner's choice", [s.choice.off_fraction or 0.0 for s in settings], 0.1, 0.2)


def off_bar(what: str, off: Sequence[float], median: float, worst: float) -> Bar:
    """Compare the magnitudes of prediction errors with the most that their median and the worst of them may be."""
    sizes = [abs(value) for value in off]
    middle, most = statistics.median(sizes), max(sizes)
    return Bar(
        what=what,
        wanted=f"median ≤ {median:.0%}, worst ≤ {worst:.0%} off",
        measured=f"median {middle:.1%}, worst {most:.1%}",
        is_met=middle <= median and most <= worst,
    )


def _ratio(what: str, least: float, pairs: Sequence[tuple[float, float]]) -> Bar:
    found = [one / other for one, other in pairs]
    shown = ", ".join(f"{value:.2f}x" for value in found)
    return Bar(what=what, wanted=f"≥ {least:g}x", measured=shown, is_met=min(found) >= least)


def _best_layered_s(setting: CollectiveSetting) -> float:
    """Return the seconds of the fastest hierarchical way without a codec."""
    rows = (row for row in setting.rows if row.name.startswith("hierarchical") and row.name != COMPRESSED)
    return min(row.measured_s for row in rows)
